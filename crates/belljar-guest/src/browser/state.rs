//! What is known of the browser's tabs. Events of the browser change it, calls wait for it to change.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet, VecDeque},
};

use belljar_proto::{Browsed, MAX_TABS, Tab as TabInfo};
use tokio::{sync::Notify, time::Instant};

use super::{
    text::{address, line_of},
    watch::Screen,
};

/// Of one tab. A page may make as many as it likes; more are not looked at.
pub(super) const MAX_FRAMES: usize = 500;
const MAX_REQUESTS: usize = 1000;
const MAX_LOG: usize = 200;
const MAX_NOTES: usize = 40;
pub(super) const MAX_LOG_LINE: usize = 600;

#[derive(Default)]
pub(super) struct Frame {
    pub(super) parent: Option<String>,
    /// Frames of other origins have their own process, and a session of their own.
    pub(super) session: String,
    /// Our world in it.
    pub(super) context: Option<i64>,
    /// Frames of one document are numbered in the order in which they came to it.
    pub(super) order: u64,
    /// The document in it, and the one of its parent that it came to: when that is gone, so is the frame, and nobody says so.
    pub(super) loader: String,
    within: String,
}

/// Input that the page says it has dealt with.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Dealt {
    pub(super) id: u64,
    /// It would have hit something else, and was kept from the page.
    pub(super) missed: bool,
}

/// A navigation that was asked for and has not arrived.
pub(super) struct Navigating {
    pub(super) since: Instant,
    /// Requests that come to nothing are never taken back.
    pub(super) started: bool,
}

pub(super) struct Dialog {
    pub(super) text: String,
    pub(super) session: String,
}

pub(super) struct Exchange {
    pub(super) id: String,
    pub(super) what: String,
    pub(super) result: String,
}

/// Refs that a document's elements were given.
pub(super) struct Refs {
    pub(super) numbers: std::ops::Range<u64>,
    pub(super) frame: String,
    pub(super) context: i64,
}

pub(super) struct Tab {
    pub(super) number: u32,
    /// Also the name of its main frame.
    pub(super) target: String,
    pub(super) session: String,
    pub(super) url: String,
    pub(super) title: String,
    pub(super) frames: HashMap<String, Frame>,
    pub(super) loader: String,
    /// The document is parsed; and all that it asked for is there.
    pub(super) ready: bool,
    pub(super) loaded: bool,
    /// It has told its address and title by itself.
    pub(super) told: bool,
    pub(super) navigating: Option<Navigating>,
    /// In progress, and when one last came to its end.
    pub(super) requests: HashMap<String, Instant>,
    pub(super) heard: Option<Instant>,
    pub(super) dialog: Option<Dialog>,
    /// In a row.
    pub(super) alerts: u32,
    pub(super) console: VecDeque<String>,
    pub(super) network: VecDeque<Exchange>,
    pub(super) crashed: bool,
    /// Never given twice in a tab, so that an old one cannot mean another element.
    pub(super) next_ref: u64,
    pub(super) refs: Vec<Refs>,
    /// When something was last done that the page may still be answering.
    pub(super) acted: Option<Instant>,
    /// How often it has come to a page.
    pub(super) arrivals: u64,
    next_frame: u64,
    next_input: u64,
    /// The input that is on its way, and what the page last said of any.
    pub(super) expected: Option<u64>,
    pub(super) dealt: Option<Dealt>,
}

impl Tab {
    fn new(number: u32, target: &str, session: &str, url: &str) -> Self {
        let main = Frame { session: session.into(), ..Frame::default() };
        Self {
            number,
            target: target.into(),
            session: session.into(),
            url: address(url),
            title: String::new(),
            frames: HashMap::from([(target.to_owned(), main)]),
            loader: String::new(),
            ready: false,
            loaded: false,
            told: false,
            navigating: None,
            requests: HashMap::new(),
            heard: None,
            dialog: None,
            alerts: 0,
            console: VecDeque::new(),
            network: VecDeque::new(),
            crashed: false,
            next_ref: 1,
            refs: Vec::new(),
            acted: None,
            arrivals: 0,
            next_frame: 1,
            next_input: 0,
            expected: None,
            dealt: None,
        }
    }

    /// The frame of this name, which may be new; not when there are too many.
    pub(super) fn frame(&mut self, id: &str) -> Option<&mut Frame> {
        if !self.frames.contains_key(id) {
            if self.frames.len() >= MAX_FRAMES {
                self.forget_past_frames();
            }
            if self.frames.len() >= MAX_FRAMES {
                return None;
            }
            let order = self.next_frame;
            self.next_frame += 1;
            self.frames.insert(id.into(), Frame { order, ..Frame::default() });
        }
        self.frames.get_mut(id)
    }

    /// A frame has come to the document that is now in another.
    pub(super) fn attach_frame(&mut self, id: &str, parent: &str, session: &str) {
        let within = self.frames.get(parent).map(|parent| parent.loader.clone()).unwrap_or_default();
        if let Some(frame) = self.frame(id) {
            frame.parent = Some(parent.into());
            (frame.session, frame.context) = (session.into(), None);
            frame.within = within;
        }
    }

    /// Frames in a frame, in the order of its `window[0]`, `window[1]`, …
    pub(super) fn frames_in(&self, parent: &str) -> Vec<String> {
        let Some(document) = self.frames.get(parent).map(|parent| parent.loader.as_str()) else {
            return Vec::new();
        };
        let is_in = |f: &Frame| f.parent.as_deref() == Some(parent) && f.within == document;
        let mut inside: Vec<_> = self.frames.iter().filter(|(_, frame)| is_in(frame)).collect();
        inside.sort_by_key(|(_, frame)| frame.order);
        inside.into_iter().map(|(id, _)| id.clone()).collect()
    }

    /// The number of the input that comes next.
    pub(super) fn expect_input(&mut self) -> u64 {
        self.next_input += 1;
        self.expected = Some(self.next_input);
        self.next_input
    }

    /// One that is sent elsewhere or closed before may crash.
    pub(super) fn is_set_up(&self) -> bool {
        self.frames.get(&self.target).is_some_and(|frame| frame.context.is_some())
    }

    /// A document has come, unless it is the one that is there.
    pub(super) fn begin_document(&mut self, loader: &str) {
        if self.loader != loader {
            self.loader = loader.into();
            (self.ready, self.loaded, self.told) = (false, false, false);
        }
    }

    pub(super) fn log(&mut self, text: &str) {
        if self.console.len() == MAX_LOG {
            self.console.pop_front();
        }
        self.console.push_back(line_of(text, MAX_LOG_LINE));
    }

    pub(super) fn begin_request(&mut self, id: &str, what: &str, is_waited_for: bool) {
        if is_waited_for && self.requests.len() < MAX_REQUESTS {
            self.requests.insert(id.into(), Instant::now());
        }
        if self.network.len() == MAX_LOG {
            self.network.pop_front();
        }
        let what = line_of(what, MAX_LOG_LINE);
        self.network.push_back(Exchange { id: id.into(), what, result: "pending".into() });
    }

    pub(super) fn end_request(&mut self, id: &str) {
        if self.requests.remove(id).is_some() {
            self.heard = Some(Instant::now());
        }
    }

    pub(super) fn request_result(&mut self, id: &str, result: &str) {
        if let Some(exchange) = self.network.iter_mut().rev().find(|exchange| exchange.id == id) {
            exchange.result = line_of(result, 200);
        }
    }

    /// The frames of the tab, the main one first, then as they lie in each other.
    pub(super) fn all_frames(&self) -> Vec<String> {
        let mut frames = vec![self.target.clone()];
        let mut at = 0;
        while at < frames.len() {
            let inside = self.frames_in(&frames[at]).into_iter();
            let new: Vec<_> = inside.filter(|id| !frames.contains(id)).collect();
            frames.extend(new);
            at += 1;
        }
        frames
    }

    /// Those of documents that were left are kept for a while, because a browser may go back to one as it was.
    fn forget_past_frames(&mut self) {
        let present: HashSet<_> = self.all_frames().into_iter().collect();
        self.frames.retain(|id, _| present.contains(id));
    }

    /// Forgets a frame and all frames in it.
    pub(super) fn remove_frame(&mut self, frame: &str) {
        let mut doomed = vec![frame.to_owned()];
        while let Some(frame) = doomed.pop() {
            self.frames.remove(&frame);
            let inside = self.frames.iter().filter(|(_, f)| f.parent.as_deref() == Some(&frame));
            doomed.extend(inside.map(|(id, _)| id.clone()));
        }
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) tabs: Vec<Tab>,
    pub(super) active: u32,
    /// Which tab a session belongs to.
    pub(super) sessions: HashMap<String, u32>,
    next_tab: u32,
    notes: Vec<(String, u32)>,
    pub(super) downloads: HashMap<String, String>,
    /// Windows that pages have opened and the browser has not told of.
    pub(super) due: u32,
    /// Addresses of windows that are about to open.
    pub(super) opening: VecDeque<String>,
    /// Tabs that have to go as soon as they are set up, by session: one that is closed before may take its process along,
    /// and with it the page that opened it.
    pub(super) doomed: HashMap<String, String>,
    /// The browser's stream is closed.
    pub(super) gone: bool,
    pub(super) screen: Screen,
}

impl State {
    pub(super) fn tab(&self, number: u32) -> Option<&Tab> {
        self.tabs.iter().find(|tab| tab.number == number)
    }

    pub(super) fn tab_mut(&mut self, number: u32) -> Option<&mut Tab> {
        self.tabs.iter_mut().find(|tab| tab.number == number)
    }

    pub(super) fn of_session(&mut self, session: &str) -> Option<&mut Tab> {
        let number = *self.sessions.get(session)?;
        self.tab_mut(number)
    }

    pub(super) fn of_target(&mut self, target: &str) -> Option<&mut Tab> {
        self.tabs.iter_mut().find(|tab| tab.target == target)
    }

    /// Returns the target of the tab that has to go for it now.
    pub(super) fn add_tab(&mut self, target: &str, session: &str, url: &str) -> Option<String> {
        self.next_tab += 1;
        self.due = self.due.saturating_sub(1);
        let number = self.next_tab;
        let opening = if url.is_empty() { self.opening.pop_front() } else { None };
        let url = opening.as_deref().unwrap_or(url);
        self.sessions.insert(session.into(), number);
        self.tabs.push(Tab::new(number, target, session, url));
        if number > 1 {
            self.note(&format!("new tab {number}: {}", if url.is_empty() { "about:blank" } else { url }));
        }
        if self.tab(self.active).is_none() {
            self.active = number;
        }
        if self.tabs.len() <= MAX_TABS {
            return None;
        }
        let oldest = self.tabs.iter().find(|tab| tab.number != self.active)?;
        let (number, target, session) = (oldest.number, oldest.target.clone(), oldest.session.clone());
        let is_set_up = oldest.is_set_up();
        self.note(&format!("tab {number} was closed: a browser has at most {MAX_TABS} tabs"));
        self.remove_tab(number);
        if is_set_up {
            return Some(target);
        }
        self.doomed.insert(session, target);
        None
    }

    pub(super) fn remove_tab(&mut self, number: u32) {
        self.tabs.retain(|tab| tab.number != number);
        self.sessions.retain(|_, tab| *tab != number);
        if self.active == number
            && let Some(last) = self.tabs.last()
        {
            self.active = last.number;
            let (number, url) = (last.number, last.url.clone());
            self.note(&format!("tab {number} is active now: {url}"));
        }
    }

    /// Something that the caller will want to know.
    pub(super) fn note(&mut self, note: &str) {
        let note = line_of(note, 500);
        if let Some((_, times)) = self.notes.iter_mut().find(|(known, _)| *known == note) {
            *times += 1;
        } else if self.notes.len() < MAX_NOTES {
            self.notes.push((note, 1));
        }
    }

    /// Takes back a note that turned out to be of no interest.
    pub(super) fn forget(&mut self, note: &str) {
        let note = line_of(note, 500);
        self.notes.retain(|(known, _)| *known != note);
    }

    pub(super) fn take_notes(&mut self) -> Vec<String> {
        let told = |(note, times)| if times > 1 { format!("{note} ({times} times)") } else { note };
        std::mem::take(&mut self.notes).into_iter().map(told).collect()
    }

    pub(super) fn list_tabs(&self) -> Vec<TabInfo> {
        let info = |tab: &Tab| TabInfo {
            index: tab.number,
            url: tab.url.clone(),
            title: tab.title.clone(),
            active: tab.number == self.active,
        };
        self.tabs.iter().map(info).collect()
    }

    /// Completes an answer with where the browser is and what happened since the last one.
    pub(super) fn complete(&mut self, mut browsed: Browsed) -> Browsed {
        if let Some(tab) = self.tab(self.active) {
            (browsed.url, browsed.title) = (tab.url.clone(), tab.title.clone());
        }
        browsed.changes.extend(self.take_notes());
        browsed.tabs = self.list_tabs();
        browsed
    }
}

#[derive(Default)]
pub(super) struct Shared {
    pub(super) state: RefCell<State>,
    changed: Notify,
}

impl Shared {
    pub(super) fn touch(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until the state has what is looked for.
    pub(super) async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.state.borrow_mut()) {
                return found;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_were_left_make_room() {
        let mut tab = Tab::new(1, "main", "session", "");
        for document in 0..3 {
            tab.frame("main").unwrap().loader = format!("document {document}");
            for n in 0..MAX_FRAMES - 1 {
                tab.attach_frame(&format!("{document} {n}"), "main", "session");
            }
            tab.attach_frame("too many", "main", "session");
            assert_eq!(tab.all_frames().len(), MAX_FRAMES);
            assert_eq!(tab.frames_in("main")[0], format!("{document} 0"));
        }
        // A browser may go back to a document as it was.
        tab.frame("main").unwrap().loader = "another".into();
        assert_eq!(tab.all_frames(), ["main"]);
        tab.frame("main").unwrap().loader = "document 2".into();
        assert_eq!(tab.all_frames().len(), MAX_FRAMES);
    }
}
