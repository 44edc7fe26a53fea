//! Carrying out a tool call, and turning one that takes long into a task that its client polls, where the client
//! knows the extension `io.modelcontextprotocol/tasks`.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use belljar_sandbox::Caller;
use belljar_tools::CallContext;
use rmcp::{
    ErrorData, Peer, RoleServer,
    model::{CallToolResponse, CallToolResult, CreateTaskResult, JsonObject, ProgressToken},
    task_manager::{TaskExit, TaskManager, TaskOptions},
};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use super::{
    observed,
    progress::{self, Feed},
};
use crate::{
    observe::{self, Outcome},
    offers::Offer,
};

/// Most calls are over long before; polling them would only make them slower.
const PATIENCE: Duration = Duration::from_secs(5);
/// A result can be fetched for at least this long.
const KEPT: Duration = Duration::from_secs(600);
/// Tasks of one caller whose results are kept. A call beyond them is simply waited for.
const PER_CALLER: usize = 200;

/// A tool call with all that it needs.
pub(super) struct Work {
    pub(super) offer: Offer,
    pub(super) call: CallContext,
    pub(super) arguments: Option<JsonObject>,
    pub(super) progress: Option<(Peer<RoleServer>, ProgressToken)>,
    pub(super) record: observe::Call,
    /// For people who look on.
    pub(super) note: Option<observe::Note>,
    /// Held until the call is over.
    pub(super) counted: TaskTrackerToken,
}

impl Work {
    pub(super) async fn carry_out(self) -> Result<CallToolResult, ErrorData> {
        let Self { offer, mut call, arguments, progress, mut record, note, counted } = self;
        let feed = Arc::new(Feed::default());
        if progress.is_some() {
            call.progress = Some(feed.clone());
        }
        let answering = pin!(offer.call(&call, arguments));
        let answer = match progress {
            Some((peer, token)) => progress::reporting(answering, &feed, &peer, token).await,
            None => answering.await,
        };
        let outcome = if call.cancel.is_cancelled() { Outcome::Cancelled } else { answer.outcome };
        observed::result(&mut record, &answer.result);
        record.finish(outcome);
        if let Some(note) = note {
            note.finish(answer.result.as_ref().ok(), outcome);
        }
        drop(counted);
        answer.result
    }
}

pub(super) struct Tasks {
    /// No task lives longer.
    longest: Duration,
    callers: Mutex<HashMap<Caller, Own>>,
}

#[derive(Default)]
struct Own {
    manager: TaskManager,
    /// When each of its tasks was made.
    made: VecDeque<Instant>,
}

impl Tasks {
    pub(super) fn new(longest_run: Duration) -> Self {
        Self { longest: longest_run + KEPT, callers: Mutex::default() }
    }

    /// The tasks of one caller: another one's do not exist there.
    pub(super) fn of(&self, caller: &Caller) -> TaskManager {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        callers.entry(caller.clone()).or_default().manager.clone()
    }

    /// Waits for the result, or hands out a task when it takes long.
    pub(super) async fn carry_out(
        &self,
        mut work: Work,
        given_up: &CancellationToken,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = work.call.caller.clone();
        // Outlives the request if it must.
        let cancel = CancellationToken::new();
        work.call.cancel = cancel.clone();
        let mut running = tokio::spawn(work.carry_out());
        let lost =
            |e: tokio::task::JoinError| ErrorData::internal_error(format!("The call was lost: {e}"), None);
        let patience = tokio::time::sleep(PATIENCE);
        tokio::pin!(patience);
        let mut waits = true;
        loop {
            tokio::select! {
                result = &mut running => return result.map_err(lost)?.map(Into::into),
                () = given_up.cancelled(), if !cancel.is_cancelled() => cancel.cancel(),
                () = &mut patience, if waits && !cancel.is_cancelled() => {
                    waits = false;
                    if self.reserve(&caller) {
                        break;
                    }
                }
            }
        }
        let ttl = self.longest.as_millis() as u64;
        let options = TaskOptions::new().with_ttl_ms(ttl);
        let task = self.of(&caller).spawn(options, |context| {
            Box::pin(async move {
                tokio::select! {
                    result = &mut running => Ok(result.map_err(lost)??),
                    () = context.cancelled() => {
                        cancel.cancel();
                        // What was interrupted gets to say so, into the log.
                        let _ = running.await;
                        Err(TaskExit::Cancelled)
                    }
                }
            })
        });
        Ok(CreateTaskResult::new(task).into())
    }

    /// False when the caller has as many as are kept.
    fn reserve(&self, caller: &Caller) -> bool {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        // A finished one is kept for as long again as it might have run.
        let forgotten = 2 * self.longest;
        callers.retain(|_, own| {
            own.made.retain(|made| made.elapsed() < forgotten);
            !own.made.is_empty()
        });
        let own = callers.entry(caller.clone()).or_default();
        if own.made.len() >= PER_CALLER {
            return false;
        }
        own.made.push_back(Instant::now());
        true
    }
}
