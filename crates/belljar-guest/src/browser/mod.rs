//! The sandbox's browser: one actor starts it when it is first wanted, does one thing in it at a time, and starts another
//! when it is gone.

mod actions;
mod cdp;
mod element;
mod events;
mod fold;
mod keys;
mod outputs;
mod page;
mod snapshot;
mod state;
mod text;
mod watch;

use std::{cell::RefCell, future::Future, pin::Pin, rc::Rc, time::Duration};

use belljar_proto::{Browse, Browsed, Problem, Reply};
use serde_json::{Value, json};
use tokio::{
    net::UnixStream,
    sync::mpsc,
    task::spawn_local,
    time::{Instant, sleep_until, timeout},
};

use crate::connection::Interrupt;
use cdp::{Cdp, CdpError};
use page::{Page, refused};
use state::{Shared, Tab};
use text::line_of;

/// Our own world in every document, which its scripts cannot reach.
const WORLD: &str = "belljar";
const WALKER: &str = concat!(
    include_str!("../../browser/text.js"),
    include_str!("../../browser/names.js"),
    include_str!("../../browser/snapshot.js"),
    include_str!("../../browser/actions.js"),
    include_str!("../../browser/input.js"),
    include_str!("../../browser/extract.js"),
    include_str!("../../browser/start.js"),
);
const DOWNLOADS: &str = "/workspace/downloads";
/// Calls that may wait for the one before them.
const QUEUE: usize = 64;
const START_LIMIT: Duration = Duration::from_secs(30);
const STARTS: u32 = 2;
/// A page that does not answer a trifle is busy with a script of its own.
const PING_LIMIT: Duration = Duration::from_millis(500);

pub(crate) type Launch = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<UnixStream, String>>>>>;

/// Something to do. `finished` is called with the reply and its body.
pub(crate) struct Job {
    pub(crate) browse: Browse,
    pub(crate) timeout_ms: u64,
    pub(crate) interrupt: Interrupt,
    pub(crate) finished: Box<dyn FnOnce(Reply, Vec<u8>)>,
}

pub(crate) struct Browser {
    jobs: mpsc::Sender<Job>,
    window: Window,
}

/// The browser that was started last, for people who look at it beside the calls.
type Window = Rc<RefCell<Option<(Rc<Cdp>, Rc<Shared>)>>>;

impl Browser {
    pub(crate) fn new(launch: Launch) -> Self {
        let (sender, mut jobs) = mpsc::channel::<Job>(QUEUE);
        let window = Window::default();
        let mut actor = Actor {
            launch,
            downloads: DOWNLOADS.into(),
            live: None,
            ended: false,
            window: Rc::clone(&window),
        };
        spawn_local(async move {
            while let Some(job) = jobs.recv().await {
                let limit = Duration::from_millis(job.timeout_ms);
                let (reply, body) = match actor.browse(job.browse, limit, &job.interrupt).await {
                    Ok((browsed, body)) => (Reply::Browsed(Box::new(browsed)), body),
                    Err(problem) => (Reply::BrowseFailed { problem }, Vec::new()),
                };
                (job.finished)(reply, body);
            }
        });
        Self { jobs: sender, window }
    }

    pub(crate) async fn send(&self, job: Job) {
        // The actor lives as long as the guest.
        let _ = self.jobs.send(job).await;
    }
}

struct Live {
    cdp: Rc<Cdp>,
    shared: Rc<Shared>,
}

impl Drop for Live {
    fn drop(&mut self) {
        self.cdp.close();
    }
}

struct Actor {
    launch: Launch,
    downloads: String,
    live: Option<Live>,
    /// One was there and is gone, and nobody has been told.
    ended: bool,
    window: Window,
}

type Done = Result<(Browsed, Vec<u8>), Problem>;

impl Actor {
    async fn browse(&mut self, browse: Browse, limit: Duration, interrupt: &Interrupt) -> Done {
        let deadline = Instant::now() + limit;
        let late = || Problem::TimedOut { message: format!("not done within {} ms", limit.as_millis()) };
        let cancelled = || Problem::TimedOut { message: "the call was cancelled".into() };
        let page = tokio::select! {
            page = self.page(&browse, deadline) => page?,
            () = sleep_until(deadline) => return Err(late()),
            () = interrupt.notified() => return Err(cancelled()),
        };
        let shared = Rc::clone(&page.shared);
        if let Some(text) = open_dialog(&page)
            && !matches!(
                browse,
                Browse::Dialog { .. } | Browse::Tabs { .. } | Browse::Console { .. } | Browse::Network { .. }
            )
        {
            return Err(Problem::Dialog { text });
        }
        let reads = matches!(
            browse,
            Browse::Snapshot { .. }
                | Browse::Extract
                | Browse::WaitFor { .. }
                | Browse::Screenshot { .. }
                | Browse::Pdf { .. }
        );
        let answers = matches!(browse, Browse::Dialog { .. } | Browse::Tabs { .. });
        let number = page.number;
        let dialog = shared.until(|state| Some(state.tab(number)?.dialog.as_ref()?.text.clone()));
        let crash = shared.until(|state| match state.tab(number) {
            _ if state.gone => Some("the browser ended"),
            Some(tab) if tab.crashed => Some("the page crashed, possibly for want of memory"),
            _ => None,
        });
        let done = tokio::select! {
            biased;
            done = actions::perform(&page, browse) => done,
            why = crash => {
                let message = format!("{why}; what was in it is gone, the next call starts anew");
                Err(Problem::Crashed { message })
            }
            text = dialog, if !answers => match reads {
                true => Err(Problem::Dialog { text }),
                false => Ok((Browsed::default(), Vec::new())),
            },
            () = sleep_until(deadline) => Err(self.give_up(&page, late()).await),
            () = interrupt.notified() => Err(self.give_up(&page, cancelled()).await),
        };
        if shared.state.borrow().gone {
            self.live = None;
        }
        done.map(|(browsed, body)| (shared.state.borrow_mut().complete(browsed), body))
    }

    /// Ends a script that keeps its page from answering, so that the next call finds a page it can use.
    async fn give_up(&self, page: &Page, mut problem: Problem) -> Problem {
        let Ok(session) = page.session() else { return problem };
        let ping = page.cdp.call(&session, "Runtime.evaluate", json!({ "expression": "0" }));
        if open_dialog(page).is_none() && timeout(PING_LIMIT, ping).await.is_err() {
            let ended = page.cdp.call(&session, "Runtime.terminateExecution", json!({}));
            let _ = timeout(PING_LIMIT, ended).await;
            if let Problem::TimedOut { message } = &mut problem {
                message.push_str("; the page was busy with a script, which was ended");
            }
        }
        problem
    }

    /// The active tab of a browser that lives.
    async fn page(&mut self, browse: &Browse, deadline: Instant) -> Result<Page, Problem> {
        if self.live.as_ref().is_some_and(|live| live.shared.state.borrow().gone) {
            self.live = None;
            self.ended = true;
        }
        let goes_on = matches!(browse, Browse::Goto { .. } | Browse::Tabs { .. });
        if std::mem::take(&mut self.ended) && !goes_on {
            let message = "the browser had ended since the last call, its pages are gone; the next call starts a new one";
            return Err(Problem::Crashed { message: message.into() });
        }
        if self.live.is_none() {
            let started = timeout(START_LIMIT, self.start()).await;
            let late = |_| Problem::NoBrowser {
                message: format!("the browser did not come up within {} s", START_LIMIT.as_secs()),
            };
            let live = started.map_err(late)??;
            *self.window.borrow_mut() = Some((Rc::clone(&live.cdp), Rc::clone(&live.shared)));
            self.live = Some(live);
        }
        let gone = || Problem::Crashed { message: "the browser ended".into() };
        let live = self.live.as_ref().ok_or_else(gone)?;
        let (cdp, shared) = (Rc::clone(&live.cdp), Rc::clone(&live.shared));
        let page = |number| Page { shared: Rc::clone(&shared), cdp: Rc::clone(&cdp), number, deadline };
        let (active, crashed) = {
            let state = shared.state.borrow();
            (
                state.tab(state.active).map(|tab| tab.number),
                state.tab(state.active).is_some_and(|tab| tab.crashed),
            )
        };
        match active {
            Some(number) if !crashed => Ok(page(number)),
            crashed => {
                let number = open_tab(&cdp, &shared, "about:blank").await?;
                let old =
                    crashed.and_then(|old| shared.state.borrow().tab(old).map(|tab| tab.target.clone()));
                let mut state = shared.state.borrow_mut();
                state.active = number;
                if let (Some(target), Some(old)) = (old, crashed) {
                    drop(cdp.send("", "Target.closeTarget", json!({ "targetId": target })));
                    state.remove_tab(old);
                    state.note(&format!("tab {old} had crashed; tab {number} took its place"));
                    if !goes_on {
                        let message = "it crashed since the last call, possibly for want of memory; a blank one took its place";
                        return Err(Problem::Crashed { message: message.into() });
                    }
                }
                Ok(page(number))
            }
        }
    }

    /// Now and then Chromium ends while it starts; another then does not.
    async fn start(&self) -> Result<Live, Problem> {
        for _ in 0..STARTS {
            if let Some(live) = self.start_once().await? {
                return Ok(live);
            }
        }
        Err(no_browser(&format!("it ended while starting, {STARTS} times in a row")))
    }

    /// `None` when it has ended before it was ready.
    async fn start_once(&self) -> Result<Option<Live>, Problem> {
        let stream = (self.launch)().await.map_err(|message| no_browser(&message))?;
        let shared = Rc::new(Shared::default());
        let (handler, end) = (Rc::clone(&shared), Rc::clone(&shared));
        let cdp = Cdp::connect(
            stream,
            move |cdp, event| events::handle(&handler, cdp, event),
            move || {
                end.state.borrow_mut().gone = true;
                end.touch();
            },
        );
        let live = Live { cdp, shared };
        match self.set_up(&live).await {
            Err(CdpError::Gone) => Ok(None),
            Err(e) => Err(no_browser(&format!("it does not answer as a browser does: {e}"))),
            Ok(()) => Ok(Some(live)),
        }
    }

    async fn set_up(&self, Live { cdp, shared }: &Live) -> Result<(), CdpError> {
        let downloads = json!({ "behavior": "allow", "downloadPath": self.downloads, "eventsEnabled": true });
        let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
        drop(cdp.send("", "Target.setDiscoverTargets", json!({ "discover": true })));
        let downloads = cdp.send("", "Browser.setDownloadBehavior", downloads);
        let attached = cdp.send("", "Target.setAutoAttach", attach);
        let targets = cdp.send("", "Target.getTargets", json!({}));
        downloads.value().await?;
        attached.value().await?;
        let targets = targets.value().await?;
        let is_page = |target: &Value| target["type"] == "page";
        if !targets["targetInfos"].as_array().is_some_and(|targets| targets.iter().any(is_page)) {
            cdp.call("", "Target.createTarget", json!({ "url": "about:blank" })).await?;
        }
        let ready = shared.until(|state| {
            let ready = state.tabs.iter().any(Tab::is_set_up).then_some(Ok(()));
            if state.gone { Some(Err(CdpError::Gone)) } else { ready }
        });
        ready.await
    }
}

fn no_browser(message: &str) -> Problem {
    Problem::NoBrowser { message: line_of(message, 1000) }
}

fn open_dialog(page: &Page) -> Option<String> {
    page.tab(|tab| tab.dialog.as_ref().map(|dialog| dialog.text.clone())).ok().flatten()
}

async fn open_tab(cdp: &Cdp, shared: &Shared, url: &str) -> Result<u32, Problem> {
    let made = cdp.call("", "Target.createTarget", json!({ "url": url })).await.map_err(refused)?;
    let target = made["targetId"].as_str().unwrap_or_default().to_owned();
    let number = shared.until(|state| match state.of_target(&target) {
        Some(tab) => tab.is_set_up().then_some(Ok(tab.number)),
        None => state.gone.then(|| Err(Problem::Crashed { message: "the browser ended".into() })),
    });
    number.await
}

#[cfg(test)]
mod bench;
#[cfg(test)]
mod landing_tests;
#[cfg(test)]
mod tests;
