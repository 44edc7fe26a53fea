//! Compressed bytes in, checked and counted bytes out.

use std::{
    cell::Cell,
    io::{self, BufRead, BufReader, Read},
    rc::Rc,
    time::{Duration, Instant},
};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};
use sha2::{Digest, Sha256};

use crate::{ImageError, Progress, Result, Step};

/// Of a whole image.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Files, directories, links and whiteouts of all layers.
    pub entries: u64,
    /// Unpacked.
    pub bytes: u64,
    /// How much more may come out of a layer than went in, once `ratio_after` bytes came out.
    pub ratio: u64,
    pub ratio_after: u64,
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: 1_000_000,
            bytes: 16 << 30,
            ratio: 200,
            ratio_after: 64 << 20,
            time: Duration::from_secs(60 * 60),
        }
    }
}

/// What is left of the limits.
#[derive(Debug)]
pub struct Budget {
    limits: Limits,
    entries: u64,
    bytes: u64,
    until: Instant,
}

impl Budget {
    pub fn new(limits: Limits) -> Self {
        let until = Instant::now() + limits.time;
        Self { entries: limits.entries, bytes: limits.bytes, limits, until }
    }

    pub(crate) fn entry(&mut self) -> Result<()> {
        let limit = self.limits.entries;
        self.entries = self.entries.checked_sub(1).ok_or_else(|| {
            ImageError::new(format!("the image has more than {limit} entries"))
                .hint("no ordinary image has so many; build a smaller one")
        })?;
        Ok(())
    }

    fn spend(&mut self, bytes: u64) -> Result<()> {
        let limit = self.limits.bytes >> 20;
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(|| {
            ImageError::new(format!("the image takes more than {limit} MB unpacked"))
                .hint("--max-size allows more, if you trust it")
        })?;
        if Instant::now() > self.until {
            let minutes = self.limits.time.as_secs() / 60;
            return Err(ImageError::new(format!("the image is not unpacked after {minutes} minutes")));
        }
        Ok(())
    }
}

/// `sha256:` and 64 digits.
pub(crate) fn digest_text(hash: Sha256) -> String {
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Counts what goes in.
struct Counted<'a, R> {
    input: R,
    count: Rc<Cell<u64>>,
    progress: Progress<'a>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        (self.progress)(Step::Advance { bytes: count as u64 });
        Ok(count)
    }
}

/// The tar archive in a layer, decompressed, its digest taken on the way, within the budget.
pub(crate) struct LayerStream<'a> {
    inner: Box<dyn Read + 'a>,
    went_in: Rc<Cell<u64>>,
    came_out: u64,
    hash: Sha256,
    pub(crate) budget: &'a mut Budget,
}

impl<'a> LayerStream<'a> {
    pub(crate) fn new(input: impl Read + 'a, budget: &'a mut Budget, progress: Progress<'a>) -> Result<Self> {
        let went_in = Rc::new(Cell::new(0));
        let counted = Counted { input, count: Rc::clone(&went_in), progress };
        let inner = decompressed(BufReader::with_capacity(128 << 10, counted))?;
        Ok(Self { inner, went_in, came_out: 0, hash: Sha256::new(), budget })
    }

    /// Reads what is left, and says what all of it was.
    pub(crate) fn finish(mut self) -> Result<String> {
        let mut buffer = [0; 16 << 10];
        while self.read(&mut buffer)? > 0 {}
        Ok(digest_text(self.hash))
    }
}

impl Read for LayerStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.came_out += count as u64;
        self.budget.spend(count as u64).map_err(io::Error::other)?;
        let limits = &self.budget.limits;
        if self.came_out > limits.ratio_after
            && self.came_out / limits.ratio.max(1) > self.went_in.get().max(1)
        {
            return Err(io::Error::other(ImageError::new(format!(
                "a layer unpacks to more than {} times its size: that is a bomb, not a file system",
                limits.ratio
            ))));
        }
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// What is compressed with gzip or zstd, as it was before; anything else as it is.
pub(crate) fn decompressed<'a>(mut input: impl BufRead + 'a) -> Result<Box<dyn Read + 'a>> {
    let start = input.fill_buf()?;
    let refused = |what: &str| {
        Err(ImageError::new(format!("it is compressed with {what}"))
            .hint("gzip, zstd and no compression are understood: compress it anew"))
    };
    match start {
        [0x1f, 0x8b, ..] => Ok(Box::new(MultiGzDecoder::new(input))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Box::new(Zstd::new(input))),
        [b'B', b'Z', b'h', ..] => refused("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => refused("xz"),
        _ => Ok(Box::new(input)),
    }
}

/// All frames of a zstd file, one after the other.
struct Zstd<R> {
    input: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> Self {
        Self { input, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// False at the end of the input.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.input) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.input).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame {
                self.in_frame = self.next_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.input, one).map_err(io::Error::other)?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 {
                return Ok(count);
            }
            self.in_frame = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        decompressed(bytes).unwrap().read_to_end(&mut out).unwrap();
        out
    }

    /// One frame that holds `content` as it is.
    fn zstd(content: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(content, ruzstd::encoding::CompressionLevel::Uncompressed)
    }

    #[test]
    fn several_zstd_frames_and_what_may_be_skipped_are_one_stream() {
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let file = [zstd(b"one "), skippable.clone(), zstd(b"two"), skippable].concat();
        assert_eq!(all(&file), b"one two");
    }

    #[test]
    fn other_compressions_are_named() {
        let error = decompressed(&b"BZh91AY"[..]).err().unwrap();
        assert!(error.message.contains("bzip2") && error.hint.unwrap().contains("zstd"));
    }

    proptest! {
        #[test]
        fn what_was_compressed_comes_back(content in prop::collection::vec(any::<u8>(), 0..5000)) {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            io::Write::write_all(&mut gzip, &content).unwrap();
            prop_assert_eq!(&all(&gzip.finish().unwrap()), &content);
            prop_assert_eq!(&all(&zstd(&content)), &content);
        }
    }
}
