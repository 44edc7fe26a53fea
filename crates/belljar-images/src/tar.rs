//! Reads tar archives that somebody else made: POSIX, pax and GNU headers, every length bounded before it is believed.

use std::io::{self, Read};

use crate::ImageError;

const BLOCK: usize = 512;
/// Of the records before one entry. A path in them is at most 4 KiB; programs add attributes.
const MAX_EXTENSION: u64 = 1 << 20;
/// Headers that only say more about the next one.
const MAX_EXTENSIONS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    /// A device, a pipe: what it is.
    Special(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As the archive has it.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    /// Seconds since 1970.
    pub(crate) modified: u64,
    /// What a link points to.
    pub(crate) target: Vec<u8>,
}

pub(crate) struct Reader<R> {
    input: R,
    /// Of the current entry's content.
    left: u64,
    padding: u64,
    /// Bytes of the archive that were read.
    position: u64,
}

/// What extension headers said about the next entry.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<u64>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, position: 0 }
    }

    /// Where the current entry's content begins.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn into_inner(self) -> R {
        self.input
    }

    pub(crate) fn get_mut(&mut self) -> &mut R {
        &mut self.input
    }

    /// Forgets the content of the current entry, which the caller has skipped. Returns how much that is.
    pub(crate) fn forget_content(&mut self) -> u64 {
        let skipped = self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        self.position += skipped;
        skipped
    }

    /// The next entry; `None` at the end of the archive.
    pub(crate) fn next_entry(&mut self) -> Result<Option<Entry>, ImageError> {
        let mut extension = Extension::default();
        for _ in 0..=MAX_EXTENSIONS {
            self.skip_content()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header[124..136]).ok_or_else(|| refuse("an entry with an impossible size"))?;
            let kind = match header[156] {
                b'x' => {
                    let records = self.extension(size)?;
                    extension.read(&records)?;
                    continue;
                }
                b'L' => {
                    extension.path = Some(terminated(&self.extension(size)?).to_vec());
                    continue;
                }
                b'K' => {
                    extension.target = Some(terminated(&self.extension(size)?).to_vec());
                    continue;
                }
                // Said of the whole archive: comments, and volume labels.
                b'g' | b'V' => {
                    self.content(size)?;
                    continue;
                }
                b'0' | 0 | b'7' => Kind::File,
                b'1' => Kind::HardLink,
                b'2' => Kind::Symlink,
                b'3' => Kind::Special("a character device"),
                b'4' => Kind::Special("a block device"),
                b'5' => Kind::Directory,
                b'6' => Kind::Special("a named pipe"),
                b'S' => return Err(refuse("a sparse file, which no image should hold")),
                other => return Err(refuse(format!("an entry of the unknown kind {:?}", char::from(other)))),
            };
            return self.entry(&header, kind, size, extension).map(Some);
        }
        Err(refuse("an entry with more headers than anybody needs"))
    }

    fn entry(
        &mut self,
        header: &[u8; BLOCK],
        mut kind: Kind,
        size: u64,
        extension: Extension,
    ) -> Result<Entry, ImageError> {
        let path = extension.path.unwrap_or_else(|| name(header));
        // As old as tar itself.
        if kind == Kind::File && header[156] != b'7' && path.ends_with(b"/") {
            kind = Kind::Directory;
        }
        // Others have no content, whatever they say.
        let size = if kind == Kind::File { extension.size.unwrap_or(size) } else { 0 };
        self.content(size)?;
        let modified = extension.modified.or_else(|| number(&header[136..148])).unwrap_or(0);
        let mode = number(&header[100..108]).unwrap_or(0o644);
        let target = extension.target.unwrap_or_else(|| terminated(&header[157..257]).to_vec());
        Ok(Entry { path, kind, size, mode: (mode & 0o7777) as u32, modified, target })
    }

    /// The next header that is not empty.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, ImageError> {
        let mut header = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.input.read(&mut header[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(refuse("an end in the middle of a header: it is truncated")),
                count => filled += count,
            }
        }
        self.position += BLOCK as u64;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum = |signed: bool| -> i64 {
            let value = |(at, byte): (usize, &u8)| match at {
                148..156 => i64::from(b' '),
                _ if signed => i64::from(*byte as i8),
                _ => i64::from(*byte),
            };
            header.iter().enumerate().map(value).sum()
        };
        let told = number(&header[148..156]).and_then(|sum| i64::try_from(sum).ok());
        if told != Some(sum(false)) && told != Some(sum(true)) {
            return Err(refuse("a header with a wrong checksum: it is no tar archive, or damaged"));
        }
        Ok(Some(header))
    }

    fn content(&mut self, size: u64) -> Result<(), ImageError> {
        let padded = size.checked_next_multiple_of(BLOCK as u64).filter(|size| *size < 1 << 62);
        let padded = padded.ok_or_else(|| refuse("an entry with an impossible size"))?;
        (self.left, self.padding) = (size, padded - size);
        Ok(())
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, ImageError> {
        if size > MAX_EXTENSION {
            return Err(refuse(format!("a header of {size} bytes: {MAX_EXTENSION} are allowed")));
        }
        self.content(size)?;
        let mut bytes = Vec::with_capacity(size as usize);
        self.take(size).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn skip_content(&mut self) -> Result<(), ImageError> {
        let mut buffer = [0; 16 << 10];
        while self.read(&mut buffer)? > 0 {}
        while self.padding > 0 {
            let want = self.padding.min(BLOCK as u64) as usize;
            let count = self.input.read(&mut buffer[..want])?;
            if count == 0 {
                // Some programs do not fill the last block.
                self.padding = 0;
            }
            self.padding = self.padding.saturating_sub(count as u64);
            self.position += count as u64;
        }
        Ok(())
    }
}

/// The content of the current entry.
impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = self.left.min(buffer.len() as u64) as usize;
        if want == 0 {
            return Ok(0);
        }
        let count = self.input.read(&mut buffer[..want])?;
        if count == 0 {
            return Err(io::Error::other(refuse("an end in the middle of a file: it is truncated")));
        }
        self.left -= count as u64;
        self.position += count as u64;
        Ok(count)
    }
}

impl Extension {
    /// Records of the form `12 key=value\n`, the number counting all of it.
    fn read(&mut self, mut records: &[u8]) -> Result<(), ImageError> {
        let broken = || refuse("a pax header that cannot be read");
        while !records.is_empty() {
            let space = records.iter().take(20).position(|byte| *byte == b' ').ok_or_else(broken)?;
            let length: usize = std::str::from_utf8(&records[..space])
                .ok()
                .and_then(|n| n.parse().ok())
                .ok_or_else(broken)?;
            if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(broken());
            }
            let record = &records[space + 1..length - 1];
            records = &records[length..];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let text = || std::str::from_utf8(value).map_err(|_| broken());
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => self.size = Some(text()?.parse().map_err(|_| broken())?),
                // Fractions of seconds, and times before 1970, matter to nobody.
                b"mtime" => {
                    self.modified = text()?.split('.').next().map(|seconds| seconds.parse().unwrap_or(0));
                }
                _ if key.starts_with(b"GNU.sparse.") => {
                    return Err(refuse("a sparse file, which no image should hold"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn name(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = terminated(&header[..100]);
    let prefix = terminated(&header[345..500]);
    // GNU's own format has other things there.
    if &header[257..263] != b"ustar\0" || prefix.is_empty() {
        return name.to_vec();
    }
    [prefix, b"/", name].concat()
}

fn terminated(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Octal digits, or, where they do not suffice, the number itself behind a set first bit.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let mut value = u64::from(field[0] & 0x7f);
        for byte in &field[1..] {
            value = value.checked_mul(256)?.checked_add((*byte).into())?;
        }
        return (value < 1 << 62).then_some(value);
    }
    let digits = terminated(field);
    let text = std::str::from_utf8(digits).ok()?.trim();
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

fn refuse(what: impl std::fmt::Display) -> ImageError {
    ImageError::new(format!("the archive holds {what}"))
}
