//! The least that an MCP server can do: what remains is the pipe, and two processes that take turns.

use std::io::{self, BufRead, Write};

use crate::template::answered;

const INITIALIZED: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"empty","version":"1"}}"#;
const LISTED: &str = r#"{"tools":[{"name":"nothing","inputSchema":{"type":"object"}}]}"#;
const CALLED: &str = r#"{"content":[{"type":"text","text":"{\"result\":\"2\"}"}],"structuredContent":{"result":"2"},"isError":false}"#;

pub(crate) fn serve() -> anyhow::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let Some(id) = answered(&line) else { continue };
        let is = |method: &[u8]| memchr::memmem::find(&line, method).is_some();
        let result = match () {
            () if is(b"\"initialize\"") => INITIALIZED,
            () if is(b"\"tools/list\"") => LISTED,
            () => CALLED,
        };
        let answer = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n");
        output.write_all(answer.as_bytes())?;
        output.flush()?;
    }
}
