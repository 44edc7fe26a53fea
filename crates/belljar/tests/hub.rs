//! Servers that are real processes, on a real leash: however they and we end, nothing of them is left.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use belljar_hub::{
    CallOptions, Hub, HubConfig, HubError, Secret, ServerConfig, State, Timing, Transport, leash,
};

/// An MCP server in a few lines of shell. `die` leaves two children behind, one of which has left the group.
const SERVER: &str = r#"
while read -r line; do
    id=${line#*\"id\":}; id=${id%%,*}
    answer() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
    case $line in
    *'"method":"initialize"'*)
        answer '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
    *'"method":"tools/list"'*)
        answer '"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"die","inputSchema":{"type":"object"}}]}' ;;
    *'"name":"die"'*)
        sleep 100000 & setsid sleep 100000 &
        echo 'a word of farewell' >&2
        exit 3 ;;
    *'"method":"tools/call"'*) answer '"result":{"content":[{"type":"text","text":"here"}]}' ;;
    *'"method":"notifications/'*) ;;
    *) answer '"error":{"code":-32601,"message":"no such method"}' ;;
    esac
done
"#;

fn config(servers: usize, mark: &str) -> HubConfig {
    let ms = Duration::from_millis;
    let server = |number: usize| {
        let transport = Transport::Stdio {
            command: "sh".into(),
            args: vec!["-c".into(), SERVER.into()],
            env: BTreeMap::from([("HUB_TEST_MARK".to_owned(), Secret::new(mark))]),
            cwd: None,
        };
        (format!("s{number}"), ServerConfig::new(transport))
    };
    HubConfig {
        servers: (0..servers).map(server).collect(),
        timing: Timing { retries: vec![ms(5), ms(10), ms(15)], circuit: ms(20), ..Timing::default() },
        leash: vec![env!("CARGO_BIN_EXE_belljar").into(), leash::NAME.into()],
    }
}

/// Processes that descend from a server of ours, by what is in their environment.
fn marked(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.windows(mark.len()).any(|window| window == mark.as_bytes()) {
            found.push(fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default());
        }
    }
    found
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(120), "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn call(hub: &Hub, server: &str, tool: &str) -> Result<(), HubError> {
    hub.call(server, tool, Default::default(), CallOptions::default()).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_deaths_leave_no_process() {
    let mark = format!("belljar-hub-{}-deaths", std::process::id());
    let hub = Hub::start(config(10, &mark));
    let round = |server: String| {
        let hub = hub.clone();
        async move {
            for _ in 0..50 {
                let state = || hub.status().into_iter().find(|status| status.name == server).unwrap().state;
                until("it is ready", || state() == State::Ready).await;
                // It may be between two lives, which is told, too.
                let error = call(&hub, &server, "die").await.unwrap_err();
                assert!(matches!(error, HubError::Lost { .. } | HubError::Unavailable { .. }), "{error:?}");
            }
        }
    };
    let rounds: Vec<_> = hub.names().map(|name| tokio::spawn(round(name.to_owned()))).collect();
    for round in rounds {
        round.await.unwrap();
    }
    let words = hub.status().into_iter().filter_map(|status| status.last_error);
    assert!(words.into_iter().any(|error| error.contains("a word of farewell")));
    assert!(!marked(&mark).is_empty(), "the servers have no mark to be found by");
    hub.close().await;
    until("every process is gone", || marked(&mark).is_empty()).await;
}

#[tokio::test]
async fn a_hub_that_is_dropped_leaves_no_process() {
    let mark = format!("belljar-hub-{}-dropped", std::process::id());
    let hub = Hub::start(config(2, &mark));
    call(&hub, "s0", "echo").await.unwrap();
    call(&hub, "s1", "echo").await.unwrap();
    assert!(marked(&mark).len() >= 2);
    drop(hub);
    until("every process is gone", || marked(&mark).is_empty()).await;
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    let mut config = config(1, "unused");
    let Some(ServerConfig { transport: Transport::Stdio { command, .. }, .. }) = config.servers.get_mut("s0")
    else {
        panic!("it is a program")
    };
    *command = "no-such-program".into();
    let hub = Hub::start(config);
    let error = call(&hub, "s0", "echo").await.unwrap_err().to_string();
    assert!(error.contains("no-such-program: No such file or directory"), "{error}");
    hub.close().await;
}
