//! Tools of the host's that code in a sandbox may call. What they need to know, addresses and secrets, stays out here;
//! only arguments come out, and only results go in.

use std::{collections::VecDeque, fmt, sync::Arc};

use async_trait::async_trait;
use belljar_proto::{MAX_TOOL_ANSWER, MAX_TOOL_ARGUMENTS, MAX_TOOL_CALLS_OPEN};
use tokio::task::JoinSet;

/// Calls of one run that are carried out at the same time; others wait.
const AT_ONCE: usize = 8;
/// Calls that one run may make.
const MAX_CALLS: usize = 2_000;

/// Carries out what code asks for, on behalf of one caller.
#[async_trait]
pub trait Broker: Send + Sync {
    /// What there is to call, as JSON for the interpreters.
    async fn catalogue(&self) -> Result<Vec<u8>, String>;
    /// `arguments` is a JSON object, as code in the sandbox wrote it. The result is JSON; an error is for its author.
    async fn call(&self, name: &str, arguments: &[u8]) -> Result<Vec<u8>, String>;
}

/// What code may call while it runs.
#[derive(Clone)]
pub struct Tools(pub Arc<dyn Broker>);

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tools")
    }
}

/// What came of a call, by its number.
pub(crate) struct Answered {
    pub(crate) number: u64,
    pub(crate) result: Result<Vec<u8>, String>,
}

struct Asked {
    number: u64,
    name: Option<String>,
    arguments: Vec<u8>,
}

/// The calls of one run. Dropping it ends those under way.
pub(crate) struct Calls {
    tools: Option<Tools>,
    running: JoinSet<Answered>,
    waiting: VecDeque<Asked>,
    made: usize,
}

impl Calls {
    pub(crate) fn new(tools: Option<Tools>) -> Self {
        Self { tools, running: JoinSet::new(), waiting: VecDeque::new(), made: 0 }
    }

    /// Takes a call on. An error means that the guest asks for more than it ever would.
    pub(crate) fn take(
        &mut self,
        number: u64,
        name: Option<String>,
        arguments: Vec<u8>,
    ) -> Result<(), &'static str> {
        if arguments.len() > MAX_TOOL_ARGUMENTS
            || self.running.len() + self.waiting.len() >= 2 * MAX_TOOL_CALLS_OPEN
        {
            return Err("too many calls of tools, or too large ones");
        }
        self.made += 1;
        self.waiting.push_back(Asked { number, name, arguments });
        self.start();
        Ok(())
    }

    fn start(&mut self) {
        while self.running.len() < AT_ONCE
            && let Some(Asked { number, name, arguments }) = self.waiting.pop_front()
        {
            let tools = self.tools.clone();
            let too_many = self.made > MAX_CALLS;
            self.running.spawn(async move {
                let result = match (&tools, &name) {
                    (None, _) => Err("There are no tools to call here".to_owned()),
                    _ if too_many => Err(format!("A run may call tools {MAX_CALLS} times")),
                    (Some(tools), None) => tools.0.catalogue().await,
                    (Some(tools), Some(name)) => tools.0.call(name, &arguments).await,
                };
                Answered { number, result: result.and_then(bounded) }
            });
        }
    }

    /// The next one that is done; waits for ever when there is none.
    pub(crate) async fn next(&mut self) -> Answered {
        while let Some(done) = self.running.join_next().await {
            self.start();
            match done {
                Ok(answered) => return answered,
                // Its number is lost with it: the run's time limit ends the wait.
                Err(error) => tracing::error!("a call of a tool was lost: {error}"),
            }
        }
        std::future::pending().await
    }

    /// Ends what is under way, and takes nothing more on.
    pub(crate) fn stop(&mut self) {
        self.tools = None;
        self.waiting.clear();
        self.running.abort_all();
    }
}

fn bounded(answer: Vec<u8>) -> Result<Vec<u8>, String> {
    if answer.len() > MAX_TOOL_ANSWER {
        return Err(format!(
            "The result has {} bytes, at most {MAX_TOOL_ANSWER} can be returned",
            answer.len()
        ));
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    struct Rig {
        gate: Semaphore,
        now: AtomicUsize,
        most: AtomicUsize,
    }

    #[async_trait]
    impl Broker for Rig {
        async fn catalogue(&self) -> Result<Vec<u8>, String> {
            Ok(b"[]".to_vec())
        }

        async fn call(&self, name: &str, arguments: &[u8]) -> Result<Vec<u8>, String> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            self.now.fetch_sub(1, Ordering::SeqCst);
            if name == "huge" { Ok(vec![b'x'; MAX_TOOL_ANSWER + 1]) } else { Ok(arguments.to_vec()) }
        }
    }

    fn rig(permits: usize) -> Arc<Rig> {
        Arc::new(Rig { gate: Semaphore::new(permits), now: AtomicUsize::new(0), most: AtomicUsize::new(0) })
    }

    #[tokio::test]
    async fn as_many_as_may_run_at_once_and_all_are_answered() {
        let rig = rig(0);
        let mut calls = Calls::new(Some(Tools(rig.clone())));
        for number in 0..60 {
            calls.take(number, Some("echo".to_owned()), number.to_string().into_bytes()).unwrap();
        }
        while rig.now.load(Ordering::SeqCst) < AT_ONCE {
            tokio::task::yield_now().await;
        }
        rig.gate.add_permits(60);
        let mut seen = Vec::new();
        for _ in 0..60 {
            let Answered { number, result } = calls.next().await;
            assert_eq!(result.unwrap(), number.to_string().into_bytes());
            seen.push(number);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<_>>());
        assert_eq!(rig.most.load(Ordering::SeqCst), AT_ONCE);
    }

    #[tokio::test]
    async fn sizes_and_numbers_are_bounded() {
        let mut calls = Calls::new(Some(Tools(rig(usize::MAX >> 4))));
        calls.take(1, Some("huge".to_owned()), Vec::new()).unwrap();
        assert!(calls.next().await.result.unwrap_err().contains("at most"));
        assert!(calls.take(2, None, vec![0; MAX_TOOL_ARGUMENTS + 1]).is_err());
        for number in 0..MAX_CALLS as u64 {
            calls.take(number, Some("echo".to_owned()), b"{}".to_vec()).unwrap();
            let result = calls.next().await.result;
            assert_eq!(result.is_ok(), number < MAX_CALLS as u64 - 1, "{number}");
        }
        let mut nobody = Calls::new(None);
        nobody.take(1, None, Vec::new()).unwrap();
        assert!(nobody.next().await.result.unwrap_err().contains("no tools"));
    }

    #[tokio::test]
    async fn a_guest_that_floods_is_noticed() {
        let mut calls = Calls::new(Some(Tools(rig(0))));
        let mut flood = (0..1_000).map(|number| calls.take(number, Some("a".to_owned()), Vec::new()));
        assert!(flood.any(|taken| taken.is_err()));
    }
}
