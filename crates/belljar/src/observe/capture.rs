//! What this thread logs, for tests. One subscriber for all of them: with several that come and go, `tracing`
//! may remember that nobody listens.

use std::{
    cell::RefCell,
    io::{self, Write},
    sync::{Arc, Mutex, Once},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter, layer::SubscriberExt, util::SubscriberInitExt};

use super::logging::{OneLine, lines};

thread_local! {
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static JSON: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

type Buffer = &'static std::thread::LocalKey<RefCell<Vec<u8>>>;

struct OfThread(Buffer);

impl Write for OfThread {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.with_borrow_mut(|buffer| buffer.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) struct Captured;

/// From now on, with the filter that `serve` has.
pub(crate) fn start() -> Captured {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing_subscriber::registry()
            .with(EnvFilter::new("warn,rmcp=error,belljar=info"))
            .with(lines(false, false, || OneLine { to: OfThread(&TEXT), colours: false }))
            .with(lines(true, false, || OneLine { to: OfThread(&JSON), colours: false }))
            .init();
    });
    for buffer in [&TEXT, &JSON] {
        buffer.with_borrow_mut(Vec::clear);
    }
    Captured
}

impl Captured {
    pub(crate) fn text(&self) -> String {
        TEXT.with_borrow(|bytes| String::from_utf8(bytes.clone()).unwrap())
    }

    /// The calls of the access log.
    pub(crate) fn calls(&self) -> Vec<serde_json::Value> {
        let text = JSON.with_borrow(|bytes| String::from_utf8(bytes.clone()).unwrap());
        let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        events.filter(|event| event["target"] == "belljar::access").collect()
    }
}

/// Where a subscriber of a single test writes.
#[derive(Clone, Default)]
pub(crate) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = OneLine<Self>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine { to: self.clone(), colours: false }
    }
}
