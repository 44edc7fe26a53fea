//! JSON Schemas from argument and result structs, in the plain form that every client understands: one
//! type per property, no references, no `null` (an absent value is left out instead).

use belljar_sandbox::Settings;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

pub(crate) fn input<T: JsonSchema>() -> Map<String, Value> {
    let mut schema = generate::<T>(SchemaSettings::draft2020_12());
    // Some clients refuse an object schema without properties.
    schema.entry("properties").or_insert_with(|| json!({}));
    schema
}

/// For arguments with an optional `context_id`, which is required unless there is a default context.
pub(crate) fn input_with_context<T: JsonSchema>(default_context: bool) -> Map<String, Value> {
    let mut schema = input::<T>();
    if default_context {
        if let Some(Value::String(text)) = schema["properties"]["context_id"].get_mut("description") {
            text.push_str(" Leave it out to use your own default Python context.");
        }
    } else if let Some(required) = schema.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        required.push(json!("context_id"));
    }
    schema
}

/// States default and maximum of a `timeout`, which are the server's to set.
pub(crate) fn set_time_limit(schema: &mut Map<String, Value>, settings: &Settings) {
    let timeout = &mut schema["properties"]["timeout"];
    timeout["maximum"] = json!(settings.max_run_timeout.as_secs());
    timeout["default"] = json!(settings.run_timeout.as_secs_f64());
}

pub(crate) fn output<T: JsonSchema>() -> Map<String, Value> {
    generate::<T>(SchemaSettings::draft2020_12().for_serialize())
}

/// For tools whose failures are structured too. A failure has to fit the schema as well, so nothing is required.
pub(crate) fn output_or_failure<T: JsonSchema>() -> Map<String, Value> {
    let mut schema = output::<T>();
    schema.remove("required");
    let failure = [
        ("error", "What failed, when the call failed; the other fields may be missing then."),
        ("code", "Which kind of failure it is."),
        ("hint", "What to do next."),
    ];
    for (name, about) in failure {
        schema["properties"][name] = json!({ "type": "string", "description": about });
    }
    schema
}

fn generate<T: JsonSchema>(mut settings: SchemaSettings) -> Map<String, Value> {
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    plain(&mut schema);
    match schema {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn plain(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    // The struct's name and Rust's number widths mean nothing to a reader.
    map.remove("title");
    map.remove("format");
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            map.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(options)) = map.get_mut("anyOf") {
        options.retain(|option| option != &json!({ "type": "null" }));
        if let [Value::Object(only)] = options.as_slice() {
            let only = only.clone();
            map.remove("anyOf");
            for (key, value) in only {
                map.entry(key).or_insert(value);
            }
        }
    }
    for key in ["properties", "$defs"] {
        if let Some(Value::Object(properties)) = map.get_mut(key) {
            properties.values_mut().for_each(plain);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            plain(inner);
        }
    }
}
