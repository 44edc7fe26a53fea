//! The end of a log, for somebody who looks at it.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use serde_json::Value;

use super::chain;

/// The records that are shown fit into this much many times over.
const END: u64 = 1 << 20;

/// The last records, the newest last. What is no record is left to the check.
pub(crate) fn last(path: &Path, count: usize) -> io::Result<Vec<Value>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(END)))?;
    let mut end = Vec::new();
    file.take(END).read_to_end(&mut end)?;
    let lines = end.split(|byte| *byte == b'\n').rev();
    let shown = lines.filter_map(|line| chain::open(line).ok()).take(count).map(|record| {
        let mut fields = record.fields;
        fields.insert("seq".into(), record.link.seq.into());
        Value::Object(fields)
    });
    let mut shown: Vec<_> = shown.collect();
    shown.reverse();
    Ok(shown)
}
