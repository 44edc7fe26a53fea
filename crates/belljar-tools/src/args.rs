//! Arguments checked against the tool's own schema, so that an error can name the argument, what was
//! expected and what was sent.

use std::time::Duration;

use belljar_sandbox::Error;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{MAX_QUOTED, ToolError, text};

pub(crate) fn parse<T: DeserializeOwned>(schema: &Map<String, Value>, args: Value) -> Result<T, ToolError> {
    serde_json::from_value(Value::Object(checked(schema, args)?))
        .map_err(|error| ToolError::invalid(format!("Invalid arguments: {error}")))
}

/// The arguments that were given, if they are as the schema of a tool says.
pub fn checked(schema: &Map<String, Value>, args: Value) -> Result<Map<String, Value>, ToolError> {
    let mut given = match args {
        Value::Object(given) => given,
        Value::Null => Map::new(),
        other => {
            return Err(ToolError::invalid(format!("Arguments must be an object, got {}", describe(&other))));
        }
    };
    // Many clients send null for what was left out.
    given.retain(|_, value| !value.is_null());

    let no_properties = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&no_properties);
    let required = schema.get("required").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for name in required.iter().filter_map(Value::as_str) {
        if !given.contains_key(name) {
            return Err(missing(name, properties.get(name), &given));
        }
    }
    // Arguments that nobody asked for are ignored: models like to add some.
    for (name, value) in &given {
        if let Some(property) = properties.get(name) {
            check(name, property, value)?;
        }
    }
    Ok(given)
}

/// A time in seconds.
pub(crate) fn seconds(name: &str, given: Option<f64>) -> Result<Option<Duration>, ToolError> {
    let time = given.map(Duration::try_from_secs_f64).transpose();
    time.map_err(|error| ToolError::invalid(format!("Argument '{name}': {error}")))
}

pub(crate) fn at_most(name: &str, text: &str, limit: usize) -> Result<(), ToolError> {
    if text.len() > limit {
        return Err(ToolError::invalid(format!(
            "Argument '{name}' must be at most {} bytes, got {}; put data into a file",
            text::grouped(limit as u64),
            text::grouped(text.len() as u64)
        )));
    }
    Ok(())
}

fn missing(name: &str, property: Option<&Value>, given: &Map<String, Value>) -> ToolError {
    let text = |key| property.and_then(|property| property.get(key)).and_then(Value::as_str);
    let kind = text("type").unwrap_or("value");
    let about = text("description").map(|about| format!(": {about}")).unwrap_or_default();
    let names: Vec<_> = given.keys().map(|key| text::shorten(key, MAX_QUOTED)).take(10).collect();
    let sent = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    ToolError::invalid(format!("Missing argument: '{name}' ({kind}){about} (given: {sent})"))
}

fn check(name: &str, property: &Value, value: &Value) -> Result<(), ToolError> {
    let refuse = |expected: String| {
        ToolError::invalid(format!("Argument '{name}' must be {expected}, got {}", describe(value)))
    };
    if let Some(kind) = property.get("type").and_then(Value::as_str) {
        let fits = match kind {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            _ => true,
        };
        if !fits {
            let article = if kind.starts_with(['a', 'i', 'o']) { "an" } else { "a" };
            return Err(refuse(format!("{article} {kind}")));
        }
    }
    if let Some(allowed) = property.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        if name == "language" {
            let sent = value.as_str().unwrap_or_default();
            return Err(Error::InvalidLanguage(text::shorten(sent, MAX_QUOTED)).into());
        }
        let allowed: Vec<_> = allowed.iter().map(Value::to_string).collect();
        return Err(refuse(format!("one of {}", allowed.join(", "))));
    }
    if let Some(number) = value.as_f64() {
        let limit = |key| property.get(key).and_then(Value::as_f64);
        if let Some(low) = limit("exclusiveMinimum").filter(|low| number <= *low) {
            return Err(refuse(format!("more than {low}")));
        }
        if let Some(low) = limit("minimum").filter(|low| number < *low) {
            return Err(refuse(format!("at least {low}")));
        }
        if let Some(high) = limit("maximum").filter(|high| number > *high) {
            return Err(refuse(format!("at most {high}")));
        }
    }
    if let (Some(inner), Some(values)) = (property.get("items"), value.as_array()) {
        for (index, value) in values.iter().enumerate() {
            check(&format!("{name}[{index}]"), inner, value)?;
        }
    }
    if let (Some(inner), Some(values)) =
        (property.get("properties").and_then(Value::as_object), value.as_object())
    {
        let required = property.get("required").and_then(Value::as_array).into_iter().flatten();
        for key in required.filter_map(Value::as_str) {
            let Some(value) = values.get(key) else {
                return Err(missing(&format!("{name}.{key}"), inner.get(key), values));
            };
            check(&format!("{name}.{key}"), inner.get(key).unwrap_or(&Value::Null), value)?;
        }
    }
    if let (Some(inner), Some(values)) = (property.get("additionalProperties"), value.as_object()) {
        for (key, value) in values {
            check(&format!("{name}.{}", text::shorten(key, MAX_QUOTED)), inner, value)?;
        }
    }
    Ok(())
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {:?}", text::shorten(text, MAX_QUOTED)),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, JsonSchema)]
    struct Sample {
        /// The program to run.
        code: String,
        #[schemars(extend("enum" = ["python", "javascript"]))]
        language: Option<String>,
        #[schemars(extend("enum" = ["utf-8", "base64"]))]
        encoding: Option<String>,
        #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 3600))]
        timeout: Option<f64>,
        #[serde(default)]
        recursive: bool,
    }

    fn read(args: Value) -> Result<Sample, String> {
        parse(&crate::schema::input::<Sample>(), args).map_err(|error| match error {
            ToolError::Tell { code, message } => format!("{code}: {message}"),
            ToolError::Fatal(message) => panic!("{message}"),
        })
    }

    #[test]
    fn good_arguments_and_surplus_ones_pass() {
        let args = read(json!({ "code": "1", "timeout": 5, "language": null, "mood": "sunny" })).unwrap();
        assert_eq!((args.code.as_str(), args.timeout, args.language), ("1", Some(5.0), None));
        assert!(!args.recursive && args.encoding.is_none());
    }

    #[test]
    fn bad_arguments_are_named() {
        let refusals: Vec<_> = [
            json!(null),
            json!([1]),
            json!({ "program": "1" }),
            json!({ "code": 5 }),
            json!({ "code": null }),
            json!({ "code": "1", "timeout": "ten" }),
            json!({ "code": "1", "timeout": 0 }),
            json!({ "code": "1", "timeout": 1e9 }),
            json!({ "code": "1", "language": "ruby" }),
            json!({ "code": "1", "language": 3 }),
            json!({ "code": "1", "encoding": "latin-1" }),
            json!({ "code": "1", "recursive": "x".repeat(500) }),
        ]
        .into_iter()
        .map(|args| read(args).unwrap_err())
        .collect();
        insta::assert_snapshot!(refusals.join("\n"));
    }
}
