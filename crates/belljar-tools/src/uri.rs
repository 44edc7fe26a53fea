//! `belljar://contexts/<id>/files/<path>` and `belljar://contexts/<id>/outputs/<file>`.

use std::fmt::Write;

const PREFIX: &str = "belljar://contexts/";
/// Where the guest keeps output that was cut.
pub const OUTPUTS: &str = "/outputs/";
pub const WORKSPACE: &str = "/workspace";

pub const FILE_TEMPLATE: &str = "belljar://contexts/{context_id}/files/{+path}";
pub const OUTPUT_TEMPLATE: &str = "belljar://contexts/{context_id}/outputs/{file}";

/// A file of a context, as a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceUri {
    /// Id or name of the context.
    pub context: String,
    /// As file tools take it: relative to the workspace, or absolute.
    pub path: String,
}

/// The address of a file, whose path is relative to the workspace or absolute.
pub fn of_file(context_id: &str, path: &str) -> String {
    match path.strip_prefix(OUTPUTS).filter(|file| !file.is_empty()) {
        Some(file) => format!("{PREFIX}{}/outputs/{}", encode(context_id), encode(file)),
        None => format!("{PREFIX}{}/files/{}", encode(context_id), encode(path)),
    }
}

impl ResourceUri {
    pub fn parse(uri: &str) -> Option<Self> {
        let (context, rest) = uri.strip_prefix(PREFIX)?.split_once('/')?;
        let context = decode(context).filter(|context| !context.is_empty())?;
        let path = if let Some(path) = rest.strip_prefix("files/") {
            decode(path)?
        } else {
            format!("{OUTPUTS}{}", decode(rest.strip_prefix("outputs/").filter(|file| !file.is_empty())?)?)
        };
        (!path.is_empty()).then_some(Self { context, path })
    }
}

fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_first_chunk::<2>()?;
            let digit = |byte: u8| (byte as char).to_digit(16);
            out.push((digit(digits[0])? * 16 + digit(digits[1])?) as u8);
            rest = after;
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_and_outputs_have_addresses() {
        assert_eq!(
            of_file("ctx-1", "data/été 1.csv"),
            "belljar://contexts/ctx-1/files/data/%C3%A9t%C3%A9%201.csv"
        );
        assert_eq!(of_file("ctx-1", "/tmp/x"), "belljar://contexts/ctx-1/files//tmp/x");
        assert_eq!(
            of_file("ctx-1", "/outputs/run-3.stdout.txt"),
            "belljar://contexts/ctx-1/outputs/run-3.stdout.txt"
        );
    }

    #[test]
    fn what_is_not_ours_is_refused() {
        for uri in [
            "",
            "file:///etc/passwd",
            "belljar://contexts/ctx-1",
            "belljar://contexts/ctx-1/files/",
            "belljar://contexts/ctx-1/outputs/",
            "belljar://contexts//files/a",
            "belljar://contexts/ctx-1/secrets/a",
            "belljar://contexts/ctx-1/files/%zz",
            "belljar://contexts/ctx-1/files/%f",
            "belljar://contexts/ctx-1/files/%ff",
        ] {
            assert_eq!(ResourceUri::parse(uri), None, "{uri}");
        }
    }

    proptest! {
        #[test]
        fn addresses_lead_back(context in "[a-z0-9-]{1,20}", path in "\\PC{1,40}") {
            let parsed = ResourceUri::parse(&of_file(&context, &path)).unwrap();
            prop_assert_eq!(parsed, ResourceUri { context, path });
        }

        #[test]
        fn garbage_never_panics(uri in "(belljar://contexts/)?\\PC{0,60}") {
            let _ = ResourceUri::parse(&uri);
        }
    }

    #[test]
    fn fuzz_addresses() {
        let seeds: [&[u8]; 4] = [
            b"belljar://contexts/ctx-1/files/a%20b.txt",
            b"belljar://contexts/ctx-1/outputs/run-1.stdout.txt",
            b"/outputs/../x",
            "odd/100% é.txt".as_bytes(),
        ];
        belljar_fuzz::fuzz("addresses", &seeds, |input| {
            let text = String::from_utf8_lossy(input).into_owned();
            if !text.is_empty() {
                let led = ResourceUri::parse(&of_file("ctx-1", &text));
                assert_eq!(led.map(|uri| uri.path), Some(text.clone()), "the address does not lead back");
            }
            match ResourceUri::parse(&text) {
                Some(uri) => {
                    assert!(!uri.context.is_empty() && !uri.path.is_empty());
                    belljar_fuzz::mark((1, uri.path.starts_with('/')))
                }
                None => 0,
            }
        });
    }
}
