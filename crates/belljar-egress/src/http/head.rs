//! Heads of requests and responses.

use super::Framing;

const MAX_HEADERS: usize = 128;
/// About one connection, and not passed on to the next.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "http2-settings",
];

type Result<T> = std::result::Result<T, &'static str>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, Vec<u8>)>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Of HTTP/1.x.
    pub(crate) minor: u8,
    pub(crate) headers: Headers,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: Vec<u8>,
    pub(crate) headers: Headers,
}

impl Request {
    /// `head` ends with its empty line.
    pub(crate) fn parse(head: &[u8]) -> Result<Self> {
        let (line, headers) = split(head)?;
        let line = std::str::from_utf8(line).map_err(|_| "the request line is not text")?;
        let words: Vec<&str> = line.split(' ').collect();
        let [method, target, version] = words[..] else {
            return Err("the request line does not have three parts");
        };
        if method.is_empty() || method.len() > 32 || !method.bytes().all(is_token) {
            return Err("the method is none");
        }
        if target.is_empty() || !target.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("the target contains what no address has");
        }
        let minor = match version {
            "HTTP/1.1" => 1,
            "HTTP/1.0" => 0,
            _ => return Err("it is not HTTP/1.0 or HTTP/1.1"),
        };
        let headers = Headers::parse(headers)?;
        if headers.all("host").count() > 1 || (minor == 1 && headers.get("host").is_none()) {
            return Err("it must have one Host header");
        }
        Ok(Self { method: method.into(), target: target.into(), minor, headers })
    }

    /// How long the body is. What could be read in two ways is refused.
    pub(crate) fn framing(&self) -> Result<Framing> {
        match self.headers.framing(self.minor)? {
            Framing::UntilClose => Ok(Framing::Empty),
            framing => Ok(framing),
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{} {} HTTP/1.1\r\n", self.method, self.target).as_bytes());
        self.headers.write(out);
    }
}

impl Response {
    pub(crate) fn parse(head: &[u8]) -> Result<Self> {
        let (line, headers) = split(head)?;
        let minor = match line.get(..9) {
            Some(b"HTTP/1.1 ") => 1,
            Some(b"HTTP/1.0 ") => 0,
            _ => return Err("it is not HTTP/1.0 or HTTP/1.1"),
        };
        let (status, reason) = line[9..].split_at_checked(3).ok_or("it has no status")?;
        let status = std::str::from_utf8(status).ok().filter(|s| s.bytes().all(|b| b.is_ascii_digit()));
        let status = status.and_then(|s| s.parse().ok()).filter(|s| (100..600).contains(s));
        if !(reason.is_empty() || reason[0] == b' ') || reason.iter().any(is_control) {
            return Err("its status line is none");
        }
        let headers = Headers::parse(headers)?;
        // A length that was given twice, or that cannot be trusted, ends the exchange.
        headers.framing(minor)?;
        let reason = reason.get(1..).unwrap_or_default().to_vec();
        Ok(Self { status: status.ok_or("it has no status")?, reason, headers })
    }

    pub(crate) fn framing(&self, method: &str) -> Result<Framing> {
        if method == "HEAD" || self.status < 200 || [204, 304].contains(&self.status) {
            return Ok(Framing::Empty);
        }
        self.headers.framing(1)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("HTTP/1.1 {} ", self.status).as_bytes());
        out.extend_from_slice(&self.reason);
        out.extend_from_slice(b"\r\n");
        self.headers.write(out);
    }
}

/// The first line, and the lines after it.
fn split(head: &[u8]) -> Result<(&[u8], &[u8])> {
    let lines = head.strip_suffix(b"\r\n\r\n").ok_or("it has no end")?;
    // Alone, each of them ends a line for some and not for others.
    let bare = |(at, byte): (usize, &u8)| match byte {
        b'\r' => lines.get(at + 1) != Some(&b'\n'),
        b'\n' => at == 0 || lines[at - 1] != b'\r',
        0 => true,
        _ => false,
    };
    if lines.iter().enumerate().any(bare) {
        return Err("it contains a line end or a null byte where none belongs");
    }
    let end = lines.windows(2).position(|pair| pair == b"\r\n").unwrap_or(lines.len());
    Ok((&lines[..end], lines.get(end + 2..).unwrap_or_default()))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What no line has: some programs end one there, and some do not.
fn is_control(byte: &u8) -> bool {
    (*byte < 0x20 && *byte != b'\t') || *byte == 0x7f
}

/// Without the blanks around it. Form feeds, which ASCII calls blank too, are none here.
fn trimmed(value: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(start) = value.iter().position(|byte| !blank(byte)) else { return &[] };
    let end = value.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &value[start..end]
}

impl Headers {
    fn parse(lines: &[u8]) -> Result<Self> {
        let mut headers = Vec::new();
        let mut rest = lines;
        while !rest.is_empty() {
            let end = rest.windows(2).position(|pair| pair == b"\r\n").unwrap_or(rest.len());
            let line = &rest[..end];
            rest = rest.get(end + 2..).unwrap_or_default();
            let colon = line.iter().position(|b| *b == b':').ok_or("a header has no colon")?;
            let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
            // No blank before the colon, and no line that continues the one before.
            if name.is_empty() || !name.iter().copied().all(is_token) {
                return Err("the name of a header is none");
            }
            if value.iter().any(is_control) {
                return Err("a header contains a control character");
            }
            if headers.len() == MAX_HEADERS {
                return Err("it has too many headers");
            }
            headers.push((String::from_utf8_lossy(name).into_owned(), value.to_vec()));
        }
        Ok(Self(headers))
    }

    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice())
    }

    pub(crate) fn get<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&str, &[u8]) -> bool) {
        self.0.retain(|(name, value)| keep(name, value));
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.0.push((name.into(), value.into()));
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = (&str, &mut Vec<u8>)> {
        self.0.iter_mut().map(|(name, value)| (name.as_str(), value))
    }

    /// Takes out what is about the connection it came by, including what `Connection` names.
    pub(crate) fn end_hop(&mut self) {
        let named: Vec<String> = self
            .all("connection")
            .flat_map(|value| value.split(|b| *b == b','))
            .map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase())
            // These say how long the body is: nobody may take them out.
            .filter(|name| !["content-length", "transfer-encoding", "host"].contains(&name.as_str()))
            .collect();
        self.0.retain(|(name, _)| {
            let name = name.to_ascii_lowercase();
            !HOP_BY_HOP.contains(&name.as_str()) && !named.contains(&name)
        });
    }

    fn framing(&self, minor: u8) -> Result<Framing> {
        let encodings: Vec<_> = self.all("transfer-encoding").collect();
        let lengths: Vec<_> = self.all("content-length").collect();
        match (&encodings[..], &lengths[..]) {
            ([], []) => Ok(Framing::UntilClose),
            ([], [length]) => {
                let digits =
                    !length.is_empty() && length.len() <= 18 && length.iter().all(u8::is_ascii_digit);
                let length = std::str::from_utf8(length).ok().filter(|_| digits).and_then(|l| l.parse().ok());
                length.map(Framing::Length).ok_or("its Content-Length is no number")
            }
            ([], _) => Err("it has more than one Content-Length"),
            ([one], []) if minor == 1 && one.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            (_, []) => Err("its Transfer-Encoding is not just chunked"),
            (..) => Err("it has both Content-Length and Transfer-Encoding"),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        for (name, value) in &self.0 {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}
