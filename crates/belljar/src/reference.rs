//! `docs/tools-reference.md`, made from what the tools say of themselves. `UPDATE_DOCS=1 cargo test -p belljar` writes
//! it.

use std::{fmt::Write, path::Path, sync::Arc};

use belljar_sandbox::Settings;
use belljar_tools::{Annotations, Options, Registry, Tool, registry::TOOLSETS};
use serde_json::{Map, Value};

use crate::toolkit;

const HEAD: &str = "# Tools: the reference

<!-- Made from the tools' own schemas by `UPDATE_DOCS=1 cargo test -p belljar`. -->

Every tool with its arguments and results, word for word as models are told, with default settings. [Tools](tools.md)
tells how they behave; `tools/list` of a running server is the last word.

*reads* changes nothing; *destructive* may undo or overwrite; *idempotent* may be repeated; *open world* reaches beyond
the sandbox. Fields of a result in *italics* are always there.
";

fn page() -> String {
    let options = Options { settings: Settings::default(), default_context: false };
    let mut page = HEAD.to_owned();
    let toolkits = toolkit::load(&["cicd".into(), "database".into()], &|_| None, &options).unwrap();
    let sets = TOOLSETS.iter().map(|set| {
        let registry = Registry::new(&[set.name], &options).unwrap();
        (format!("`{}`: {}", set.name, set.about), registry.tools().to_vec())
    });
    let kits = toolkits.iter().map(|kit| (format!("The toolkit `{}`", kit.name), kit.tools.clone()));
    let all: Vec<_> = sets.chain(kits).collect();
    page.push_str("\n| toolset | tools |\n|---|---|\n");
    for (about, tools) in &all {
        let links: Vec<_> = tools.iter().map(|tool| format!("[`{0}`](#{0})", tool.spec().name)).collect();
        let _ = writeln!(page, "| {about} | {} |", links.join(", "));
    }
    for (about, tools) in &all {
        let _ = writeln!(page, "\n## {about}");
        tools.iter().for_each(|tool| describe(&mut page, tool));
    }
    page
}

fn describe(page: &mut String, tool: &Arc<dyn Tool>) {
    let spec = tool.spec();
    let _ = write!(page, "\n### {}\n\n", spec.name);
    let _ = writeln!(page, "{} *{}*", spec.description.trim(), kinds(spec.annotations));
    let arguments = rows(&spec.input_schema, "");
    if !arguments.is_empty() {
        page.push_str("\n| argument | type | | |\n|---|---|---|---|\n");
    }
    for row in arguments {
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", row.name, row.kind, row.need, row.about);
    }
    let results = spec.output_schema.as_ref().map(|schema| rows(schema, "")).unwrap_or_default();
    if !results.is_empty() {
        page.push_str("\n| result | type | |\n|---|---|---|\n");
    }
    for row in results {
        let name =
            if row.need == "required" { format!("*`{}`*", row.name) } else { format!("`{}`", row.name) };
        let _ = writeln!(page, "| {name} | {} | {} |", row.kind, row.about);
    }
}

fn kinds(annotations: Annotations) -> String {
    let all = [
        (annotations.read_only, "reads"),
        (annotations.destructive, "destructive"),
        (annotations.idempotent && !annotations.read_only, "idempotent"),
        (annotations.open_world, "open world"),
    ];
    let kinds: Vec<_> = all.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    if kinds.is_empty() { "adds, and destroys nothing".to_owned() } else { kinds.join(", ") }
}

struct Row {
    name: String,
    kind: String,
    need: String,
    about: String,
}

/// The properties of an object, and those of objects in it by their paths.
fn rows(schema: &Map<String, Value>, above: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let required = schema.get("required").and_then(Value::as_array);
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let need = match property.get("default") {
            Some(default) => format!("default `{default}`"),
            None if required.is_some_and(|all| all.contains(&Value::from(&**name))) => "required".to_owned(),
            None => String::new(),
        };
        let name = format!("{above}{name}");
        let about = property["description"].as_str().unwrap_or_default();
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        rows.push(Row { name: name.clone(), kind: kind(property), need, about });
        for (inner, path) in [(property, "."), (&property["items"], "[].")] {
            if let Some(inner) = inner.as_object().filter(|inner| inner.contains_key("properties")) {
                rows.extend(self::rows(inner, &format!("{name}{path}")));
            }
        }
    }
    rows
}

fn kind(property: &Value) -> String {
    if let Some(values) = property["enum"].as_array() {
        return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(any) = property["anyOf"].as_array() {
        return any.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    let name = property["type"].as_str().unwrap_or("any");
    let mut text = match name {
        "array" => match property["items"]["type"].as_str() {
            Some(inner) => format!("array of {inner}s"),
            None => "array".to_owned(),
        },
        other => other.to_owned(),
    };
    for (key, sign) in [("exclusiveMinimum", ">"), ("minimum", "≥"), ("maximum", "≤")] {
        if let Some(limit) = property.get(key) {
            let _ = write!(text, ", {sign} {limit}");
        }
    }
    text
}

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools-reference.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/tools-reference.md is stale: UPDATE_DOCS=1 cargo test -p belljar writes it"
    );
}
