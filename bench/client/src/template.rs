//! Text with `$ID` in it, cut once so that filling it in is copying.

const MARK: &str = "$ID";

pub(crate) struct Template(Vec<Vec<u8>>);

impl Template {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.split(MARK).map(|piece| piece.as_bytes().to_vec()).collect())
    }

    pub(crate) fn fill(&self, id: u64, out: &mut Vec<u8>) {
        let number = id.to_string();
        for (index, piece) in self.0.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(number.as_bytes());
            }
            out.extend_from_slice(piece);
        }
    }

    pub(crate) fn filled(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::new();
        self.fill(id, &mut out);
        out
    }
}

/// The number of the call that a line answers; `None` for a notification.
pub(crate) fn answered(line: &[u8]) -> Option<u64> {
    // Far enough for `{"jsonrpc": "2.0", "id": …` in any usual order; a result may hold any number of ids further on.
    let head = &line[..line.len().min(64)];
    let at = memchr::memmem::find(head, b"\"id\":")? + 5;
    let rest = head[at..].trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// The text that follows `"name":` for the first time, as it stands there.
pub(crate) fn text_of<'a>(line: &'a [u8], name: &str) -> Option<&'a str> {
    let key = format!("\"{name}\":");
    let at = memchr::memmem::find(line, key.as_bytes())? + key.len();
    let rest = line[at..].trim_ascii_start().strip_prefix(b"\"")?;
    let end = memchr::memchr(b'"', rest)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_filled_in() {
        let template = Template::new(r#"{"id":$ID,"code":"$ID"}"#);
        assert_eq!(template.filled(17), br#"{"id":17,"code":"17"}"#);
        assert_eq!(Template::new("plain").filled(1), b"plain");
    }

    #[test]
    fn an_answer_is_known_by_its_number() {
        assert_eq!(answered(br#"{"jsonrpc":"2.0","id":42,"result":{"id":7}}"#), Some(42));
        assert_eq!(answered(br#"{"jsonrpc": "2.0", "id": 3, "result": {}}"#), Some(3));
        assert_eq!(
            answered(
                br#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","id":1}}"#
            ),
            None
        );
        assert_eq!(answered(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#), None);
    }

    #[test]
    fn a_text_is_found_by_its_name() {
        assert_eq!(text_of(br#"{"a":1,"context_id": "ctx-5","b":"x"}"#, "context_id"), Some("ctx-5"));
        assert_eq!(text_of(br#"{"a":1}"#, "a"), None);
    }
}
