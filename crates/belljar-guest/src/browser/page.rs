//! One tab, as calls use it.

use std::{rc::Rc, time::Duration};

use belljar_proto::Problem;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    WALKER, WORLD,
    cdp::{Cdp, CdpError},
    state::{Dealt, Refs, Shared, Tab},
    text::{address, line_of, said},
};

/// A document that was just opened has our world after this long, or will not have it by itself.
const WORLD_PATIENCE: Duration = Duration::from_millis(500);
/// Input that the browser has delivered is dealt with by then, or the page does not say so.
const TELL_PATIENCE: Duration = Duration::from_millis(5);
/// A window that a page opened is there by then, or was not allowed.
const WINDOW_PATIENCE: Duration = Duration::from_millis(500);
/// A page that is busy is not asked for its title for longer.
const TITLE_PATIENCE: Duration = Duration::from_millis(250);
/// A navigation that was asked for starts soon, or never.
const START_PATIENCE: Duration = Duration::from_millis(300);
/// A document that has been parsed may be used although something in it does not stop loading.
const LOAD_PATIENCE: Duration = Duration::from_secs(3);
/// A document that arrives without end is used as far as it has come.
const PARSE_PATIENCE: Duration = Duration::from_secs(8);
/// For what an action has asked of the network.
const QUIET_PATIENCE: Duration = Duration::from_secs(1);
/// A page that is not drawn is not waited for.
const DRAW_PATIENCE: Duration = Duration::from_millis(300);
/// A page that claims more new elements at once is not believed.
pub(super) const MAX_NEW_REFS: u64 = 100_000;
/// What came from the network is on the page this much later.
const DRAWN: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(super) struct Page {
    pub(super) shared: Rc<Shared>,
    pub(super) cdp: Rc<Cdp>,
    pub(super) number: u32,
    /// When the call has to be over.
    pub(super) deadline: Instant,
}

pub(super) fn refused(error: CdpError) -> Problem {
    match error {
        CdpError::Gone => Problem::Crashed { message: "the browser ended".into() },
        CdpError::Refused(message) => {
            Problem::Invalid { message: format!("the browser refused: {}", line_of(&message, 300)) }
        }
    }
}

impl Page {
    pub(super) fn tab<T>(&self, look: impl FnOnce(&mut Tab) -> T) -> Result<T, Problem> {
        let mut state = self.shared.state.borrow_mut();
        let closed = || Problem::Invalid { message: format!("tab {} is closed", self.number) };
        state.tab_mut(self.number).map(look).ok_or_else(closed)
    }

    pub(super) fn session(&self) -> Result<String, Problem> {
        self.tab(|tab| tab.session.clone())
    }

    pub(super) fn main(&self) -> Result<String, Problem> {
        self.tab(|tab| tab.target.clone())
    }

    /// A share of the time that is left, so that what fails for a reason of its own can say so.
    pub(super) fn budget(&self, at_most: Duration) -> Duration {
        (self.deadline.saturating_duration_since(Instant::now()) / 2).min(at_most)
    }

    pub(super) async fn call(&self, method: &str, params: Value) -> Result<Value, Problem> {
        self.cdp.call(&self.session()?, method, params).await.map_err(refused)
    }

    /// Session and world of a frame; waits for a document that is just coming.
    pub(super) async fn world(&self, frame: &str) -> Result<(String, i64), Problem> {
        let look = self.shared.until(|state| {
            let Some(tab) = state.tab(self.number) else { return Some(Err(())) };
            let Some(frame) = tab.frames.get(frame) else { return Some(Err(())) };
            frame.context.map(|context| Ok((frame.session.clone(), context)))
        });
        let gone = || Problem::Invalid { message: "the frame is gone".into() };
        if let Ok(found) = timeout(WORLD_PATIENCE, look).await {
            return found.map_err(|()| gone());
        }
        let session = self.tab(|tab| tab.frames.get(frame).map(|f| f.session.clone()))?.ok_or_else(gone)?;
        let made = json!({ "frameId": frame, "worldName": WORLD });
        let made = self.cdp.call(&session, "Page.createIsolatedWorld", made).await.map_err(refused)?;
        let context = made["executionContextId"].as_i64().ok_or_else(gone)?;
        let walker = json!({ "expression": WALKER, "contextId": context });
        self.cdp.call(&session, "Runtime.evaluate", walker).await.map_err(refused)?;
        self.tab(|tab| tab.frames.get_mut(frame).map(|f| f.context = Some(context)))?;
        Ok((session, context))
    }

    /// Evaluates in our world of a frame. A document that is replaced meanwhile is asked again.
    pub(super) async fn eval(&self, frame: &str, expression: &str) -> Result<Value, Problem> {
        let mut tried = false;
        loop {
            let (session, context) = self.world(frame).await?;
            let params = json!({
                "expression": expression, "contextId": context, "returnByValue": true, "awaitPromise": true,
                "userGesture": true,
            });
            match self.cdp.call(&session, "Runtime.evaluate", params).await {
                Ok(mut answer) if answer.get("exceptionDetails").is_none() => {
                    return Ok(answer["result"]["value"].take());
                }
                Ok(answer) => {
                    let details = &answer["exceptionDetails"];
                    let why = details["exception"]["description"].as_str().or(details["text"].as_str());
                    let message = format!("the page could not be read: {}", line_of(why.unwrap_or("?"), 300));
                    return Err(Problem::Invalid { message });
                }
                Err(error) if error.is_lost_context() && !tried => {
                    tried = true;
                    self.tab(|tab| {
                        tab.frames
                            .values_mut()
                            .filter(|f| f.context == Some(context))
                            .for_each(|f| f.context = None);
                    })?;
                    self.arrive(self.budget(LOAD_PATIENCE)).await?;
                }
                Err(error) => return Err(refused(error)),
            }
        }
    }

    /// Evaluates what returns JSON, as a value or as text.
    pub(super) async fn ask<T: DeserializeOwned>(&self, frame: &str, expression: &str) -> Result<T, Problem> {
        let odd = |e: serde_json::Error| Problem::Invalid {
            message: format!("the page gave a strange answer: {e}"),
        };
        match self.eval(frame, expression).await? {
            Value::String(text) => serde_json::from_str(&text).map_err(odd),
            value => serde_json::from_value(value).map_err(odd),
        }
    }

    /// The element as an object of the browser: its session and id.
    pub(super) async fn object(&self, frame: &str, expression: &str) -> Result<(String, Value), Problem> {
        let (session, context) = self.world(frame).await?;
        let params = json!({ "expression": expression, "contextId": context });
        let mut answer = self.cdp.call(&session, "Runtime.evaluate", params).await.map_err(refused)?;
        Ok((session, answer["result"]["objectId"].take()))
    }

    /// Brings address and title up to date. By the answer the page has also begun what it was going to do at once.
    pub(super) async fn describe(&self) -> Result<(), Problem> {
        let main = self.main()?;
        let asked = async {
            let (session, context) = self.world(&main).await?;
            let params = json!({
                "expression": "[location.href, document.title.slice(0, 1000), __bj.missed()]", "contextId": context,
                "returnByValue": true,
            });
            self.cdp.call(&session, "Runtime.evaluate", params).await.map_err(refused)
        };
        // What does not answer keeps the title that was last seen.
        if let Ok(Ok(answer)) = timeout(TITLE_PATIENCE, asked).await
            && let [Value::String(url), Value::String(title), Value::Bool(missed)] =
                answer["result"]["value"].as_array().map(Vec::as_slice).unwrap_or_default()
        {
            self.tab(|tab| {
                (tab.url, tab.title) = (address(url), said(title, 500));
                tab.dealt = tab.expected.map(|id| Dealt { id, missed: *missed });
            })?;
        }
        Ok(())
    }

    /// Waits until the page says what became of the input that it was told to expect: whether that missed. For ever, if none is.
    pub(super) async fn told_of_input(&self) -> bool {
        let told = self.shared.until(|state| {
            let Some(tab) = state.tab(self.number) else { return Some(false) };
            tab.dealt.filter(|dealt| Some(dealt.id) == tab.expected).map(|dealt| dealt.missed)
        });
        told.await
    }

    /// The same of a page that may not say it, and is asked then. One that has closed itself was not missed.
    pub(super) async fn dealt(&self) -> bool {
        if self.tab(|tab| tab.expected.is_none()).unwrap_or(true) {
            return false;
        }
        if let Ok(missed) = timeout(TELL_PATIENCE, self.told_of_input()).await {
            return missed;
        }
        let missed =
            |tab: &mut Tab| tab.dealt.is_some_and(|dealt| Some(dealt.id) == tab.expected && dealt.missed);
        tokio::select! {
            missed = self.told_of_input() => missed,
            described = self.describe() => described.and_then(|()| self.tab(missed)).unwrap_or_default(),
        }
    }

    pub(super) fn is_navigating(&self) -> bool {
        self.tab(|tab| tab.navigating.is_some()).unwrap_or_default()
    }

    /// Waits until the tab is not on its way elsewhere and its document can be used. Says whether it still loads.
    pub(super) async fn arrive(&self, budget: Duration) -> Result<bool, Problem> {
        let began = Instant::now();
        let end = began + budget;
        let mut ready_since = None;
        loop {
            let now = Instant::now();
            let (navigating, ready, loaded) = self.tab(|tab| {
                let stalled = |n: &super::state::Navigating| !n.started && now >= n.since + START_PATIENCE;
                if tab.navigating.as_ref().is_some_and(stalled) {
                    tab.navigating = None;
                }
                (tab.navigating.as_ref().map(|n| n.started), tab.ready, tab.loaded)
            })?;
            if navigating.is_none() && loaded {
                return Ok(false);
            }
            let enough = match (navigating, ready) {
                (None, true) => *ready_since.get_or_insert(now) + LOAD_PATIENCE,
                (None, false) => began + PARSE_PATIENCE,
                (Some(false), _) => now + START_PATIENCE,
                _ => end,
            };
            if now >= end || (navigating.is_none() && now >= enough) {
                return Ok(true);
            }
            let before = (navigating, ready, loaded);
            let number = self.number;
            let changed = self.shared.until(|state| {
                let Some(tab) = state.tab(number) else { return Some(()) };
                let after = (tab.navigating.as_ref().map(|n| n.started), tab.ready, tab.loaded);
                (after != before).then_some(())
            });
            tokio::select! {
                () = changed => {}
                () = sleep_until(enough.min(end)) => {}
            }
        }
    }

    /// Before something is done: lets what the last action began come to its end, within reason.
    pub(super) async fn settle(&self) -> Result<(), Problem> {
        if self.is_navigating() {
            self.arrive(self.budget(2 * LOAD_PATIENCE)).await?;
        }
        let Some(acted) = self.tab(|tab| tab.acted.take())? else { return Ok(()) };
        let number = self.number;
        let quiet = self.shared.until(|state| {
            let busy = |tab: &Tab| tab.requests.values().any(|began| *began >= acted);
            (!state.tab(number).is_some_and(busy)).then_some(())
        });
        // A page may ask for ever.
        let _ = timeout(self.budget(QUIET_PATIENCE), quiet).await;
        if self.tab(|tab| tab.heard.is_some_and(|heard| heard >= acted && heard.elapsed() < DRAWN))? {
            let drawn = self.main()?;
            let drawn = self.eval(&drawn, "__bj.settled(30, 300)");
            let _ = timeout(self.budget(QUIET_PATIENCE), drawn).await;
        }
        if self.is_navigating() {
            self.arrive(self.budget(2 * LOAD_PATIENCE)).await?;
        }
        Ok(())
    }

    /// After something was done: a navigation that began is waited for, anything else is the next call's to wait for.
    pub(super) async fn conclude(&self) -> Result<(), Problem> {
        let opened = self.shared.until(|state| (state.due == 0).then_some(()));
        if timeout(self.budget(WINDOW_PATIENCE), opened).await.is_err() {
            self.shared.state.borrow_mut().due = 0;
        }
        if !self.tab(|tab| tab.expected.is_some() && tab.dealt.map(|dealt| dealt.id) == tab.expected)? {
            self.describe().await?;
        }
        if self.is_navigating() {
            if self.arrive(self.budget(LOAD_PATIENCE)).await? {
                self.shared.state.borrow_mut().note("the page is still loading");
            }
            self.describe().await?;
        }
        Ok(())
    }

    pub(super) fn acted(&self) -> Result<(), Problem> {
        self.tab(|tab| {
            tab.acted = Some(Instant::now());
            tab.alerts = 0;
        })
    }

    /// Remembers where refs were given, so that they lead back there.
    pub(super) fn remember_refs(
        &self,
        frame: &str,
        context: i64,
        first: u64,
        next: u64,
    ) -> Result<(), Problem> {
        const MAX_RANGES: usize = 2000;
        self.tab(|tab| {
            let next = next.clamp(first, first + MAX_NEW_REFS);
            if next > first {
                tab.refs.push(Refs { numbers: first..next, frame: frame.into(), context });
                tab.next_ref = tab.next_ref.max(next);
            }
            if tab.refs.len() > MAX_RANGES {
                tab.refs.drain(..MAX_RANGES / 2);
            }
        })
    }

    /// The frames of the tab, the main one first, then as they lie in each other.
    pub(super) fn frames(&self) -> Result<Vec<String>, Problem> {
        self.tab(|tab| tab.all_frames())
    }

    /// From a point in a frame's viewport to the same in the tab's, where it is scrolled to.
    pub(super) async fn to_tab(&self, frame: &str, x: f64, y: f64) -> Result<(f64, f64), Problem> {
        let (main, top) = (self.main()?, self.session()?);
        let (mut frame, mut x, mut y) = (frame.to_owned(), x, y);
        let mut moved = false;
        for _ in 0..20 {
            if frame == main {
                break;
            }
            let above = self.tab(|tab| {
                let parent = tab.frames.get(&frame)?.parent.clone()?;
                Some((tab.frames.get(&parent)?.session.clone(), parent))
            })?;
            let Some((session, parent)) = above else { break };
            let owner = self.cdp.call(&session, "DOM.getFrameOwner", json!({ "frameId": frame })).await;
            let node = owner.map_err(refused)?["backendNodeId"].clone();
            let measure = || self.cdp.send(&session, "DOM.getBoxModel", json!({ "backendNodeId": node }));
            let spot = json!({ "x": x, "y": y, "width": 1, "height": 1 });
            let scroll = json!({ "backendNodeId": node, "rect": spot });
            let before = measure();
            drop(self.cdp.send(&session, "DOM.scrollIntoViewIfNeeded", scroll));
            let (before, after) = (before.value(), measure().value().await.map_err(refused)?);
            moved |= before.await.map_err(refused)? != after;
            let corner = |n: usize| after["model"]["content"][n].as_f64().unwrap_or_default();
            (x, y) = (x + corner(0), y + corner(1));
            if session == top {
                break;
            }
            // That was relative to the outermost frame of the same process.
            frame = parent;
            while let Some(parent) = self.tab(|tab| {
                let parent = tab.frames.get(&frame)?.parent.clone()?;
                (tab.frames.get(&parent)?.session == session).then_some(parent)
            })? {
                frame = parent;
            }
        }
        if moved {
            // Input finds its frame by what was drawn last.
            let drawn = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20))))";
            let _ = timeout(self.budget(DRAW_PATIENCE), self.eval(&main, drawn)).await;
        }
        Ok((x, y))
    }
}
