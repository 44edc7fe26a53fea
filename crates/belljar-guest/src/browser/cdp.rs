//! The browser's debugging protocol over one stream: JSON messages, each ended by a NUL.
//!
//! Events are handled one by one as they are read, before anything that was said after them: there is no queue in
//! which they could be lost or pile up. Handlers change state and may send; they never wait.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    rc::Rc,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, oneshot},
    task::spawn_local,
};

/// The most one message may hold. A picture of a large page is a few MiB.
const MAX_MESSAGE: usize = 64 << 20;
const MAX_ERROR: usize = 1000;

/// Cuts a stream of bytes into messages.
#[derive(Default)]
pub(crate) struct Messages {
    buffer: Vec<u8>,
    /// Where the first message that was not handed out starts, and how far it was searched for its end.
    start: usize,
    searched: usize,
}

impl Messages {
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        if self.buffer.len() + bytes.len() > MAX_MESSAGE && !bytes.contains(&0) {
            return Err(io::Error::other(format!("a message of more than {MAX_MESSAGE} bytes")));
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// The next whole message, without its NUL.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        let found = self.buffer[self.searched..].iter().position(|byte| *byte == 0);
        let Some(offset) = found else {
            self.searched = self.buffer.len();
            if self.start == self.buffer.len() {
                self.buffer.clear();
                (self.start, self.searched) = (0, 0);
                // One large message must not keep its memory for the life of the browser.
                self.buffer.shrink_to(256 << 10);
            }
            return None;
        };
        let (start, end) = (self.start, self.searched + offset);
        (self.start, self.searched) = (end + 1, end + 1);
        Some(&self.buffer[start..end])
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    id: Option<u64>,
    method: Option<&'a str>,
    #[serde(rename = "sessionId")]
    session: Option<&'a str>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    error: Option<ErrorObject>,
}

#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    message: String,
}

/// Something that the browser tells by itself.
pub(crate) struct Event<'a> {
    /// Empty for the browser itself.
    pub(crate) session: &'a str,
    pub(crate) method: &'a str,
    params: Option<&'a RawValue>,
}

impl Event<'_> {
    /// `None` when it is not what was expected: then it is none of ours.
    pub(crate) fn params<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_str(self.params.map_or("{}", RawValue::get)).ok()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CdpError {
    /// The browser is gone.
    Gone,
    Refused(String),
}

impl CdpError {
    /// The document it was about was replaced meanwhile.
    pub(crate) fn is_lost_context(&self) -> bool {
        let Self::Refused(message) = self else { return false };
        ["context was destroyed", "Cannot find context", "context with specified id", "navigated or closed"]
            .iter()
            .any(|part| message.contains(part))
    }
}

impl std::fmt::Display for CdpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone => f.write_str("the browser is gone"),
            Self::Refused(message) => f.write_str(message),
        }
    }
}

type Answer = Result<Box<RawValue>, CdpError>;

/// What a call that was sent will be answered with.
pub(crate) struct Answered(oneshot::Receiver<Answer>);

impl Answered {
    pub(crate) async fn raw(self) -> Answer {
        self.0.await.unwrap_or(Err(CdpError::Gone))
    }

    pub(crate) async fn value(self) -> Result<Value, CdpError> {
        let raw = self.raw().await?;
        serde_json::from_str(raw.get()).map_err(|e| CdpError::Refused(e.to_string()))
    }
}

pub(crate) struct Cdp {
    next: Cell<u64>,
    open: RefCell<HashMap<u64, oneshot::Sender<Answer>>>,
    outgoing: RefCell<Option<mpsc::UnboundedSender<Vec<u8>>>>,
}

impl Cdp {
    pub(crate) fn connect(
        stream: UnixStream,
        on_event: impl Fn(&Cdp, &Event) + 'static,
        on_end: impl FnOnce() + 'static,
    ) -> Rc<Self> {
        let (mut reader, mut writer) = stream.into_split();
        // Everything in it was sent by us, for calls whose number is bounded.
        let (outgoing, mut messages) = mpsc::unbounded_channel::<Vec<u8>>();
        let cdp = Rc::new(Self {
            next: Cell::new(1),
            open: RefCell::default(),
            outgoing: RefCell::new(Some(outgoing)),
        });
        spawn_local(async move {
            while let Some(mut message) = messages.recv().await {
                // What was said in one breath goes out in one.
                while let Ok(more) = messages.try_recv() {
                    message.extend_from_slice(&more);
                }
                if writer.write_all(&message).await.is_err() {
                    break;
                }
            }
        });
        let shared = Rc::clone(&cdp);
        spawn_local(async move {
            let mut messages = Messages::default();
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = reader.read(&mut buffer).await {
                if messages.extend(&buffer[..count]).is_err() {
                    break;
                }
                while let Some(message) = messages.next() {
                    shared.receive(message, &on_event);
                }
            }
            shared.close();
            on_end();
        });
        cdp
    }

    fn receive(&self, message: &[u8], on_event: &impl Fn(&Cdp, &Event)) {
        // What cannot be read is skipped: whoever waits for it has a time limit.
        let Ok(message) = serde_json::from_slice::<Message>(message) else { return };
        let Some(id) = message.id else {
            if let Some(method) = message.method {
                let session = message.session.unwrap_or_default();
                on_event(self, &Event { session, method, params: message.params });
            }
            return;
        };
        let Some(waiting) = self.open.borrow_mut().remove(&id) else { return };
        let answer = match (message.error, message.result) {
            (Some(mut error), _) => {
                error.message.truncate(error.message.floor_char_boundary(MAX_ERROR));
                Err(CdpError::Refused(error.message))
            }
            (None, Some(result)) => Ok(result.to_owned()),
            (None, None) => Ok(RawValue::NULL.to_owned()),
        };
        // Nobody waits any more when the call it belongs to was given up.
        let _ = waiting.send(answer);
    }

    /// Sends at once; the answer may be waited for or not.
    pub(crate) fn send(&self, session: &str, method: &str, params: Value) -> Answered {
        let (sender, receiver) = oneshot::channel();
        let id = self.next.replace(self.next.get() + 1);
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        if let Some(outgoing) = &*self.outgoing.borrow()
            && outgoing.send(bytes).is_ok()
        {
            self.open.borrow_mut().insert(id, sender);
        }
        Answered(receiver)
    }

    pub(crate) async fn call(&self, session: &str, method: &str, params: Value) -> Result<Value, CdpError> {
        self.send(session, method, params).value().await
    }

    /// The browser notices that its stream is closed, and ends.
    pub(crate) fn close(&self) {
        self.outgoing.borrow_mut().take();
        self.open.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_survive_any_splitting(
            sent in prop::collection::vec(prop::collection::vec(1u8.., 0..200), 1..10),
            steps in prop::collection::vec(1usize..50, 1..20),
        ) {
            let wire: Vec<u8> = sent.iter().flat_map(|m| m.iter().copied().chain([0])).collect();
            let (mut messages, mut seen) = (Messages::default(), Vec::new());
            let mut rest = &wire[..];
            for step in steps.iter().cycle() {
                let (now, later) = rest.split_at((*step).min(rest.len()));
                messages.extend(now).unwrap();
                while let Some(message) = messages.next() {
                    seen.push(message.to_vec());
                }
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen, sent);
        }
    }

    #[test]
    fn a_message_without_end_is_refused() {
        let mut messages = Messages::default();
        let part = vec![b'x'; 8 << 20];
        let refused = (0..20).find_map(|_| {
            let refused = messages.extend(&part).is_err();
            messages.next();
            refused.then_some(messages.buffer.len())
        });
        assert!(refused.is_some_and(|held| held <= MAX_MESSAGE));
    }

    #[tokio::test]
    async fn answers_find_their_calls_and_events_their_handler() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let seen = Rc::new(RefCell::new(Vec::new()));
                let (handler, ended) = (Rc::clone(&seen), Rc::new(Cell::new(false)));
                let end = Rc::clone(&ended);
                let cdp = Cdp::connect(
                    ours,
                    move |_, event| {
                        handler.borrow_mut().push((event.session.to_string(), event.method.to_string()));
                    },
                    move || end.set(true),
                );
                let (first, second) = (cdp.send("", "A", json!({})), cdp.send("S", "B", json!({})));
                let third = cdp.send("", "C", json!({}));
                let says = concat!(
                    "{\"id\":2,\"error\":{\"code\":-1,\"message\":\"no\"},\"sessionId\":\"S\"}\0",
                    "nonsense\0{\"method\":\"E\",\"params\":{},\"sessionId\":\"S\"}\0",
                    "{\"id\":1,\"result\":{\"a\":1}}\0"
                );
                theirs.write_all(says.as_bytes()).await.unwrap();
                assert_eq!(second.value().await, Err(CdpError::Refused("no".into())));
                assert_eq!(first.value().await, Ok(json!({ "a": 1 })));
                assert_eq!(*seen.borrow(), [("S".to_string(), "E".to_string())]);
                drop(theirs);
                assert_eq!(third.value().await, Err(CdpError::Gone));
                assert_eq!(cdp.call("", "D", json!({})).await, Err(CdpError::Gone));
                assert!(ended.get());
            })
            .await;
    }

    /// What a browser says that a page has taken over.
    #[test]
    fn fuzz_browser_messages() {
        let seeds: [&[u8]; 3] = [
            b"\x05{\"id\":1,\"result\":{}}\0{\"method\":\"Page.loadEventFired\",\"params\":{},\"sessionId\":\"s\"}\0",
            b"\x00{\"id\":2,\"error\":{\"message\":\"no\"}}\0",
            b"\x01\0\0",
        ];
        let cut = |wire: &[u8], piece: usize| {
            let (mut messages, mut seen) = (Messages::default(), Vec::new());
            for bytes in wire.chunks(piece) {
                messages.extend(bytes).unwrap();
                while let Some(message) = messages.next() {
                    seen.push(message.to_vec());
                }
            }
            seen
        };
        belljar_fuzz::fuzz("browser_messages", &seeds, |input| {
            let Some((&piece, wire)) = input.split_first() else { return 0 };
            let whole = cut(wire, wire.len().max(1));
            assert_eq!(whole, cut(wire, usize::from(piece) + 1), "pieces make a difference");
            let parsed = |message: &Vec<u8>| match serde_json::from_slice::<Message<'_>>(message) {
                Ok(message) => format!("{:?} {:?}", message.id.is_some(), message.error.is_some()),
                Err(error) => belljar_fuzz::kind(&error.to_string()),
            };
            belljar_fuzz::mark(whole.iter().map(parsed).take(4).collect::<Vec<_>>())
        });
    }
}
