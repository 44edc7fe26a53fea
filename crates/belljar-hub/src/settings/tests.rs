use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(value: &Value) -> Result<HubConfig, ConfigError> {
    let environment = |name: &str| (name == "TOKEN").then(|| "sesame".to_owned());
    HubConfig::from_json_with(&value.to_string(), &environment)
}

#[test]
fn the_usual_file_is_understood() {
    let config = read(&json!({ "mcpServers": {
        "files": {
            "command": "npx", "args": ["-y", "server", "${NOT_TOUCHED}"], "env": { "KEY": "${TOKEN}" },
            "tools": { "allow": ["read_*"], "deny": ["read_all"] }, "timeout": 5, "idle_timeout": 0.5,
            "autoApprove": [],
        },
        "remote": { "type": "http", "url": "https://${HOST:-example.com}/mcp", "headers": { "X-Key": "a ${TOKEN}" } },
        "under glass": { "command": "x", "sandbox": true, "mounts": { "/data": "ro" }, "network": "none" },
        "off": { "command": "x", "disabled": true },
    }, "timing": { "call": 7, "retries": [0.1, 0.2] } }))
    .unwrap();
    assert_eq!(config.servers.keys().collect::<Vec<_>>(), ["files", "remote", "under glass"]);
    let files = &config.servers["files"];
    let Transport::Stdio { args, env, .. } = &files.transport else { panic!("{files:?}") };
    assert_eq!((args[2].as_str(), env["KEY"].expose()), ("${NOT_TOUCHED}", "sesame"));
    assert_eq!((files.connections, files.timeout), (1, Some(Duration::from_secs(5))));
    assert!(files.tools.admits("read_one") && !files.tools.admits("read_all"));
    let remote = &config.servers["remote"];
    let Transport::Http { url, headers } = &remote.transport else { panic!("{remote:?}") };
    assert_eq!((url.as_str(), headers["X-Key"].expose()), ("https://example.com/mcp", "a sesame"));
    assert_eq!(remote.connections, MAX_CONNECTIONS);
    let glass = config.servers["under glass"].sandbox.clone().unwrap();
    assert_eq!(glass.mounts[&PathBuf::from("/data")], Access::ReadOnly);
    assert_eq!(config.timing.retries, [Duration::from_millis(100), Duration::from_millis(200)]);
    assert_eq!(config.timing.call, Duration::from_secs(7));
    assert!(read(&json!({ "servers": { "a": { "command": "x" } } })).is_ok());
}

#[test]
fn what_cannot_be_used_is_told_with_the_remedy() {
    let server = |entry: Value| json!({ "mcpServers": { "s": entry } });
    let wrong = [
        json!([]),
        json!({}),
        json!({ "mcpServers": {}, "timings": {} }),
        json!({ "mcpServers": { "a/b": {} } }),
        server(json!({})),
        server(json!({ "command": "x", "tool": { "deny": ["rm"] } })),
        server(json!({ "command": "x", "tools": { "denied": [] } })),
        server(json!({ "command": "x", "tools": { "deny": "rm" } })),
        server(json!({ "command": "x", "args": "a b" })),
        server(json!({ "command": "x", "env": { "KEY": "${NOT_SET}" } })),
        server(json!({ "command": "x", "env": { "KEY": "${input:key}" } })),
        server(json!({ "command": "x", "env": { "KEY": 5 } })),
        server(json!({ "command": "x", "cwd": "relative" })),
        server(json!({ "command": "x", "url": "http://localhost/mcp", "type": "stdio" })),
        server(json!({ "command": "x", "mounts": { "/a": "ro" } })),
        server(json!({ "command": "x", "sandbox": true, "mounts": { "a": "ro" } })),
        server(json!({ "command": "x", "sandbox": true, "mounts": { "/a": "write" } })),
        server(json!({ "command": "x", "connections": 11 })),
        server(json!({ "command": "x", "timeout": "5s" })),
        server(json!({ "type": "sse", "url": "http://localhost/sse" })),
        server(json!({ "type": "carrier pigeon" })),
        server(json!({ "url": "ftp://localhost/secret" })),
        server(json!({ "url": "http://localhost/mcp", "headers": { "X\n": "secret" } })),
        json!({ "mcpServers": {}, "timing": { "calls": 1 } }),
        json!({ "mcpServers": {}, "timing": { "call": -1 } }),
    ];
    let mut told = String::new();
    for value in &wrong {
        let error = read(value).err().unwrap_or_else(|| panic!("{value} was accepted"));
        assert!(!error.to_string().contains("secret"), "{error}");
        told.push_str(&format!("{error}\n"));
    }
    told.push_str(&HubConfig::from_json("{\n  \"mcpServers\": {,}\n}").unwrap_err().to_string());
    insta::assert_snapshot!(told);
}

proptest! {
    #[test]
    fn no_file_makes_it_panic(text in "\\PC{0,60}") {
        let _ = HubConfig::from_json_with(&text, &|_| None);
    }
}

/// Whatever is written there, a secret from the environment is in no error.
#[test]
fn fuzz_hub_settings() {
    let seeds: [&[u8]; 3] = [
        br#"{"mcpServers":{"a":{"command":"x","args":["${TOKEN}"],"env":{"K":"${TOKEN}"},"timeout":1,"tools":{"allow":["r*"]}}}}"#,
        br#"{"servers":{"b":{"type":"http","url":"https://${HOST:-h}/mcp","headers":{"X":"${TOKEN}"}}},"timing":{"call":7}}"#,
        br#"{"mcpServers":{"c":{"command":"x","sandbox":true,"mounts":{"/data":"ro"},"network":"none"}}}"#,
    ];
    belljar_fuzz::fuzz("hub_settings", &seeds, |input| {
        let environment = |name: &str| (name == "TOKEN").then(|| "se-sa-me".to_owned());
        match HubConfig::from_json_with(&String::from_utf8_lossy(input), &environment) {
            Ok(config) => belljar_fuzz::mark(config.servers.len()),
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains("se-sa-me"), "{text}");
                belljar_fuzz::mark(belljar_fuzz::kind(&text))
            }
        }
    });
}
