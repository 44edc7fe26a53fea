//! A stream to the host: requests in, events and replies out.

use std::{cell::RefCell, collections::HashMap, io, os::fd::OwnedFd, rc::Rc};

use belljar_proto::{
    Call, Event, FailureKind, FromGuest, GENERATION, MAX_TOOL_CALLS_OPEN, Reply, Request,
    frame::{Decoder, encode},
};
use belljar_wire::Socket;
use tokio::{
    sync::{Notify, mpsc},
    task::spawn_local,
};

use crate::{
    browser, exec, files,
    kernel::{Job, RunJob},
    program,
    supervisor::Guest,
};

/// Frames that may wait for the host to read them; then whoever has more to say waits too.
const OUTBOX: usize = 32;

/// Frames are written together up to about this size.
const ONE_WRITE: usize = 64 << 10;

/// Sends to the host. Once the host is gone everything is dropped silently: there is nobody to tell.
#[derive(Clone)]
pub(crate) struct Outbox(mpsc::Sender<Vec<u8>>);

impl Outbox {
    pub(crate) async fn event(&self, id: u64, event: Event, body: &[u8]) {
        self.send(&FromGuest::Event { id, event }, body).await;
    }

    pub(crate) async fn reply(&self, id: u64, reply: Reply, body: &[u8]) {
        self.send(&FromGuest::Reply { id, reply }, body).await;
    }

    async fn send(&self, message: &FromGuest, body: &[u8]) {
        let mut frame = Vec::with_capacity(256 + body.len());
        let encoded = encode(message, body, &mut frame).or_else(|error| match message {
            // Whoever asked must not wait forever for an answer that does not fit.
            FromGuest::Reply { id, .. } => {
                let reply = failed(FailureKind::Internal, format!("the answer does not fit: {error}"));
                encode(&FromGuest::Reply { id: *id, reply }, &[], &mut frame)
            }
            _ => Err(error),
        });
        if encoded.is_ok() {
            let _ = self.0.send(frame).await;
        }
    }
}

/// Interrupts the call it belongs to.
pub(crate) type Interrupt = Rc<Notify>;

/// An answer to a tool's call: its number, whether it went well, the body.
pub(crate) type Answer = (u64, bool, Vec<u8>);

/// A call that can be interrupted, and told more.
#[derive(Default)]
struct Open {
    interrupt: Interrupt,
    answers: Option<mpsc::Sender<Answer>>,
}

impl From<&Interrupt> for Open {
    fn from(interrupt: &Interrupt) -> Self {
        Self { interrupt: Rc::clone(interrupt), answers: None }
    }
}

type Active = Rc<RefCell<HashMap<u64, Open>>>;

pub(crate) async fn serve(guest: Rc<Guest>, stream: OwnedFd) {
    let active = Active::default();
    // A broken connection concerns nobody but itself: the host may dial again.
    let _ = serve_stream(guest, stream, &active).await;
    // Nobody waits for these any more. What runs in the background goes on.
    for open in active.borrow().values() {
        open.interrupt.notify_one();
    }
}

async fn serve_stream(guest: Rc<Guest>, stream: OwnedFd, active: &Active) -> io::Result<()> {
    let stream = Rc::new(Socket::from_fd(stream)?);
    let (sender, frames) = mpsc::channel::<Vec<u8>>(OUTBOX);
    spawn_local(write(Rc::clone(&stream), frames));
    let outbox = Outbox(sender);
    outbox.send(&FromGuest::Hello { generation: GENERATION, digest: guest.config.digest.clone() }, &[]).await;

    let mut decoder = Decoder::default();
    loop {
        if stream.read(decoder.space()).await? == 0 {
            return Ok(());
        }
        while let Some(frame) = decoder.take::<Request>().map_err(io::Error::other)? {
            dispatch(&guest, frame.header, frame.body, &outbox, active).await;
        }
    }
}

async fn write(stream: Rc<Socket>, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut frame) = frames.recv().await {
        // What is ready at the same time, a display and the reply after it, goes out at once: the host wakes up once.
        while frame.len() < ONE_WRITE
            && let Ok(next) = frames.try_recv()
        {
            frame.extend_from_slice(&next);
        }
        if stream.write_all(&frame).await.is_err() {
            break;
        }
    }
}

async fn dispatch(
    guest: &Rc<Guest>,
    Request { id, trace, call }: Request,
    body: Vec<u8>,
    outbox: &Outbox,
    active: &Active,
) {
    let trace = program::trace(trace);
    match call {
        Call::Ping => outbox.reply(id, Reply::Ok, &[]).await,
        Call::StartKernel { language } => {
            guest.kernels.send(language, Job::Start { id, outbox: outbox.clone() }).await;
        }
        Call::Run { language, limits } => {
            let interrupt = Interrupt::default();
            let (sender, answers) = mpsc::channel(MAX_TOOL_CALLS_OPEN);
            active.borrow_mut().insert(id, Open { answers: Some(sender), ..Open::from(&interrupt) });
            let active = Rc::clone(active);
            let finished: Box<dyn FnOnce()> = Box::new(move || drop(active.borrow_mut().remove(&id)));
            let outbox = outbox.clone();
            let job = RunJob { id, trace, code: body, limits, outbox, interrupt, answers, finished };
            guest.kernels.send(language, Job::Run(job)).await;
        }
        Call::Exec { program, limits } => {
            let interrupt = Interrupt::default();
            active.borrow_mut().insert(id, Open::from(&interrupt));
            let (guest, active) = (Rc::clone(guest), Rc::clone(active));
            let asked = exec::Asked { id, trace, outbox: outbox.clone(), interrupt };
            spawn_local(async move {
                let (reply, body) = exec::run(&guest, &asked, program, &body, limits).await;
                active.borrow_mut().remove(&id);
                asked.outbox.reply(id, reply, &body).await;
            });
        }
        Call::SetEnvironment { variables } => {
            let reply = match guest.environment.change(variables) {
                true => Reply::Ok,
                false => failed(FailureKind::Invalid, "a variable cannot be set"),
            };
            outbox.reply(id, reply, &[]).await;
        }
        Call::Browse { browse, timeout_ms } => {
            let interrupt = Interrupt::default();
            active.borrow_mut().insert(id, Open::from(&interrupt));
            let active = Rc::clone(active);
            let outbox = outbox.clone();
            let finished = move |reply, body: Vec<u8>| {
                active.borrow_mut().remove(&id);
                spawn_local(async move { outbox.reply(id, reply, &body).await });
            };
            guest
                .browser
                .send(browser::Job { browse, timeout_ms, interrupt, finished: Box::new(finished) })
                .await;
        }
        Call::Watch { after, dialog, wait_ms } => {
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            spawn_local(async move {
                let (seen, picture) = guest.browser.watch(after, dialog, wait_ms).await;
                outbox.reply(id, Reply::Seen(seen), &picture).await;
            });
        }
        Call::Hand { gestures } => {
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            spawn_local(async move {
                let done = guest.browser.hand(gestures).await;
                let reply = done.map_or_else(|problem| Reply::BrowseFailed { problem }, |()| Reply::Ok);
                outbox.reply(id, reply, &[]).await;
            });
        }
        Call::Interrupt { target } => {
            if let Some(open) = active.borrow().get(&target) {
                open.interrupt.notify_one();
            }
            outbox.reply(id, Reply::Ok, &[]).await;
        }
        Call::Answer { target, number, ok } => {
            if let Some(answers) = active.borrow().get(&target).and_then(|open| open.answers.as_ref()) {
                // There is room for an answer to each call that is open.
                let _ = answers.try_send((number, ok, body));
            }
            outbox.reply(id, Reply::Ok, &[]).await;
        }
        Call::Stat { .. } | Call::ReadFile { .. } | Call::WriteFile { .. } | Call::ListFiles { .. } => {
            let outbox = outbox.clone();
            spawn_local(async move {
                let (reply, body) = files::answer(call, body).await;
                outbox.reply(id, reply, &body).await;
            });
        }
        Call::Spawn { .. }
        | Call::Processes
        | Call::Poll { .. }
        | Call::Input { .. }
        | Call::Signal { .. } => {
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            spawn_local(async move {
                let (reply, body) = guest.background.answer(call, trace.as_deref(), &body).await;
                outbox.reply(id, reply, &body).await;
            });
        }
    }
}

/// Why a call was not carried out, before it becomes a reply.
pub(crate) type Failure = (FailureKind, String);

pub(crate) fn failed(kind: FailureKind, message: impl Into<String>) -> Reply {
    Reply::Failed { kind, message: message.into() }
}
