//! Several backends behind one: a template says by which of them it is run.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use belljar_sandbox::{
    Backend, BackendError, Isolation, Kind, Language, Limits, Machine, State, Survivor, TemplateInfo, Used,
};
use futures::future::join_all;
use tokio::sync::watch;

/// A backend that is only started for a template has this long to get ready before the call is told to come back.
const PATIENCE: Duration = Duration::from_secs(25);

/// Starts a backend; returns at once.
pub type Opener = Box<dyn Fn() -> Arc<dyn Backend> + Send + Sync>;

pub struct Router {
    /// Runs the built-in template, and stands for all of them where one has to.
    first: Arc<dyn Backend>,
    first_kind: Kind,
    openers: HashMap<Kind, Opener>,
    others: Mutex<HashMap<Kind, Arc<dyn Backend>>>,
    ending: AtomicBool,
}

impl Router {
    /// Starts the backend `first`, and those in `at_once`, which may have sandboxes of an earlier server. Others start when
    /// a template needs them.
    pub fn start(first: (Kind, Opener), others: HashMap<Kind, Opener>, at_once: &[Kind]) -> Arc<Self> {
        let (first_kind, open) = first;
        let router = Self {
            first: open(),
            first_kind,
            openers: others,
            others: Mutex::default(),
            ending: AtomicBool::new(false),
        };
        at_once.iter().filter(|kind| **kind != first_kind).for_each(|kind| drop(router.other(*kind)));
        Arc::new(router)
    }

    fn others(&self) -> MutexGuard<'_, HashMap<Kind, Arc<dyn Backend>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<Arc<dyn Backend>> {
        std::iter::once(Arc::clone(&self.first)).chain(self.others().values().cloned()).collect()
    }

    fn other(&self, kind: Kind) -> Result<Arc<dyn Backend>, BackendError> {
        let mut others = self.others();
        if let Some(backend) = others.get(&kind) {
            return Ok(Arc::clone(backend));
        }
        if self.ending.load(Ordering::Acquire) {
            return Err(BackendError::new("it is shutting down"));
        }
        let Some(open) = self.openers.get(&kind) else {
            return Err(BackendError::new(format!("there is no {kind} backend here")));
        };
        let backend = open();
        others.insert(kind, Arc::clone(&backend));
        Ok(backend)
    }

    async fn for_template(&self, template: Option<&TemplateInfo>) -> Result<Arc<dyn Backend>, BackendError> {
        let Some(template) = template.filter(|template| template.backend() != self.first_kind) else {
            return Ok(Arc::clone(&self.first));
        };
        let kind = template.backend();
        let refuse = |why: &str| {
            BackendError::new(format!("template {} needs the {kind} backend: {why}", template.name))
        };
        let backend = self.other(kind).map_err(|e| refuse(&e.message))?;
        let mut state = backend.state();
        let settled = state.wait_for(|state| !matches!(state, State::Preparing(_)));
        let settled = tokio::time::timeout(PATIENCE, settled).await;
        let settled = settled.map(|settled| settled.map(|state| state.clone()));
        match settled {
            Ok(Ok(State::Ready)) => Ok(backend),
            Ok(Ok(State::Failed(why))) => Err(refuse(&why)),
            Ok(Err(_)) => Err(refuse("it is gone")),
            Ok(Ok(State::Preparing(_))) | Err(_) => {
                Err(refuse("it is still starting; try again in a minute"))
            }
        }
    }
}

#[async_trait]
impl Backend for Router {
    fn state(&self) -> watch::Receiver<State> {
        self.first.state()
    }

    fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.first.trouble()
    }

    fn isolation(&self) -> Isolation {
        self.first.isolation()
    }

    async fn survivors(&self) -> Vec<Survivor> {
        let all = self.all();
        join_all(all.iter().map(|backend| backend.survivors())).await.into_iter().flatten().collect()
    }

    async fn usage(&self) -> Vec<Used> {
        let all = self.all();
        join_all(all.iter().map(|backend| backend.usage())).await.into_iter().flatten().collect()
    }

    fn guest_digest(&self) -> String {
        self.first.guest_digest()
    }

    async fn create(
        &self,
        template: Option<&TemplateInfo>,
        limits: &Limits,
        first: Option<Language>,
    ) -> Result<Arc<dyn Machine>, BackendError> {
        self.for_template(template).await?.create(template, limits, first).await
    }

    fn leave(&self) {
        self.ending.store(true, Ordering::Release);
        self.all().iter().for_each(|backend| backend.leave());
    }

    fn abandon(&self) {
        self.ending.store(true, Ordering::Release);
        self.all().iter().for_each(|backend| backend.abandon());
    }

    async fn shutdown(&self, grace: Duration) {
        self.ending.store(true, Ordering::Release);
        join_all(self.all().iter().map(|backend| backend.shutdown(grace))).await;
    }
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::Image;

    use super::*;

    /// Says who was asked instead of making anything.
    struct Named(&'static str, watch::Sender<State>);

    fn named(name: &'static str, state: State) -> Opener {
        Box::new(move || Arc::new(Named(name, watch::Sender::new(state.clone()))))
    }

    #[async_trait]
    impl Backend for Named {
        fn state(&self) -> watch::Receiver<State> {
            self.1.subscribe()
        }

        fn trouble(&self) -> watch::Receiver<Option<String>> {
            watch::channel(None).1
        }

        fn isolation(&self) -> Isolation {
            Isolation::default()
        }

        async fn survivors(&self) -> Vec<Survivor> {
            Vec::new()
        }

        async fn usage(&self) -> Vec<Used> {
            vec![Used { machine: self.0.into(), cpu: Duration::ZERO, memory_bytes: 0, ended: false }]
        }

        fn guest_digest(&self) -> String {
            String::new()
        }

        async fn create(
            &self,
            _: Option<&TemplateInfo>,
            _: &Limits,
            _: Option<Language>,
        ) -> Result<Arc<dyn Machine>, BackendError> {
            Err(BackendError::new(self.0))
        }

        fn leave(&self) {}

        fn abandon(&self) {}

        async fn shutdown(&self, _: Duration) {}
    }

    fn template(image: Image) -> TemplateInfo {
        let (env, languages) = Default::default();
        TemplateInfo { name: "tools".into(), image, env, workdir: None, user: None, languages }
    }

    async fn asked(router: &Router, template: Option<&TemplateInfo>) -> String {
        router.create(template, &Limits::default(), None).await.err().unwrap().message
    }

    #[tokio::test]
    async fn a_template_is_run_by_the_backend_that_its_image_is_for() {
        let (here, there) = (template(Image::Layers(Vec::new())), template(Image::Docker("1".into())));
        let others = HashMap::from([(Kind::Docker, named("docker", State::Ready))]);
        let router = Router::start((Kind::Local, named("local", State::Ready)), others, &[]);
        assert_eq!(router.usage().await.len(), 1, "nobody needs the other one yet");
        assert_eq!(asked(&router, None).await, "local");
        assert_eq!(asked(&router, Some(&here)).await, "local");
        assert_eq!(asked(&router, Some(&there)).await, "docker");
        assert_eq!(router.usage().await.len(), 2);
        router.abandon();
        assert_eq!(asked(&router, Some(&there)).await, "docker", "it is there already");
    }

    #[tokio::test]
    async fn one_that_is_not_there_is_an_error_and_no_other_takes_its_place() {
        let there = template(Image::Docker("1".into()));
        let router = Router::start((Kind::Local, named("local", State::Ready)), HashMap::new(), &[]);
        assert_eq!(
            asked(&router, Some(&there)).await,
            "template tools needs the docker backend: there is no docker backend here"
        );
        let broken = named("docker", State::Failed("there is no engine. Install one".into()));
        let others = HashMap::from([(Kind::Docker, broken)]);
        let router = Router::start((Kind::Local, named("local", State::Ready)), others, &[Kind::Docker]);
        assert_eq!(
            asked(&router, Some(&there)).await,
            "template tools needs the docker backend: there is no engine. Install one"
        );
    }
}
