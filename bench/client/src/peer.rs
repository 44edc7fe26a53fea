//! A server, and the calls made of it.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::{
    http::Http,
    order::Calls,
    template::{Template, answered, text_of},
};

/// Longer than anything takes that is worth measuring.
const LIMIT: Duration = Duration::from_secs(120);
const READ: usize = 256 << 10;

pub(crate) struct Peer {
    wire: Wire,
    began: Instant,
    next: u64,
    request: Vec<u8>,
    answer: Vec<u8>,
}

enum Wire {
    Child(Child, ChildStdin, Lines<ChildStdout>),
    Socket(UnixStream, Lines<UnixStream>),
    Http(Box<Http>),
}

struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    /// What was read and not yet taken lies between these. The rest is not cleared for every read: that would be most of
    /// what this client does.
    start: usize,
    end: usize,
}

impl<R: Read> Lines<R> {
    fn new(reader: R) -> Self {
        Self { reader, buffer: Vec::new(), start: 0, end: 0 }
    }

    fn next(&mut self, line: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut searched = self.start;
        loop {
            if let Some(offset) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let end = searched + offset;
                line.clear();
                line.extend_from_slice(&self.buffer[self.start..end]);
                self.start = end + 1;
                return Ok(());
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            searched = self.end;
            if self.buffer.len() < self.end + READ {
                self.buffer.resize(2 * self.buffer.len() + READ, 0);
            }
            let count = self.reader.read(&mut self.buffer[self.end..])?;
            self.end += count;
            if count == 0 {
                bail!("the server ended");
            }
        }
    }
}

/// Everything about calls under way: when each began, and what for.
struct Book {
    open: HashMap<u64, (Instant, usize)>,
    nanoseconds: Vec<u64>,
    /// For each request, how often it was answered, and the longest that took.
    each: Vec<(u64, u64)>,
    taken: Vec<String>,
}

impl Book {
    fn of(requests: usize) -> Self {
        Self {
            open: HashMap::new(),
            nanoseconds: Vec::new(),
            each: vec![(0, 0); requests],
            taken: Vec::new(),
        }
    }

    fn answered(&mut self, index: usize, took: Duration) {
        let took = took.as_nanos() as u64;
        self.nanoseconds.push(took);
        let (count, longest) = &mut self.each[index];
        *count += 1;
        *longest = took.max(*longest);
    }
}

impl Peer {
    fn new(wire: Wire, began: Instant) -> Self {
        Self { wire, began, next: 1, request: Vec::new(), answer: Vec::new() }
    }

    pub(crate) fn start(
        command: &[String],
        env: &BTreeMap<String, String>,
        log: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let (program, arguments) = command.split_first().context("no command")?;
        let log = log.map(File::create).transpose()?.map_or_else(Stdio::null, Stdio::from);
        let began = Instant::now();
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let input = child.stdin.take().context("no standard input")?;
        let output = Lines::new(child.stdout.take().context("no standard output")?);
        Ok(Self::new(Wire::Child(child, input, output), began))
    }

    pub(crate) fn connect(path: &Path) -> anyhow::Result<Self> {
        let began = Instant::now();
        let stream =
            UnixStream::connect(path).with_context(|| format!("no connection to {}", path.display()))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let lines = Lines::new(stream.try_clone()?);
        Ok(Self::new(Wire::Socket(stream, lines), began))
    }

    pub(crate) fn http(address: &str, head: String) -> anyhow::Result<Self> {
        let began = Instant::now();
        Ok(Self::new(Wire::Http(Box::new(Http::connect(address, head)?)), began))
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.wire {
            Wire::Child(child, ..) => Some(child.id()),
            _ => None,
        }
    }

    pub(crate) fn tell(&mut self, line: &[u8]) -> anyhow::Result<()> {
        self.request.clear();
        self.request.extend_from_slice(line);
        self.request.push(b'\n');
        self.write()
    }

    fn write(&mut self) -> anyhow::Result<()> {
        match &mut self.wire {
            Wire::Child(_, input, _) => Ok(input.write_all(&self.request)?),
            Wire::Socket(stream, _) => Ok(stream.write_all(&self.request)?),
            Wire::Http(http) => http.send(self.request.trim_ascii_end()),
        }
    }

    fn send(&mut self, template: &Template, index: usize, book: &mut Book) -> anyhow::Result<()> {
        let id = self.next;
        self.next += 1;
        self.request.clear();
        template.fill(id, &mut self.request);
        self.request.push(b'\n');
        book.open.insert(id, (Instant::now(), index));
        self.write()
    }

    /// Waits for the next answer to one of our calls, and says which.
    fn receive(&mut self, calls: &Calls, expect: &Template, book: &mut Book) -> anyhow::Result<usize> {
        loop {
            match &mut self.wire {
                Wire::Child(_, _, lines) => lines.next(&mut self.answer)?,
                Wire::Socket(_, lines) => lines.next(&mut self.answer)?,
                Wire::Http(http) => http.receive(&mut self.answer)?,
            }
            let now = Instant::now();
            let Some(id) = answered(&self.answer) else { continue };
            let (began, index) =
                book.open.remove(&id).with_context(|| format!("nobody asked for answer {id}"))?;
            book.answered(index, now - began);
            let expected = expect.filled(id);
            if memchr::memmem::find(&self.answer, &expected).is_none() {
                let shown = String::from_utf8_lossy(&self.answer[..self.answer.len().min(600)]).into_owned();
                bail!("this answer does not contain {}: {shown}", String::from_utf8_lossy(&expected));
            }
            if let Some(name) = &calls.take {
                let text =
                    text_of(&self.answer, name).with_context(|| format!("an answer without {name}"))?;
                book.taken.push(text.to_owned());
            }
            return Ok(index);
        }
    }

    pub(crate) fn calls(&mut self, calls: &Calls) -> anyhow::Result<Value> {
        let (templates, expect) = (templates(calls)?, Template::new(&calls.expect));
        let count = calls.count.unwrap_or(templates.len());
        let mut book = Book::of(templates.len());
        let began = Instant::now();
        for number in 0..count {
            let index = number % templates.len();
            self.send(&templates[index], index, &mut book)?;
            while book.open.len() >= calls.ahead.max(1) {
                self.receive(calls, &expect, &mut book)?;
            }
        }
        while !book.open.is_empty() {
            self.receive(calls, &expect, &mut book)?;
        }
        Ok(self.told(calls, book, began.elapsed()))
    }

    pub(crate) fn flood(&mut self, calls: &Calls) -> anyhow::Result<Value> {
        let (templates, expect) = (templates(calls)?, Template::new(&calls.expect));
        let count = calls.count.unwrap_or(templates.len()).max(templates.len());
        let mut book = Book::of(templates.len());
        let began = Instant::now();
        for (index, template) in templates.iter().enumerate() {
            self.send(template, index, &mut book)?;
        }
        for _ in templates.len()..count {
            let index = self.receive(calls, &expect, &mut book)?;
            self.send(&templates[index], index, &mut book)?;
        }
        while !book.open.is_empty() {
            self.receive(calls, &expect, &mut book)?;
        }
        Ok(self.told(calls, book, began.elapsed()))
    }

    /// `age` is how long ago the server was started, or the connection made.
    fn told(&self, calls: &Calls, book: Book, took: Duration) -> Value {
        let last = calls.show.then(|| String::from_utf8_lossy(&self.answer).into_owned());
        json!({
            "ns": book.nanoseconds,
            "each": book.each,
            "taken": book.taken,
            "seconds": took.as_secs_f64(),
            "age": self.began.elapsed().as_secs_f64(),
            "last": last,
        })
    }

    /// Seconds until the server was gone, and whether it went by itself.
    pub(crate) fn close(self, patience: f64) -> anyhow::Result<(f64, bool)> {
        let began = Instant::now();
        let mut by_itself = true;
        if let Wire::Child(mut child, input, output) = self.wire {
            drop((input, output));
            while child.try_wait()?.is_none() {
                if began.elapsed().as_secs_f64() > patience {
                    by_itself = false;
                    child.kill()?;
                }
                std::thread::sleep(Duration::from_micros(500));
            }
        }
        Ok((began.elapsed().as_secs_f64(), by_itself))
    }
}

fn templates(calls: &Calls) -> anyhow::Result<Vec<Template>> {
    if calls.requests.is_empty() {
        bail!("no requests");
    }
    Ok(calls.requests.iter().map(|request| Template::new(request)).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart_however_they_arrive() {
        let long = "x".repeat(3 * READ);
        let text = format!("one\n\n{long}\nlast\nnever ended");
        let mut lines = Lines::new(Slow(text.as_bytes()));
        let mut line = Vec::new();
        for expected in ["one", "", &long, "last"] {
            lines.next(&mut line).unwrap();
            assert_eq!(line, expected.as_bytes());
        }
        assert!(lines.next(&mut line).is_err());
    }

    /// Gives a thousand bytes at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.0.len().min(1000).min(buffer.len());
            let (now, later) = self.0.split_at(count);
            buffer[..count].copy_from_slice(now);
            self.0 = later;
            Ok(count)
        }
    }

    #[test]
    fn each_request_has_its_number_of_answers_and_the_longest_wait() {
        let mut book = Book::of(2);
        for (index, nanoseconds) in [(0, 5), (1, 7), (0, 9), (0, 2)] {
            book.answered(index, Duration::from_nanos(nanoseconds));
        }
        assert_eq!(book.each, [(3, 9), (1, 7)]);
        assert_eq!(book.nanoseconds, [5, 7, 9, 2]);
    }
}
