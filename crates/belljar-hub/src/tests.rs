//! What the hub promises, with a server that breaks its own promises. Where nothing but memory is between the two, time
//! is virtual: it passes when everybody waits.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    CallOptions, ErrorClass, Filter, Hub, HubConfig, HubError, Secret, ServerConfig, State, Timing,
    Transport,
    rig::{Fault, Rig, config},
};

fn arguments() -> JsonObject {
    json!({ "a": 1 }).as_object().unwrap().clone()
}

async fn echo(hub: &Hub, server: &str) -> Result<CallToolResult, HubError> {
    hub.call(server, "echo", arguments(), CallOptions::default()).await
}

fn text(result: &CallToolResult) -> &str {
    match &result.content[0] {
        ContentBlock::Text(text) => &text.text,
        other => panic!("{other:?}"),
    }
}

/// Virtual or not, the condition is waited for, and a test that never meets it fails.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn state(hub: &Hub) -> State {
    hub.status()[0].state
}

#[tokio::test(start_paused = true)]
async fn a_call_passes_through() {
    let rig = Rig::new(Fault::None);
    let hub = Hub::start(config([("rig", &rig)]));
    assert_eq!(text(&echo(&hub, "rig").await.unwrap()), r#"{"a":1}"#);
    let catalogue = hub.catalogue().await;
    let names: Vec<_> = catalogue.tools().map(|(server, tool)| format!("{server}/{}", tool.name)).collect();
    assert_eq!(names, ["rig/echo", "rig/secret_tool"]);
    let status = &hub.status()[0];
    assert_eq!((status.server.as_deref(), status.protocol.as_deref()), (Some("rig 1"), Some("2025-11-25")));
    assert_eq!((status.calls, status.failures, status.tools), (1, 0, 2));
    let unknown = echo(&hub, "rag").await.unwrap_err();
    assert_eq!(unknown.to_string(), "there is no server \"rag\" in the hub; there are: rig");
    hub.close().await;
    assert_eq!(rig.live(), 0);
    assert!(matches!(echo(&hub, "rig").await, Err(HubError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_is_neither_listed_nor_called() {
    let rig = Rig::new(Fault::None);
    let mut config = config([("rig", &rig)]);
    config.servers.get_mut("rig").unwrap().tools = Filter { allow: None, deny: vec!["secret_*".into()] };
    let hub = Hub::start(config);
    assert_eq!(hub.catalogue().await.tools().count(), 1);
    let denied = hub.call("rig", "secret_tool", arguments(), CallOptions::default()).await;
    assert!(matches!(denied, Err(HubError::NotAllowed { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_refusing_server_is_tried_three_more_times_and_then_in_the_background() {
    let rig = Rig::new(Fault::Refuse);
    let hub = Hub::start(config([("rig", &rig)]));
    let error = echo(&hub, "rig").await.unwrap_err();
    assert!(matches!(error, HubError::Unavailable { class: ErrorClass::Refused, .. }), "{error:?}");
    assert_eq!(rig.attempts(), 4);
    let at = rig.attempts.lock().unwrap().clone();
    for (pair, expected) in at.windows(2).zip([1.0, 2.0, 3.0]) {
        let pause = (pair[1] - pair[0]).as_secs_f64();
        assert!((expected * 0.8..expected * 1.2 + 0.01).contains(&pause), "{pause} after attempt {expected}");
    }
    // The circuit is open: nobody waits any more.
    assert_eq!(state(&hub), State::Down);
    let began = Instant::now();
    assert!(matches!(echo(&hub, "rig").await, Err(HubError::Unavailable { retry_in: Some(_), .. })));
    assert_eq!(began.elapsed(), Duration::ZERO);
    rig.set(Fault::None);
    until("it is found again", || state(&hub) == State::Ready).await;
    assert!(echo(&hub, "rig").await.is_ok());
    hub.close().await;
    assert_eq!(rig.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_delays_nobody_else() {
    let (mute, refusing, well) = (Rig::new(Fault::Mute), Rig::new(Fault::Refuse), Rig::new(Fault::None));
    let hub = Hub::start(config([("a", &mute), ("b", &refusing), ("c", &well)]));
    let began = Instant::now();
    assert!(echo(&hub, "c").await.is_ok());
    assert!(began.elapsed() < Duration::from_secs(1));
    // A list waits for the first answer of the others, but not for long.
    let began = Instant::now();
    assert_eq!(hub.catalogue().await.tools().count(), 2);
    assert!(began.elapsed() <= Timing::default().patience + Duration::from_millis(100));
    hub.close().await;
    assert_eq!((mute.live(), well.live()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_times_out_and_the_third_replaces_the_connection() {
    let rig = Rig::new(Fault::None);
    let hub = Hub::start(config([("rig", &rig)]));
    echo(&hub, "rig").await.unwrap();
    rig.set(Fault::Hang);
    for round in 1..=3 {
        let began = Instant::now();
        let error = echo(&hub, "rig").await.unwrap_err();
        assert!(matches!(error, HubError::TimedOut { .. }), "{error:?}");
        assert!(began.elapsed() >= Duration::from_secs(10));
        // The third is told with the end of the connection.
        let told = || rig.notes().iter().filter(|note| *note == "notifications/cancelled").count();
        until("the server is told", || told() == round || round == 3).await;
        assert_eq!(rig.attempts(), 1);
    }
    rig.set(Fault::None);
    assert!(echo(&hub, "rig").await.is_ok());
    assert_eq!(rig.attempts(), 2);
    hub.close().await;
    assert_eq!(rig.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn progress_gives_a_call_more_time() {
    let rig = Rig::new(Fault::Slow);
    let hub = Hub::start(config([("rig", &rig)]));
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = seen.clone();
    let options = CallOptions {
        progress: Some(Arc::new(move |progress| sink.lock().unwrap().push(progress))),
        ..CallOptions::default()
    };
    let began = Instant::now();
    assert!(hub.call("rig", "echo", arguments(), options).await.is_ok());
    // Five times eight seconds, with ten seconds for each.
    assert!(began.elapsed() >= Duration::from_secs(40));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 5);
    assert_eq!(
        (seen[4].progress, seen[4].total, seen[4].message.as_deref()),
        (5.0, Some(5.0), Some("working"))
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_reaches_the_server() {
    let rig = Rig::new(Fault::Hang);
    let hub = Hub::start(config([("rig", &rig)]));
    let cancel = CancellationToken::new();
    let options = CallOptions { cancel: cancel.clone(), ..CallOptions::default() };
    let call = hub.call("rig", "echo", arguments(), options);
    let (answer, ()) = tokio::join!(call, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    });
    assert!(matches!(answer, Err(HubError::Cancelled)));
    let told = |count| {
        let rig = rig.clone();
        async move {
            until("the server is told", || {
                rig.notes().iter().filter(|note| *note == "notifications/cancelled").count() == count
            })
            .await;
        }
    };
    told(1).await;
    // So does giving up.
    let call = echo(&hub, "rig");
    assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
    told(2).await;
}

#[tokio::test(start_paused = true)]
async fn dying_in_a_call_is_told_and_healed() {
    for fault in [Fault::Die, Fault::Garbage] {
        let rig = Rig::new(Fault::None);
        let hub = Hub::start(config([("rig", &rig)]));
        echo(&hub, "rig").await.unwrap();
        rig.set(fault);
        let error = echo(&hub, "rig").await.unwrap_err();
        assert!(matches!(error, HubError::Lost { class: ErrorClass::Reset, .. }), "{fault:?}: {error:?}");
        assert!(error.to_string().ends_with("whether the call was carried out is not known"), "{error}");
        rig.set(Fault::None);
        assert!(echo(&hub, "rig").await.is_ok());
        hub.close().await;
        assert_eq!(rig.live(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_bear_the_question_for_its_era_is_not_asked() {
    let rig = Rig::new(Fault::Shy);
    let hub = Hub::start(config([("rig", &rig)]));
    assert!(echo(&hub, "rig").await.is_ok());
    assert_eq!(rig.attempts(), 2);
}

#[tokio::test(start_paused = true)]
async fn other_tools_are_noticed() {
    let rig = Rig::new(Fault::None);
    let hub = Hub::start(config([("rig", &rig)]));
    assert_eq!(hub.catalogue().await.tools().count(), 2);
    let mut changed = hub.changed();
    changed.mark_unchanged();
    // It says so itself.
    rig.offer(&["one", "two", "three"]);
    rig.notes().push("tell".into());
    let _ = echo(&hub, "rig").await;
    changed.changed().await.unwrap();
    assert_eq!(hub.catalogue().await.tools().count(), 3);
    // It is another one after a restart.
    rig.set(Fault::Die);
    let _ = echo(&hub, "rig").await;
    rig.offer(&["four"]);
    rig.set(Fault::None);
    changed.changed().await.unwrap();
    assert_eq!(
        hub.catalogue().await.tools().map(|(_, tool)| tool.name.to_string()).collect::<Vec<_>>(),
        ["four"]
    );
    // It says nothing, and the list grows old.
    rig.offer(&["five", "six"]);
    tokio::time::sleep(Timing::default().ttl).await;
    echo(&hub, "rig").await.unwrap();
    hub.catalogue().await;
    changed.changed().await.unwrap();
    assert_eq!(hub.catalogue().await.tools().count(), 2);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_and_made_again() {
    let rig = Rig::new(Fault::None);
    let hub = Hub::start(config([("rig", &rig)]));
    echo(&hub, "rig").await.unwrap();
    until("it is idle", || state(&hub) == State::Idle).await;
    until("its connection is closed", || rig.live() == 0).await;
    // What it offers is still known.
    assert_eq!(hub.catalogue().await.tools().count(), 2);
    assert!(echo(&hub, "rig").await.is_ok());
    assert_eq!((rig.live(), rig.attempts()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_asked_before_it_is_used() {
    let rig = Rig::new(Fault::None);
    let hub = Hub::start(config([("rig", &rig)]));
    echo(&hub, "rig").await.unwrap();
    // It turns mute, which the background finds out, and replaces it for as long as it must.
    rig.set(Fault::Mute);
    until("it is missed", || rig.attempts() > 1).await;
    rig.set(Fault::None);
    until("it is well again", || state(&hub) == State::Ready).await;
    assert!(echo(&hub, "rig").await.is_ok());
}

/// Nothing is left of 500 rounds of everything that can happen.
#[tokio::test(start_paused = true)]
async fn nothing_leaks_in_500_rounds() {
    let rig = Rig::new(Fault::None);
    let mut config = config([("rig", &rig)]);
    config.servers.get_mut("rig").unwrap().connections = 3;
    config.timing.connect = Duration::from_secs(5);
    let hub = Hub::start(config);
    let faults = [
        Fault::None,
        Fault::Die,
        Fault::Hang,
        Fault::Garbage,
        Fault::Refuse,
        Fault::Mute,
        Fault::None,
        Fault::Shy,
    ];
    for round in 0..500 {
        rig.set(faults[round % faults.len()]);
        rig.offer(if round % 3 == 0 { &["echo"] } else { &["echo", "other"] });
        let calls = (0..1 + round % 4).map(|_| echo(&hub, "rig"));
        futures::future::join_all(calls).await;
        assert!(rig.live() <= 12, "{} connections in round {round}", rig.live());
        rig.set(Fault::None);
        until("it is well again", || state(&hub) == State::Ready).await;
        assert!(echo(&hub, "rig").await.is_ok(), "round {round}");
    }
    hub.close().await;
    until("all connections are gone", || rig.live() == 0).await;
    assert_eq!(hub.status()[0].in_flight, 0);
}

fn http(address: std::net::SocketAddr) -> HubConfig {
    let ms = Duration::from_millis;
    let headers = BTreeMap::from([("X-Key".to_owned(), Secret::new("hidden-header"))]);
    let server =
        ServerConfig::new(Transport::Http { url: format!("http://{address}/mcp?k=hidden-query"), headers });
    let timing = Timing {
        call: Duration::from_secs(60),
        probe: Duration::from_secs(60),
        check: ms(50),
        retries: vec![ms(10), ms(20), ms(30)],
        circuit: ms(50),
        ..Timing::default()
    };
    HubConfig { servers: [("web".to_owned(), server)].into(), timing, ..HubConfig::default() }
}

#[tokio::test]
async fn over_http_the_page_health_decides() {
    let rig = Rig::new(Fault::None);
    let (address, server) = rig.listen(None).await;
    let hub = Hub::start(http(address));
    assert!(echo(&hub, "web").await.is_ok());
    assert!(rig.notes().iter().any(|note| note == "/health"));
    // It says that it is unwell.
    *rig.health.lock().unwrap() = (503, r#"{"status":"unhealthy","reason":"no database"}"#);
    until("it is given up", || state(&hub) == State::Down).await;
    let error = echo(&hub, "web").await.unwrap_err().to_string();
    assert!(error.contains("(unhealthy): it says that it is unhealthy: no database"), "{error}");
    // There is no such page any more: its list of tools is asked for instead.
    *rig.health.lock().unwrap() = (404, "");
    until("it is found again", || state(&hub) == State::Ready).await;
    rig.notes().clear();
    until("its list is asked for", || rig.notes().iter().any(|note| note == "tools/list" || note == "ping"))
        .await;
    assert!(echo(&hub, "web").await.is_ok());
    hub.close().await;
    server.abort();
}

#[tokio::test]
async fn over_http_a_server_that_comes_back_is_found() {
    let rig = Rig::new(Fault::None);
    let (address, server) = rig.listen(None).await;
    let hub = Hub::start(http(address));
    assert!(echo(&hub, "web").await.is_ok());
    rig.set(Fault::Garbage);
    let garbage = echo(&hub, "web").await.unwrap_err();
    assert!(matches!(garbage, HubError::Lost { class: ErrorClass::Transport, .. }), "{garbage:?}");
    rig.set(Fault::Die);
    assert!(matches!(echo(&hub, "web").await, Err(HubError::Lost { .. } | HubError::Unavailable { .. })));
    rig.set(Fault::None);
    server.abort();
    until("it is missed", || state(&hub) == State::Down).await;
    let error = echo(&hub, "web").await.unwrap_err();
    assert!(matches!(error, HubError::Unavailable { class: ErrorClass::Refused, .. }), "{error:?}");
    assert!(!format!("{error:?} {error} {:?}", hub.status()).contains("hidden-"), "{error:?}");
    let (_, server) = rig.listen(Some(address)).await;
    until("it is found again", || state(&hub) == State::Ready).await;
    assert!(echo(&hub, "web").await.is_ok());
    hub.close().await;
    server.abort();
}

#[tokio::test]
async fn over_http_calls_at_once_share_up_to_ten_connections() {
    let rig = Rig::new(Fault::None);
    let (address, server) = rig.listen(None).await;
    let hub = Hub::start(http(address));
    let answers = futures::future::join_all((0..100).map(|_| echo(&hub, "web"))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert!(hub.status()[0].connections <= 10);
    assert_eq!(hub.status()[0].in_flight, 0);
    hub.close().await;
    server.abort();
}
