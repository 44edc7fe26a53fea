//! What a toolkit offers to read.

use std::sync::Arc;

use serde_json::{Value, json};
use toml::Spanned;

use super::{
    environment::Resolved,
    file,
    problems::Check,
    sql::{Database, Query},
};
use crate::config::Environment;

pub(crate) struct Resource {
    pub(crate) uri: String,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) mime: String,
    source: Source,
}

enum Source {
    Text(String),
    Query(Arc<Database>, Query),
}

impl Resource {
    pub(super) fn check(
        resource: &file::Resource,
        manifest: &Value,
        database: Option<&Arc<Database>>,
        environment: &Environment,
        check: &mut Check<'_>,
    ) -> Option<Self> {
        let file::Resource { uri, name, description, mime, text, json, query, .. } = resource;
        let kinds = [text.is_some(), json.is_some(), resource.manifest, query.is_some()];
        if kinds.iter().filter(|given| **given).count() != 1 {
            check.at(uri, "a resource has exactly one of text, json, manifest and query");
            return None;
        }
        check_uri(uri, check);
        let is_text = text.is_some();
        let source = if let Some(text) = text {
            Source::Text(text.clone())
        } else if let Some(value) = json {
            Source::Text(format!("{:#}", resolved(file::json(value), environment)))
        } else if let Some(query) = query {
            let Some(database) = database else {
                check.at(query, "a query needs a [database] with a url");
                return None;
            };
            Source::Query(Arc::clone(database), check.keep(query, Query::parse(query.get_ref(), |_| false))?)
        } else {
            Source::Text(format!("{manifest:#}"))
        };
        let usual = if is_text { "text/markdown" } else { "application/json" };
        Some(Self {
            uri: uri.get_ref().clone(),
            name: name.clone(),
            description: description.clone(),
            mime: mime.clone().unwrap_or_else(|| usual.to_owned()),
            source,
        })
    }

    /// Its text, or why there is none.
    pub(crate) async fn read(&self) -> Result<String, String> {
        match &self.source {
            Source::Text(text) => Ok(text.clone()),
            Source::Query(database, query) => Ok(format!("{:#}", database.read_fixed(query).await?)),
        }
    }
}

/// A list of the tools, for `manifest`.
pub(super) fn manifest(name: &str, description: &str, tools: &[(String, String)]) -> Value {
    let tools: Vec<_> =
        tools.iter().map(|(name, about)| json!({ "name": name, "description": about })).collect();
    json!({ "name": name, "description": description, "tools": tools })
}

fn check_uri(uri: &Spanned<String>, check: &mut Check<'_>) {
    let text = uri.get_ref();
    let scheme = text.split_once("://").map(|(scheme, _)| scheme).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    if scheme.is_empty() || !scheme.chars().all(plain) || text.chars().any(char::is_whitespace) {
        check.at(uri, format!("{text:?} is no URI such as docs://guide"));
    } else if scheme == "belljar" {
        check.at(uri, "the scheme belljar:// is taken");
    }
}

fn resolved(value: Value, environment: &Environment) -> Value {
    match value {
        Value::String(text) => match Resolved::new(&text, environment).get() {
            Ok(text) => Value::String(text.to_owned()),
            Err(_) => Value::Null,
        },
        Value::Array(values) => values.into_iter().map(|value| resolved(value, environment)).collect(),
        Value::Object(map) => {
            map.into_iter().map(|(key, value)| (key, resolved(value, environment))).collect()
        }
        other => other,
    }
}
