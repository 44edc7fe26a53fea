//! The browser of a context's sandbox: one call at a time, beside its code and its commands.

use std::{pin::pin, sync::Arc, time::Duration};

use belljar_proto::{Browse, Browsed, Call, MAX_BROWSED_TEXT, MAX_PICTURE, MAX_TABS, Problem, Reply};
use tokio_util::sync::CancellationToken;

use crate::{
    Caller, Error, SandboxService,
    context::Context,
    sandbox::{Attended, shorten},
};

/// Calls that may wait for their turn in one context.
const MAX_WAITING: usize = 32;
/// Bytes of what is to be done: texts to type, code, paths.
const MAX_REQUEST: usize = 512 << 10;
const MAX_CHANGES: usize = 50;

/// What was done, or why it was not; and the picture, if one was asked for.
pub type BrowseOutcome = (Result<Browsed, Problem>, Vec<u8>);

impl SandboxService {
    /// Does something in the context's browser, after all earlier calls of it. Dropping the future interrupts it.
    pub async fn browse(
        self: &Arc<Self>,
        caller: &Caller,
        context: &str,
        browse: Browse,
        timeout: Option<Duration>,
        cancel: CancellationToken,
    ) -> Result<BrowseOutcome, Error> {
        let context = self.find(caller, context)?;
        let limit = self.time_limit(timeout)?;
        check_size(&browse)?;
        self.check_cpu(caller)?;
        let waiting = context.join_browse_queue(MAX_WAITING)?;
        let turn = tokio::select! {
            turn = Arc::clone(&context.browsing).lock_owned() => turn,
            () = cancel.cancelled() => return Err(Error::Cancelled),
        };
        drop(waiting);
        let busy = context.begin_command()?;
        let running = self.ledger.begin(caller)?;
        // As for runs: a caller who goes away interrupts the call instead of losing track of it.
        let cancel = cancel.child_token();
        let interrupt_on_drop = cancel.clone().drop_guard();
        let service = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let browsing = pin!(service.browse_in(&context, browse, limit, &cancel));
            let (outcome, stopped) = running.unless_stopped(&cancel, browsing).await;
            context.touch();
            drop((turn, busy, running));
            match (outcome, stopped) {
                (Ok((Err(_), _)), Some(why)) => Err(Error::LimitExceeded(why)),
                (Ok((Err(_), _)), None) if cancel.is_cancelled() => Err(Error::Cancelled),
                (outcome, _) => outcome,
            }
        });
        let lost = |e| Err(Error::Internal(format!("the call was lost: {e}")));
        let outcome = task.await.unwrap_or_else(lost);
        drop(interrupt_on_drop.disarm());
        outcome
    }

    async fn browse_in(
        &self,
        context: &Context,
        browse: Browse,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<BrowseOutcome, Error> {
        let sandbox = self.living(context).await?;
        let attended =
            Attended { limit, output_cap: 0, live: None, every_byte: false, trace: None, tools: None };
        let call = |limits: belljar_proto::RunLimits| Call::Browse { browse, timeout_ms: limits.timeout_ms };
        let why = match sandbox.attend(call, &[], &attended, cancel).await {
            Ok((Reply::Browsed(mut browsed), body, _)) if body.len() <= MAX_PICTURE => {
                bound(&mut browsed);
                if !cancel.is_cancelled() {
                    browsed.changes.splice(0..0, context.take_words());
                }
                return Ok((Ok(*browsed), body));
            }
            Ok((Reply::BrowseFailed { mut problem }, ..)) => {
                problem.texts().into_iter().for_each(shorten);
                return Ok((Err(problem), Vec::new()));
            }
            Ok((Reply::Failed { mut message, .. }, ..)) => {
                shorten(&mut message);
                return Err(Error::Internal(format!("The browser was not used: {message}")));
            }
            Ok(_) => sandbox.broke_protocol("not the reply to a browser call").await,
            Err(why) => why,
        };
        self.replace(context, &sandbox).await?;
        Err(Error::Internal(format!(
            "The sandbox ended ({why}). A fresh one took its place: pages, variables and files are gone"
        )))
    }
}

fn check_size(browse: &Browse) -> Result<(), Error> {
    let size = serde_json::to_vec(browse).map_or(usize::MAX, |json| json.len());
    if size > MAX_REQUEST {
        return Err(Error::InvalidParams(format!(
            "The browser call has {size} bytes, at most {MAX_REQUEST} are possible: put the data into a file"
        )));
    }
    Ok(())
}

/// The guest keeps to these limits; should it not, nobody has to read it all.
fn bound(browsed: &mut Browsed) {
    let Browsed { url, title, changes, text, elements, tabs, cut, mime, path, .. } = browsed;
    for text in [text, elements].into_iter().flatten() {
        text.truncate(text.floor_char_boundary(MAX_BROWSED_TEXT));
        text.retain(|c| c == '\n' || !c.is_control());
    }
    changes.truncate(MAX_CHANGES);
    tabs.truncate(MAX_TABS + 1);
    let tabs = tabs.iter_mut().flat_map(|tab| [&mut tab.url, &mut tab.title]);
    let optional = [cut, mime, path].into_iter().flatten();
    for line in [url, title].into_iter().chain(changes).chain(tabs).chain(optional) {
        shorten(line);
        line.retain(|c| !c.is_control());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_proto::Tab;

    #[test]
    fn what_comes_back_is_bounded_and_cannot_draw() {
        let mut browsed = Browsed {
            title: "a\u{1b}[31m\nb".into(),
            text: Some(format!("line\n\u{7}{}", "é".repeat(MAX_BROWSED_TEXT))),
            changes: vec!["x".into(); 1000],
            tabs: vec![Tab { index: 1, url: "y".repeat(100_000), title: "\r".into(), active: true }; 900],
            ..Browsed::default()
        };
        bound(&mut browsed);
        assert_eq!(browsed.title, "a[31mb");
        let text = browsed.text.unwrap();
        assert!(text.starts_with("line\né") && text.len() <= MAX_BROWSED_TEXT);
        assert_eq!((browsed.changes.len(), browsed.tabs.len()), (MAX_CHANGES, MAX_TABS + 1));
        assert!(browsed.tabs[0].url.len() < 5000 && browsed.tabs[0].title.is_empty());
    }

    #[test]
    fn a_call_that_is_too_large_never_leaves() {
        let text = "x".repeat(MAX_REQUEST);
        let browse = Browse::Evaluate { code: text };
        assert!(matches!(check_size(&browse), Err(Error::InvalidParams(_))));
    }
}
