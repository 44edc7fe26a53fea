//! One record a line. Every line carries the hash of the one before it and, at its end, its own.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Between a line's contents and its own hash.
const HASH: &str = ",\"hash\":\"";
const END: &str = "\"}";
const HEX: usize = 64;

/// Where a chain stands: its last record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) seq: u64,
    pub(crate) hash: String,
}

impl Link {
    /// What the first record of all follows.
    pub(crate) fn genesis() -> Self {
        Self { seq: 0, hash: "0".repeat(HEX) }
    }

    /// As it is kept beside the log.
    pub(super) fn text(&self) -> String {
        format!("{} {}\n", self.seq, self.hash)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (seq, hash) = text.trim_end().split_once(' ')?;
        Some(Self {
            seq: seq.parse().ok().filter(can_go_on)?,
            hash: Some(hash).filter(|hash| is_hash(hash))?.to_owned(),
        })
    }
}

/// A record that is what it says it is.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) link: Link,
    pub(crate) prev: String,
    pub(crate) fields: Map<String, Value>,
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn is_hash(text: &str) -> bool {
    text.len() == HEX && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// There is a number after it.
fn can_go_on(seq: &u64) -> bool {
    *seq < u64::MAX
}

/// The line that follows `last`, without its line break.
pub(crate) fn seal(last: &Link, fields: &Map<String, Value>) -> (String, Link) {
    let seq = last.seq + 1;
    let mut line = format!("{{\"seq\":{seq}");
    for (key, value) in fields {
        line.push_str(&format!(",{}:{value}", Value::from(key.as_str())));
    }
    line.push_str(&format!(",\"prev\":\"{}\"", last.hash));
    let hash = digest(line.as_bytes());
    line.push_str(HASH);
    line.push_str(&hash);
    line.push_str(END);
    (line, Link { seq, hash })
}

/// What a line says, if its own hash is right.
pub(crate) fn open(line: &[u8]) -> Result<Record, &'static str> {
    let suffix = HASH.len() + HEX + END.len();
    let Some(cut) = line.len().checked_sub(suffix) else { return Err("is too short to be a record") };
    let (contents, rest) = line.split_at(cut);
    let hash = rest.strip_prefix(HASH.as_bytes()).and_then(|rest| rest.strip_suffix(END.as_bytes()));
    let hash = hash.and_then(|hash| std::str::from_utf8(hash).ok()).filter(|hash| is_hash(hash));
    let Some(hash) = hash else { return Err("does not end with its hash") };
    if digest(contents) != hash {
        return Err("is not what was written: its hash is wrong");
    }
    let mut fields: Map<String, Value> =
        serde_json::from_slice(line).map_err(|_| "has a hash but is no JSON object")?;
    fields.remove("hash");
    let seq = fields.remove("seq").and_then(|seq| seq.as_u64()).filter(can_go_on);
    let prev = fields.remove("prev").and_then(|prev| Some(prev.as_str()?.to_owned()));
    let (Some(seq), Some(prev)) = (seq, prev) else { return Err("has no number, or no predecessor") };
    Ok(Record { link: Link { seq, hash: hash.to_owned() }, prev, fields })
}
