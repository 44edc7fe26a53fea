//! A message per line, over any stream.

use std::{
    io,
    sync::{Arc, Mutex as StdMutex, PoisonError},
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{ClientRequest, JsonRpcMessage, NumberOrString, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Mutex,
};

use super::{MAX_MESSAGE, Served, Wire};

const READ: usize = 64 << 10;
/// Programs print things on the way to their first message. One that only prints is no server.
const MAX_STRAY_LINES: usize = 200;

/// Why a connection ended, for those who only see that it did.
#[derive(Clone, Default)]
pub(crate) struct Fate(Arc<StdMutex<Option<String>>>);

impl Fate {
    pub(crate) fn is(&self, why: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.into());
    }

    pub(crate) fn why(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type Writer = Arc<Mutex<Option<Box<dyn AsyncWrite + Send + Unpin>>>>;

pub(crate) struct LineTransport {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    writer: Writer,
    server: Box<dyn Served>,
    chunk: Box<[u8]>,
    buffer: Vec<u8>,
    /// Up to where there is no newline.
    searched: usize,
    stray: usize,
    probe: Probe,
    fate: Fate,
    /// How long the server may take to end.
    patience: Duration,
}

/// rmcp asks a server for its era, waits ten seconds, and falls back to `initialize` on the same stream. The answer of
/// a server that is only slow to start then comes where the answer to `initialize` is expected, and ends the
/// connection. So it is dropped.
#[derive(Default)]
struct Probe {
    asked: Option<RequestId>,
    given_up: Option<RequestId>,
}

impl Probe {
    fn sends(&mut self, message: &TxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Request(request) = message {
            match &request.request {
                ClientRequest::DiscoverRequest(_) => self.asked = Some(request.id.clone()),
                ClientRequest::InitializeRequest(_) => self.given_up = self.asked.take(),
                _ => {}
            }
        }
    }

    fn is_late_answer(&mut self, message: &RxJsonRpcMessage<RoleClient>) -> bool {
        let id = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let Some(id) = id else { return false };
        if self.asked.as_ref().is_some_and(|asked| same(asked, id)) {
            self.asked = None;
        }
        self.given_up.as_ref().is_some_and(|given_up| same(given_up, id))
    }
}

/// Some servers answer the number 1 with the text "1".
fn same(ours: &RequestId, theirs: &RequestId) -> bool {
    match (ours, theirs) {
        (NumberOrString::Number(ours), NumberOrString::String(theirs)) => theirs.parse() == Ok(*ours),
        _ => ours == theirs,
    }
}

impl LineTransport {
    pub(crate) fn new(wire: Wire, fate: Fate, patience: Duration) -> Self {
        Self {
            reader: wire.reader,
            writer: Arc::new(Mutex::new(Some(wire.writer))),
            server: wire.server,
            chunk: vec![0; READ].into_boxed_slice(),
            buffer: Vec::new(),
            searched: 0,
            stray: 0,
            probe: Probe::default(),
            fate,
            patience,
        }
    }

    /// The next line, without its newline. `None`: the connection is of no more use.
    async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(offset) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + offset;
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.truncate(end);
                self.searched = 0;
                return Some(line);
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_MESSAGE {
                self.fate.is(format!("it sent a message of more than {} MiB", MAX_MESSAGE >> 20));
                return None;
            }
            match self.reader.read(&mut self.chunk).await {
                Ok(0) => {
                    let ended = "it ended, or closed its output".to_owned();
                    self.fate.is(match self.server.last_words().await {
                        Some(words) => format!("{ended}; its last words: {words}"),
                        None => ended,
                    });
                    return None;
                }
                Ok(count) => self.buffer.extend_from_slice(&self.chunk[..count]),
                Err(error) => {
                    self.fate.is(format!("it cannot be read from: {error}"));
                    return None;
                }
            }
        }
    }
}

impl Transport<RoleClient> for LineTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.probe.sends(&message);
        let writer = self.writer.clone();
        let line = serde_json::to_vec(&message);
        async move {
            let mut line = line?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let Some(open) = writer.as_mut() else { return Err(io::ErrorKind::BrokenPipe.into()) };
            let sent = async {
                open.write_all(&line).await?;
                open.flush().await
            };
            match sent.await {
                // Whoever reads hears its end too, and learns its last words.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    *writer = None;
                    Ok(())
                }
                sent => sent,
            }
        }
    }

    /// Dropped and called again whenever rmcp has something else to do: what was read stays in the buffer.
    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let line = self.line().await?;
            match serde_json::from_slice(line.trim_ascii()) {
                Ok(message) if self.probe.is_late_answer(&message) => {
                    tracing::debug!("a late answer to the question for the era is dropped");
                }
                Ok(message) => {
                    self.stray = 0;
                    return Some(message);
                }
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => {
                    self.stray += 1;
                    if self.stray > MAX_STRAY_LINES {
                        self.fate.is(format!("it sent {MAX_STRAY_LINES} lines that are no messages"));
                        return None;
                    }
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        // A write that hangs must not keep us from closing.
        if let Ok(mut writer) = tokio::time::timeout(self.patience, self.writer.lock()).await {
            writer.take();
        }
        // Its last words are read and forgotten, so that it does not wait for us to take them.
        let (server, reader) = (&mut self.server, &mut self.reader);
        let mut last_words = vec![0; READ];
        let drain = async { while reader.read(&mut last_words).await.is_ok_and(|count| count > 0) {} };
        tokio::select! {
            () = server.ended() => {}
            () = async { drain.await; std::future::pending().await } => {}
            () = tokio::time::sleep(self.patience) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rmcp::{ClientServiceExt, model::ProtocolVersion, service::ClientLifecycleMode};
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream};

    use super::*;

    fn wire() -> (Wire, DuplexStream, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (back, forth) = tokio::io::duplex(1 << 20);
        (Wire { reader: Box::new(forth), writer: Box::new(ours), server: Box::new(()) }, theirs, back)
    }

    /// The trap: a server that takes eleven seconds to start, and then answers everything in order.
    #[tokio::test(start_paused = true)]
    async fn a_late_answer_to_the_probe_does_not_end_the_connection() {
        let (wire, requests, mut answers) = wire();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(11)).await;
            let mut lines = BufReader::new(requests).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).unwrap();
                let answer = match request["method"].as_str().unwrap() {
                    "initialize" => json!({ "jsonrpc": "2.0", "id": request["id"], "result": {
                        "protocolVersion": "2025-11-25", "capabilities": {},
                        "serverInfo": { "name": "slow", "version": "1" } } }),
                    method if request["id"].is_null() => {
                        assert_eq!(method, "notifications/initialized");
                        continue;
                    }
                    _ => json!({ "jsonrpc": "2.0", "id": request["id"].to_string(),
                        "error": { "code": -32601, "message": "no such method" } }),
                };
                answers.write_all(format!("starting…\n\n{answer}\n").as_bytes()).await.unwrap();
            }
        });
        let transport = LineTransport::new(wire, Fate::default(), Duration::from_secs(1));
        let auto = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: None,
        };
        let running = ().serve_with_lifecycle(transport, auto).await.unwrap();
        assert_eq!(running.peer_info().unwrap().server_info.as_ref().unwrap().name, "slow");
    }

    #[tokio::test]
    async fn a_message_without_end_and_mere_noise_end_the_connection() {
        let (near, _requests, mut answers) = wire();
        let fate = Fate::default();
        let mut transport = LineTransport::new(near, fate.clone(), Duration::from_secs(1));
        let flood = tokio::spawn(async move {
            let chunk = vec![b'x'; 1 << 20];
            while answers.write_all(&chunk).await.is_ok() {}
        });
        assert!(transport.receive().await.is_none());
        assert!(transport.buffer.len() <= MAX_MESSAGE + 2 * READ);
        assert_eq!(fate.why().unwrap(), "it sent a message of more than 16 MiB");
        drop(transport);
        flood.await.unwrap();

        let (near, _requests, mut answers) = wire();
        let fate = Fate::default();
        let mut transport = LineTransport::new(near, fate.clone(), Duration::from_secs(1));
        answers.write_all("noise\n".repeat(MAX_STRAY_LINES + 1).as_bytes()).await.unwrap();
        assert!(transport.receive().await.is_none());
        assert_eq!(fate.why().unwrap(), "it sent 200 lines that are no messages");
    }

    /// A program that ends at once is often gone before it was sent anything.
    #[tokio::test]
    async fn what_it_last_said_is_told_also_if_it_ended_before_it_was_asked() {
        struct Dead;
        #[async_trait::async_trait]
        impl super::super::Served for Dead {
            async fn ended(&mut self) {}

            async fn last_words(&mut self) -> Option<String> {
                Some("no licence".into())
            }
        }
        let (near, requests, answers) = wire();
        drop((requests, answers));
        let fate = Fate::default();
        let wire = Wire { server: Box::new(Dead), ..near };
        let transport = LineTransport::new(wire, fate.clone(), Duration::from_secs(1));
        let auto = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: None,
        };
        assert!(().serve_with_lifecycle(transport, auto).await.is_err());
        assert_eq!(fate.why().unwrap(), "it ended, or closed its output; its last words: no licence");
    }

    /// A server that says anything, and then hangs up.
    #[test]
    fn fuzz_hub_lines() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let seeds: [&[u8]; 4] = [
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n",
            b"starting\n\n{\"jsonrpc\":\"2.0\",\"id\":\"1\",\"error\":{\"code\":-32601,\"message\":\"no\"}}\r\n",
            b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\nhalf",
            b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}\n",
        ];
        belljar_fuzz::fuzz("hub_lines", &seeds, |input| {
            let said = input.to_vec();
            let reader = Box::new(io::Cursor::new(said));
            let wire = Wire { reader, writer: Box::new(tokio::io::sink()), server: Box::new(()) };
            let fate = Fate::default();
            let mut transport = LineTransport::new(wire, fate.clone(), Duration::ZERO);
            let mut heard = Vec::new();
            while let Some(message) = runtime.block_on(transport.receive()) {
                heard.push(belljar_fuzz::kind(&serde_json::to_string(&message).unwrap()));
            }
            assert!(heard.len() <= input.len() && fate.why().is_some());
            belljar_fuzz::mark((heard.into_iter().take(3).collect::<Vec<_>>(), fate.why()))
        });
    }
}
