//! From a line to a message, or to the reply that a line which is none deserves.
//!
//! rmcp drops what it cannot parse without a word, answers a known method with bad parameters as if the
//! method were unknown, and tries some fifteen shapes before it recognises a tool call. This looks first.

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientJsonRpcMessage, ClientRequest, ErrorCode, GetMeta,
    ProtocolVersion, RequestId,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{json, value::RawValue};

#[derive(Debug)]
pub(crate) enum Incoming {
    Message(Box<ClientJsonRpcMessage>),
    /// A line to send back.
    Reply(Vec<u8>),
    Ignore,
}

/// Raw, so that a message with one odd field can still be answered under its id.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(default)]
    result: Option<IgnoredAny>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

pub(crate) fn read(line: &[u8]) -> Incoming {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Incoming::Ignore;
    }
    let envelope = match serde_json::from_slice::<Envelope<'_>>(line) {
        // An array would do for a struct, as far as serde is concerned.
        Ok(envelope) if line.starts_with(b"{") => envelope,
        _ => return Incoming::Reply(not_an_object(line)),
    };
    let id = envelope.id.and_then(|id| serde_json::from_str::<RequestId>(id.get()).ok());
    let is = |field: Option<&RawValue>, text: &str| field.is_some_and(|field| field.get() == text);
    let plain = envelope.result.is_none() && envelope.error.is_none() && is(envelope.jsonrpc, "\"2.0\"");
    if plain
        && let Some(id) = &id
        && is(envelope.method, "\"tools/call\"")
    {
        return tool_call(id, envelope.params);
    }
    match serde_json::from_slice(line) {
        Ok(message) => Incoming::Message(Box::new(message)),
        // Notifications are never answered, not even bad ones.
        Err(_) if plain && envelope.method.is_some() && envelope.id.is_none() => Incoming::Ignore,
        Err(_) => {
            Incoming::Reply(invalid(id.as_ref(), "not a JSON-RPC 2.0 request, notification or response"))
        }
    }
}

/// What most lines are, read without detours.
fn tool_call(id: &RequestId, params: Option<&RawValue>) -> Incoming {
    let params = params.map_or("{}", RawValue::get);
    match serde_json::from_str::<CallToolRequestParams>(params) {
        Ok(mut params) => {
            let meta = params.meta.take();
            let mut request = CallToolRequest::new(params);
            if let Some(meta) = meta {
                request.extensions.insert(meta);
            }
            let request = ClientRequest::CallToolRequest(request);
            Incoming::Message(Box::new(ClientJsonRpcMessage::request(request, id.clone())))
        }
        Err(error) => {
            let message = format!("Invalid params of tools/call: {error}");
            Incoming::Reply(error_line(Some(id), ErrorCode::INVALID_PARAMS, &message))
        }
    }
}

fn not_an_object(line: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<IgnoredAny>(line) {
        Err(error) => error_line(None, ErrorCode::PARSE_ERROR, &format!("Parse error: {error}")),
        Ok(_) if line.starts_with(b"[") => {
            invalid(None, "batches are not supported, send one message per line")
        }
        Ok(_) => invalid(None, "a message is a JSON object, with each field at most once"),
    }
}

fn invalid(id: Option<&RequestId>, why: &str) -> Vec<u8> {
    error_line(id, ErrorCode::INVALID_REQUEST, &format!("Invalid Request: {why}"))
}

pub(super) fn too_long(max: usize) -> Vec<u8> {
    let message = format!("Parse error: the line is longer than {max} bytes and was skipped");
    error_line(None, ErrorCode::PARSE_ERROR, &message)
}

/// Written by hand because rmcp leaves out an id that is not known, where JSON-RPC wants `null`.
fn error_line(id: Option<&RequestId>, code: ErrorCode, message: &str) -> Vec<u8> {
    let error = json!({ "code": code.0, "message": message });
    let mut line = json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Whether rmcp takes up its work with this request. Until then it allows for nothing but requests, and gives
/// up the connection over a notification that comes too early.
pub(super) fn opens(message: &ClientJsonRpcMessage) -> bool {
    let ClientJsonRpcMessage::Request(request) = message else { return false };
    match &request.request {
        ClientRequest::InitializeRequest(_) => true,
        ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
        other => {
            let meta = other.get_meta();
            let known = |version| ProtocolVersion::KNOWN_VERSIONS.contains(&version);
            meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
                && meta.protocol_version().is_some_and(known)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(line: &str) -> String {
        match read(line.as_bytes()) {
            Incoming::Reply(reply) => String::from_utf8(reply).unwrap(),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn what_is_no_message_gets_the_reply_it_deserves() {
        let replies: String = [
            "hello",
            "{\"jsonrpc\":\"2.0\",\"id\":1,",
            "[1, 2",
            "[]",
            "42",
            "{}",
            "{\"jsonrpc\":\"1.0\",\"id\":7,\"method\":\"ping\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":5}",
            "{\"jsonrpc\":\"2.0\",\"id\":[9],\"method\":\"ping\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":\"ten\",\"method\":\"ping\",\"result\":{}}",
            "{\"jsonrpc\":\"2.0\",\"id\":11,\"method\":\"tools/call\"}",
            "{\"jsonrpc\":\"2.0\",\"id\":12,\"method\":\"tools/call\",\"params\":{\"name\":\"run_code\",\"arguments\":[]}}",
        ]
        .iter()
        .map(|line| format!("{line}\n  {}", reply(line)))
        .collect();
        insta::assert_snapshot!(replies);
        assert!(matches!(read(b"\xff\xfe{}"), Incoming::Reply(_)));
    }

    #[test]
    fn empty_lines_and_odd_notifications_are_ignored() {
        for line in ["", "  \r", "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":5}"]
        {
            assert!(matches!(read(line.as_bytes()), Incoming::Ignore), "{line}");
        }
    }

    #[test]
    fn a_tool_call_is_read_as_rmcp_reads_it() {
        for params in [
            r#"{"name":"run_code","arguments":{"code":"1+1","n":1.5}}"#,
            r#"{"name":"list_contexts","_meta":{"progressToken":7,"x":{"y":[1]}}}"#,
            r#"{"_meta":{},"name":"é\n","arguments":{}}"#,
        ] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{params}}}"#);
            let expected: ClientJsonRpcMessage = serde_json::from_str(&line).unwrap();
            let Incoming::Message(read) = read(line.as_bytes()) else { panic!("{line}") };
            assert_eq!(format!("{read:?}"), format!("{expected:?}"));
            let meta = |message: ClientJsonRpcMessage| match message {
                ClientJsonRpcMessage::Request(request) => request.request.get_meta().clone(),
                other => panic!("{other:?}"),
            };
            assert_eq!(meta(*read), meta(expected));
        }
    }

    #[test]
    fn only_what_begins_a_session_opens_the_door() {
        let opened = |line: &str| match read(line.as_bytes()) {
            Incoming::Message(message) => opens(&message),
            other => panic!("{other:?}"),
        };
        let client = r#""clientInfo":{"name":"c","version":"1"},"capabilities":{}"#;
        assert!(opened(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18",{client}}}}}"#
        )));
        let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let modern = |method: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"_meta":{meta}}}}}"#)
        };
        assert!(opened(&modern("tools/list")));
        assert!(!opened(&modern("server/discover")));
        assert!(!opened(&modern("tools/list").replace("2026-07-28", "2099-01-01")));
        assert!(!opened(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        assert!(!opened(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#));
        assert!(!opened(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#));
    }

    #[test]
    fn fuzz_rpc() {
        let seeds: [&[u8]; 6] = [
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":{"code":"1"}}}"#,
            br#"{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}"#,
            br#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            br#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            b"\xEF\xBB\xBF {} ",
        ];
        belljar_fuzz::fuzz("rpc", &seeds, |input| match read(input) {
            Incoming::Message(message) => {
                belljar_fuzz::mark(belljar_fuzz::kind(&serde_json::to_string(&message).unwrap()))
            }
            Incoming::Reply(reply) => {
                // One line, which is an error that any client understands.
                let line = reply.strip_suffix(b"\n").unwrap();
                assert!(!line.contains(&b'\n'));
                let reply: serde_json::Value = serde_json::from_slice(line).unwrap();
                assert_eq!(reply["jsonrpc"], "2.0");
                assert!(reply["error"]["code"].is_i64() && reply.get("id").is_some());
                belljar_fuzz::mark((reply["error"]["code"].as_i64(), reply["id"].is_null()))
            }
            Incoming::Ignore => 0,
        });
    }
}
