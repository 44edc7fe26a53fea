//! What sandboxes reach outside, and through what: a proxy for each, served here, under a policy that can change.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use belljar_egress::{
    Authority, Ceiling, Gateway, Log, Mode, Policy, Proxy, Record, Rule, Secret, Traffic, bundle,
};
use belljar_proto::{Call, Reply};

use crate::{BackendError, Caller, Error, SandboxService, context::Context, sandbox::Sandbox};

/// Where the proxy is, as seen from inside.
pub const HTTP_PROXY: &str = "http://127.0.0.1:3128";
pub const SOCKS_PROXY: &str = "socks5h://127.0.0.1:1080";
/// What is inside is reached without it.
const NO_PROXY: &str = "localhost,127.0.0.1,::1";
/// What a sandbox trusts beside its own authority, where programs expect it.
const SYSTEM_BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The same with the authority of the sandbox.
const OWN_BUNDLE: &str = "/tmp/.belljar/ca.pem";
/// Lets fetch of older Nodes use the proxy.
const NODE_PRELOAD: &str = "--require=/opt/belljar/node/proxy.cjs";

const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const BUNDLE_VARIABLES: [&str; 7] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "npm_config_cafile",
];
/// How long it may take until the sockets of an earlier server are free.
const REOPEN_PATIENCE: Duration = Duration::from_secs(4);
const REOPEN_PAUSE: Duration = Duration::from_millis(50);
/// Rules that one sandbox may have.
const MAX_RULES: usize = 100;
/// Connections that are told about.
const RECENT: usize = 50;

/// What the operator says about the network of sandboxes.
#[derive(Debug, Clone, Default)]
pub struct NetworkSettings {
    pub ceiling: Ceiling,
    /// Of sandboxes whose maker does not say.
    pub default: Mode,
    pub secrets: Vec<Secret>,
}

/// What a sandbox reaches, and what it has tried.
#[derive(Debug, Clone)]
pub struct NetworkInfo {
    pub context: String,
    pub mode: Mode,
    /// The list that holds for it.
    pub allow: Vec<Rule>,
    /// Variables that hold a placeholder, and the host that each is for.
    pub secrets: Vec<(String, String)>,
    /// The newest last.
    pub recent: Vec<Record>,
    /// Connections in all.
    pub total: u64,
}

/// The network of one context.
pub(crate) struct Network {
    state: Mutex<State>,
    /// The context's id.
    owner: String,
    /// Made when the network first opens: by then it is known whose context it is.
    log: OnceLock<Arc<Log>>,
}

#[derive(Default)]
struct State {
    policy: Policy,
    /// Kept once it was needed: programs inside trust it.
    authority: Option<Arc<Authority>>,
    proxy: Option<Proxy>,
}

impl Network {
    pub(crate) fn new(owner: String, policy: Policy, authority: Option<Arc<Authority>>) -> Self {
        let state = Mutex::new(State { policy, authority, proxy: None });
        Self { state, owner, log: OnceLock::new() }
    }

    /// Its owner is the context and the caller. An id has no spaces, so that the two can be told apart.
    fn log(&self, caller: &Caller) -> Arc<Log> {
        let made = || Log::new(format!("{} {}", self.owner, caller.as_str()));
        Arc::clone(self.log.get_or_init(made))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn policy(&self) -> Policy {
        self.state().policy.clone()
    }

    pub(crate) fn authority_key(&self) -> Option<String> {
        self.state().authority.as_ref().map(|authority| authority.key())
    }

    /// Nothing gets out from here on.
    pub(crate) fn cut(&self) {
        drop(self.state().proxy.take());
    }
}

impl SandboxService {
    /// The policy of a sandbox whose maker asked for this one.
    pub(crate) fn policy(&self, asked: Option<Policy>) -> Result<Policy, Error> {
        let policy = asked.unwrap_or(Policy { mode: self.settings.network.default, allow: None });
        if policy.allow.as_ref().is_some_and(|allow| allow.len() > MAX_RULES) {
            return Err(Error::InvalidParams(format!("A sandbox may have at most {MAX_RULES} rules")));
        }
        self.gateway.ceiling().check(&policy).map_err(Error::NetworkNotAllowed)?;
        Ok(policy)
    }

    /// The authority that a sandbox with this policy has to trust, if any.
    pub(crate) fn authority(&self, policy: &Policy) -> Result<Option<Arc<Authority>>, BackendError> {
        let made = self.gateway.needs_authority(policy).then(Authority::new).transpose();
        let made = made.map_err(|e| BackendError::new(format!("make a certificate authority: {e}")))?;
        Ok(made.map(Arc::new))
    }

    /// Gives a fresh sandbox the network that its context has. Nothing gets out if this fails.
    pub(crate) async fn open_network(
        &self,
        context: &Context,
        sandbox: &Sandbox,
    ) -> Result<(), BackendError> {
        context.network.cut();
        let (policy, authority) = {
            let state = context.network.state();
            (state.policy.clone(), state.authority.clone())
        };
        if policy.mode == Mode::None {
            return Ok(());
        }
        let trust = authority.as_ref().map(|authority| authority.fingerprint());
        let listeners = sandbox.machine.listen(trust.as_deref()).await?;
        if let Some(authority) = &authority {
            write_bundle(sandbox, authority).await?;
        }
        set_environment(sandbox, variables(&self.gateway, authority.is_some())).await?;
        let log = context.network.log(&context.caller);
        let opened = self.gateway.open(policy, authority, log, listeners);
        let proxy = opened.map_err(|e| BackendError::new(format!("serve the proxy: {e}")))?;
        context.network.state().proxy = Some(proxy);
        Ok(())
    }

    /// The same for a sandbox of an earlier server, whose programs know the way already. What is not allowed any more
    /// is not opened.
    pub(crate) async fn reopen_network(&self, context: &Context) {
        let policy = context.network.policy();
        if policy.mode == Mode::None {
            return;
        }
        let sandbox = context.sandbox();
        let began = Instant::now();
        let opened = match self.policy(Some(policy)) {
            // The earlier server may not have let go of its sockets yet.
            Ok(_) => loop {
                match self.open_network(context, &sandbox).await {
                    Err(_) if began.elapsed() < REOPEN_PATIENCE => tokio::time::sleep(REOPEN_PAUSE).await,
                    done => break done.map_err(|e| e.to_string()),
                }
            },
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = opened {
            tracing::warn!("context {} has no network any more: {why}", context.id);
            context.network.state().policy = Policy::default();
        }
    }

    /// Changes what a sandbox reaches, while it runs. Connections that were open end.
    pub async fn set_network(
        &self,
        caller: &Caller,
        context: &str,
        policy: Policy,
    ) -> Result<NetworkInfo, Error> {
        let context = self.find(caller, context)?;
        let policy = self.policy(Some(policy))?;
        context.touch();
        self.living(&context).await?;
        // So that its sandbox stays the same meanwhile.
        let _alone = context.replacing.lock().await;
        let sandbox = context.sandbox();
        let changed = async {
            self.change_network(&context, &sandbox, policy).await?;
            self.claim(&context, &sandbox).await
        };
        if let Err(error) = changed.await {
            context.network.cut();
            context.network.state().policy = Policy::default();
            return Err(Error::Internal(format!("The network was not changed, and is closed now: {error}")));
        }
        Ok(self.network_of(&context))
    }

    async fn change_network(
        &self,
        context: &Context,
        sandbox: &Sandbox,
        policy: Policy,
    ) -> Result<(), BackendError> {
        let before = context.network.policy().mode;
        let needs_another = {
            let mut state = context.network.state();
            state.policy = policy.clone();
            match (&state.proxy, policy.mode) {
                (Some(proxy), Mode::Allowlist | Mode::Open)
                    if state.authority.is_some() || !self.gateway.needs_authority(&policy) =>
                {
                    proxy.change(policy);
                    return Ok(());
                }
                _ => state.proxy.take(),
            }
        };
        if let Some(proxy) = needs_another {
            proxy.close().await;
        }
        if policy.mode == Mode::None {
            if before == Mode::None {
                return Ok(());
            }
            let mut gone = variables(&self.gateway, true);
            gone.values_mut().for_each(|value| *value = None);
            // As it was before there was a network.
            gone.insert("PYTHONNOUSERSITE".into(), Some("1".into()));
            return set_environment(sandbox, gone).await;
        }
        let authority = self.authority(&policy)?;
        {
            let mut state = context.network.state();
            state.authority = state.authority.take().or(authority);
        }
        self.open_network(context, sandbox).await
    }

    pub fn network(&self, caller: &Caller, context: &str) -> Result<NetworkInfo, Error> {
        let context = self.find(caller, context)?;
        Ok(self.network_of(&context))
    }

    fn network_of(&self, context: &Context) -> NetworkInfo {
        let policy = context.network.policy();
        let ceiling = self.gateway.ceiling();
        let allow = match (policy.mode, policy.allow) {
            (Mode::Allowlist, Some(own)) => own,
            (Mode::Allowlist, None) => ceiling.all_allowed(),
            _ => Vec::new(),
        };
        let secrets = self.gateway.secrets().iter().filter(|_| policy.mode != Mode::None);
        let secrets = secrets.map(|secret| (secret.name.clone(), secret.host().to_string())).collect();
        let (recent, total) = context.network.log.get().map(|log| log.recent(RECENT)).unwrap_or_default();
        NetworkInfo { context: context.id.clone(), mode: policy.mode, allow, secrets, recent, total }
    }

    /// Of all sandboxes, since the start.
    pub fn traffic(&self) -> Traffic {
        self.gateway.traffic()
    }
}

/// What programs have to know to find their way.
fn variables(gateway: &Gateway, own_bundle: bool) -> BTreeMap<String, Option<String>> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: &str| drop(all.insert(name.to_owned(), Some(value.to_owned())));
    PROXY_VARIABLES.iter().for_each(|name| set(name, HTTP_PROXY));
    for name in ["NO_PROXY", "no_proxy"] {
        set(name, NO_PROXY);
    }
    let bundle = if own_bundle { OWN_BUNDLE } else { SYSTEM_BUNDLE };
    if own_bundle || Path::new(SYSTEM_BUNDLE).exists() {
        BUNDLE_VARIABLES.iter().for_each(|name| set(name, bundle));
    }
    set("NODE_OPTIONS", NODE_PRELOAD);
    set("NODE_USE_ENV_PROXY", "1");
    // There is something to install from, so there is a place to install it to.
    set("PYTHONUSERBASE", "/workspace/.local");
    set("PIP_BREAK_SYSTEM_PACKAGES", "1");
    for secret in gateway.secrets() {
        set(&secret.name, &secret.placeholder());
    }
    all.insert("PYTHONNOUSERSITE".into(), None);
    all
}

async fn set_environment(
    sandbox: &Sandbox,
    variables: BTreeMap<String, Option<String>>,
) -> Result<(), BackendError> {
    let call = Call::SetEnvironment { variables };
    match sandbox.ask(call, &[], None, "Nothing of it is left").await {
        Ok((Reply::Ok, _)) => Ok(()),
        Ok((reply, _)) => Err(BackendError::new(format!("the guest gave a strange answer: {reply:?}"))),
        Err(error) => Err(BackendError::new(error.to_string())),
    }
}

async fn write_bundle(sandbox: &Sandbox, authority: &Arc<Authority>) -> Result<(), BackendError> {
    let authority = Arc::clone(authority);
    let text = tokio::task::spawn_blocking(move || bundle(&authority)).await;
    let text = text.map_err(|e| BackendError::new(e.to_string()))?;
    let call = Call::WriteFile { path: OWN_BUNDLE.into(), offset: 0 };
    let written = sandbox.files(call, text.as_bytes(), OWN_BUNDLE).await;
    written.map(drop).map_err(|e| BackendError::new(format!("write {OWN_BUNDLE}: {e}")))
}

#[cfg(test)]
mod tests {
    use std::{
        fmt::Debug,
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use belljar_egress::Listeners;
    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span,
    };

    use super::*;

    /// Everything that is reported at one target.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

    struct Fields(BTreeMap<String, String>);

    impl Visit for Fields {
        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name().into(), value.into());
        }

        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.insert(field.name().into(), format!("{value:?}"));
        }
    }

    impl Subscriber for Heard {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "belljar::egress"
        }

        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields(BTreeMap::new());
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    /// The audit log is made of these reports: it has to find them, with the caller, the bytes and the outcome.
    #[tokio::test]
    async fn a_connection_is_reported_with_its_caller_its_bytes_and_its_outcome() {
        let heard = Heard::default();
        // The proxy has threads of its own.
        tracing::subscriber::set_global_default(heard.clone()).unwrap();
        // Somebody without a listener may have met the place of the report first.
        tracing::callsite::rebuild_interest_cache();
        let gateway = Gateway::new(Ceiling::default(), Vec::new());
        let network = Network::new("ctx-1".into(), Policy::default(), None);
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (http, socks) = (listen(), listen());
        let door = http.local_addr().unwrap();
        let log = network.log(&Caller::new("ann of accounts"));
        let listeners = Listeners { http, socks, foreign: false };
        let _proxy = gateway.open(network.policy(), None, log, listeners).unwrap();
        let asked = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(door).unwrap();
            stream.write_all(b"GET http://a.test:81/ HTTP/1.1\r\nHost: a.test:81\r\n\r\n").unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        asked.await.unwrap();
        let reported = || {
            let mut reports = heard.0.lock().unwrap().clone();
            reports.retain(|report| report["owner"] == "ctx-1 ann of accounts");
            reports
        };
        let began = Instant::now();
        while reported().is_empty() && began.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let reports = reported();
        assert_eq!(reports.len(), 1, "{reports:?}");
        let named = ["owner", "kind", "to", "message", "reason", "sent", "received"];
        let told = named.map(|name| reports[0].get(name).cloned().unwrap_or_default());
        assert_eq!(
            told,
            ["ctx-1 ann of accounts", "http", "a.test:81", "refused", "not_allowed", "0", "0"],
            "{reports:?}"
        );
        assert!(["address", "method", "seconds", "why"].iter().all(|name| reports[0].contains_key(*name)));
    }
}
