//! What a database answered, within its caps.

use belljar_tools::clipped;
use serde_json::{Map, Value, json};
use sqlx::types::BigDecimal;

use super::super::tool::MAX_RESULT;

/// Bytes of one value.
const MAX_CELL: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Rows {
    columns: Vec<String>,
    rows: Vec<Map<String, Value>>,
    bytes: usize,
    limit: usize,
    /// There are more than are here.
    more: bool,
    pub(super) affected: Option<u64>,
}

impl Rows {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Names that occur twice get a number: every value is told.
    pub(super) fn set_columns<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.columns.clear();
        for name in names {
            let mut unique = name.to_owned();
            let mut number = 2;
            while self.columns.contains(&unique) {
                unique = format!("{name}_{number}");
                number += 1;
            }
            self.columns.push(unique);
        }
    }

    pub(super) fn has_columns(&self) -> bool {
        !self.columns.is_empty()
    }

    /// False when no more are wanted.
    pub(super) fn push(&mut self, values: impl IntoIterator<Item = Value>) -> bool {
        let values = values.into_iter().map(bounded);
        let row: Map<_, _> = self.columns.iter().cloned().zip(values).collect();
        let size = serde_json::to_string(&row).map_or(0, |text| text.len());
        if self.rows.len() >= self.limit || self.bytes + size > MAX_RESULT {
            self.more = true;
            return false;
        }
        self.bytes += size;
        self.rows.push(row);
        true
    }

    pub(super) fn objects(&self) -> Value {
        self.rows.iter().cloned().map(Value::Object).collect()
    }

    pub(super) fn first(&self) -> Value {
        self.rows.first().cloned().map_or(Value::Null, Value::Object)
    }

    pub(super) fn told(&self) -> Value {
        let mut told =
            json!({ "columns": self.columns, "rows": self.objects(), "row_count": self.rows.len() });
        if let Some(affected) = self.affected {
            told["rows_affected"] = json!(affected);
        }
        if self.more {
            told["truncated"] = json!(true);
            told["note"] = json!(format!(
                "There are more rows than these {}. Ask for fewer columns or rows, or let the database count.",
                self.rows.len()
            ));
        }
        told
    }
}

fn bounded(value: Value) -> Value {
    match value {
        Value::String(text) if text.len() > MAX_CELL => {
            let (beginning, note) = clipped(&text, MAX_CELL);
            Value::String(format!("{beginning}… [{}]", note.unwrap_or_default()))
        }
        Value::Array(_) | Value::Object(_) => {
            let text = value.to_string();
            if text.len() > MAX_CELL { bounded(Value::String(text)) } else { value }
        }
        other => other,
    }
}

/// All of its digits, and none that only the database's own format adds.
pub(super) fn decimal(number: &BigDecimal) -> String {
    number.normalized().to_plain_string()
}

/// Bytes as text, for a reader.
pub(super) fn hex(bytes: &[u8]) -> Value {
    let shown: String = bytes.iter().take(MAX_CELL / 4).map(|byte| format!("{byte:02x}")).collect();
    let rest =
        if bytes.len() > MAX_CELL / 4 { format!("… [{} bytes]", bytes.len()) } else { String::new() };
    Value::String(format!("\\x{shown}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_keep_their_digits() {
        let told =
            ["12.5000", "1000", "0.00", "-0.000000000000000001"].map(|text| decimal(&text.parse().unwrap()));
        assert_eq!(told, ["12.5", "1000", "0", "-0.000000000000000001"]);
    }

    #[test]
    fn rows_and_bytes_are_bounded() {
        let mut rows = Rows::new(2);
        rows.set_columns(["a", "a", "b"].into_iter());
        assert!(rows.push([json!(1), json!(2), json!("x".repeat(20_000))]));
        assert!(rows.push([json!(1), json!(2), json!(3)]));
        assert!(!rows.push([json!(1), json!(2), json!(3)]));
        let told = rows.told();
        assert_eq!((&told["row_count"], &told["truncated"]), (&json!(2), &json!(true)));
        assert_eq!(told["rows"][0]["a_2"], json!(2));
        assert!(told["rows"][0]["b"].as_str().unwrap().ends_with("[only the first 10,000 of 20,000 bytes]"));
        let mut wide = Rows::new(1_000_000);
        wide.set_columns(["a"].into_iter());
        while wide.push([json!("y".repeat(9_000))]) {}
        assert!(wide.told().to_string().len() < MAX_RESULT + 1_000);
    }
}
