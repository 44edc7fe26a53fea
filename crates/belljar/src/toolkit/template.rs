//! Texts with `{parameters}` in them. How a value is put in depends on where it goes: a path, a JSON text, an argument.
//! There is no way to put one into a shell line or into SQL.

use serde_json::{Map, Value};

/// Bytes that a path may hold as they are; everything else is percent-encoded.
const UNRESERVED: &[u8] = b"-_.~";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// `segments`: how many parts of a path it stands for.
    Parameter {
        name: String,
        segments: usize,
    },
}

impl Template {
    /// `{name}` is a parameter, `{name:2}` one that stands for two segments of a path, `{{` and `}}` are braces.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(doubled) = after.strip_prefix(brace) {
                literal.push_str(brace);
                rest = doubled;
                continue;
            }
            let end = after.find('}').filter(|_| brace == "{");
            let Some(end) = end else {
                return Err(format!(
                    "{text:?} has a brace without its counterpart; a brace itself is written {{{{ or }}}}"
                ));
            };
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(parameter(&after[..end])?);
            rest = &after[end + 1..];
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self(parts))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Parameter { name, .. } => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// The parameter, when there is nothing else.
    pub(super) fn whole(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Part::Parameter { name, .. }] => Some(name),
            _ => None,
        }
    }

    /// The text, when there is no parameter in it.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// For a place where any text may stand. `None` if a parameter was not given.
    pub(super) fn text(&self, values: &Map<String, Value>) -> Option<String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Parameter { name, .. } => text.push_str(&plain(values.get(name)?)),
            }
        }
        Some(text)
    }

    /// With something else in the place of each parameter.
    pub(super) fn with(&self, mut place: impl FnMut(&str) -> String) -> String {
        let mut fill = |part: &Part| match part {
            Part::Text(literal) => literal.clone(),
            Part::Parameter { name, .. } => place(name),
        };
        self.0.iter().map(&mut fill).collect()
    }

    /// Like [`Self::text`] with names such as `user.login`, which lead into the values. What is not there is left empty.
    pub(super) fn describe(&self, value: &Value) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(literal) => text.push_str(literal),
                Part::Parameter { name, .. } => {
                    text.push_str(&find(value, name).map(plain).unwrap_or_default());
                }
            }
        }
        text
    }

    /// For the path of a URL: a value is one segment, or as many as the template says, and never leads elsewhere.
    pub(super) fn path(&self, values: &Map<String, Value>) -> Result<String, String> {
        let mut path = String::new();
        for part in &self.0 {
            match part {
                Part::Text(literal) => path.push_str(literal),
                Part::Parameter { name, segments } => {
                    let value = values.get(name).map(plain).ok_or_else(|| format!("'{name}' is needed"))?;
                    path.push_str(&in_path(name, &value, *segments)?);
                }
            }
        }
        Ok(path)
    }
}

fn parameter(text: &str) -> Result<Part, String> {
    let (name, segments) = match text.split_once(':') {
        None => (text, 1),
        Some((name, count)) => match count.parse() {
            Ok(count @ 1..=16) => (name, count),
            _ => {
                return Err(format!(
                    "{{{text}}}: the number of segments must be from 1 to 16, not {count:?}"
                ));
            }
        },
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(valid) {
        return Err(format!(
            "{{{text}}} is not the name of a parameter; a brace itself is written {{{{ or }}}}"
        ));
    }
    Ok(Part::Parameter { name: name.to_owned(), segments })
}

fn in_path(name: &str, value: &str, segments: usize) -> Result<String, String> {
    let parts: Vec<&str> = if segments == 1 { vec![value] } else { value.split('/').collect() };
    if parts.len() != segments {
        return Err(format!("'{name}' must be {segments} names with a slash between them, got {value:?}"));
    }
    // Dots are resolved by whoever reads the URL, even when they are encoded.
    if parts.iter().any(|part| ["", ".", ".."].contains(part)) {
        return Err(format!("'{name}' cannot be a part of a path: {value:?}"));
    }
    Ok(parts.into_iter().map(encode).collect::<Vec<_>>().join("/"))
}

fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || UNRESERVED.contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// A value as text: strings without quotes, all else as JSON.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Where a dotted name leads to.
pub(super) fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let value = name.split('.').try_fold(value, |value, key| match value {
        Value::Array(values) => values.get(key.parse::<usize>().ok()?),
        _ => value.get(key),
    })?;
    (!value.is_null()).then_some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::Url;
    use serde_json::json;

    use super::*;

    fn values(value: &str) -> Map<String, Value> {
        [("x".to_owned(), json!(value))].into_iter().collect()
    }

    #[test]
    fn braces_are_parameters_unless_doubled() {
        let template = Template::parse("a{x}b{{c}}").unwrap();
        assert_eq!(template.text(&values("1")).unwrap(), "a1b{c}");
        assert_eq!(Template::parse("{x}").unwrap().whole(), Some("x"));
        assert_eq!(Template::parse("{x} ").unwrap().whole(), None);
        for wrong in ["{", "}", "a}b", "{}", "{a b}", "{x:0}", "{x:many}", "{x"] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_repository_is_two_segments() {
        let template = Template::parse("/repos/{x:2}/issues").unwrap();
        assert_eq!(template.path(&values("octo/hello world")).unwrap(), "/repos/octo/hello%20world/issues");
        for wrong in ["octo", "a/b/c", "../..", "a/..", "/a", "a/", ""] {
            assert!(template.path(&values(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_described_by_dotted_names() {
        let answer = json!({ "number": 7, "user": { "login": "ada" }, "labels": [{ "name": "bug" }] });
        let template = Template::parse("#{number} by {user.login}, {labels.0.name}{missing.key}").unwrap();
        assert_eq!(template.describe(&answer), "#7 by ada, bug");
    }

    proptest! {
        /// Whatever a model sends as one segment stays one segment, and arrives as it was sent.
        #[test]
        fn a_value_never_leaves_its_segment(value in "\\PC{0,40}|[./?#%\\\\@:;&=\u{0}-\u{1f}]{0,12}") {
            let template = Template::parse("/a/{x}/b").unwrap();
            match template.path(&values(&value)) {
                Err(_) => prop_assert!(["", ".", ".."].contains(&value.as_str())),
                Ok(path) => {
                    let url = Url::parse(&format!("http://host{path}")).unwrap();
                    let segments: Vec<_> = url.path_segments().unwrap().collect();
                    prop_assert_eq!(segments.len(), 3, "{}", url);
                    prop_assert_eq!((segments[0], segments[2]), ("a", "b"));
                    prop_assert_eq!((url.query(), url.fragment(), url.host_str()), (None, None, Some("host")));
                    prop_assert_eq!(decode(segments[1]), value);
                }
            }
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,60}|[{}:a0.]{0,20}") {
            if let Ok(template) = Template::parse(&text) {
                let _ = (template.path(&values("v")), template.text(&values("v")), template.describe(&json!({})));
            }
        }
    }

    fn decode(text: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            } else {
                bytes.push(byte);
            }
        }
        String::from_utf8(bytes).unwrap()
    }
}
