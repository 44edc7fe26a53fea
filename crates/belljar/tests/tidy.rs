//! The repository's own rules, as tests.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Which of our crates each of them may use. The compiler enforces the rest.
fn allowed() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("belljar-proto", vec![]),
        ("belljar-wire", vec![]),
        ("belljar-guest", vec!["belljar-proto", "belljar-wire"]),
        // The packets between jailer and guest are part of the protocol.
        ("belljar-jail", vec!["belljar-proto"]),
        ("belljar-egress", vec![]),
        ("belljar-sandbox", vec!["belljar-egress", "belljar-proto", "belljar-wire"]),
        // Reads what strangers packed, and knows nothing of sandboxes.
        ("belljar-images", vec![]),
        ("belljar-backends", vec!["belljar-images", "belljar-jail", "belljar-proto", "belljar-sandbox"]),
        ("belljar-tools", vec!["belljar-sandbox"]),
        // Knows MCP and nothing of ours.
        ("belljar-hub", vec![]),
        (
            "belljar",
            vec![
                "belljar-backends",
                "belljar-hub",
                "belljar-images",
                "belljar-jail",
                "belljar-sandbox",
                "belljar-tools",
            ],
        ),
    ])
}

fn manifest(path: &Path) -> toml::Table {
    fs::read_to_string(path).unwrap().parse().unwrap()
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let table = |name: &str| manifest.get(name).and_then(|t| t.as_table()).cloned().unwrap_or_default();
    // Tests of every crate may be fuzzed; nothing of it is in the product.
    let for_tests = table("dev-dependencies").into_iter().filter(|(name, _)| name != "belljar-fuzz");
    table("dependencies").into_iter().chain(for_tests).map(|(name, _)| name).collect()
}

fn crates() -> Vec<(String, PathBuf)> {
    let mut crates: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), path))
        .collect();
    crates.sort();
    crates
}

#[test]
fn crates_use_only_what_they_may() {
    let allowed = allowed();
    for (name, path) in crates() {
        let may = allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no rule in tidy.rs"));
        for dependency in dependencies(&manifest(&path.join("Cargo.toml"))) {
            let ours = dependency.starts_with("belljar");
            assert!(!ours || may.contains(&dependency.as_str()), "{name} must not use {dependency}");
        }
    }
}

#[test]
fn protocol_types_stay_at_the_edge() {
    for (name, path) in crates() {
        let dependencies = dependencies(&manifest(&path.join("Cargo.toml")));
        let uses = |dependency: &str| dependencies.iter().any(|d| d == dependency);
        let may = ["belljar", "belljar-hub"].contains(&name.as_str());
        assert!(may || !uses("rmcp"), "{name} must not know MCP");
        let threaded = ["belljar-jail", "belljar-proto"].contains(&name.as_str());
        assert!(!threaded || !uses("tokio"), "{name} must not have a runtime");
    }
}

#[test]
fn unsafe_code_lives_in_the_jail_the_wire_and_the_guest_alone() {
    for (name, path) in crates() {
        let lints = manifest(&path.join("Cargo.toml"))["lints"].clone();
        let inherits = lints.get("workspace").and_then(toml::Value::as_bool) == Some(true);
        let exempt = ["belljar-jail", "belljar-wire", "belljar-guest"].contains(&name.as_str());
        assert_ne!(inherits, exempt, "{name}: only the jail, the wire and the guest restate the lints");
        if exempt {
            assert_eq!(lints["clippy"]["undocumented_unsafe_blocks"].as_str(), Some("deny"), "{name}");
        }
    }
    let workspace = manifest(&root().join("Cargo.toml"));
    assert_eq!(workspace["workspace"]["lints"]["rust"]["unsafe_code"].as_str(), Some("deny"));
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            sources(&entry, found);
        } else if ["rs", "py", "cjs", "mjs", "sh", "md", "toml"]
            .iter()
            .any(|e| name.ends_with(&format!(".{e}")))
        {
            found.push(entry);
        }
    }
}

#[test]
fn files_are_short_enough_to_read() {
    let mut found = Vec::new();
    sources(&root().join("crates"), &mut found);
    for path in found.iter().filter(|p| p.extension().is_some_and(|e| e == "rs")) {
        let lines = fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= 520, "{} has {lines} lines: split it", path.display());
    }
}

#[test]
fn nothing_is_left_for_later() {
    let mut found = Vec::new();
    sources(&root(), &mut found);
    for path in found.iter().filter(|p| !p.ends_with("tests/tidy.rs")) {
        let text = fs::read_to_string(path).unwrap_or_default();
        for mark in ["todo!(", "unimplemented!(", "FIXME", "XXX"] {
            assert!(!text.contains(mark), "{} contains {mark}", path.display());
        }
        assert!(!text.lines().any(|l| l.ends_with(' ')), "{} has trailing spaces", path.display());
    }
}

/// Such are left behind by profilers, and come along with a commit of everything.
#[test]
fn no_file_at_the_top_is_empty() {
    for entry in fs::read_dir(root()).unwrap().map(|e| e.unwrap()) {
        let found = entry.metadata().unwrap();
        assert!(!found.is_file() || found.len() > 0, "{} is empty", entry.path().display());
    }
}

/// The shape of everything that host and guest say to each other is frozen in one snapshot.
#[test]
fn the_protocol_is_frozen_by_a_snapshot() {
    let snapshots = root().join("crates/belljar-proto/src/snapshots");
    assert!(snapshots.is_dir(), "the snapshot of the protocol is gone");
}
