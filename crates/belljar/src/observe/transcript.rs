//! What was called and what came of it, for people who look through the glass. Kept in memory, bounded per caller and
//! in all, and shown to nobody but that caller.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use belljar_sandbox::Caller;
use jiff::Timestamp;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::Outcome;

/// Calls of one caller that are remembered.
const MAX_CALLS: usize = 1_000;
/// Bytes of one caller's calls.
const MAX_BYTES: usize = 16 << 20;
const MAX_CALLERS: usize = 200;
const MAX_ARGUMENT: usize = 64 << 10;
const MAX_TEXT: usize = 64 << 10;
/// One figure, as base64.
const MAX_IMAGE: usize = 2 << 20;
const MAX_IMAGES: usize = 8;
/// Whoever falls behind by more asks for the whole again.
const NEWS: usize = 256;

/// Arguments and results that name a sandbox.
const SANDBOXES: [&str; 3] = ["context_id", "session_id", "sandbox_id"];

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Entry {
    number: u64,
    at: Timestamp,
    tool: String,
    /// As the client calls itself.
    client: String,
    sandbox: Option<String>,
    arguments: Value,
    /// `running` until it ended, then as in the access log.
    outcome: String,
    milliseconds: Option<f64>,
    text: Vec<String>,
    images: Vec<Value>,
    #[serde(skip)]
    bytes: usize,
}

impl Entry {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn concerns(&self, sandbox: &str) -> bool {
        self.sandbox.as_deref() == Some(sandbox)
    }
}

#[derive(Default)]
struct Own {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    touched: u64,
}

#[derive(Default)]
struct All {
    callers: HashMap<Caller, Own>,
    next: u64,
    count: u64,
}

pub(crate) struct Transcripts {
    all: Mutex<All>,
    news: broadcast::Sender<(Caller, Arc<Entry>)>,
}

/// A call that is under way.
pub(crate) struct Note {
    transcripts: Arc<Transcripts>,
    caller: Caller,
    began: Instant,
    entry: Entry,
}

impl Transcripts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { all: Mutex::default(), news: broadcast::Sender::new(NEWS) })
    }

    pub(crate) fn begin(
        self: &Arc<Self>,
        caller: &Caller,
        client: &str,
        tool: &str,
        arguments: Option<&JsonObject>,
    ) -> Note {
        let sandbox =
            arguments.and_then(|given| SANDBOXES.iter().find_map(|name| given.get(*name)?.as_str()));
        let entry = Entry {
            number: 0,
            at: Timestamp::now(),
            tool: tool.to_owned(),
            client: clipped(client, 100),
            sandbox: sandbox.map(|name| clipped(name, 200)),
            arguments: arguments.map_or(Value::Null, bounded),
            outcome: "running".to_owned(),
            milliseconds: None,
            text: Vec::new(),
            images: Vec::new(),
            bytes: 0,
        };
        let entry = self.put(caller, entry);
        Note { transcripts: self.clone(), caller: caller.clone(), began: Instant::now(), entry }
    }

    /// Adds it, or puts it in the place of what it was before.
    fn put(&self, caller: &Caller, mut entry: Entry) -> Entry {
        entry.bytes = size(&entry);
        let mut all = self.lock();
        all.next += 1;
        let now = all.next;
        if entry.number == 0 {
            entry.number = now;
            all.count += 1;
        }
        if !all.callers.contains_key(caller) && all.callers.len() >= MAX_CALLERS {
            let oldest =
                all.callers.iter().min_by_key(|(_, own)| own.touched).map(|(caller, _)| caller.clone());
            oldest.map(|caller| all.callers.remove(&caller));
        }
        let own = all.callers.entry(caller.clone()).or_default();
        own.touched = now;
        let shared = Arc::new(entry.clone());
        match own.entries.binary_search_by_key(&entry.number, |there| there.number) {
            Ok(place) => {
                own.bytes -= own.entries[place].bytes;
                own.entries[place] = shared.clone();
            }
            // It was pushed out while it ran.
            Err(place) => own.entries.insert(place, shared.clone()),
        }
        own.bytes += entry.bytes;
        while own.entries.len() > MAX_CALLS || own.bytes > MAX_BYTES {
            let Some(gone) = own.entries.pop_front() else { break };
            own.bytes -= gone.bytes;
        }
        drop(all);
        // Nobody may be looking.
        let _ = self.news.send((caller.clone(), shared));
        entry
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest that fit the question, oldest first.
    pub(crate) fn read(
        &self,
        caller: &Caller,
        wanted: impl Fn(&Entry) -> bool,
        limit: usize,
    ) -> Vec<Arc<Entry>> {
        let all = self.lock();
        let entries = all.callers.get(caller).into_iter().flat_map(|own| own.entries.iter().rev());
        let mut found: Vec<_> = entries.filter(|entry| wanted(entry)).take(limit).cloned().collect();
        found.reverse();
        found
    }

    /// Calls of all callers since the start.
    pub(crate) fn count(&self) -> u64 {
        self.lock().count
    }

    pub(crate) fn follow(&self) -> broadcast::Receiver<(Caller, Arc<Entry>)> {
        self.news.subscribe()
    }
}

impl Note {
    /// What is done grew while it went on.
    pub(crate) fn amend(&mut self, arguments: &JsonObject) {
        self.entry.arguments = bounded(arguments);
        self.transcripts.put(&self.caller, self.entry.clone());
    }

    pub(crate) fn finish(mut self, result: Option<&CallToolResult>, outcome: Outcome) {
        let entry = &mut self.entry;
        entry.outcome = outcome.text().into_owned();
        entry.milliseconds = Some((self.began.elapsed().as_secs_f64() * 1e5).round() / 100.0);
        if let Some(result) = result {
            for block in &result.content {
                match block {
                    ContentBlock::Text(text) => entry.text.push(clipped(&text.text, MAX_TEXT)),
                    ContentBlock::Image(image)
                        if image.data.len() <= MAX_IMAGE && entry.images.len() < MAX_IMAGES =>
                    {
                        entry.images.push(json!({ "mime": image.mime_type, "data": image.data }));
                    }
                    _ => {}
                }
            }
            let told = result.structured_content.as_ref();
            let named = told.and_then(|told| SANDBOXES.iter().find_map(|name| told.get(*name)?.as_str()));
            if let Some(named) = named {
                entry.sandbox = Some(clipped(named, 200));
            }
        }
        let (transcripts, caller) = (self.transcripts.clone(), self.caller.clone());
        transcripts.put(&caller, self.entry);
    }
}

fn size(entry: &Entry) -> usize {
    let images: usize = entry.images.iter().map(|image| image["data"].as_str().map_or(0, str::len)).sum();
    let text: usize = entry.text.iter().map(String::len).sum();
    500 + images + text + weight(&entry.arguments)
}

fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 16,
        Value::Array(items) => 16 + items.iter().map(weight).sum::<usize>(),
        Value::Object(map) => 16 + map.iter().map(|(key, value)| key.len() + weight(value)).sum::<usize>(),
        _ => 16,
    }
}

fn clipped(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    format!("{}… ({} bytes in all)", &text[..text.floor_char_boundary(limit)], text.len())
}

/// Arguments as they were, with long texts cut; what is deep or wide beyond that is left out whole.
fn bounded(arguments: &JsonObject) -> Value {
    let shown = arguments.iter().take(50).map(|(key, value)| {
        let value = match value {
            Value::String(text) => Value::String(clipped(text, MAX_ARGUMENT)),
            other if weight(other) > MAX_ARGUMENT => json!(format!("({} bytes)", weight(other))),
            other => other.clone(),
        };
        (clipped(key, 200), value)
    });
    Value::Object(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(value: Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    fn numbers(entries: &[Arc<Entry>]) -> Vec<u64> {
        entries.iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn a_call_is_seen_while_it_runs_and_when_it_ended() {
        let transcripts = Transcripts::new();
        let (alice, bob) = (Caller::new("alice"), Caller::new("bob"));
        let mut news = transcripts.follow();
        let given = arguments(json!({ "context_id": "ctx-1", "code": "x".repeat(MAX_ARGUMENT + 5) }));
        let note = transcripts.begin(&alice, "test", "run_code", Some(&given));
        let running = transcripts.read(&alice, |entry| entry.concerns("ctx-1"), 10);
        assert_eq!(running[0].outcome, "running");
        assert!(running[0].arguments["code"].as_str().unwrap().ends_with("… (65541 bytes in all)"));
        note.finish(Some(&CallToolResult::success(vec![ContentBlock::text("hello")])), Outcome::Ok);
        let ended = transcripts.read(&alice, |_| true, 10);
        assert_eq!(
            (ended.len(), ended[0].outcome.as_str(), &ended[0].text),
            (1, "ok", &vec!["hello".to_owned()])
        );
        assert_eq!(news.try_recv().unwrap().1.outcome, "running");
        assert_eq!(news.try_recv().unwrap().1.outcome, "ok");
        assert!(transcripts.read(&bob, |_| true, 10).is_empty());
    }

    #[test]
    fn a_sandbox_that_a_call_made_is_named_by_its_result() {
        let transcripts = Transcripts::new();
        let alice = Caller::new("alice");
        let note = transcripts.begin(&alice, "test", "create_context", None);
        let mut made = CallToolResult::success(Vec::new());
        made.structured_content = Some(json!({ "context_id": "ctx-7" }));
        note.finish(Some(&made), Outcome::Ok);
        assert_eq!(transcripts.read(&alice, |entry| entry.concerns("ctx-7"), 1).len(), 1);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_too_much() {
        let transcripts = Transcripts::new();
        let alice = Caller::new("alice");
        for _ in 0..MAX_CALLS + 10 {
            transcripts.begin(&alice, "test", "ps", None).finish(None, Outcome::Ok);
        }
        let kept = transcripts.read(&alice, |_| true, usize::MAX);
        assert_eq!(kept.len(), MAX_CALLS);
        let large = CallToolResult::success(vec![ContentBlock::text("x".repeat(MAX_TEXT)); 16]);
        for _ in 0..30 {
            transcripts.begin(&alice, "test", "ps", None).finish(Some(&large), Outcome::Ok);
        }
        let own: usize = transcripts.read(&alice, |_| true, usize::MAX).iter().map(|entry| entry.bytes).sum();
        assert!(own <= MAX_BYTES && own > MAX_BYTES / 2, "{own}");
        assert_eq!(transcripts.lock().callers[&alice].bytes, own);
        let newest = numbers(&transcripts.read(&alice, |_| true, 2));
        assert!(newest[0] < newest[1]);
    }

    #[test]
    fn callers_beyond_the_limit_push_out_who_was_silent_longest() {
        let transcripts = Transcripts::new();
        for n in 0..MAX_CALLERS + 1 {
            transcripts.begin(&Caller::new(&n.to_string()), "test", "ps", None).finish(None, Outcome::Ok);
        }
        assert!(transcripts.read(&Caller::new("0"), |_| true, 1).is_empty());
        assert_eq!(transcripts.read(&Caller::new("1"), |_| true, 1).len(), 1);
    }
}
