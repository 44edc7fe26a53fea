//! The parameters of a tool: a JSON Schema each, and what stands for those that were not given.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toml::Spanned;

use super::{file, problems::Check, template::Template};

const TYPES: [&str; 6] = ["string", "integer", "number", "boolean", "array", "object"];
const MAX_PARAMETERS: usize = 100;

#[derive(Debug, Clone, Default)]
pub(super) struct Parameters {
    pub(super) properties: Map<String, Value>,
    required: Vec<String>,
}

impl Parameters {
    pub(super) fn check(
        properties: &BTreeMap<String, Spanned<toml::Value>>,
        required: &[Spanned<String>],
        check: &mut Check<'_>,
    ) -> Self {
        let mut parameters = Self::default();
        for (name, schema) in properties {
            if let Some(schema) = check.keep(schema, property(name, schema.get_ref())) {
                parameters.properties.insert(name.clone(), schema);
            }
        }
        if let Some(last) = properties.values().nth(MAX_PARAMETERS) {
            check.at(last, format!("a tool may have {MAX_PARAMETERS} parameters"));
        }
        for name in required {
            if !properties.contains_key(name.get_ref()) {
                check.at(name, format!("{:?} is required, but there is no such parameter", name.get_ref()));
            }
            parameters.required.push(name.get_ref().clone());
        }
        parameters
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.properties.contains_key(name)
    }

    pub(super) fn is(&self, name: &str, kind: &str) -> bool {
        self.properties.get(name).is_some_and(|schema| schema["type"] == kind)
    }

    /// One that every tool of its kind has, unless the file has its own.
    pub(super) fn offer(&mut self, name: &str, schema: Value) {
        self.properties.entry(name).or_insert(schema);
    }

    pub(super) fn schema(&self) -> Map<String, Value> {
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), Value::Object(self.properties.clone()));
        if !self.required.is_empty() {
            schema.insert("required".to_owned(), json!(self.required));
        }
        schema
    }

    /// Adds the defaults of what was not given.
    pub(super) fn complete(&self, given: &mut Map<String, Value>) {
        for (name, schema) in &self.properties {
            if let (false, Some(default)) = (given.contains_key(name), schema.get("default")) {
                given.insert(name.clone(), default.clone());
            }
        }
    }

    /// A template all of whose names are parameters.
    pub(super) fn template(&self, text: &Spanned<String>, check: &mut Check<'_>) -> Option<Template> {
        let template = check.keep(text, Template::parse(text.get_ref()))?;
        for name in template.names().filter(|name| !self.has(name)) {
            check.at(text, self.unknown(name));
        }
        Some(template)
    }

    /// The name of a parameter.
    pub(super) fn named(&self, name: &Spanned<String>, kind: &str, check: &mut Check<'_>) -> String {
        if !self.has(name.get_ref()) {
            check.at(name, self.unknown(name.get_ref()));
        } else if !self.is(name.get_ref(), kind) {
            check.at(name, format!("the parameter {:?} must have the type {kind:?}", name.get_ref()));
        }
        name.get_ref().clone()
    }

    pub(super) fn unknown(&self, name: &str) -> String {
        let known: Vec<_> = self.properties.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        format!("there is no parameter {name:?}; there are: {known}")
    }
}

fn property(name: &str, schema: &toml::Value) -> Result<Value, String> {
    let valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(valid) {
        return Err(format!(
            "{name:?} cannot be the name of a parameter: letters, digits, _ and -, at most 64"
        ));
    }
    let schema = file::json(schema);
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    if !TYPES.contains(&kind) {
        return Err(format!("the parameter {name:?} needs a type: one of {}", TYPES.join(", ")));
    }
    if let Some(default) = schema.get("default") {
        let one = [(name.to_owned(), default.clone())].into_iter().collect();
        let around = json!({ "properties": { name: schema } });
        let around = around.as_object().cloned().unwrap_or_default();
        belljar_tools::arguments(&around, Value::Object(one)).map_err(|error| match error {
            belljar_tools::ToolError::Tell { message, .. } | belljar_tools::ToolError::Fatal(message) => {
                format!("the default does not fit: {message}")
            }
        })?;
    }
    Ok(schema)
}
