//! Secrets that code uses without ever seeing them.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use sha2::{Digest, Sha256};

use crate::{
    host::Host,
    http::Headers,
    refusal::{Reason, Refusal},
    scrubber::Scrubber,
};

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
    fn fill_in(&self, headers: &mut Headers) -> Result<Option<Vec<String>>, Refusal> {
        let placeholder = self.placeholder();
        let mut used = None;
        for (_, value) in headers.values_mut().filter(|(name, _)| name.eq_ignore_ascii_case(&self.header)) {
            let Ok(text) = std::str::from_utf8(value) else { continue };
            let (scheme, credential) = text.split_once(' ').unwrap_or(("", text));
            let credential = credential.trim_start();
            let basic =
                scheme.eq_ignore_ascii_case("basic").then(|| BASE64.decode(credential).ok()).flatten();
            let basic = basic.and_then(|basic| String::from_utf8(basic).ok());
            if let Some(basic) = basic.filter(|basic| basic.contains(&placeholder)) {
                let filled = self.in_basic(&basic, &placeholder).ok_or_else(|| self.misplaced())?;
                let encoded = BASE64.encode(filled);
                *value = format!("{scheme} {encoded}").into_bytes();
                used.get_or_insert_with(Vec::new).push(encoded);
            } else if credential == placeholder && is_scheme(scheme) && !scheme.contains(&placeholder) {
                *value = format!("{scheme} {}", self.value).trim_start().into();
                used.get_or_insert_with(Vec::new);
            } else if text.contains(&placeholder) {
                return Err(self.misplaced());
            }
        }
        Ok(used)
    }

    /// `user:password`, where either is the placeholder, or the placeholder alone.
    fn in_basic(&self, text: &str, placeholder: &str) -> Option<String> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let filled = |part: &str| match part {
            part if part == placeholder => Some(self.value.clone()),
            part if part.contains(placeholder) => None,
            part => Some(part.to_owned()),
        };
        let (user, password) = (filled(user)?, filled(password)?);
        Some(if text.contains(':') { format!("{user}:{password}") } else { user })
    }

    /// What surrounds a secret could change what a server makes of it, and in which words it says so.
    fn misplaced(&self) -> Refusal {
        let Self { name, header, .. } = self;
        let message = format!(
            "the placeholder of {name} must be all there is in the header {header}, or follow one word as in Bearer, or be the user or the password of Basic credentials"
        );
        Refusal::new(Reason::Secret, message)
    }
}

/// Puts the secrets of a host into a request. Returns the names of those that were used, and what to look for in the
/// answer: every secret of that host, used or not.
pub(crate) fn fill_in(
    secrets: &[&Secret],
    headers: &mut Headers,
) -> Result<(Vec<String>, Scrubber), Refusal> {
    let mut used = Vec::new();
    let mut needles = Vec::new();
    for secret in secrets {
        let placeholder = secret.placeholder();
        let credentials = secret.fill_in(headers)?;
        if credentials.is_some() {
            used.push(secret.name.clone());
        }
        let encoded = credentials.unwrap_or_default().into_iter().chain([BASE64.encode(&secret.value)]);
        let encoded = encoded.chain(within_base64(&secret.value));
        // There is another alphabet, for addresses; and padding is left out by some.
        let all = encoded.flat_map(|text| [text.replace('+', "-").replace('/', "_"), text]);
        let all = all.flat_map(|text| [text.trim_end_matches('=').to_owned(), text]);
        let all = all.chain([secret.value.clone()]).chain(hex(&secret.value));
        needles.extend(all.map(|needle| (needle.into_bytes(), placeholder.clone().into_bytes())));
    }
    Ok((used, Scrubber::new(needles)))
}

/// What all texts have in common in base64 that contain the value: it may begin at three places in a group of four, and
/// the letters at its ends are partly of what is beside it. Ten letters are left of the shortest value.
fn within_base64(value: &str) -> [String; 3] {
    [0, 1, 2].map(|before| {
        let bytes = before + value.len();
        let encoded = BASE64.encode([&[0; 2][..before], value.as_bytes()].concat());
        encoded[(8 * before).div_ceil(6)..8 * bytes / 6].to_owned()
    })
}

fn hex(value: &str) -> [String; 2] {
    let small: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
    [small.to_ascii_uppercase(), small]
}

/// One word, or none at all.
fn is_scheme(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
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
        let (used, _) = fill_in(&[&secret], &mut headers).unwrap();
        assert_eq!(used, ["API_KEY"]);
        assert_eq!(headers.get("authorization"), Some(format!("Bearer {VALUE}").as_bytes()));
        assert_eq!(headers.get("x-other"), Some(placeholder.as_bytes()));
    }

    #[test]
    fn a_password_in_basic_credentials_is_replaced_and_never_comes_back() {
        let secret = secret();
        let given = BASE64.encode(format!("me:{}", secret.placeholder()));
        let mut headers = headers(&format!("Authorization: Basic {given}\r\n"));
        let (_, scrubber) = fill_in(&[&secret], &mut headers).unwrap();
        let real = BASE64.encode(format!("me:{VALUE}"));
        assert_eq!(headers.get("authorization"), Some(format!("Basic {real}").as_bytes()));
        assert!(!String::from_utf8(scrubber.clean(real.as_bytes())).unwrap().contains(&real[..8]));
    }

    #[test]
    fn a_placeholder_with_something_around_it_goes_nowhere() {
        let secret = secret();
        let placeholder = secret.placeholder();
        let basic = |text: String| format!("Basic {}", BASE64.encode(text));
        for (value, fine) in [
            (placeholder.clone(), true),
            (format!("token {placeholder}"), true),
            (format!("ApiKey-v1  {placeholder}"), true),
            (basic(format!("me:{placeholder}")), true),
            (basic(format!("{placeholder}:")), true),
            (basic(format!("{placeholder}:x-oauth-basic")), true),
            (basic(placeholder.clone()), true),
            (format!("a{placeholder}"), false),
            (format!("{placeholder}, {placeholder}"), false),
            (format!("{placeholder} {placeholder}"), false),
            (format!("x{placeholder} {placeholder}"), false),
            (format!("Bearer {placeholder} and more"), false),
            (format!("Bearer a b {placeholder}"), false),
            (format!("<b> {placeholder}"), false),
            (format!("key={placeholder}"), false),
            (format!("Digest username=\"{placeholder}\""), false),
            (basic(format!("me:a{placeholder}")), false),
            (basic(format!("me:{placeholder}:{placeholder}")), false),
        ] {
            let mut headers = headers(&format!("Authorization: {value}\r\n"));
            let filled = fill_in(&[&secret], &mut headers).map(drop).map_err(|refusal| refusal.reason);
            assert_eq!(filled, if fine { Ok(()) } else { Err(Reason::Secret) }, "{value}");
            assert!(!contains(headers.get("authorization").unwrap(), &placeholder) || !fine, "{value}");
        }
    }

    fn contains(bytes: &[u8], part: &str) -> bool {
        bytes.windows(part.len()).any(|window| window == part.as_bytes())
    }

    #[test]
    fn credentials_are_hidden_in_every_form_too() {
        // So that its base64 has all of the unusual letters, and padding.
        let secret = Secret::bind("K=api.test/Authorization", &|_| Some("~~~>>>???~~~x".into())).unwrap();
        let given = BASE64.encode(format!("u:{}", secret.placeholder()));
        let mut headers = headers(&format!("Authorization: Basic {given}\r\n"));
        let (_, scrubber) = fill_in(&[&secret], &mut headers).unwrap();
        let filled = headers.get("authorization").unwrap().strip_prefix(b"Basic ").unwrap();
        let filled = String::from_utf8(filled.to_vec()).unwrap();
        let encoded = BASE64.encode(&secret.value);
        assert!(encoded.contains('+') && encoded.contains('=') && filled.contains('/'), "{encoded} {filled}");
        let other_alphabet = |text: &str| text.replace('+', "-").replace('/', "_");
        let others = [other_alphabet(&filled), other_alphabet(&encoded)];
        for text in others.into_iter().chain([filled, encoded, secret.value.clone()]) {
            for form in [
                text.clone(),
                text.trim_end_matches('=').into(),
                text.replace('/', "\\/"),
                text.replace('+', "\\u002b").replace('=', "\\u003d").replace('>', "\\u003e"),
                text.replace('+', "\\u002B").replace('=', "\\u003D").replace('>', "\\u003E"),
                text.replace('+', "%2B").replace('/', "%2F").replace('=', "%3D"),
                text.replace('+', "%2b").replace('/', "%2f").replace('=', "%3d"),
                text.replace('+', "&#43;").replace('/', "&#x2F;").replace('>', "&gt;"),
            ] {
                let shown = String::from_utf8(scrubber.clean(format!("<{form}>").as_bytes())).unwrap();
                assert_eq!(shown, format!("<{}>", secret.placeholder()), "{form}");
            }
        }
    }

    #[test]
    fn whatever_it_is_encoded_together_with() {
        for value in ["s3cret/t", "s3cret/to", "s3cret/tok", VALUE, "~~~>>>???~~~x"] {
            let secret = Secret::bind("K=api.test/Authorization", &|_| Some(value.into())).unwrap();
            let (_, scrubber) = fill_in(&[&secret], &mut Headers::default()).unwrap();
            for before in ["", "B", "me", "you", "Bearer ", "token ", "x-oauth-basic:"] {
                for after in ["", "\n", ":x", "...", "and more"] {
                    let encoded = BASE64.encode(format!("{before}{value}{after}"));
                    for form in
                        [&encoded, &encoded.replace('+', "-").replace('/', "_"), &encoded.replace('/', "%2F")]
                    {
                        let shown = String::from_utf8(scrubber.clean(form.as_bytes())).unwrap();
                        assert!(
                            shown.contains(&secret.placeholder()),
                            "{before:?} {after:?} {form}: {shown}"
                        );
                        // Of the letters at its ends, which tell a few bits, no more than these are left.
                        let left = shown.len() - secret.placeholder().len();
                        assert!(left <= (before.len() + after.len()).div_ceil(3) * 4 + 4, "{form}: {shown}");
                    }
                }
            }
            let hex: String = value.bytes().map(|byte| format!("{byte:02x}")).collect();
            for form in [hex.clone(), hex.to_ascii_uppercase()] {
                let shown = String::from_utf8(scrubber.clean(format!("00{form}ff").as_bytes())).unwrap();
                assert_eq!(shown, format!("00{}ff", secret.placeholder()));
            }
        }
    }

    #[test]
    fn no_needle_is_so_short_that_it_is_found_elsewhere() {
        for value in ["s3cret/t", "s3cret/to", "s3cret/tok"] {
            assert!(within_base64(value).iter().all(|needle| needle.len() >= 10), "{value}");
        }
    }

    #[test]
    fn every_usual_form_of_it_is_hidden() {
        let secret = secret();
        let (used, scrubber) = fill_in(&[&secret], &mut Headers::default()).unwrap();
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
            let (_, mut scrubber) = fill_in(&[&secret], &mut Headers::default()).unwrap();
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
