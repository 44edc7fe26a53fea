//! Secrets that code uses without ever seeing them.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use sha2::{Digest, Sha256};

use crate::{host::Host, http::Headers};

/// Shorter ones would be found, and replaced, in texts that have nothing to do with them.
const SHORTEST: usize = 8;
const LONGEST: usize = 8 << 10;

/// A value that takes the place of its placeholder in one header of requests to one host.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Of the variable that has the value outside, and the placeholder inside.
    pub name: String,
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) header: String,
    value: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}/{}", self.name, self.host, self.port, self.header)
    }
}

impl Secret {
    /// `NAME=HOST[:PORT]/HEADER`, where NAME is a variable of the environment.
    pub fn bind(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} is not NAME=HOST/HEADER: {why}");
        let (name, rest) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
        let (place, header) = rest.split_once('/').ok_or_else(|| wrong("there is no / before the header"))?;
        let (name, header) = (name.trim(), header.trim().to_ascii_lowercase());
        let plain = |text: &str, more: &[u8]| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || more.contains(&b))
        };
        if !plain(name, b"_") || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(wrong("the name of a variable has letters, digits and _"));
        }
        if !plain(&header, b"-")
            || ["host", "content-length", "transfer-encoding", "connection"].contains(&header.as_str())
        {
            return Err(wrong("a secret cannot be in that header"));
        }
        let (host, port) = Host::parse_with_port(place.trim(), Some(443)).map_err(wrong)?;
        if matches!(host, Host::Address(_)) {
            return Err(wrong("a secret belongs to a name, not to an address"));
        }
        let value = variable(name).filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("{text:?}: the environment variable {name} is not set"))?;
        if !(SHORTEST..=LONGEST).contains(&value.len())
            || !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
        {
            return Err(format!(
                "{text:?}: the value of {name} cannot be used: it must be {SHORTEST} to {LONGEST} printable characters"
            ));
        }
        Ok(Self { name: name.into(), host, port, header, value })
    }

    /// What code sees. It tells nothing and is of no use elsewhere, so it need not differ between sandboxes.
    pub fn placeholder(&self) -> String {
        let digest = Sha256::digest(format!("belljar placeholder {}", self.name));
        let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("bjs_{hex}")
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn is_for(&self, host: &Host, port: u16) -> bool {
        self.host == *host && self.port == port
    }

    /// Puts the value in. Returns what must not come back because of it, or `None` when there was no placeholder.
    fn fill_in(&self, headers: &mut Headers) -> Option<Vec<String>> {
        let placeholder = self.placeholder();
        let mut used = None;
        for (_, value) in headers.values_mut().filter(|(name, _)| name.eq_ignore_ascii_case(&self.header)) {
            let Ok(text) = std::str::from_utf8(value) else { continue };
            let basic = text.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic "));
            let inner = basic.then(|| BASE64.decode(text[6..].trim()).ok()).flatten();
            let inner = inner.and_then(|inner| String::from_utf8(inner).ok());
            let known: &mut Vec<String> = match inner.filter(|inner| inner.contains(&placeholder)) {
                Some(inner) => {
                    let encoded = BASE64.encode(inner.replace(&placeholder, &self.value));
                    *value = format!("Basic {encoded}").into_bytes();
                    let known = used.get_or_insert_with(Vec::new);
                    known.push(encoded);
                    known
                }
                None if text.contains(&placeholder) => {
                    *value = text.replace(&placeholder, &self.value).into_bytes();
                    used.get_or_insert_with(Vec::new)
                }
                None => continue,
            };
            known.push(self.value.clone());
        }
        used
    }

    /// The value in the forms in which servers repeat what they were sent.
    fn forms(&self) -> Vec<String> {
        let percent = |upper: bool| -> String {
            let encode = |byte: u8| match byte {
                b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => char::from(b).to_string(),
                b if upper => format!("%{b:02X}"),
                b => format!("%{b:02x}"),
            };
            self.value.bytes().map(encode).collect()
        };
        let json = self.value.replace('\\', "\\\\").replace('"', "\\\"");
        let html =
            self.value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
        let base64 = BASE64.encode(&self.value);
        let slashed = json.replace('/', "\\/");
        vec![self.value.clone(), percent(true), percent(false), json, slashed, html, base64]
    }
}

/// Puts the secrets of a host into a request. Returns the names of those that were used, and what to look for in the
/// answer: every secret of that host, used or not.
pub(crate) fn fill_in(secrets: &[&Secret], headers: &mut Headers) -> (Vec<String>, Scrubber) {
    let mut used = Vec::new();
    let mut needles = Vec::new();
    for secret in secrets {
        let placeholder = secret.placeholder();
        let more = secret.fill_in(headers);
        if more.is_some() {
            used.push(secret.name.clone());
        }
        let all = secret.forms().into_iter().chain(more.unwrap_or_default());
        needles.extend(all.map(|needle| (needle.into_bytes(), placeholder.clone().into_bytes())));
    }
    (used, Scrubber::new(needles))
}

/// Replaces byte strings in a stream.
pub(crate) struct Scrubber {
    /// Longest first: one may begin with another.
    needles: Vec<(Vec<u8>, Vec<u8>)>,
    longest: usize,
    pending: Vec<u8>,
}

impl Scrubber {
    fn new(mut needles: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        needles.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        needles.dedup();
        let longest = needles.first().map_or(0, |(needle, _)| needle.len());
        Self { needles, longest, pending: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// What can be let through by now.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        // The beginning of a needle may be at the end.
        let safe = (self.pending.len() + 1).saturating_sub(self.longest.max(1));
        self.replace(safe)
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.replace(self.pending.len())
    }

    /// Looks for what begins before `safe`.
    fn replace(&mut self, safe: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(safe);
        let mut at = 0;
        while at < safe {
            let rest = &self.pending[at..];
            match self.needles.iter().find(|(needle, _)| rest.starts_with(needle)) {
                Some((needle, with)) => {
                    out.extend_from_slice(with);
                    at += needle.len();
                }
                None => {
                    out.push(rest[0]);
                    at += 1;
                }
            }
        }
        self.pending.drain(..at);
        out
    }

    /// Whether one of them is in there, in letters of any size.
    pub(crate) fn finds(&self, text: &[u8]) -> bool {
        let is_in = |needle: &[u8]| text.windows(needle.len()).any(|part| part.eq_ignore_ascii_case(needle));
        self.needles.iter().any(|(needle, _)| is_in(needle))
    }

    /// The same for a text that is there at once.
    pub(crate) fn clean(&self, text: &[u8]) -> Vec<u8> {
        let mut whole = Self { needles: self.needles.clone(), longest: self.longest, pending: text.to_vec() };
        whole.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::Request;

    const VALUE: &str = "s3cret/\"token\"";

    fn secret() -> Secret {
        Secret::bind("API_KEY=api.test/Authorization", &|_| Some(VALUE.into())).unwrap()
    }

    fn headers(lines: &str) -> Headers {
        Request::parse(format!("GET / HTTP/1.1\r\nHost: api.test\r\n{lines}\r\n").as_bytes()).unwrap().headers
    }

    #[test]
    fn the_placeholder_is_replaced_in_its_header_alone() {
        let secret = secret();
        let placeholder = secret.placeholder();
        let mut headers =
            headers(&format!("authorization: Bearer {placeholder}\r\nX-Other: {placeholder}\r\n"));
        let (used, _) = fill_in(&[&secret], &mut headers);
        assert_eq!(used, ["API_KEY"]);
        assert_eq!(headers.get("authorization"), Some(format!("Bearer {VALUE}").as_bytes()));
        assert_eq!(headers.get("x-other"), Some(placeholder.as_bytes()));
    }

    #[test]
    fn a_password_in_basic_credentials_is_replaced_and_never_comes_back() {
        let secret = secret();
        let given = BASE64.encode(format!("me:{}", secret.placeholder()));
        let mut headers = headers(&format!("Authorization: Basic {given}\r\n"));
        let (_, scrubber) = fill_in(&[&secret], &mut headers);
        let real = BASE64.encode(format!("me:{VALUE}"));
        assert_eq!(headers.get("authorization"), Some(format!("Basic {real}").as_bytes()));
        assert!(!String::from_utf8(scrubber.clean(real.as_bytes())).unwrap().contains(&real[..8]));
    }

    #[test]
    fn every_usual_form_of_it_is_hidden() {
        let secret = secret();
        let (used, scrubber) = fill_in(&[&secret], &mut Headers::default());
        assert!(used.is_empty());
        for form in [
            VALUE,
            "s3cret%2F%22token%22",
            "s3cret%2f%22token%22",
            r#"s3cret/\"token\""#,
            r#"s3cret\/\"token\""#,
            "s3cret/&quot;token&quot;",
            &BASE64.encode(VALUE),
        ] {
            let shown = String::from_utf8(scrubber.clean(format!("<{form}>").as_bytes())).unwrap();
            assert_eq!(shown, format!("<{}>", secret.placeholder()), "{form}");
        }
    }

    #[test]
    fn a_binding_that_cannot_work_is_refused_with_the_reason() {
        let bind =
            |text: &str, value: Option<&str>| Secret::bind(text, &|_| value.map(str::to_owned)).unwrap_err();
        insta::assert_debug_snapshot!([
            bind("API_KEY", None),
            bind("API_KEY=api.test", None),
            bind("9=api.test/x", None),
            bind("K=api.test/host", None),
            bind("K=10.0.0.1/x", None),
            bind("K=api.test/x", None),
            bind("K=api.test/x", Some("short")),
            bind("K=api.test/x", Some("two\nlines of text")),
        ]);
        assert!(!format!("{:?}", secret()).contains(VALUE));
    }

    proptest! {
        /// However the answer is cut into pieces.
        #[test]
        fn nothing_is_reflected(pieces in prop::collection::vec(prop_oneof![Just("s3cret".to_owned()), Just(VALUE.to_owned()), Just("/\"token\"".to_owned()), "[a-z/]{0,9}"], 0..12), cut in 1usize..20) {
            let secret = secret();
            let (_, mut scrubber) = fill_in(&[&secret], &mut Headers::default());
            let text = pieces.concat();
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                out.extend(scrubber.feed(piece));
            }
            out.extend(scrubber.finish());
            prop_assert_eq!(String::from_utf8(out).unwrap(), text.replace(VALUE, &secret.placeholder()));
        }
    }
}
