//! The desk where guests ask for browsers.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::Jailer;
use crate::{
    JailError, Result,
    browser::{Entry, Word},
    protocol::{Layer, Packets, ToGuest},
};

/// A guest has one browser, and asks for another when that one hangs.
const PER_SANDBOX: usize = 2;
/// Tokens from here up are browsers.
pub(super) const FIRST: u64 = 1 << 63;

/// A browser from the request for it to its end.
pub(super) struct Browser {
    sandbox: u64,
    /// The guest's own number for it.
    id: u64,
    /// While it is on its way.
    way: Option<Way>,
    /// Its process.
    life: Option<OwnedFd>,
}

struct Way {
    status: Packets,
    /// What the guest gets when it is there.
    stream: OwnedFd,
    failure: Option<JailError>,
}

impl Jailer {
    pub(super) fn request_browser(&mut self, sandbox: u64, id: u64) {
        if let Err(message) = self.start_browser(sandbox, id) {
            self.refuse_browser(sandbox, id, message);
        }
    }

    fn start_browser(&mut self, token: u64, id: u64) -> std::result::Result<(), String> {
        let Some(sandbox) = self.sandboxes.get(&token) else { return Ok(()) };
        if self.has_lost_its_limits(sandbox) {
            sandbox.kill();
            return Ok(());
        }
        let spec = self.browser_spec.as_ref().map_err(String::clone)?;
        let living = self.browsers.values().filter(|browser| browser.sandbox == token).count();
        if living >= PER_SANDBOX {
            return Err(format!("this sandbox has {living} browsers already: end one first"));
        }
        let entrances = match &self.mould.cgroups {
            Some(cgroups) if self.mould.policy.has(Layer::Cgroups) => cgroups.entrances(&sandbox.id),
            _ => Ok(Vec::new()),
        };
        let entry = |entrances| Entry { sandbox, policy: &self.mould.policy, entrances };
        let starting = entrances.and_then(|e| entry(e).start(spec, id)).map_err(|e| readable(&e))?;
        let browser = FIRST | self.next_browser;
        self.watch(browser, starting.status.as_fd().as_raw_fd()).map_err(|e| readable(&e))?;
        self.next_browser += 1;
        let way = Way { status: starting.status, stream: starting.stream, failure: None };
        self.browsers.insert(browser, Browser { sandbox: token, id, way: Some(way), life: None });
        Ok(())
    }

    pub(super) fn hear_browser(&mut self, token: u64) {
        let Some(browser) = self.browsers.get_mut(&token) else { return };
        let Some(way) = &mut browser.way else {
            if browser.life.as_ref().is_none_or(has_ended) {
                self.browsers.remove(&token);
                // What came with it may be a child of ours, and nobody else tells of it.
                self.reap();
            }
            return;
        };
        match way.status.receive::<Word>() {
            Ok(Some((Word::Forked, mut fds))) => browser.life = fds.pop(),
            Ok(Some((Word::Failed { error }, _))) => way.failure = Some(error),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => self.arrived(token),
        }
    }

    /// It has become Chromium, or never will.
    fn arrived(&mut self, token: u64) {
        let Some(browser) = self.browsers.get_mut(&token) else { return };
        let Some(way) = browser.way.take() else { return };
        // Copies may be open elsewhere for a moment, so closing ours would not end the watching.
        let _ = epoll::delete(&self.epoll, &way.status);
        let (sandbox, id) = (browser.sandbox, browser.id);
        let life = browser.life.as_ref().map(AsRawFd::as_raw_fd);
        let began: Result<()> = match (way.failure, life) {
            (Some(error), _) => Err(error),
            (None, None) => Err(JailError::new("start the browser", "it ended on its way into the sandbox")),
            (None, Some(life)) => self.watch(token, life),
        };
        if let Err(error) = began {
            self.browsers.remove(&token);
            return self.refuse_browser(sandbox, id, readable(&error));
        }
        let Some(sandbox) = self.sandboxes.get(&sandbox) else { return };
        if sandbox.control.send_now(&ToGuest::Browser { id }, &[way.stream.as_fd()]).is_err() {
            sandbox.kill();
        }
    }

    fn refuse_browser(&self, sandbox: u64, id: u64, message: String) {
        if let Some(sandbox) = self.sandboxes.get(&sandbox) {
            sandbox.tell(&ToGuest::BrowserFailed { id, message });
        }
    }

    /// A sandbox has ended, and its browsers with it.
    pub(super) fn forget_browsers(&mut self, sandbox: u64) {
        self.browsers.retain(|_, browser| browser.sandbox != sandbox);
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).is_ok_and(|count| count > 0)
}

fn readable(error: &JailError) -> String {
    match &error.hint {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    }
}
