//! Bodies, in whatever way their length is told.

use std::io;

use tokio::io::AsyncRead;

use super::Reader;

const PIECE: usize = 16 << 10;
/// A size in hexadecimal. Extensions, which nobody uses, are read differently by different programs.
const MAX_SIZE_LINE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Empty,
    Length(u64),
    Chunked,
    UntilClose,
}

/// What is still to come of a body.
#[derive(Debug)]
pub(crate) enum Body {
    Rest(u64),
    /// What is left of the current chunk; `None` before its first.
    Chunks(Option<u64>),
    UntilClose,
    Done,
}

impl Body {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Empty | Framing::Length(0) => Self::Done,
            Framing::Length(length) => Self::Rest(length),
            Framing::Chunked => Self::Chunks(None),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    /// The next bytes; `None` when it has come to its end as announced.
    pub(crate) async fn next<R: AsyncRead + Unpin>(
        &mut self,
        from: &mut Reader<R>,
    ) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self {
                Self::Done => return Ok(None),
                Self::Rest(left) => {
                    let bytes = some(from, *left).await?;
                    *left -= bytes.len() as u64;
                    if *left == 0 {
                        *self = Self::Done;
                    }
                    return Ok(Some(bytes));
                }
                Self::UntilClose => {
                    let bytes = from.some(PIECE).await?;
                    if bytes.is_empty() {
                        *self = Self::Done;
                        return Ok(None);
                    }
                    return Ok(Some(bytes));
                }
                Self::Chunks(Some(0)) => {
                    end_of_line(from).await?;
                    *self = Self::Chunks(None);
                }
                Self::Chunks(Some(left)) => {
                    let bytes = some(from, *left).await?;
                    *left -= bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                Self::Chunks(None) => match size(from).await? {
                    0 => {
                        // No trailers: they would be headers that nobody has looked at.
                        end_of_line(from).await?;
                        *self = Self::Done;
                    }
                    size => *self = Self::Chunks(Some(size)),
                },
            }
        }
    }
}

async fn some<R: AsyncRead + Unpin>(from: &mut Reader<R>, left: u64) -> io::Result<Vec<u8>> {
    let bytes = from.some(PIECE.min(usize::try_from(left).unwrap_or(PIECE))).await?;
    if bytes.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

async fn size<R: AsyncRead + Unpin>(from: &mut Reader<R>) -> io::Result<u64> {
    let line = from.line(MAX_SIZE_LINE + 2).await?;
    let digits = (1..=MAX_SIZE_LINE).contains(&line.len()) && line.iter().all(u8::is_ascii_hexdigit);
    let size = std::str::from_utf8(&line).ok().filter(|_| digits);
    let size = size.and_then(|size| u64::from_str_radix(size, 16).ok());
    size.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the size of a chunk is none"))
}

async fn end_of_line<R: AsyncRead + Unpin>(from: &mut Reader<R>) -> io::Result<()> {
    match from.line(2).await?.is_empty() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "a chunk is longer than it says")),
    }
}

pub(crate) fn write_chunk(bytes: &[u8], out: &mut Vec<u8>) {
    if !bytes.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }
}

pub(crate) fn last_chunk(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n\r\n");
}
