//! People at the page who came by a link: it works once, and the page gets a pass for it, a cookie.
//!
//! A pass stands for the `Authorization` of whoever had the link made, and is checked like that with every request: one
//! that was revoked opens nothing any more. The cookie alone opens nothing either. A request has to carry a header that
//! pages of other origins cannot send, because no preflight allows it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderValue, header};
use sha2::{Digest, Sha256};

use crate::auth::issue::Secret;

/// Sent by our page with every request.
const PAGE: &str = "x-belljar-page";
/// A pass that nobody used for this long ends.
const PASS: Duration = Duration::from_secs(12 * 3600);
/// Of both, together far more than people open pages.
const MOST: usize = 1000;

pub(super) struct Visitors {
    /// Cookies know no ports, so that servers side by side tell theirs apart by name.
    cookie: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    links: HashMap<Hash, Entry>,
    passes: HashMap<Hash, Entry>,
}

type Hash = [u8; 32];

struct Entry {
    authorization: HeaderValue,
    until: Option<Instant>,
}

fn hash(text: &str) -> Hash {
    Sha256::digest(text).into()
}

fn put(entries: &mut HashMap<Hash, Entry>, key: Hash, entry: Entry) {
    let now = Instant::now();
    entries.retain(|_, entry| entry.until.is_none_or(|until| until > now));
    if entries.len() >= MOST
        && let Some(oldest) = entries.iter().min_by_key(|(_, entry)| entry.until).map(|(key, _)| *key)
    {
        entries.remove(&oldest);
    }
    entries.insert(key, entry);
}

impl Visitors {
    pub(super) fn new(port: u16) -> Self {
        Self { cookie: format!("belljar-{port}"), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address, below the server's root, that lets one person in as whoever this is.
    pub(super) fn link(&self, authorization: HeaderValue, lasts: Option<Duration>) -> anyhow::Result<String> {
        let code = Secret::random()?;
        let entry = Entry { authorization, until: lasts.map(|lasts| Instant::now() + lasts) };
        put(&mut self.state().links, hash(code.reveal()), entry);
        // After the mark, so that it is in no request and no log.
        Ok(format!("/#/enter/{}", code.reveal()))
    }

    /// The cookie for a link that was not used before. `secure`: the page came by HTTPS.
    pub(super) fn enter(&self, code: &str, secure: bool) -> anyhow::Result<Option<HeaderValue>> {
        let pass = Secret::random()?;
        let mut state = self.state();
        let link = state.links.remove(&hash(code));
        let Some(link) = link.filter(|link| link.until.is_none_or(|until| until > Instant::now())) else {
            return Ok(None);
        };
        let entry = Entry { authorization: link.authorization, until: Some(Instant::now() + PASS) };
        put(&mut state.passes, hash(pass.reveal()), entry);
        let secure = if secure { "; Secure" } else { "" };
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie, pass.reveal());
        Ok(Some(HeaderValue::try_from(cookie)?))
    }

    /// Takes the pass back.
    pub(super) fn leave(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(pass) = self.pass(headers) {
            self.state().passes.remove(&hash(pass));
        }
        let gone = format!("{}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0", self.cookie);
        HeaderValue::try_from(gone).unwrap_or(HeaderValue::from_static(""))
    }

    /// For whom a request without `Authorization` speaks, if it comes from our page with a pass.
    pub(super) fn authorization(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if headers.contains_key(header::AUTHORIZATION) || !headers.contains_key(PAGE) {
            return None;
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        if site.is_some_and(|site| site != b"same-origin") {
            return None;
        }
        let pass = hash(self.pass(headers)?);
        let mut state = self.state();
        let entry = state.passes.get_mut(&pass)?;
        let now = Instant::now();
        if entry.until.is_some_and(|until| until <= now) {
            state.passes.remove(&pass);
            return None;
        }
        entry.until = Some(now + PASS);
        Some(entry.authorization.clone())
    }

    fn pass<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == self.cookie).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer() -> HeaderValue {
        HeaderValue::from_static("Bearer bj_x")
    }

    fn code(link: &str) -> &str {
        link.strip_prefix("/#/enter/").unwrap()
    }

    fn page(cookie: &HeaderValue, more: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::try_from(format!("other=1; {pair}")).unwrap());
        for (name, value) in more {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_link_works_once_and_its_pass_for_our_page_alone() {
        let visitors = Visitors::new(8775);
        let link = visitors.link(bearer(), None).unwrap();
        let cookie = visitors.enter(code(&link), false).unwrap().unwrap();
        assert!(visitors.enter(code(&link), false).unwrap().is_none(), "it was used");
        assert!(visitors.enter("bj_guess", false).unwrap().is_none());
        let text = cookie.to_str().unwrap();
        assert!(
            text.starts_with("belljar-8775=bj_") && text.ends_with("; Path=/; HttpOnly; SameSite=Strict")
        );

        let ours = page(&cookie, &[(PAGE, "1"), ("sec-fetch-site", "same-origin")]);
        assert_eq!(visitors.authorization(&ours), Some(bearer()));
        assert_eq!(visitors.authorization(&page(&cookie, &[(PAGE, "1")])), Some(bearer()), "an old browser");
        assert_eq!(visitors.authorization(&page(&cookie, &[])), None, "a form of another page");
        let neighbour = page(&cookie, &[(PAGE, "1"), ("sec-fetch-site", "same-site")]);
        assert_eq!(visitors.authorization(&neighbour), None, "a page on another port");
        let own = page(&cookie, &[(PAGE, "1"), ("authorization", "Bearer bj_other")]);
        assert_eq!(visitors.authorization(&own), None, "what it says itself counts");

        visitors.leave(&ours);
        assert_eq!(visitors.authorization(&ours), None);
    }

    #[test]
    fn links_and_passes_end_and_do_not_pile_up() {
        let visitors = Visitors::new(1);
        let late = visitors.link(bearer(), Some(Duration::ZERO)).unwrap();
        assert!(visitors.enter(code(&late), true).unwrap().is_none(), "too late");
        for _ in 0..MOST + 10 {
            visitors.link(bearer(), Some(PASS)).unwrap();
        }
        assert!(visitors.state().links.len() <= MOST);
        let fresh = visitors.link(bearer(), Some(PASS)).unwrap();
        let cookie = visitors.enter(code(&fresh), true).unwrap().unwrap();
        assert!(cookie.to_str().unwrap().ends_with("; Secure"));
        let ours = page(&cookie, &[(PAGE, "1")]);
        visitors.state().passes.values_mut().for_each(|entry| entry.until = Some(Instant::now()));
        assert_eq!(visitors.authorization(&ours), None, "nobody came for long");
    }
}
