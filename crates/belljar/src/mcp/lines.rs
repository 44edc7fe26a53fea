//! Lines from a stream, with a bound on their length.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest line, as rmcp has it.
pub(crate) const MAX_LINE: usize = 16 << 20;
const READ: usize = 64 << 10;

pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// Where the next line begins.
    start: usize,
    /// Up to where there is no newline.
    searched: usize,
    max: usize,
    /// The rest of a line that was too long is being skipped.
    skipping: bool,
    ended: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// Without its newline.
    Whole(&'a [u8]),
    TooLong,
    End,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, max: usize) -> Self {
        Self { reader, buffer: Vec::new(), start: 0, searched: 0, max, skipping: false, ended: false }
    }

    /// Safe to drop while it waits: what was read stays in the buffer.
    pub(crate) async fn next(&mut self) -> io::Result<Line<'_>> {
        loop {
            if let Some(offset) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let (from, to) = (self.start, self.searched + offset);
                (self.start, self.searched) = (to + 1, to + 1);
                if std::mem::take(&mut self.skipping) {
                    continue;
                }
                return Ok(if to - from > self.max {
                    Line::TooLong
                } else {
                    Line::Whole(&self.buffer[from..to])
                });
            }
            self.searched = self.buffer.len();
            if self.skipping {
                self.start = self.searched;
            } else if self.searched - self.start > self.max {
                self.skipping = true;
                self.start = self.searched;
                return Ok(Line::TooLong);
            }
            if self.ended {
                // A last line may lack its newline.
                let from = std::mem::replace(&mut self.start, self.searched);
                let skipped = std::mem::take(&mut self.skipping);
                return Ok(if skipped || from == self.searched {
                    Line::End
                } else {
                    Line::Whole(&self.buffer[from..])
                });
            }
            self.make_room();
            self.ended = self.reader.read_buf(&mut self.buffer).await? == 0;
        }
    }

    /// Drops what was handed out, and the memory of an unusually long line.
    fn make_room(&mut self) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        if self.buffer.len() < READ && self.buffer.capacity() > 4 * READ {
            self.buffer.shrink_to(READ);
        }
        self.buffer.reserve(READ);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn all(input: &[u8], max: usize) -> Vec<String> {
        let mut lines = Lines::new(input, max);
        let mut seen = Vec::new();
        loop {
            match lines.next().await.unwrap() {
                Line::Whole(line) => seen.push(String::from_utf8_lossy(line).into_owned()),
                Line::TooLong => seen.push("<too long>".to_owned()),
                Line::End => return seen,
            }
        }
    }

    #[tokio::test]
    async fn lines_are_split_and_the_last_one_may_lack_its_newline() {
        assert_eq!(all(b"a\nbc\n\nd", 10).await, ["a", "bc", "", "d"]);
        assert_eq!(all(b"", 10).await, [""; 0]);
        assert_eq!(all(b"a\n", 10).await, ["a"]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_and_told_once() {
        assert_eq!(all(b"12345\n123456\nok\n", 5).await, ["12345", "<too long>", "ok"]);
        let long = [b"a\n".to_vec(), vec![b'x'; 3 * READ], b"\nb\n".to_vec(), vec![b'y'; 3 * READ]].concat();
        assert_eq!(all(&long, 1000).await, ["a", "<too long>", "b", "<too long>"]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_not_kept() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let writer = tokio::spawn(async move {
            for _ in 0..64 {
                client.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
            }
            client.write_all(b"\nafter\n").await.unwrap();
        });
        let mut lines = Lines::new(server, 1 << 20);
        assert_eq!(lines.next().await.unwrap(), Line::TooLong);
        assert_eq!(lines.next().await.unwrap(), Line::Whole(b"after"));
        assert!(lines.buffer.capacity() < 4 << 20);
        writer.await.unwrap();
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_loses_nothing() {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut lines = Lines::new(server, 100);
        for part in ["{\"a\"", ":1", "}\n"] {
            let brief = std::time::Duration::from_millis(5);
            assert!(tokio::time::timeout(brief, lines.next()).await.is_err());
            client.write_all(part.as_bytes()).await.unwrap();
        }
        assert_eq!(lines.next().await.unwrap(), Line::Whole(b"{\"a\":1}"));
    }

    #[test]
    fn fuzz_lines() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        belljar_fuzz::fuzz("lines", &[b"\x05one\ntwo two\n\nlast", b"\x00\n\n"], |input| {
            let Some((&max, stream)) = input.split_first() else { return 0 };
            let max = usize::from(max);
            let seen = runtime.block_on(all(stream, max));
            let mut expected: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
            if expected.last().is_some_and(|last| last.is_empty()) {
                expected.pop();
            }
            let shown = |line: &&[u8]| match line.len() > max {
                true => "<too long>".to_owned(),
                false => String::from_utf8_lossy(line).into_owned(),
            };
            assert_eq!(seen, expected.iter().map(shown).collect::<Vec<_>>());
            belljar_fuzz::mark((seen.len().min(6), seen.iter().any(|line| line == "<too long>")))
        });
    }
}
