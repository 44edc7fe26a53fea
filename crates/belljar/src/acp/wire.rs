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
    let mut quoted = false;
    let mut kept = String::new();
    for character in reason.chars().take(500) {
        match (character, quoted) {
            ('"', false) => kept.push('…'),
            ('"', true) => {}
            (other, false) => kept.push(other),
            _ => {}
        }
        quoted ^= character == '"';
    }
    kept
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
}
