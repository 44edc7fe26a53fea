//! Lines in and out. What is too long, too new or too talkative for the protocol's library is dealt with here.

use std::io;

use agent_client_protocol::Lines;
use futures::{Sink, Stream, sink, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::mcp::lines::{self, Line, MAX_LINE};

/// Where the names of servers that we cannot connect to are put; see [`unknown_servers`].
const UNKNOWN: &str = "belljar/unknownServers";
const MAX_SERVERS: usize = 64;
/// Of what a parser says, in bytes.
const MAX_REASON: usize = 500;

pub(crate) fn transport<R, W>(
    reader: R,
    writer: W,
) -> Lines<
    impl Sink<String, Error = io::Error> + Send + 'static,
    impl Stream<Item = io::Result<String>> + Send + 'static,
>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let incoming = stream::unfold(lines::Lines::new(reader, MAX_LINE), |mut lines| async move {
        loop {
            let line = match lines.next().await {
                Ok(Line::End) => return None,
                Ok(Line::Whole(line)) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Ok(Line::Whole(line)) => Ok(admit(&String::from_utf8_lossy(line))),
                // Answered as what it is: no JSON.
                Ok(Line::TooLong) => Ok("too long".to_owned()),
                Err(error) => Err(error),
            };
            return Some((line, lines));
        }
    });
    let outgoing = sink::unfold(writer, |mut writer, line: String| async move {
        let mut line = discreet(line);
        line.push('\n');
        writer.write_all(line.as_bytes()).await?;
        writer.flush().await?;
        Ok(writer)
    });
    Lines::new(Box::pin(outgoing), Box::pin(incoming))
}

/// The library refuses a whole session for one server of a kind that it does not know. Such servers are taken out, and
/// the user is told about them later.
fn admit(line: &str) -> String {
    if !line.contains("\"mcpServers\"") {
        return line.to_owned();
    }
    let Ok(mut message) = serde_json::from_str::<Value>(line) else { return line.to_owned() };
    let Some(params) = message.get_mut("params").and_then(Value::as_object_mut) else {
        return line.to_owned();
    };
    let Some(servers) = params.get_mut("mcpServers").and_then(Value::as_array_mut) else {
        return line.to_owned();
    };
    let mut unknown = Vec::new();
    let mut known = Vec::new();
    for server in std::mem::take(servers) {
        let kind = server.get("type").and_then(Value::as_str).unwrap_or("stdio");
        if ["stdio", "http", "sse"].contains(&kind) && known.len() < MAX_SERVERS {
            known.push(server);
        } else {
            unknown.push(server.get("name").and_then(Value::as_str).unwrap_or("a server").to_owned());
        }
    }
    *servers = known;
    if !unknown.is_empty() {
        let meta = params.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert(UNKNOWN.to_owned(), json!(unknown));
        }
    }
    message.to_string()
}

pub(crate) fn unknown_servers(meta: Option<&agent_client_protocol::v1::schema::Meta>) -> Vec<String> {
    let names = meta.and_then(|meta| meta.get(UNKNOWN)).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Errors of the library repeat what they are about, with all keys and tokens in it; clients log errors.
fn discreet(line: String) -> String {
    if !line.contains("\"error\"") || !line.contains("\"data\"") {
        return line;
    }
    let Ok(mut message) = serde_json::from_str::<Value>(&line) else { return line };
    let Some(data) = message.pointer_mut("/error/data") else { return line };
    let Some(told) = data.as_object() else { return line };
    if !told.contains_key("json") && !told.contains_key("line") {
        return line;
    }
    let reason = told.get("error").and_then(Value::as_str).map(without_values);
    *data = reason.map_or(Value::Null, |reason| json!({"reason": reason}));
    if data.is_null()
        && let Some(error) = message.get_mut("error").and_then(Value::as_object_mut)
    {
        error.remove("data");
    }
    message.to_string()
}

/// What a parser says, but for what it quotes from its input.
fn without_values(reason: &str) -> String {
    let reason = without_names(reason);
    let (mut quoted, mut escaped) = (false, false);
    let mut kept = String::new();
    for character in reason.chars() {
        if kept.len() > MAX_REASON {
            break;
        }
        match (character, quoted) {
            ('"', false) => kept.push('…'),
            (other, false) => kept.push(other),
            _ => {}
        }
        quoted ^= character == '"' && !escaped;
        escaped = quoted && character == '\\' && !escaped;
    }
    kept
}

/// A name that the parser did not expect is a part of its input too; those that it did expect are not.
fn without_names(reason: &str) -> String {
    let name = ["unknown variant `", "unknown field `"]
        .iter()
        .find_map(|before| Some(reason.find(before)? + before.len()))
        .filter(|at| !reason[..*at].contains('"'));
    let Some(from) = name else { return reason.to_owned() };
    let ends =
        ["`, expected ", "`, there are no "].iter().filter_map(|after| reason[from..].rfind(after)).max();
    let rest = ends.map(|end| &reason[from + end + 1..]).unwrap_or_default();
    format!("{}…{rest}", &reason[..from - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_unknown_kinds_cost_nobody_their_session() {
        let line = json!({"id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": [
            {"name": "a", "command": "x", "args": [], "env": []},
            {"name": "b", "type": "carrier-pigeon", "url": "x"},
            {"name": "c", "type": "http", "url": "http://x", "headers": []},
        ]}});
        let admitted: Value = serde_json::from_str(&admit(&line.to_string())).unwrap();
        let servers = admitted["params"]["mcpServers"].as_array().unwrap();
        assert_eq!(servers.iter().map(|s| &s["name"]).collect::<Vec<_>>(), ["a", "c"]);
        let meta = admitted["params"]["_meta"].as_object().unwrap();
        assert_eq!(unknown_servers(Some(meta)), ["b"]);
        for other in ["no json \"mcpServers\"", "{\"mcpServers\": 1}", "{\"params\": {\"mcpServers\": 7}}"] {
            assert_eq!(admit(other), other);
        }
    }

    #[test]
    fn errors_do_not_repeat_what_they_are_about() {
        let line = json!({"id": 1, "error": {"code": -32602, "message": "Invalid params", "data": {
            "error": "invalid type: string \"hunter2\", expected a map, missing field `cwd`",
            "json": {"mcpServers": [{"env": [{"name": "KEY", "value": "hunter2"}]}]}, "phase": "deserialization",
        }}});
        let told = discreet(line.to_string());
        assert!(!told.contains("hunter2") && told.contains("missing field `cwd`"), "{told}");
        let parse = json!({"id": null, "error": {"code": -32700, "message": "Parse error", "data": {"line": "hunter2"}}});
        assert!(!discreet(parse.to_string()).contains("hunter2"));
        let result = json!({"result": {"data": "\"error\""}}).to_string();
        assert_eq!(discreet(result.clone()), result);
    }

    #[test]
    fn what_is_quoted_within_a_value_is_a_part_of_it() {
        let error = serde_json::from_value::<u8>(json!("a \"hunter2\" b")).unwrap_err().to_string();
        assert_eq!(without_values(&error), "invalid type: string …, expected u8");
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        #[serde(rename = "known")]
        _known: Option<Kind>,
    }

    #[derive(Debug, serde::Deserialize)]
    enum Kind {
        One,
    }

    /// Whatever an editor sends: servers are sorted out and nothing else is changed; whatever the library says about it,
    /// no value comes back.
    #[test]
    fn fuzz_acp_lines() {
        let seeds: [&[u8]; 4] = [
            br#"{"id":1,"method":"session/new","params":{"cwd":"/","mcpServers":[{"name":"a","command":"x"},{"name":"b","type":"pigeon"}],"_meta":{"x":1}}}"#,
            br#"{"id":1,"params":{"mcpServers":[],"_meta":7}}"#,
            br#"{"id":1,"error":{"code":-32602,"message":"Invalid params","data":{"error":"invalid type: string \"hunter2\"","json":{"k":"hunter2"}}}}"#,
            br#"a "quoted" `value` with \ in it"#,
        ];
        belljar_fuzz::fuzz("acp_lines", &seeds, |input| {
            let text = String::from_utf8_lossy(input).replace('\n', " ");
            let admitted = admit(&text);
            assert!(!admitted.contains('\n'));
            let (before, after) =
                (serde_json::from_str::<Value>(&text).ok(), serde_json::from_str::<Value>(&admitted).ok());
            let shape = match (before, after) {
                (Some(mut before), Some(mut after)) => {
                    let servers = after.pointer("/params/mcpServers").and_then(Value::as_array).cloned();
                    let known = ["stdio", "http", "sse"];
                    let kind = |server: &Value| {
                        server.get("type").and_then(Value::as_str).is_none_or(|kind| known.contains(&kind))
                    };
                    let servers = servers.unwrap_or_default();
                    assert!(servers.len() <= MAX_SERVERS && servers.iter().all(kind), "{admitted}");
                    for message in [&mut before, &mut after] {
                        if let Some(params) = message.get_mut("params").and_then(Value::as_object_mut) {
                            params.retain(|name, _| !["mcpServers", "_meta"].contains(&name.as_str()));
                        }
                    }
                    assert_eq!(before, after, "more than the servers was changed");
                    1 + servers.len().min(3)
                }
                (None, after) => {
                    assert!(after.is_none() && admitted == text);
                    0
                }
                (Some(_), None) => panic!("{admitted} is no message any more"),
            };
            // Errors about it, as the library makes them.
            let told = |error: serde_json::Error, data: Value| {
                let line = json!({"id": 1, "error": {"code": -32602, "message": "Invalid params", "data": {
                    "error": error.to_string(), "json": data}}});
                discreet(line.to_string())
            };
            let number = told(serde_json::from_value::<u8>(json!(text)).unwrap_err(), json!({"key": text}));
            assert_eq!(number, told(serde_json::from_value::<u8>(json!("x")).unwrap_err(), Value::Null));
            if text != "One" && text != "known" {
                for name in ["x", &text] {
                    let variant = serde_json::from_value::<Kind>(json!(name)).unwrap_err();
                    let field = serde_json::from_value::<Strict>(json!({ name: 1 })).unwrap_err();
                    let shown = (told(variant, json!(name)), told(field, json!([name])));
                    assert!(shown.0.contains("unknown variant …, expected `One`"), "{}", shown.0);
                    assert!(shown.1.contains("unknown field …, expected `known`"), "{}", shown.1);
                }
            }
            // One that came as a line.
            let data =
                json!({"id": 1, "error": {"code": -32700, "message": "Parse error", "data": {"line": text}}});
            assert!(!discreet(data.to_string()).contains("data"));
            let told = ['"', '\\', '`', '{'].map(|c| text.matches(c).count().min(3));
            let said = discreet(text.clone());
            belljar_fuzz::mark((shape, admitted == text, said == text, told, text.len().min(600) / 100))
        });
    }
}
