//! With real processes. Each test buries every child of this program, so they take turns.

use std::sync::{Mutex as Turn, PoisonError};

use tokio::task::LocalSet;

use super::*;

static TURN: Turn<()> = Turn::new(());
const PATIENCE: u64 = 10_000;

struct Bench {
    background: Background,
    directory: tempfile::TempDir,
}

fn with<F: Future<Output = ()>>(test: impl FnOnce(Bench) -> F) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let processes = Rc::new(Processes::default());
        spawn_local(Rc::clone(&processes).reap_forever().unwrap());
        let directory = tempfile::tempdir().unwrap();
        let background = Background::new(processes, Rc::default(), directory.path().into());
        test(Bench { background, directory }).await;
    });
}

impl Bench {
    fn start(&self, line: &str, limit: Option<Duration>) -> Result<u64, Failure> {
        let program = Program {
            argv: vec![line.into()],
            shell: true,
            cwd: Some("/".into()),
            env: [("COLOUR".to_string(), "blue".to_string())].into(),
        };
        self.background.spawn(&program, Some("trace"), limit).map(|info| info.process)
    }

    fn spawn(&self, line: &str) -> u64 {
        self.start(line, None).unwrap()
    }

    async fn ask(&self, call: Call, body: &[u8]) -> (Reply, Vec<u8>) {
        self.background.answer(call, None, body).await
    }

    async fn poll(&self, process: u64, offsets: [u64; 2], limit: u32) -> (Polled, String, String) {
        let [stdout_offset, stderr_offset] = offsets;
        let call = Call::Poll { process, stdout_offset, stderr_offset, limit, wait_ms: PATIENCE };
        let (Reply::Polled(polled), body) = self.ask(call, &[]).await else { panic!("not polled") };
        let (out, err) = body.split_at(polled.stdout.length as usize);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(out), text(err));
        (polled, out, err)
    }

    /// Polls to the end: what it wrote, and how it ended.
    async fn finish(&self, process: u64) -> (ProcessInfo, String, String) {
        let (mut out, mut err, mut offsets) = (String::new(), String::new(), [0, 0]);
        loop {
            let (polled, more, errors) = self.poll(process, offsets, 100_000).await;
            out.push_str(&more);
            err.push_str(&errors);
            let done = more.is_empty() && errors.is_empty() && polled.info.end.is_some();
            offsets = [polled.stdout.next, polled.stderr.next];
            if done {
                return (polled.info, out, err);
            }
        }
    }

    async fn feed(&self, process: u64, text: &str, eof: bool) -> Reply {
        self.ask(Call::Input { process, eof }, text.as_bytes()).await.0
    }
}

fn ended(info: &ProcessInfo) -> (Option<i32>, Option<i32>, bool) {
    let end = info.end.as_ref().unwrap();
    (end.code, end.signal, end.timed_out)
}

#[test]
fn both_streams_and_the_exit_code_are_kept() {
    with(|bench| async move {
        let process = bench.spawn("echo $COLOUR $TRACEPARENT; echo oops >&2; exit 3");
        let (info, out, err) = bench.finish(process).await;
        assert_eq!((out.as_str(), err.as_str()), ("blue trace\n", "oops\n"));
        assert_eq!(ended(&info), (Some(3), None, false));
        assert_eq!((info.stdout.total, info.stdout.dropped), (11, 0));
        assert_eq!(fs::read_to_string(&info.stdout.file).unwrap(), out);
        let (_, late, _) = bench.poll(process, [5, 0], 3).await;
        assert_eq!(late, "tra");
    });
}

#[test]
fn a_program_answers_its_input_and_ends_with_it() {
    with(|bench| async move {
        let process = bench.spawn("cat");
        for text in ["one\n", "two\n"] {
            let Reply::Taken { bytes: 4, closed: false } = bench.feed(process, text, false).await else {
                panic!()
            };
        }
        let (polled, out, _) = bench.poll(process, [0, 0], 4).await;
        assert_eq!((out.as_str(), polled.stdout.next, polled.info.end), ("one\n", 4, None));
        let Reply::Taken { bytes: 0, closed: true } = bench.feed(process, "", true).await else { panic!() };
        let (info, out, _) = bench.finish(process).await;
        assert_eq!((out.as_str(), ended(&info)), ("one\ntwo\n", (Some(0), None, false)));
        let Reply::Failed { kind: FailureKind::Invalid, message } = bench.feed(process, "x", false).await
        else {
            panic!()
        };
        assert_eq!(message, "proc-1 has ended and reads nothing any more");
    });
}

#[test]
fn a_program_that_does_not_read_holds_nobody_up() {
    with(|bench| async move {
        let process = bench.spawn("exec sleep 1000");
        let text = "x".repeat(MAX_INPUT);
        let Reply::Taken { bytes, closed: false } = bench.feed(process, &text, true).await else { panic!() };
        assert!(bytes > 0 && (bytes as usize) < text.len(), "{bytes} bytes were taken");
        let Reply::Failed { kind: FailureKind::Invalid, .. } =
            bench.feed(process, &"x".repeat(MAX_INPUT + 1), false).await
        else {
            panic!()
        };
        bench.ask(Call::Signal { process, signal: SignalName::Kill }, &[]).await;
        bench.finish(process).await;
    });
}

#[test]
fn signals_reach_the_whole_group() {
    with(|bench| async move {
        let process =
            bench.spawn("trap 'echo got it; exit 7' USR1; echo ready; while :; do sleep 0.01; done");
        bench.poll(process, [0, 0], 100).await;
        let (Reply::Process(_), _) = bench.ask(Call::Signal { process, signal: SignalName::Usr1 }, &[]).await
        else {
            panic!()
        };
        let (info, out, _) = bench.finish(process).await;
        assert_eq!((out.as_str(), ended(&info)), ("ready\ngot it\n", (Some(7), None, false)));
        let (again, _) = bench.ask(Call::Signal { process, signal: SignalName::Kill }, &[]).await;
        let Reply::Failed { kind: FailureKind::Invalid, .. } = again else { panic!("{again:?}") };

        let process = bench.spawn("sleep 1000 | sleep 1000");
        bench.ask(Call::Signal { process, signal: SignalName::Term }, &[]).await;
        assert_eq!(ended(&bench.finish(process).await.0), (None, Some(libc::SIGTERM), false));
    });
}

#[test]
fn a_time_limit_is_told_apart() {
    with(|bench| async move {
        let process = bench.start("exec sleep 1000", Some(Duration::from_millis(1))).unwrap();
        assert_eq!(ended(&bench.finish(process).await.0), (None, Some(libc::SIGTERM), true));
    });
}

#[test]
fn output_past_the_cap_is_dropped_and_counted() {
    with(|mut bench| async move {
        bench.background.cap = 100_000;
        let process = bench.spawn("head -c 3000000 /dev/zero | tr '\\0' a; echo done >&2");
        let (info, out, err) = bench.finish(process).await;
        assert_eq!((out.len(), err.as_str()), (100_000, "done\n"));
        assert_eq!((info.stdout.total, info.stdout.dropped), (3_000_000, 2_900_000));
        assert_eq!(ended(&info), (Some(0), None, false));
    });
}

#[test]
fn a_program_may_spoil_its_own_output_but_nothing_else() {
    with(|bench| async move {
        let file = bench.directory.path().join("process-1.stdout.txt");
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        let process = bench.spawn("echo something long; read _; echo end");
        bench.poll(process, [0, 0], 100).await;
        assert!(fs::symlink_metadata(&file).unwrap().is_file());
        fs::write(&file, "").unwrap();
        bench.feed(process, "\n", true).await;
        let (info, out, _) = bench.finish(process).await;
        assert!(out.ends_with("end\n"));
        assert_eq!((info.stdout.total, info.stdout.dropped), (19, 0));
    });
}

#[test]
fn only_so_many_run_and_are_remembered() {
    with(|bench| async move {
        for _ in 0..MAX_RUNNING {
            bench.spawn("cat");
        }
        let (kind, message) = bench.start("cat", None).unwrap_err();
        assert_eq!(kind, FailureKind::LimitReached);
        assert!(message.starts_with("16 processes already run"), "{message}");
        for process in 1..=MAX_RUNNING as u64 {
            bench.feed(process, "", true).await;
            bench.finish(process).await;
        }
        for _ in 0..MAX_ENDED {
            let process = bench.spawn("true");
            bench.finish(process).await;
        }
        // The last one is forgotten in a task that may not have run yet.
        tokio::task::yield_now().await;
        let (Reply::Processes { processes }, _) = bench.ask(Call::Processes, &[]).await else { panic!() };
        let numbers: Vec<_> = processes.iter().map(|info| info.process).collect();
        assert_eq!(numbers, (17..49).collect::<Vec<_>>());
        let files = fs::read_dir(bench.directory.path()).unwrap().count();
        assert_eq!(files, 2 * MAX_ENDED);
        let (Reply::Failed { kind: FailureKind::NotFound, message }, _) =
            bench.ask(Call::Signal { process: 1, signal: SignalName::Kill }, &[]).await
        else {
            panic!()
        };
        assert!(message.starts_with("There is no process proc-1 in this sandbox; there are: proc-17, "));
    });
}

#[test]
fn what_cannot_be_started_is_said_to_be_so() {
    with(|bench| async move {
        let program = |name: &str| Program {
            argv: vec![name.into(), "x".into()],
            cwd: Some("/".into()),
            ..Program::default()
        };
        for (name, expected) in [
            ("no-such-program", "command not found: no program \"no-such-program\" is on the PATH"),
            ("./no/such", "command not found: there is no file \"./no/such\""),
            ("/etc", "\"/etc\" may not be executed: it is a directory, or chmod +x is missing"),
        ] {
            let Err((kind, message)) = bench.background.spawn(&program(name), None, None) else {
                panic!("{name} was started")
            };
            assert_eq!((kind, message.as_str()), (FailureKind::Invalid, expected));
        }
    });
}
