//! The network of contexts: opened with them, changed while they run, and taken along.

use std::net::TcpStream;

use super::*;

fn settings(max: Mode) -> Settings {
    let ceiling = Ceiling { max, allow: vec!["a.test".parse().unwrap()], private: Vec::new() };
    let network = NetworkSettings { ceiling, default: Mode::None, secrets: Vec::new() };
    Settings { network, ..Settings::default() }
}

fn policy(mode: Mode) -> Policy {
    Policy { mode, allow: None }
}

impl Bench {
    async fn with_network(&self, name: &str, mode: Mode) -> Result<ContextInfo, Error> {
        let (language, description) = (Language::Python, String::new());
        let network = Some(policy(mode));
        let new =
            NewContext { name: name.into(), language, template: None, description, flavor: None, network };
        self.service.create_context(&self.caller, new).await
    }

    async fn set(&self, id: &str, mode: Mode) -> Result<NetworkInfo, Error> {
        self.service.set_network(&self.caller, id, policy(mode)).await
    }

    fn doors(&self) -> usize {
        self.world.doors.lock().unwrap().len()
    }

    /// Whether the newest proxy listens.
    fn listens(&self) -> bool {
        let newest = *self.world.doors.lock().unwrap().last().unwrap();
        TcpStream::connect(newest).is_ok()
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.world.variables.lock().unwrap().get(name).cloned().flatten()
    }
}

#[tokio::test]
async fn a_network_is_opened_and_closed_while_the_context_lives() {
    let bench = Bench::new(settings(Mode::Open));
    let context = bench.with_network("a", Mode::None).await.unwrap();
    assert_eq!((context.network, bench.doors(), bench.variable("HTTP_PROXY")), (Mode::None, 0, None));
    bench.set(&context.id, Mode::Open).await.unwrap();
    assert!(bench.listens());
    assert_eq!(bench.variable("https_proxy").as_deref(), Some(HTTP_PROXY));
    // No authority is needed, so what the machine trusts is all.
    assert!(bench.world.files.lock().unwrap().is_empty());
    let told = bench.set(&context.id, Mode::Allowlist).await.unwrap();
    assert_eq!((told.mode, told.allow, bench.doors()), (Mode::Allowlist, vec!["a.test".parse().unwrap()], 2));
    let files = bench.world.files.lock().unwrap().clone();
    assert!(files[&bench.variable("SSL_CERT_FILE").unwrap()].contains("BEGIN CERTIFICATE"));
    // The same proxy, under another policy.
    bench.set(&context.id, Mode::Open).await.unwrap();
    assert!(bench.listens() && bench.doors() == 2);
    bench.set(&context.id, Mode::None).await.unwrap();
    assert!(!bench.listens() && bench.variable("HTTP_PROXY").is_none());
    assert_eq!(bench.service.find_context(&bench.caller, "a").unwrap().network, Mode::None);
}

#[tokio::test]
async fn nobody_gets_more_than_the_operator_allows() {
    let bench = Bench::new(settings(Mode::Allowlist));
    assert!(matches!(bench.with_network("a", Mode::Open).await, Err(Error::NetworkNotAllowed(_))));
    let context = bench.with_network("a", Mode::Allowlist).await.unwrap();
    let refused = bench.set(&context.id, Mode::Open).await.unwrap_err();
    assert!(matches!(refused, Error::NetworkNotAllowed(why) if why.contains("allowlist")));
    assert_eq!(bench.service.network(&bench.caller, &context.id).unwrap().mode, Mode::Allowlist);
    let other = Caller::new("mallory");
    assert!(matches!(bench.service.network(&other, &context.id), Err(Error::NotFound(_))));
    assert!(matches!(
        bench.service.set_network(&other, &context.id, Policy::default()).await,
        Err(Error::NotFound(_))
    ));
    // By default there is nothing to be had.
    let bench = Bench::new(Settings::default());
    assert!(matches!(bench.with_network("a", Mode::Allowlist).await, Err(Error::NetworkNotAllowed(_))));
}

#[tokio::test]
async fn a_fresh_sandbox_in_place_of_one_that_ended_has_the_same_network() {
    let bench = Bench::new(settings(Mode::Open));
    let context = bench.with_network("a", Mode::Open).await.unwrap();
    let request = ExecRequest { argv: vec!["die".into()], ..ExecRequest::default() };
    bench.service.exec(&bench.caller, &context.id, request, CancellationToken::new()).await.unwrap();
    assert_eq!(bench.doors(), 2);
    assert!(bench.listens());
}

#[tokio::test]
async fn a_context_keeps_its_network_as_far_as_the_next_server_allows() {
    let bench = Bench::new(settings(Mode::Open));
    let context = bench.with_network("a", Mode::Allowlist).await.unwrap();
    let own = Policy { mode: Mode::Allowlist, allow: Some(vec!["b.test GET".parse().unwrap()]) };
    bench.service.set_network(&bench.caller, &context.id, own).await.unwrap();
    let labels = bench.world.labels.lock().unwrap().split_off(1);
    bench.world.labels.lock().unwrap().clear();
    for (max, mode) in [(Mode::Open, Mode::Allowlist), (Mode::None, Mode::None)] {
        bench.world.labels.lock().unwrap().extend(labels.clone());
        let next = Bench::over(Arc::clone(&bench.world), settings(max));
        let before = next.doors();
        next.service.adopt().await;
        let told = next.service.network(&next.caller, &context.id).unwrap();
        assert_eq!((told.mode, next.doors() - before), (mode, usize::from(mode != Mode::None)));
        assert_eq!(told.allow.len(), usize::from(mode != Mode::None));
    }
}
