//! One kept-alive connection, HTTP/1.1 by hand.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use anyhow::{Context, bail};

pub(crate) struct Http {
    stream: TcpStream,
    head: String,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

impl Http {
    pub(crate) fn connect(address: &str, head: String) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("no connection to {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, head, out: Vec::new(), buffer: Vec::new() })
    }

    pub(crate) fn send(&mut self, body: &[u8]) -> anyhow::Result<()> {
        self.out.clear();
        self.out.extend_from_slice(self.head.as_bytes());
        write!(self.out, "Content-Length: {}\r\n\r\n", body.len())?;
        self.out.extend_from_slice(body);
        Ok(self.stream.write_all(&self.out)?)
    }

    fn more(&mut self) -> anyhow::Result<()> {
        let filled = self.buffer.len();
        self.buffer.resize(filled + (64 << 10), 0);
        let count = self.stream.read(&mut self.buffer[filled..])?;
        self.buffer.truncate(filled + count);
        if count == 0 { bail!("the server closed the connection") } else { Ok(()) }
    }

    /// The body of the next answer, on one line.
    pub(crate) fn receive(&mut self, line: &mut Vec<u8>) -> anyhow::Result<()> {
        let end = loop {
            match memchr::memmem::find(&self.buffer, b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.more()?,
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        self.buffer.drain(..end);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        line.clear();
        if let Some(length) = length {
            let length: usize = length.trim().parse()?;
            while self.buffer.len() < length {
                self.more()?;
            }
            line.extend(self.buffer.drain(..length));
        } else {
            self.chunks(line)?;
        }
        if !head.starts_with("http/1.1 200") {
            bail!("{} {}", head.lines().next().unwrap_or_default(), String::from_utf8_lossy(line));
        }
        // An event stream holds the answer in its last data line.
        if head.contains("text/event-stream") {
            let data =
                line.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:")).next_back();
            *line = data.context("an event stream without data")?.trim_ascii().to_vec();
        }
        Ok(())
    }

    fn chunks(&mut self, line: &mut Vec<u8>) -> anyhow::Result<()> {
        loop {
            let at = loop {
                match memchr::memmem::find(&self.buffer, b"\r\n") {
                    Some(at) => break at,
                    None => self.more()?,
                }
            };
            let size = usize::from_str_radix(std::str::from_utf8(&self.buffer[..at])?.trim(), 16)?;
            while self.buffer.len() < at + 2 + size + 2 {
                self.more()?;
            }
            line.extend_from_slice(&self.buffer[at + 2..at + 2 + size]);
            self.buffer.drain(..at + 2 + size + 2);
            if size == 0 {
                return Ok(());
            }
        }
    }
}
