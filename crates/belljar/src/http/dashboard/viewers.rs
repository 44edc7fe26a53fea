//! People who look at a context's browser, and take it into their own hands.
//!
//! A viewer is there as long as its stream of pictures is; nobody else's hands are let in. What a person does becomes
//! one entry among the calls, in the access log and in the audit log, for as long as they go on. What they type is
//! counted, never kept: people type passwords.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    extract::{Path, Request, State},
    http::StatusCode,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_sandbox::{Caller, Error, Gesture, MAX_GESTURES, MouseButton, Press, Problem};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    super::{
        AppState, Door,
        reply::{self, INVALID_REQUEST, REFUSED, Reply},
    },
    MAX_BODY, admitted, invalid, is_json,
};
use crate::{
    audit,
    observe::{Call, Door as Way, Note, Outcome, Start},
};

/// Streams of pictures of all callers, and of one.
const MOST: usize = 64;
const OF_ONE: usize = 8;
/// A look waits this long for something new; between two pictures at least this much passes.
const WAIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(60);
/// Hands that rest for so long have let go.
const REST: Duration = Duration::from_secs(5);
/// Things done that one entry tells of.
const MAX_ACTS: usize = 100;

#[derive(Default)]
pub(in crate::http) struct Viewers(Mutex<All>);

#[derive(Default)]
struct All {
    next: u64,
    open: HashMap<u64, Viewer>,
}

struct Viewer {
    caller: Caller,
    context: String,
    taken: Option<Taken>,
}

/// A browser in a person's hands.
struct Taken {
    note: Note,
    record: Call,
    acts: Acts,
    last: Instant,
}

/// Ends with the stream that it belongs to.
struct Place {
    viewers: Arc<Viewers>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let gone = self.viewers.all().open.remove(&self.number);
        if let Some(taken) = gone.and_then(|viewer| viewer.taken) {
            taken.let_go();
        }
    }
}

impl Taken {
    fn let_go(self) {
        self.note.finish(None, Outcome::Ok);
        self.record.finish(Outcome::Ok);
    }
}

impl Viewers {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(self: &Arc<Self>, caller: &Caller, context: &str) -> Option<Place> {
        let mut all = self.all();
        let own = all.open.values().filter(|viewer| viewer.caller == *caller).count();
        if all.open.len() >= MOST || own >= OF_ONE {
            return None;
        }
        all.next += 1;
        let number = all.next;
        let viewer = Viewer { caller: caller.clone(), context: context.to_owned(), taken: None };
        all.open.insert(number, viewer);
        Some(Place { viewers: self.clone(), number })
    }

    fn rest(&self, number: u64) {
        let rested = |viewer: &mut Viewer| viewer.taken.take_if(|taken| taken.last.elapsed() > REST);
        let rested = self.all().open.get_mut(&number).and_then(rested);
        if let Some(taken) = rested {
            taken.let_go();
        }
    }

    /// Whether that viewer is there, and looks at that context.
    fn knows(&self, number: u64, caller: &Caller, context: &str) -> bool {
        let all = self.all();
        all.open.get(&number).is_some_and(|viewer| viewer.caller == *caller && viewer.context == context)
    }

    /// Writes down what was done.
    fn did(&self, door: &Door, number: u64, gestures: &[Gesture]) {
        let mut all = self.all();
        let Some(viewer) = all.open.get_mut(&number) else { return };
        if gestures.iter().all(|gesture| matches!(gesture, Gesture::Move { .. })) && viewer.taken.is_none() {
            return;
        }
        let (caller, context) = (viewer.caller.clone(), viewer.context.clone());
        let taken = viewer.taken.get_or_insert_with(|| {
            let mut record = Call::begin(Start {
                caller: caller.as_str(),
                door: Way::Http,
                method: "dashboard/takeover",
                tool: None,
                sandbox: Some(&context),
                request: None,
                trace: None,
            });
            if let Some(log) = audit::log() {
                record.announce(log, None);
            }
            let given = told(&context, &Acts::default());
            let note = door.transcripts.begin(&caller, "person", "takeover", Some(&given));
            Taken { note, record, acts: Acts::default(), last: Instant::now() }
        });
        taken.last = Instant::now();
        let before = taken.acts.lines.clone();
        gestures.iter().for_each(|gesture| taken.acts.add(gesture));
        if taken.acts.lines != before {
            taken.note.amend(&told(&viewer.context, &taken.acts));
        }
    }
}

fn told(context: &str, acts: &Acts) -> serde_json::Map<String, Value> {
    let lines: Vec<_> = acts.lines.iter().map(Act::text).collect();
    let fields = [("sandbox_id".to_owned(), context.into()), ("did".to_owned(), lines.into())];
    fields.into_iter().collect()
}

#[derive(Default)]
struct Acts {
    lines: Vec<Act>,
    /// Where the mouse went down.
    down: Option<(f64, f64)>,
}

#[derive(Clone, PartialEq)]
enum Act {
    Said(String),
    /// So many characters.
    Typed(usize),
    Scrolled,
    More,
}

impl Act {
    fn text(&self) -> String {
        match self {
            Self::Said(text) => text.clone(),
            Self::Typed(1) => "typed a character".into(),
            Self::Typed(count) => format!("typed {count} characters"),
            Self::Scrolled => "scrolled".into(),
            Self::More => "and more".into(),
        }
    }
}

impl Acts {
    fn add(&mut self, gesture: &Gesture) {
        let act = match gesture {
            Gesture::Move { .. } => return,
            Gesture::Down(press) => {
                self.down = Some((press.x, press.y));
                return;
            }
            Gesture::Up(press) => Act::Said(self.released(press)),
            Gesture::Wheel { .. } => Act::Scrolled,
            Gesture::Text { text } => Act::Typed(text.chars().count()),
            Gesture::Key { key } => match key.strip_prefix("Shift+").unwrap_or(key) {
                character if character.chars().count() == 1 => Act::Typed(1),
                _ => Act::Said(format!("pressed {}", key.chars().take(40).collect::<String>())),
            },
        };
        let full = self.lines.len() >= MAX_ACTS;
        match (self.lines.last_mut(), act) {
            (Some(Act::Typed(count)), Act::Typed(more)) => *count += more,
            (Some(Act::Scrolled), Act::Scrolled) | (Some(Act::More), _) => {}
            (_, act) => self.lines.push(if full { Act::More } else { act }),
        }
    }

    fn released(&mut self, press: &Press) -> String {
        let button = match press.button {
            MouseButton::Left => "",
            MouseButton::Right => "right ",
            MouseButton::Middle => "middle ",
        };
        let (x, y) = self.down.take().unwrap_or((press.x, press.y));
        if (x - press.x).abs().max((y - press.y).abs()) > 5.0 {
            return format!("{button}drag from {x:.0}, {y:.0} to {:.0}, {:.0}", press.x, press.y);
        }
        let times = if press.clicks == 2 { "double " } else { "" };
        format!("{button}{times}click at {:.0}, {:.0}", press.x, press.y)
    }
}

/// `GET /browser/CONTEXT`: pictures of its browser as server-sent events, as long as somebody takes them.
pub(super) async fn pictures(
    State(door): AppState,
    Path(context): Path<String>,
    request: Request<Body>,
) -> Reply {
    let identity = match admitted(&door, request).await {
        Ok((identity, ..)) => identity,
        Err(refused) => return refused,
    };
    let context = match door.service.find_context(&identity.caller, &context) {
        Ok(context) => context.id,
        Err(error) => return reply::refusal(StatusCode::NOT_FOUND, INVALID_REQUEST, &error.to_string()),
    };
    let Some(place) = door.viewers.join(&identity.caller, &context) else {
        let message = format!("Too many people look at browsers: {OF_ONE} of one caller, {MOST} in all");
        return reply::refusal(StatusCode::TOO_MANY_REQUESTS, REFUSED, &message);
    };
    let looking =
        Looking { caller: identity.caller, context, after: 0, known: None, greeted: false, place, door };
    super::stream(futures::stream::unfold(looking, next_picture))
}

struct Looking {
    caller: Caller,
    context: String,
    /// The picture that was sent last.
    after: u64,
    /// What was told besides.
    known: Option<(bool, String, String, Option<String>)>,
    greeted: bool,
    place: Place,
    door: Arc<Door>,
}

async fn next_picture(mut looking: Looking) -> Option<(Bytes, Looking)> {
    if !looking.greeted {
        looking.greeted = true;
        let text = format!("event: viewer\ndata: {{\"viewer\":{}}}\n\n", looking.place.number);
        return Some((text.into(), looking));
    }
    let dialog = looking.known.as_ref().is_some_and(|(.., dialog)| dialog.is_some());
    let watching =
        looking.door.service.watch_browser(&looking.caller, &looking.context, looking.after, dialog, WAIT);
    let seen = tokio::select! {
        seen = watching => seen,
        () = looking.door.stopping.cancelled() => return None,
    };
    looking.door.viewers.rest(looking.place.number);
    let (seen, picture) = match seen {
        Ok(seen) => seen,
        Err(Error::NotFound(_)) => return None,
        // A fresh sandbox may take the place of one that ended.
        Err(error) => {
            tokio::time::sleep(WAIT).await;
            let data = json!({ "message": error.to_string() });
            return Some((format!("event: problem\ndata: {data}\n\n").into(), looking));
        }
    };
    looking.after = seen.number;
    let now = (seen.open, seen.url.clone(), seen.title.clone(), seen.dialog.clone());
    let fresh = looking.known.as_ref() != Some(&now);
    looking.known = Some(now);
    if !fresh && picture.is_empty() {
        return Some((Bytes::from_static(b": still here\n\n"), looking));
    }
    let data = json!({
        "open": seen.open, "url": seen.url, "title": seen.title, "dialog": seen.dialog,
        "picture": (!picture.is_empty()).then(|| STANDARD.encode(&picture)),
    });
    tokio::time::sleep(PAUSE).await;
    Some((format!("event: picture\ndata: {data}\n\n").into(), looking))
}

#[derive(Deserialize)]
struct Hand {
    viewer: u64,
    gestures: Vec<Gesture>,
}

/// `POST /browser/CONTEXT`: what the hands of a viewer did.
pub(super) async fn hand(
    State(door): AppState,
    Path(context): Path<String>,
    request: Request<Body>,
) -> Reply {
    let (identity, parts, body) = match admitted(&door, request).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused,
    };
    if let Err(refused) = is_json(&parts.headers) {
        return refused;
    }
    let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
        return invalid("The body is too large");
    };
    let hand: Hand = match serde_json::from_slice(&body) {
        Ok(hand) => hand,
        Err(error) => return invalid(&format!("Not what a hand does: {error}")),
    };
    if hand.gestures.len() > MAX_GESTURES {
        return invalid(&format!("{} gestures at once, at most {MAX_GESTURES} are", hand.gestures.len()));
    }
    if !door.viewers.knows(hand.viewer, &identity.caller, &context) {
        let message = "Nobody looks there: hands are let in only while their owner sees the picture";
        return reply::refusal(StatusCode::NOT_FOUND, INVALID_REQUEST, message);
    }
    if let Some(refusal) = audit::log().and_then(audit::Audit::refusal) {
        return reply::refusal(StatusCode::SERVICE_UNAVAILABLE, REFUSED, &refusal);
    }
    door.viewers.did(&door, hand.viewer, &hand.gestures);
    match door.service.hand(&identity.caller, &context, hand.gestures).await {
        Ok(Ok(())) => reply::empty(StatusCode::NO_CONTENT),
        Ok(Err(problem)) => reply::refusal(StatusCode::CONFLICT, REFUSED, &in_words(problem)),
        Err(error) => reply::refusal(StatusCode::CONFLICT, REFUSED, &error.to_string()),
    }
}

fn in_words(problem: Problem) -> String {
    match problem {
        Problem::Dialog { text } => format!("A dialog is open and has to be answered first: {text}"),
        Problem::Invalid { message } | Problem::NoBrowser { message } | Problem::Crashed { message } => {
            message
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::Transcripts;

    fn press(x: f64, clicks: u8, button: MouseButton) -> Press {
        Press { x, y: 20.0, button, clicks, modifiers: 0 }
    }

    #[test]
    fn what_a_person_did_is_told_but_not_what_they_typed() {
        let mut acts = Acts::default();
        let key = |key: &str| Gesture::Key { key: key.into() };
        let mut gestures = vec![
            Gesture::Move { x: 1.0, y: 1.0, button: None },
            Gesture::Down(press(10.4, 1, MouseButton::Left)),
            Gesture::Up(press(10.4, 1, MouseButton::Left)),
        ];
        gestures.extend("hunter".chars().map(|c| key(&c.to_string())));
        gestures.extend([
            key("Shift+S"),
            Gesture::Text { text: "é!".into() },
            key("Enter"),
            key("Control+a"),
        ]);
        gestures.extend([0.0, 1.0].map(|dy| Gesture::Wheel { x: 1.0, y: 1.0, dx: 0.0, dy }));
        gestures.push(Gesture::Down(press(10.0, 1, MouseButton::Right)));
        gestures.push(Gesture::Up(press(90.0, 1, MouseButton::Right)));
        gestures.push(Gesture::Up(press(90.0, 2, MouseButton::Left)));
        gestures.iter().for_each(|gesture| acts.add(gesture));
        let lines: Vec<_> = acts.lines.iter().map(Act::text).collect();
        insta::assert_snapshot!(lines.join("\n"));
        for _ in 0..500 {
            acts.add(&key("Enter"));
            acts.add(&key("Tab"));
        }
        assert!(acts.lines.len() == MAX_ACTS + 1 && acts.lines.last() == Some(&Act::More));
    }

    #[test]
    fn a_viewer_is_known_while_its_stream_lives_and_to_nobody_else() {
        let viewers = Arc::new(Viewers::default());
        let (ann, bob) = (Caller::new("ann"), Caller::new("bob"));
        let place = viewers.join(&ann, "ctx-1").unwrap();
        assert!(viewers.knows(place.number, &ann, "ctx-1"));
        assert!(!viewers.knows(place.number, &bob, "ctx-1") && !viewers.knows(place.number, &ann, "ctx-2"));
        let more: Vec<_> = (0..OF_ONE).filter_map(|_| viewers.join(&ann, "ctx-1")).collect();
        assert_eq!(more.len(), OF_ONE - 1);
        assert!(viewers.join(&bob, "ctx-3").is_some());
        drop(place);
        assert!(!viewers.knows(1, &ann, "ctx-1"));
        assert!(viewers.join(&ann, "ctx-1").is_some());
    }

    #[test]
    fn a_takeover_is_one_entry_that_grows_and_ends() {
        let transcripts = Transcripts::new();
        let ann = Caller::new("ann");
        let mut note = transcripts.begin(&ann, "person", "takeover", Some(&told("ctx-1", &Acts::default())));
        let acts = Acts { lines: vec![Act::Typed(3)], down: None };
        note.amend(&told("ctx-1", &acts));
        note.finish(None, Outcome::Ok);
        let entries = transcripts.read(&ann, |entry| entry.concerns("ctx-1"), 10);
        let entry = serde_json::to_value(&*entries[0]).unwrap();
        assert_eq!((entries.len(), &entry["arguments"]["did"][0]), (1, &json!("typed 3 characters")));
        assert_eq!((transcripts.count(), &entry["outcome"]), (1, &json!("ok")));
    }
}
