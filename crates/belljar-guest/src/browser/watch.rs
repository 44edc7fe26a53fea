//! A person at the browser, beside the calls: pictures as the active tab changes, and mouse and keys from them.
//!
//! The browser is asked for pictures only while somebody looks, and makes one only when something has changed.

use std::{
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_proto::{Gesture, MAX_GESTURES, MAX_PICTURE, MAX_WATCH_MS, MouseButton, Press, Problem, Seen};
use serde_json::{Value, json};
use tokio::{
    task::spawn_local,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    Browser, Window,
    cdp::Cdp,
    keys::Stroke,
    state::{Shared, State, Tab},
};

/// Nobody looks who has not asked for the next picture for this long.
const LEFT: Duration = Duration::from_secs(3);
/// A page that does not take what a hand does is not waited for.
const HAND_PATIENCE: Duration = Duration::from_millis(500);
const MAX_TEXT: usize = 100_000;
/// As large as the tabs are, see `events.rs`.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 800;

/// The newest picture of the tab that is shown.
#[derive(Default)]
pub(super) struct Screen {
    /// Of the tab whose pictures are taken; empty when nobody looks.
    session: String,
    number: u64,
    picture: Vec<u8>,
    /// How many wait for the next one, and when somebody last did.
    waiting: usize,
    looked: Option<Instant>,
}

impl Screen {
    fn begin(&mut self, session: &str) {
        // Larger than any of an earlier browser.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.number = self.number.max(now);
        self.session = session.to_owned();
        self.picture = Vec::new();
    }
}

/// A picture came.
pub(super) fn frame(screen: &mut Screen, cdp: &Cdp, session: &str, params: &Value) {
    // The next one is made only then.
    drop(cdp.send(session, "Page.screencastFrameAck", json!({ "sessionId": params["sessionId"] })));
    if screen.session != session {
        return;
    }
    let data = params["data"].as_str().unwrap_or_default();
    if let Ok(picture) = STANDARD.decode(data)
        && (1..=MAX_PICTURE).contains(&picture.len())
    {
        screen.number += 1;
        screen.picture = picture;
    }
}

/// Somebody who looks, as long as it lives.
struct Looking(Rc<Shared>);

impl Looking {
    fn begin(shared: &Rc<Shared>) -> Self {
        shared.state.borrow_mut().screen.waiting += 1;
        Self(Rc::clone(shared))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let screen = &mut self.0.state.borrow_mut().screen;
        screen.waiting -= 1;
        screen.looked = Some(Instant::now());
    }
}

fn shown(state: &State) -> Option<&Tab> {
    state.tab(state.active).filter(|tab| !tab.crashed && tab.is_set_up())
}

/// Has pictures taken of the active tab.
fn show(cdp: &Rc<Cdp>, shared: &Rc<Shared>) {
    let mut state = shared.state.borrow_mut();
    let Some(session) = shown(&state).map(|tab| tab.session.clone()) else { return };
    let before = state.screen.session.clone();
    if before == session {
        return;
    }
    state.screen.begin(&session);
    drop(state);
    if before.is_empty() {
        spawn_local(stop_when_left(Rc::clone(cdp), Rc::clone(shared)));
    } else {
        drop(cdp.send(&before, "Page.stopScreencast", json!({})));
    }
    let how = json!({ "format": "jpeg", "quality": 60, "maxWidth": WIDTH, "maxHeight": HEIGHT });
    drop(cdp.send(&session, "Page.startScreencast", how));
}

async fn stop_when_left(cdp: Rc<Cdp>, shared: Rc<Shared>) {
    loop {
        sleep(LEFT / 2).await;
        let mut state = shared.state.borrow_mut();
        let screen = &mut state.screen;
        let left = screen.waiting == 0 && screen.looked.is_none_or(|looked| looked.elapsed() > LEFT);
        if left {
            let session = std::mem::take(&mut screen.session);
            screen.picture = Vec::new();
            drop(cdp.send(&session, "Page.stopScreencast", json!({})));
        }
        if left || state.gone {
            return;
        }
    }
}

enum Next {
    Picture,
    Dialog,
    /// Another tab is the active one now.
    Switched,
    Gone,
}

impl Browser {
    pub(crate) async fn watch(&self, after: u64, dialog: bool, wait_ms: u64) -> (Seen, Vec<u8>) {
        watch(&self.window, after, dialog, Duration::from_millis(wait_ms.min(MAX_WATCH_MS))).await
    }

    /// In the order in which they come. A dialog that one of them opens is the next look's to see.
    pub(crate) async fn hand(&self, gestures: Vec<Gesture>) -> Result<(), Problem> {
        hand(&self.window, &gestures).await
    }
}

async fn watch(window: &Window, after: u64, dialog: bool, wait: Duration) -> (Seen, Vec<u8>) {
    let end = Instant::now() + wait;
    let opened = window.borrow().clone();
    let Some((cdp, shared)) = opened.filter(|(_, shared)| !shared.state.borrow().gone) else {
        // There may be one a moment later.
        sleep(end.saturating_duration_since(Instant::now())).await;
        return (Seen::default(), Vec::new());
    };
    let looking = Looking::begin(&shared);
    let mut fresh = false;
    loop {
        show(&cdp, &shared);
        let next = shared.until(|state| {
            if state.gone {
                return Some(Next::Gone);
            }
            let tab = shown(state)?;
            let screen = &state.screen;
            if tab.session != screen.session {
                Some(Next::Switched)
            } else if screen.number > after && !screen.picture.is_empty() {
                Some(Next::Picture)
            } else {
                (tab.dialog.is_some() != dialog).then_some(Next::Dialog)
            }
        });
        match timeout_at(end, next).await {
            Ok(Next::Switched) => continue,
            Ok(Next::Gone) => return (Seen::default(), Vec::new()),
            Ok(Next::Picture) => fresh = true,
            Ok(Next::Dialog) | Err(_) => {}
        }
        break;
    }
    drop(looking);
    let state = shared.state.borrow();
    let mut seen = Seen { open: true, number: after, ..Seen::default() };
    if let Some(tab) = state.tab(state.active) {
        (seen.url, seen.title) = (tab.url.clone(), tab.title.clone());
        seen.dialog = tab.dialog.as_ref().map(|dialog| dialog.text.clone());
    }
    if !fresh {
        return (seen, Vec::new());
    }
    seen.number = state.screen.number;
    (seen, state.screen.picture.clone())
}

async fn hand(window: &Window, gestures: &[Gesture]) -> Result<(), Problem> {
    let calls = calls(gestures)?;
    let nothing = || Problem::Invalid { message: "no page is open in the browser".into() };
    let (cdp, shared) = window.borrow().clone().ok_or_else(nothing)?;
    let session = {
        let mut state = shared.state.borrow_mut();
        let active = state.active;
        let gone = state.gone;
        let tab = state.tab_mut(active).filter(|tab| !gone && !tab.crashed).ok_or_else(nothing)?;
        if let Some(dialog) = &tab.dialog {
            return Err(Problem::Dialog { text: dialog.text.clone() });
        }
        // The agent's next call lets it come to its end, as if it had done it itself.
        tab.acted = Some(Instant::now());
        tab.alerts = 0;
        tab.session.clone()
    };
    let sent = calls.into_iter().map(|(method, params)| cdp.send(&session, method, params));
    if let Some(last) = sent.collect::<Vec<_>>().pop() {
        let _ = timeout(HAND_PATIENCE, last.raw()).await;
    }
    Ok(())
}

type Call = (&'static str, Value);

fn calls(gestures: &[Gesture]) -> Result<Vec<Call>, Problem> {
    let invalid = |message: String| Problem::Invalid { message };
    if gestures.len() > MAX_GESTURES {
        return Err(invalid(format!("{} gestures at once, at most {MAX_GESTURES} are", gestures.len())));
    }
    let mut calls = Vec::new();
    for gesture in gestures {
        match gesture {
            Gesture::Move { x, y, button } => {
                let mut params = mouse("mouseMoved", *x, *y);
                if let Some(button) = button {
                    (params["button"], params["buttons"]) = (name(*button).into(), mask(*button).into());
                }
                calls.push(("Input.dispatchMouseEvent", params));
            }
            Gesture::Down(press) => {
                let mut params = pressed("mousePressed", press);
                params["buttons"] = mask(press.button).into();
                calls.push(("Input.dispatchMouseEvent", params));
            }
            Gesture::Up(press) => {
                calls.push(("Input.dispatchMouseEvent", pressed("mouseReleased", press)));
            }
            Gesture::Wheel { x, y, dx, dy } => {
                let mut params = mouse("mouseWheel", *x, *y);
                (params["deltaX"], params["deltaY"]) = (within(*dx).into(), within(*dy).into());
                calls.push(("Input.dispatchMouseEvent", params));
            }
            Gesture::Key { key } => {
                let stroke = Stroke::parse(key).map_err(invalid)?;
                calls.extend(stroke.events().map(|event| ("Input.dispatchKeyEvent", event)));
            }
            Gesture::Text { text } if text.len() > MAX_TEXT => {
                return Err(invalid(format!("{} bytes of text, at most {MAX_TEXT} are", text.len())));
            }
            Gesture::Text { text } => calls.push(("Input.insertText", json!({ "text": text }))),
        }
    }
    Ok(calls)
}

/// Places outside of the page are no places.
fn within(number: f64) -> f64 {
    if number.is_finite() { number.clamp(-20_000.0, 20_000.0) } else { 0.0 }
}

fn mouse(kind: &str, x: f64, y: f64) -> Value {
    json!({ "type": kind, "x": within(x), "y": within(y) })
}

fn pressed(kind: &str, press: &Press) -> Value {
    let mut params = mouse(kind, press.x, press.y);
    params["button"] = name(press.button).into();
    params["clickCount"] = press.clicks.clamp(1, 3).into();
    params["modifiers"] = (press.modifiers & 15).into();
    params
}

fn name(button: MouseButton) -> &'static str {
    match button {
        MouseButton::Left => "left",
        MouseButton::Right => "right",
        MouseButton::Middle => "middle",
    }
}

fn mask(button: MouseButton) -> u8 {
    match button {
        MouseButton::Left => 1,
        MouseButton::Right => 2,
        MouseButton::Middle => 4,
    }
}

#[cfg(test)]
mod tests {
    use belljar_proto::Browse;

    use super::*;
    use crate::browser::bench::{Bench, no_pages, with_browser};

    /// Looks until the picture, or what is told beside it, is as wanted.
    async fn until(b: &Bench, mut seen: Seen, wanted: impl Fn(&Seen, &[u8]) -> bool) -> (Seen, Vec<u8>) {
        for _ in 0..60 {
            let wait = Duration::from_secs(1);
            let (next, picture) = watch(&b.actor.window, seen.number, seen.dialog.is_some(), wait).await;
            if wanted(&next, &picture) {
                return (next, picture);
            }
            seen = next;
        }
        panic!("never seen; the last was {seen:?}");
    }

    fn press(x: f64, y: f64) -> [Gesture; 2] {
        let press = Press { x, y, button: MouseButton::Left, clicks: 1, modifiers: 0 };
        [Gesture::Down(press.clone()), Gesture::Up(press)]
    }

    #[test]
    fn a_person_sees_the_page_and_works_on_it_beside_the_agent() {
        with_browser(no_pages, async |b| {
            let (nothing, _) = watch(&b.actor.window, 0, false, Duration::ZERO).await;
            assert!(!nothing.open, "looking starts nothing");
            assert!(hand(&b.actor.window, &press(1.0, 1.0)).await.is_err());

            b.show(
                "<style>*{margin:0}</style><input id=i style=\"display:block;width:200px;height:50px\">
                 <button style=\"width:200px;height:50px\" onclick=\"document.body.style.background='red'; document.title='pressed'\">x</button>
                 <button style=\"width:200px;height:50px\" onclick=\"document.title=confirm('sure?')\">y</button>",
            )
            .await;
            let (first, picture) = until(b, Seen::default(), |_, picture| !picture.is_empty()).await;
            assert!(first.open && picture.starts_with(&[0xff, 0xd8, 0xff]), "{first:?}");
            let typed = [Gesture::Key { key: "h".into() }, Gesture::Text { text: "é".into() }];
            hand(&b.actor.window, &press(50.0, 25.0)).await.unwrap();
            hand(&b.actor.window, &typed).await.unwrap();
            assert_eq!(b.value("document.querySelector('#i').value").await, "hé");
            hand(&b.actor.window, &press(50.0, 75.0)).await.unwrap();
            assert_eq!(b.value("document.title").await, "pressed");
            let (changed, _) =
                until(b, first, |seen, picture| seen.title == "pressed" && !picture.is_empty()).await;

            hand(&b.actor.window, &press(250.0, 75.0)).await.unwrap();
            let (asks, _) = until(b, changed, |seen, _| seen.dialog.is_some()).await;
            assert!(matches!(hand(&b.actor.window, &press(1.0, 1.0)).await, Err(Problem::Dialog { .. })));
            b.ok(Browse::Dialog { accept: true, text: None }).await;
            let (after, _) = until(b, asks, |seen, _| seen.dialog.is_none()).await;

            b.ok(Browse::Tabs {
                select: None,
                close: None,
                open: Some("data:text/html,<title>two</title>2".into()),
            })
            .await;
            until(b, after, |seen, picture| seen.title == "two" && !picture.is_empty()).await;
            let casting = |b: &Bench| {
                let window = b.actor.window.borrow();
                let shared = &window.as_ref().unwrap().1;
                !shared.state.borrow().screen.session.is_empty()
            };
            assert!(casting(b));
            // Nobody looks any more.
            for _ in 0..600 {
                if !casting(b) {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
            panic!("pictures are taken for nobody");
        });
    }

    #[test]
    fn hands_become_the_browsers_own_events() {
        let press = Press { x: 10.0, y: f64::NAN, button: MouseButton::Right, clicks: 9, modifiers: 255 };
        let gestures = [
            Gesture::Move { x: 1e9, y: 2.0, button: Some(MouseButton::Left) },
            Gesture::Down(press.clone()),
            Gesture::Up(press),
            Gesture::Wheel { x: 1.0, y: 2.0, dx: 0.0, dy: f64::INFINITY },
            Gesture::Key { key: "Control+a".into() },
            Gesture::Text { text: "é".into() },
        ];
        let calls = calls(&gestures).unwrap();
        let kinds: Vec<_> =
            calls.iter().map(|(_, params)| params["type"].as_str().unwrap_or("text")).collect();
        let expected =
            ["mouseMoved", "mousePressed", "mouseReleased", "mouseWheel", "rawKeyDown", "keyUp", "text"];
        assert_eq!(kinds, expected);
        assert_eq!(
            calls[0].1,
            json!({ "type": "mouseMoved", "x": 20_000.0, "y": 2.0, "button": "left", "buttons": 1 })
        );
        let pressed = json!({
            "type": "mousePressed", "x": 10.0, "y": 0.0, "button": "right", "buttons": 2, "clickCount": 3,
            "modifiers": 15,
        });
        assert_eq!(calls[1].1, pressed);
        assert_eq!(calls[3].1["deltaY"], 0.0);
        assert_eq!(calls[6], ("Input.insertText", json!({ "text": "é" })));
    }

    #[test]
    fn what_no_hand_does_is_refused() {
        let key = |key: &str| Gesture::Key { key: key.into() };
        assert!(calls(&[key("Reboot")]).is_err() && calls(&[key("")]).is_err());
        assert!(calls(&vec![key("a"); MAX_GESTURES + 1]).is_err());
        assert!(calls(&[Gesture::Text { text: "x".repeat(MAX_TEXT + 1) }]).is_err());
    }
}
