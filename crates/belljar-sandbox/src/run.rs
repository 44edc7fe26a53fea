//! Running code in a context, and what happens when its sandbox does not live to see the end of it.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use belljar_proto::ProgramError;
use tokio_util::sync::CancellationToken;

use crate::{
    BackendError, Caller, Ending, Error, Output, RunOutcome, RunRequest, SandboxService,
    context::Context,
    sandbox::{Attended, RunEnd, Sandbox},
};

/// Calls that may wait for their turn in one context.
const MAX_WAITING: usize = 32;

impl SandboxService {
    /// Runs code after all earlier runs of the same context. Dropping the future interrupts the run.
    pub async fn run(
        self: &Arc<Self>,
        caller: &Caller,
        context: &str,
        request: RunRequest,
        cancel: CancellationToken,
    ) -> Result<RunOutcome, Error> {
        let context = self.find(caller, context)?;
        let limit = self.time_limit(request.timeout)?;
        self.check_cpu(caller)?;
        let waiting = context.join_queue(MAX_WAITING)?;
        let turn = tokio::select! {
            turn = Arc::clone(&context.turn).lock_owned() => turn,
            () = cancel.cancelled() => return Err(Error::Cancelled),
        };
        drop(waiting);
        if context.is_stopping() {
            return Err(Error::NotFound(context.id.clone()));
        }
        let running = self.ledger.begin(caller)?;
        // In a task of its own, so that a caller who goes away interrupts the run instead of losing track of it.
        let cancel = cancel.child_token();
        let interrupt_on_drop = cancel.clone().drop_guard();
        let service = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let run = pin!(service.run_in(&context, request, limit, &cancel));
            let (mut outcome, stopped) = running.unless_stopped(&cancel, run).await;
            if let Ok(outcome) = &mut outcome {
                outcome.ending.because(stopped);
            }
            if cancel.is_cancelled() {
                // Nobody may be there to read it, and then the next one must know.
                context.leave_word(&outcome);
            } else if let Ok(outcome) = &mut outcome {
                outcome.notes.splice(0..0, context.take_words());
            }
            context.touch();
            drop((turn, running));
            outcome
        });
        let outcome = task.await.unwrap_or_else(|e| Err(Error::Internal(format!("the run was lost: {e}"))));
        drop(interrupt_on_drop.disarm());
        outcome
    }

    /// Whether a caller may use more processor time now.
    pub(crate) fn check_cpu(&self, caller: &Caller) -> Result<(), Error> {
        if self.ledger.quotas(caller).cpu_seconds.is_some_and(|limit| limit > 0)
            && !self.backend.isolation().counts_cpu
        {
            return Err(Error::NotReady(
                "processor time is limited for this caller, but cannot be counted on this machine (it takes cgroups \
                 with cpuacct, or version 2); tell the operator"
                    .into(),
            ));
        }
        self.ledger.check(caller)
    }

    /// The time limit of something that asks for this one.
    pub(crate) fn time_limit(&self, asked: Option<Duration>) -> Result<Duration, Error> {
        let limit = asked.unwrap_or(self.settings.run_timeout);
        if limit.is_zero() || limit > self.settings.max_run_timeout {
            let max = self.settings.max_run_timeout.as_secs();
            return Err(Error::InvalidParams(format!(
                "timeout must be more than 0 and at most {max} seconds, got {}",
                limit.as_secs_f64()
            )));
        }
        Ok(limit)
    }

    async fn run_in(
        &self,
        context: &Context,
        request: RunRequest,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, Error> {
        let sandbox = self.living(context).await?;
        let number = context.next_run();
        let started = Instant::now();
        let language = request.language.unwrap_or(context.language);
        let RunRequest { code, live, every_byte, trace, tools, .. } = request;
        let attended =
            Attended { limit, output_cap: self.settings.output_cap, live, every_byte, trace, tools };
        if language != context.language {
            // It may not run yet, and a start may take longer than a run that hangs is given.
            let started = sandbox.get_ready(None, language).await;
            started.map_err(|e| Error::Internal(format!("The code was not run: {e}")))?;
        }
        match sandbox.run(language, &code, &attended, cancel).await? {
            RunEnd::Ran { ran, stdout, stderr, displays } => Ok(RunOutcome {
                number,
                success: ran.ok,
                error: ran.error,
                ending: ran.ending.into(),
                duration: Duration::from_micros(ran.duration_us),
                timeout: limit,
                stdout,
                stderr,
                displays,
                notes: ran.notes,
            }),
            RunEnd::SandboxGone { why } => {
                self.replace(context, &sandbox).await?;
                Ok(RunOutcome {
                    number,
                    success: false,
                    error: Some(ProgramError { name: "SandboxEnded".into(), message: why.clone() }),
                    ending: Ending::SandboxEnded { why },
                    duration: started.elapsed(),
                    timeout: limit,
                    stdout: Output::default(),
                    stderr: Output::default(),
                    displays: Vec::new(),
                    notes: Vec::new(),
                })
            }
        }
    }

    /// The context's sandbox, or a fresh one in place of one that ended; then a word is left about it, and whoever gets
    /// the first outcome is told.
    pub(crate) async fn living(&self, context: &Context) -> Result<Arc<Sandbox>, Error> {
        let sandbox = context.sandbox();
        if !sandbox.guest.is_closed() {
            return Ok(sandbox);
        }
        let why = sandbox.reason().await;
        let fresh = self.replace(context, &sandbox).await?;
        context.leave_word_of_sandbox(format!(
            "The sandbox had ended since the last run: {why}. A fresh one took its place: variables, imports \
             and files are gone."
        ));
        Ok(fresh)
    }

    /// The same for calls whose results have no room for a word: the first one after a loss fails and says so.
    pub(crate) async fn living_or_told(&self, context: &Context) -> Result<Arc<Sandbox>, Error> {
        let before = context.sandbox();
        let now = self.living(context).await?;
        if Arc::ptr_eq(&before, &now) {
            return Ok(now);
        }
        let why = before.reason().await;
        // Told here. Told later it would be taken for the loss of what is done from now on.
        context.take_words();
        Err(Error::Internal(format!(
            "The sandbox had ended: {why}. A fresh one took its place, which the next call uses: variables, imports and \
             files are gone"
        )))
    }

    /// Gives a context a new sandbox in place of one that ended, unless somebody else has done so meanwhile.
    pub(crate) async fn replace(
        &self,
        context: &Context,
        ended: &Arc<Sandbox>,
    ) -> Result<Arc<Sandbox>, Error> {
        let _alone = context.replacing.lock().await;
        let current = context.sandbox();
        if !Arc::ptr_eq(&current, ended) {
            return Ok(current);
        }
        let template = context.template.as_deref().map(|name| self.template(name)).transpose()?;
        let make = || async {
            let sandbox = self.pool.take(template.as_ref(), context.language, &context.limits).await?;
            self.claim(context, &sandbox).await?;
            self.open_network(context, &sandbox).await?;
            Ok(sandbox)
        };
        let failed = |e: BackendError| Error::Internal(format!("No new sandbox could be made: {e}"));
        let sandbox = self.until_one_lives(make).await?.map_err(failed)?;
        if !self.backend.isolation().counts_cpu {
            self.usage.forget(ended.machine.id());
        }
        Ok(context.set_sandbox(sandbox))
    }
}
