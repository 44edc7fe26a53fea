//! One run in an interpreter: output, displays, the time limit, and every way in which it can end.

use std::{collections::HashSet, io, time::Duration};

use belljar_proto::{
    Ending, Event, FailureKind, Language, MAX_TOOL_ARGUMENTS, MAX_TOOL_CALLS_OPEN, ProgramError, Ran, Reply,
    Stream, Streaming,
};
use rustix::process::{Signal, kill_process};
use tokio::time::{Instant, timeout};

use super::{Actor, Frame, FromKernel, Live, RunJob, ToKernel, garbage, next_frame, short};
use crate::{
    connection::failed,
    environment::Changes,
    processes,
    tap::{Tap, samples},
};

/// An interpreter that has not reacted after this long may be waiting for a program it started.
const INTERRUPT_FOLLOWERS: Duration = Duration::from_millis(500);
/// How soon an interrupted interpreter must show that it listens.
const LISTENS: Duration = Duration::from_millis(1000);
/// How long an interpreter may take to read an answer that fills its socket.
const ANSWER_TAKEN: Duration = Duration::from_secs(8);
const KILL: Duration = Duration::from_millis(3000);
/// Rich results of one run, in all.
const MAX_DISPLAYS: usize = 100;
const MAX_DISPLAY_BYTES: usize = 32 << 20;

enum Outcome {
    Done {
        ok: bool,
        error: Option<ProgramError>,
    },
    /// `None`: its socket closed, the reason is not known yet.
    Died(Option<String>),
}

/// Why a run was interrupted.
#[derive(Clone, Copy, PartialEq)]
enum Cause {
    TimeLimit,
    Request,
}

#[derive(Default)]
struct Displays {
    shown: usize,
    bytes: usize,
    dropped: usize,
}

impl Displays {
    /// Passes a display on, unless the run has shown too much already or its parts do not add up.
    async fn forward(&mut self, result: bool, parts: Vec<(String, usize)>, body: &[u8], job: &RunJob) {
        let sum = parts.iter().try_fold(0usize, |sum, (_, size)| sum.checked_add(*size));
        let fits = self.shown < MAX_DISPLAYS && self.bytes + body.len() <= MAX_DISPLAY_BYTES;
        if sum != Some(body.len()) || !fits {
            self.dropped += 1;
            return;
        }
        self.shown += 1;
        self.bytes += body.len();
        job.outbox.event(job.id, Event::Display { result, parts }, body).await;
    }
}

/// The calls of tools that have no answer yet.
#[derive(Default)]
struct Tools {
    open: HashSet<u64>,
}

impl Tools {
    /// Passes a call on to the host, or says why not.
    async fn ask(&mut self, number: u64, name: Option<String>, body: &[u8], job: &RunJob) -> Option<String> {
        if self.open.len() >= MAX_TOOL_CALLS_OPEN {
            return Some(format!(
                "{MAX_TOOL_CALLS_OPEN} calls of tools are under way: wait for one of them to end"
            ));
        }
        if body.len() > MAX_TOOL_ARGUMENTS {
            let size = body.len();
            return Some(format!(
                "The arguments have {size} bytes, at most {MAX_TOOL_ARGUMENTS} are possible"
            ));
        }
        self.open.insert(number);
        job.outbox.event(job.id, Event::Tool { number, name: name.map(short) }, body).await;
        None
    }
}

impl Actor {
    pub(super) async fn run(&mut self, mut job: RunJob) {
        let number = self.shared.next_run();
        let mut notes = Vec::new();
        if let Some(why) = self.obituary.take() {
            notes.push(format!(
                "The interpreter had ended since the last run: {why}. It was restarted: variables and imports are gone."
            ));
        }
        if let Err(message) = self.ensure().await {
            (job.finished)();
            return job.outbox.reply(job.id, failed(FailureKind::NotStarted, message), &[]).await;
        }
        let Some(live) = self.live.as_mut() else { return };
        let cap = job.limits.output_cap as usize;
        let mut stdout = Tap::new(Stream::Stdout, job.limits.streaming, number, cap);
        let mut stderr = Tap::new(Stream::Stderr, job.limits.streaming, number, cap);
        let mut displays = Displays::default();
        let started = Instant::now();
        let env = self.shared.environment.since(&mut live.seen);
        let (outcome, cause) =
            live.run(self.language, &mut job, env, started, [&mut stdout, &mut stderr], &mut displays).await;
        let duration_us = started.elapsed().as_micros() as u64;

        let (ok, error, ending) = match outcome {
            Outcome::Done { ok, error } => {
                let ending = match cause {
                    None => Ending::Finished,
                    Some(Cause::TimeLimit) => Ending::TimedOut,
                    Some(Cause::Request) => Ending::Cancelled,
                };
                (ok, error, ending)
            }
            Outcome::Died(why) => {
                let why = self.bury(why).await;
                let error = ProgramError { name: "InterpreterDied".into(), message: why.clone() };
                (false, Some(error), Ending::KernelDied { why })
            }
        };
        if displays.dropped > 0 {
            let dropped = displays.dropped;
            notes.push(format!(
                "{dropped} rich outputs were left out: a run may show {MAX_DISPLAYS}, or 32 MB."
            ));
        }
        notes.extend(self.shared.tidy("run"));
        if stdout.capture.total() + stderr.capture.total() > cap as u64 {
            stdout.capture.keep_file();
            stderr.capture.keep_file();
        }
        let mut body = Vec::new();
        let stdout = stdout.capture.finish(&mut body);
        let stderr = stderr.capture.finish(&mut body);
        (job.finished)();
        let ran = Ran { ok, error, ending, duration_us, stdout, stderr, notes };
        job.outbox.reply(job.id, Reply::Ran(ran), &body).await;
    }
}

impl Live {
    async fn run(
        &mut self,
        language: Language,
        job: &mut RunJob,
        env: Changes,
        started: Instant,
        [stdout, stderr]: [&mut Tap; 2],
        displays: &mut Displays,
    ) -> (Outcome, Option<Cause>) {
        let streaming = job.limits.streaming;
        let late = (std::mem::take(&mut self.late_stdout), std::mem::take(&mut self.late_stderr));
        stdout.push(&late.0, job.id, &job.outbox).await;
        stderr.push(&late.1, job.id, &job.outbox).await;
        let message = ToKernel::Run { id: job.id, trace: job.trace.clone(), env };
        if self.send(&message, &job.code).await.is_err() {
            return (Outcome::Died(None), None);
        }
        self.alarm.as_mut().reset(started + Duration::from_millis(job.limits.timeout_ms));
        let mut interrupted: Option<(Instant, Cause)> = None;
        let mut samples = samples();
        let mut tools = Tools::default();
        let [mut out, mut err] = self.buffers.take().unwrap_or_else(|| [(); 2].map(|()| vec![0; 32 << 10]));
        let mut outcome = loop {
            tokio::select! {
                count = self.stdout.read(&mut out) => {
                    stdout.push(&out[..count], job.id, &job.outbox).await;
                }
                count = self.stderr.read(&mut err) => {
                    stderr.push(&err[..count], job.id, &job.outbox).await;
                }
                frame = next_frame(&self.stream, &mut self.decoder) => match frame {
                    Ok(Some(Frame { header: FromKernel::Done { id, ok, error, .. }, .. })) if id == job.id => {
                        let error = error.map(|e| ProgramError { name: short(e.name), message: short(e.message) });
                        break Outcome::Done { ok, error };
                    }
                    Ok(Some(Frame { header: FromKernel::Display { result, parts, .. }, body })) => {
                        displays.forward(result, parts, &body, job).await;
                    }
                    Ok(Some(Frame { header: FromKernel::Tool { id, number, name }, body })) => {
                        // One of an earlier run has nobody to wait for it.
                        if id == job.id && let Some(refusal) = tools.ask(number, name, &body, job).await
                            && self.answer(id, number, false, refusal.as_bytes()).await.is_err()
                        {
                            break Outcome::Died(None);
                        }
                    }
                    Ok(Some(Frame { header: FromKernel::Fatal { message }, .. })) => {
                        break Outcome::Died(Some(short(message)));
                    }
                    Ok(Some(_)) => break Outcome::Died(Some("it spoke out of turn on its control channel".into())),
                    Ok(None) => break Outcome::Died(None),
                    Err(e) => break Outcome::Died(Some(garbage(&e))),
                },
                Some((number, ok, body)) = job.answers.recv() => {
                    if tools.open.remove(&number) && self.answer(job.id, number, ok, &body).await.is_err() {
                        break Outcome::Died(Some("it did not take the answer of a tool".into()));
                    }
                }
                () = self.alarm.as_mut() => match interrupted {
                    Some((since, _)) if since.elapsed() >= KILL => {
                        let seconds = KILL.as_secs();
                        break Outcome::Died(Some(format!("it ignored the interrupt for {seconds} s and was killed")));
                    }
                    Some((since, _)) => {
                        if language == Language::Javascript {
                            // The first signal is lost when it came before the code did. Nothing can catch it, so a
                            // second one does no harm.
                            let _ = kill_process(self.pid, Signal::INT);
                        }
                        processes::interrupt_followers(self.pid);
                        self.alarm.as_mut().reset(since + KILL);
                    }
                    None => {
                        interrupted = Some((Instant::now(), Cause::TimeLimit));
                        self.interrupt(job.id).await;
                        self.alarm.as_mut().reset(Instant::now() + INTERRUPT_FOLLOWERS);
                    }
                },
                () = job.interrupt.notified(), if interrupted.is_none() => {
                    interrupted = Some((Instant::now(), Cause::Request));
                    self.interrupt(job.id).await;
                    self.alarm.as_mut().reset(Instant::now() + INTERRUPT_FOLLOWERS);
                }
                _ = samples.tick(), if streaming == Streaming::Samples => {
                    stdout.flush_sample(job.id, &job.outbox).await;
                    stderr.flush_sample(job.id, &job.outbox).await;
                }
            }
        };
        if interrupted.is_some() && matches!(outcome, Outcome::Done { .. }) && !self.listens(job.id).await {
            outcome = Outcome::Died(Some("it went on after the interrupt and was killed".into()));
        }
        // All that the program wrote before it was done is in the pipes by now.
        loop {
            let (count, errors) = (self.stdout.read_now(&mut out), self.stderr.read_now(&mut err));
            stdout.push(&out[..count], job.id, &job.outbox).await;
            stderr.push(&err[..errors], job.id, &job.outbox).await;
            if count + errors == 0 {
                break;
            }
        }
        self.buffers = Some([out, err]);
        (outcome, interrupted.map(|(_, cause)| cause))
    }

    /// Whether an interpreter that was interrupted is back and waits for more. Asked twice, because the answer to the
    /// first may be the last thing it does before what was interrupted goes on.
    async fn listens(&mut self, id: u64) -> bool {
        let ask = async {
            for _ in 0..2 {
                self.send(&ToKernel::Ping { id }, &[]).await.ok()?;
                loop {
                    match next_frame(&self.stream, &mut self.decoder).await {
                        Ok(Some(Frame { header: FromKernel::Pong { .. }, .. })) => break,
                        // A display that came too late to be shown, a tool that is of no use any more.
                        Ok(Some(Frame {
                            header: FromKernel::Display { .. } | FromKernel::Tool { .. },
                            ..
                        })) => {}
                        _ => return None,
                    }
                }
            }
            Some(())
        };
        matches!(timeout(LISTENS, ask).await, Ok(Some(())))
    }

    /// An interpreter that waits for an answer reads it; one that never does must not keep us.
    async fn answer(&mut self, id: u64, number: u64, ok: bool, body: &[u8]) -> io::Result<()> {
        let message = ToKernel::Answer { id, number, ok };
        let sending = self.send(&message, body);
        timeout(ANSWER_TAKEN, sending).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn interrupt(&mut self, id: u64) {
        // Either way may fail when the interpreter is dying; then its end is what the run reports. The frame comes
        // first: it says which run the signal is meant for.
        let _ = self.send(&ToKernel::Interrupt { id }, &[]).await;
        let _ = kill_process(self.pid, Signal::INT);
    }
}
