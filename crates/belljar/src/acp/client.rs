//! The editor, as the agent sees it.

use std::sync::{Arc, PoisonError, RwLock};

use agent_client_protocol::{
    Error, JsonRpcRequest,
    v1::{
        ConnectionTo,
        schema::{ClientCapabilities, SessionId, SessionNotification, SessionUpdate},
    },
};

pub(crate) type Connection = ConnectionTo<agent_client_protocol::Client>;

#[derive(Clone)]
pub(crate) struct Client {
    connection: Connection,
    can: Arc<RwLock<ClientCapabilities>>,
}

impl Client {
    pub(crate) fn new(connection: Connection, can: Arc<RwLock<ClientCapabilities>>) -> Self {
        Self { connection, can }
    }

    fn can<T>(&self, what: impl FnOnce(&ClientCapabilities) -> T) -> T {
        what(&self.can.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn reads_files(&self) -> bool {
        self.can(|can| can.fs.read_text_file)
    }

    pub(crate) fn writes_files(&self) -> bool {
        self.can(|can| can.fs.write_text_file)
    }

    pub(crate) fn has_terminals(&self) -> bool {
        self.can(|can| can.terminal)
    }

    /// Whether it shows output that the agent reports itself, as some editors do.
    pub(crate) fn shows_output(&self) -> bool {
        self.can(|can| {
            can.meta.as_ref().and_then(|meta| meta.get("terminal_output")?.as_bool()) == Some(true)
        })
    }

    pub(crate) fn takes_notices(&self) -> bool {
        self.can(|can| can.session.as_ref().is_some_and(|session| session.notices.is_some()))
    }

    pub(crate) fn shows_compaction(&self) -> bool {
        self.can(|can| can.session.as_ref().is_some_and(|session| session.compaction.is_some()))
    }

    pub(crate) fn show(&self, session: &SessionId, update: SessionUpdate) {
        // A client that is gone has its session ended elsewhere.
        let _ = self.connection.send_notification(SessionNotification::new(session.clone(), update));
    }

    /// Dropping the future takes the question back. Never to be awaited in a handler of the connection.
    pub(crate) async fn ask<R: JsonRpcRequest>(&self, request: R) -> Result<R::Response, Error>
    where
        R::Response: Send,
    {
        self.connection.send_request(request).block_task().await
    }
}
