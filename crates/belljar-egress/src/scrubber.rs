//! Takes secrets out of what servers say, in whatever way they write them.

/// The longest escape that is known for one byte: `&#x000027;`.
const LONGEST_ESCAPE: usize = 10;
const ENTITIES: [(&[u8], u8); 5] =
    [(b"amp", b'&'), (b"lt", b'<'), (b"gt", b'>'), (b"quot", b'"'), (b"apos", b'\'')];

/// Replaces byte strings in a stream.
pub(crate) struct Scrubber {
    /// Longest first: one may begin with another.
    needles: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes that one of them may begin with, however it is written.
    begins: [bool; 256],
    pending: Vec<u8>,
}

/// Whether a needle is at the beginning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    No,
    /// It takes up so many bytes there.
    Yes(usize),
    /// The text ends before that is certain.
    Perhaps,
}

impl Scrubber {
    pub(crate) fn new(mut needles: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        needles.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.0.cmp(&b.0)));
        needles.dedup();
        let begins = std::array::from_fn(|found| {
            let begins = |byte: &u8| is_raw(found as u8, *byte, false) || begins_escape(found as u8);
            needles.iter().any(|(needle, _)| needle.first().is_some_and(begins))
        });
        Self { needles, begins, pending: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// What can be let through by now.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        let (out, done) = self.replace(&self.pending, false);
        self.pending.drain(..done);
        out
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let last = std::mem::take(&mut self.pending);
        self.clean(&last)
    }

    /// The same for a text that is there at once.
    pub(crate) fn clean(&self, text: &[u8]) -> Vec<u8> {
        self.replace(text, true).0
    }

    /// The text without them, up to where more of it must be known, and how much of it that is.
    fn replace(&self, text: &[u8], whole: bool) -> (Vec<u8>, usize) {
        let mut out = Vec::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            // Nearly always there is nothing.
            let plain = text[at..].iter().take_while(|byte| !self.begins[usize::from(**byte)]).count();
            out.extend_from_slice(&text[at..at + plain]);
            at += plain;
            let rest = &text[at..];
            if rest.is_empty() {
                break;
            }
            let found = self.needles.iter().map(|(needle, with)| (find(needle, rest, whole, false), with));
            match found.into_iter().find(|(found, _)| *found != Found::No) {
                Some((Found::Yes(length), with)) => {
                    out.extend_from_slice(with);
                    at += length;
                }
                Some((Found::Perhaps, _)) => break,
                Some((Found::No, _)) | None => {
                    out.push(rest[0]);
                    at += 1;
                }
            }
        }
        (out, at)
    }

    /// Whether one of them is in there, in letters of any size.
    pub(crate) fn finds(&self, text: &[u8]) -> bool {
        let is_at =
            |at| self.needles.iter().any(|(needle, _)| find(needle, &text[at..], true, true) != Found::No);
        (0..text.len()).any(is_at)
    }
}

/// Servers escape as much as they like, so every byte may be written in every way, whatever the others are.
fn find(needle: &[u8], text: &[u8], whole: bool, any_case: bool) -> Found {
    let same = |a: u8, b: u8| is_same(a, b, any_case);
    let raw = |found: u8, byte: u8| is_raw(found, byte, any_case);
    // Nearly always this is all there is to see.
    if needle
        .first()
        .zip(text.first())
        .is_none_or(|(byte, found)| !raw(*found, *byte) && !begins_escape(*found))
    {
        return Found::No;
    }
    let mut cut_off = false;
    // Where the next byte may begin: what looks like an escape may also stand for itself.
    let mut places = vec![0];
    for byte in needle {
        let mut next = Vec::new();
        for at in places {
            let rest = &text[at..];
            cut_off |= rest.is_empty();
            if rest.first().is_some_and(|found| raw(*found, *byte)) {
                next.push(at + 1);
            }
            match unescape(rest) {
                Escape::Of(meant, length) if same(meant, *byte) => next.push(at + length),
                Escape::CutOff => cut_off = true,
                Escape::Of(..) | Escape::None => {}
            }
        }
        next.sort_unstable();
        next.dedup();
        places = next;
        if places.is_empty() {
            break;
        }
    }
    match places.last() {
        _ if cut_off && !whole => Found::Perhaps,
        Some(end) => Found::Yes(*end),
        None => Found::No,
    }
}

fn is_same(a: u8, b: u8, any_case: bool) -> bool {
    a == b || (any_case && a.eq_ignore_ascii_case(&b))
}

/// Whether one stands for the other by itself: a blank may be written as +.
fn is_raw(found: u8, byte: u8, any_case: bool) -> bool {
    is_same(found, byte, any_case) || (found == b'+' && byte == b' ')
}

enum Escape {
    /// This byte, in so many.
    Of(u8, usize),
    CutOff,
    None,
}

fn begins_escape(byte: u8) -> bool {
    matches!(byte, b'%' | b'\\' | b'&')
}

/// How URLs, JSON and HTML write what they cannot write as it is.
fn unescape(text: &[u8]) -> Escape {
    match text {
        [b'%', rest @ ..] => hex(rest, 2, 1),
        [b'\\'] => Escape::CutOff,
        [b'\\', b'u', rest @ ..] => hex(rest, 4, 2),
        [b'\\', b'x', rest @ ..] => hex(rest, 2, 2),
        [b'\\', byte, ..] if byte.is_ascii_punctuation() => Escape::Of(*byte, 2),
        [b'&', rest @ ..] => entity(rest),
        _ => Escape::None,
    }
}

/// So many digits, `before` which there was something.
fn hex(text: &[u8], digits: usize, before: usize) -> Escape {
    let found = &text[..text.len().min(digits)];
    match number(found, 16) {
        _ if found.is_empty() => Escape::CutOff,
        None => Escape::None,
        Some(_) if found.len() < digits => Escape::CutOff,
        Some(number) => u8::try_from(number).map_or(Escape::None, |byte| Escape::Of(byte, before + digits)),
    }
}

fn entity(text: &[u8]) -> Escape {
    let text = &text[..text.len().min(LONGEST_ESCAPE - 1)];
    let Some(end) = text.iter().position(|byte| *byte == b';') else {
        let may_go_on = text.len() < LONGEST_ESCAPE - 1
            && text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'#');
        return if may_go_on { Escape::CutOff } else { Escape::None };
    };
    let meant = match &text[..end] {
        [b'#', b'x' | b'X', digits @ ..] => number(digits, 16),
        [b'#', digits @ ..] => number(digits, 10),
        name => ENTITIES.iter().find(|(known, _)| *known == name).map(|(_, byte)| (*byte).into()),
    };
    let meant = meant.and_then(|meant| u8::try_from(meant).ok());
    meant.map_or(Escape::None, |byte| Escape::Of(byte, end + 2))
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEEDLE: &str = "a /&<>\"'+=\\%b";

    fn scrubber() -> Scrubber {
        Scrubber::new(vec![(NEEDLE.into(), b"(it)".to_vec())])
    }

    #[test]
    fn every_byte_may_be_written_in_every_way() {
        for form in [
            NEEDLE,
            r#"a \/&<>\"'+=\\%b"#,
            r#"a /\u0026\u003c\u003e\"\u0027\u002b\u003d\\%b"#,
            r#"\u0061 \/\u0026\u003C\u003E\u0022\u0027\u002B\u003D\u005C\u0025\u0062"#,
            r"a /&amp;&lt;&gt;&quot;&#39;+=\%b",
            r"a /&amp;&lt;&gt;&#34;&#x27;&#43;&#61;\%b",
            r"a&#x2F;&amp;&lt;&gt;&quot;&#039;&#x2B;&#x3d;&#92;&#37;b".replace("a&", "a &").as_str(),
            "a+%2F%26%3C%3E%22%27%2B%3D%5C%25b",
            "a%20%2f%26%3c%3e%22%27%2b%3d%5c%25b",
            r"a /&\x3c\x3E\x22\x27+=\\%b",
        ] {
            let shown = String::from_utf8(scrubber().clean(format!("<{form}>").as_bytes())).unwrap();
            assert_eq!(shown, "<(it)>", "{form}");
            assert!(
                scrubber().finds(form.to_ascii_uppercase().as_bytes()) || form.contains(['&', '\\']),
                "{form}"
            );
        }
        for other in ["a /&<>\"'+=\\%", "a /&&lt>\"'+=\\%b", "%61%2"] {
            assert_eq!(scrubber().clean(other.as_bytes()), other.as_bytes(), "{other}");
        }
    }

    #[test]
    fn only_what_may_become_a_secret_is_held_back() {
        let mut scrubber = scrubber();
        assert_eq!(scrubber.feed(b"data: 1\n\n"), b"data: 1\n\n");
        assert_eq!(scrubber.feed(b"x a"), b"x ");
        assert_eq!(scrubber.feed(b"nd %"), b"and ");
        assert_eq!(scrubber.feed(b"7"), b"");
        assert_eq!(scrubber.feed(b"5 &#"), b"%75 ");
        assert_eq!(scrubber.finish(), b"&#");
    }

    proptest! {
        /// However it is escaped, and however the answer is cut into pieces.
        #[test]
        fn pieces_make_no_difference(ways in prop::collection::vec(0usize..7, NEEDLE.len()), before in "[a%&\\\\/u0-9;#]{0,6}", cut in 1usize..9) {
            let mut text = before.clone();
            for (byte, way) in NEEDLE.bytes().zip(ways) {
                text += &match way {
                    0 => format!("%{byte:02x}"),
                    1 => format!("%{byte:02X}"),
                    2 => format!("\\u{byte:04x}"),
                    3 => format!("\\u{byte:04X}"),
                    4 => format!("&#{byte};"),
                    5 => format!("&#x{byte:X};"),
                    _ => char::from(byte).to_string(),
                };
            }
            let mut scrubber = scrubber();
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(cut) {
                out.extend(scrubber.feed(piece));
            }
            out.extend(scrubber.finish());
            prop_assert_eq!(&out, &scrubber.clean(text.as_bytes()));
            prop_assert!(out.ends_with(b"(it)") && out.len() <= before.len() + 4, "{}", String::from_utf8_lossy(&out));
        }
    }
}
