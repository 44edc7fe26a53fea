//! A toolkit as it is written: what may stand in its TOML file, and nothing else.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Spanned, Value};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) description: String,
    /// What a model must know to begin.
    #[serde(default)]
    pub(super) instructions: String,
    /// Where HTTP tools send their requests.
    #[serde(default)]
    pub(super) service: BTreeMap<String, Service>,
    /// What SQL tools ask.
    pub(super) database: Option<Database>,
    #[serde(default)]
    pub(super) tool: Vec<Tool>,
    #[serde(default)]
    pub(super) resource: Vec<Resource>,
    #[serde(default)]
    pub(super) prompt: Vec<Prompt>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    /// `https://host/base`, or a reference to the environment.
    pub(super) base: Spanned<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Database {
    pub(super) url: Spanned<String>,
    /// Rows that one result carries.
    #[serde(default = "max_rows")]
    pub(super) max_rows: usize,
    /// Seconds that one statement may take.
    #[serde(default = "timeout")]
    pub(super) timeout: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: Spanned<String>,
    pub(super) title: Option<String>,
    pub(super) description: String,
    #[serde(default)]
    pub(super) read_only: bool,
    pub(super) destructive: Option<bool>,
    #[serde(default)]
    pub(super) idempotent: bool,
    /// Each one a JSON Schema.
    #[serde(default)]
    pub(super) parameters: BTreeMap<String, Spanned<Value>>,
    #[serde(default)]
    pub(super) required: Vec<Spanned<String>>,
    pub(super) command: Option<Command>,
    pub(super) http: Option<Http>,
    pub(super) sql: Option<Sql>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Command {
    /// Words, `{parameters}`, and tables of words that depend on a parameter.
    pub(super) argv: Vec<Spanned<Value>>,
    /// In the sandbox.
    pub(super) cwd: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, Spanned<String>>,
    pub(super) stdin: Option<Spanned<String>>,
}

/// Words that are there only if a parameter is given and true, or has a certain value.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conditional {
    #[serde(rename = "if")]
    pub(super) parameter: String,
    pub(super) is: Option<Value>,
    pub(super) argv: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Http {
    pub(super) service: Spanned<String>,
    #[serde(default = "get")]
    pub(super) method: Spanned<String>,
    pub(super) path: Spanned<String>,
    #[serde(default)]
    pub(super) query: BTreeMap<String, Spanned<String>>,
    pub(super) body: Option<Spanned<Value>>,
    /// Seconds.
    #[serde(default = "timeout")]
    pub(super) timeout: u64,
    /// A parameter that says how many seconds instead.
    pub(super) timeout_from: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) result: Answer,
    /// Asked afterwards, and only if the first request went well.
    pub(super) check: Option<Check>,
}

/// What a reader is told of an answer.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    /// A text with names of the answer's fields in braces, such as `{user.login}`.
    pub(super) text: Option<Spanned<String>>,
    /// Our name for a field, and where it is in the answer.
    #[serde(default)]
    pub(super) pick: BTreeMap<String, String>,
    /// The answer is a list, which is told under this name.
    pub(super) list: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    /// Under which name its outcome is told.
    pub(super) name: String,
    /// Only if this parameter is true.
    #[serde(rename = "if")]
    pub(super) parameter: Option<Spanned<String>>,
    pub(super) service: Spanned<String>,
    pub(super) path: Spanned<String>,
}

/// Exactly one of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sql {
    /// Fixed text, in which `{parameters}` are bound; or one text for each kind of database.
    pub(super) query: Option<Spanned<Value>>,
    /// Whether the query may change something.
    #[serde(default)]
    pub(super) write: bool,
    /// The parameter that is a statement. It only ever reads.
    pub(super) statement: Option<Spanned<String>>,
    /// The parameter with what the statement's placeholders stand for.
    pub(super) bind: Option<Spanned<String>>,
    pub(super) insert: Option<Insert>,
    pub(super) update: Option<Update>,
    /// The parameter that names a table to describe.
    pub(super) describe: Option<Spanned<String>>,
}

/// Names of parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Insert {
    pub(super) table: Spanned<String>,
    pub(super) values: Spanned<String>,
}

/// Names of parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Update {
    pub(super) table: Spanned<String>,
    pub(super) values: Spanned<String>,
    #[serde(rename = "where")]
    pub(super) condition: Spanned<String>,
}

/// Exactly one of `text`, `json`, `manifest` and `query`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resource {
    pub(super) uri: Spanned<String>,
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) mime: Option<String>,
    pub(super) text: Option<String>,
    /// Words of its strings may refer to the environment.
    pub(super) json: Option<Value>,
    /// A list of the toolkit's tools.
    #[serde(default)]
    pub(super) manifest: bool,
    pub(super) query: Option<Spanned<Value>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prompt {
    pub(super) name: Spanned<String>,
    pub(super) title: Option<String>,
    pub(super) description: Option<String>,
    #[serde(default)]
    pub(super) arguments: Vec<PromptArgument>,
    pub(super) text: Spanned<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PromptArgument {
    pub(super) name: String,
    pub(super) description: Option<String>,
    #[serde(default)]
    pub(super) required: bool,
}

/// JSON has no dates, and no numbers that are none: the first become texts, the others nothing.
pub(super) fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => text.as_str().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(is) => (*is).into(),
        Value::Datetime(at) => at.to_string().into(),
        Value::Array(values) => values.iter().map(json).collect(),
        Value::Table(table) => table.iter().map(|(name, value)| (name.clone(), json(value))).collect(),
    }
}

fn get() -> Spanned<String> {
    Spanned::new(0..0, "GET".to_owned())
}

fn timeout() -> u64 {
    30
}

fn max_rows() -> usize {
    500
}
