use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, sync::Mutex};

use proptest::prelude::*;
use serde_json::json;

use super::{
    issue::{NewToken, Secret},
    oauth::issuer::{Issuer, RESOURCE, Signer},
    *,
};

struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("tokens.json")
    }

    fn config(&self, settings: &[(&'static str, &str)]) -> Config {
        let home = self.directory.path().to_string_lossy().into_owned();
        let flags: BTreeMap<_, _> = settings.iter().map(|(key, text)| (*key, text.to_string())).collect();
        Config::load(&flags, &move |name| (name == "BELLJAR_HOME").then(|| home.clone()), None).unwrap()
    }

    async fn gate(&self) -> Gate {
        Gate::open(&self.config(&[])).await.unwrap()
    }

    fn add(&self, name: &str) -> (Entry, Secret) {
        issue::add(&self.file(), NewToken { name: name.into(), ..NewToken::default() }).unwrap()
    }

    /// As an editor would, with the mode that belongs.
    fn write(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
        self.set_mode(0o600);
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions(self.file(), fs::Permissions::from_mode(mode)).unwrap();
    }

    async fn refusal(&self) -> String {
        let error = Gate::open(&self.config(&[])).await.unwrap_err();
        error.to_string().replace(&self.file().to_string_lossy().into_owned(), "tokens.json")
    }
}

fn headers(values: &[&str]) -> HeaderMap {
    values.iter().map(|value| (header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())).collect()
}

async fn admit(gate: &Gate, token: &str) -> Result<Caller, Denied> {
    gate.admit(&headers(&[&format!("Bearer {token}")])).await.map(|identity| identity.caller)
}

fn invalid() -> Result<Caller, Denied> {
    Err(Denied::Invalid(NOT_VALID))
}

#[tokio::test]
async fn without_tokens_the_door_is_open_and_the_first_closes_it_for_good() {
    let home = Home::new();
    let gate = home.gate().await;
    assert!(gate.is_open());
    let identity = gate.admit(&HeaderMap::new()).await.unwrap();
    assert_eq!((identity.caller, identity.operator), (Caller::new("local"), true));

    let (entry, secret) = home.add("alice");
    assert!(!gate.is_open());
    assert_eq!(gate.admit(&HeaderMap::new()).await.unwrap_err(), Denied::Missing);
    assert_eq!(admit(&gate, secret.reveal()).await, Ok(Caller::new("alice")));

    issue::revoke(&home.file(), &entry.id).unwrap();
    // Again after the change was noticed.
    for _ in 0..2 {
        assert!(!gate.is_open());
        assert_eq!(admit(&gate, secret.reveal()).await, invalid());
    }
}

#[tokio::test]
async fn unknown_expired_and_revoked_tokens_look_the_same() {
    let home = Home::new();
    let (_, alice) = home.add("alice");
    let expires_at = Some(Timestamp::now() - jiff::SignedDuration::from_secs(1));
    let expired = NewToken { name: "bob".into(), expires_at, ..NewToken::default() };
    let (_, expired) = issue::add(&home.file(), expired).unwrap();
    let (revoked_entry, revoked) = home.add("carol");
    let gate = home.gate().await;
    assert_eq!(admit(&gate, revoked.reveal()).await, Ok(Caller::new("carol")));
    issue::revoke(&home.file(), &revoked_entry.id).unwrap();
    let unknown = Home::new().add("alice").1;
    let cut = &alice.reveal()[..alice.reveal().len() - 1];
    for token in [expired.reveal(), revoked.reveal(), unknown.reveal(), cut, "bj_", "bj_x", "x", "a.b.c"] {
        assert_eq!(admit(&gate, token).await, invalid());
    }
    assert_eq!(admit(&gate, alice.reveal()).await, Ok(Caller::new("alice")));
}

#[tokio::test]
async fn a_token_says_who_it_is_for_and_what_that_one_may() {
    let home = Home::new();
    let quotas = Quotas { contexts: Some(5), disk: Some(1 << 30), ..Quotas::default() };
    let expires_at = Some(Timestamp::now() + jiff::SignedDuration::from_secs(3_600));
    let new = NewToken { name: "ops@example.org".into(), operator: true, expires_at, quotas: quotas.clone() };
    let (_, ops) = issue::add(&home.file(), new).unwrap();
    let (_, other) = home.add("ops@example.org");
    let gate = home.gate().await;
    let identity = gate.admit(&headers(&[&format!("bearer  {} ", ops.reveal())])).await.unwrap();
    assert_eq!((identity.operator, identity.quotas), (true, quotas));
    // Two tokens of one name are one caller, so that a new one can replace an old one.
    let again = gate.admit(&headers(&[&format!("BEARER {}", other.reveal())])).await.unwrap();
    assert_eq!((again.caller, again.operator, again.quotas), (identity.caller, false, Quotas::default()));
}

#[tokio::test]
async fn a_file_that_breaks_lets_nobody_in_until_it_is_repaired() {
    let home = Home::new();
    let (_, secret) = home.add("alice");
    let good = fs::read_to_string(home.file()).unwrap();
    let gate = home.gate().await;
    let unavailable = async || matches!(admit(&gate, secret.reveal()).await, Err(Denied::Unavailable(_)));
    for broken in ["", "{", "[]", &good.replace("alice", "no such name"), &good.replace("\"id\"", "\"ID\"")] {
        home.write(broken);
        assert!(unavailable().await, "{broken}");
        assert!(!gate.is_open());
        home.write(&good);
        assert_eq!(admit(&gate, secret.reveal()).await, Ok(Caller::new("alice")));
    }
    home.set_mode(0o640);
    assert!(unavailable().await);
    home.set_mode(0o400);
    assert!(!unavailable().await);
    fs::remove_file(home.file()).unwrap();
    assert!(unavailable().await);
    fs::create_dir(home.file()).unwrap();
    assert!(unavailable().await);
    fs::remove_dir(home.file()).unwrap();
    home.write(&good);
    assert!(!unavailable().await);
}

#[tokio::test]
async fn an_open_door_closes_when_a_broken_file_appears() {
    let home = Home::new();
    let gate = home.gate().await;
    assert!(gate.is_open());
    home.write("{");
    assert!(!gate.is_open());
    assert_eq!(gate.admit(&HeaderMap::new()).await.unwrap_err(), Denied::Missing);
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_refused_at_the_start_with_the_fix() {
    let home = Home::new();
    let (entry, secret) = home.add("alice");
    let good = fs::read_to_string(home.file()).unwrap();
    let mut refusals = Vec::new();
    home.set_mode(0o644);
    refusals.push(home.refusal().await);
    for (from, to) in [
        ("\"version\": 1", "\"version\": 2, \"more\": true"),
        ("\"name\"", "\"surname\""),
        ("\"alice\"", "\"alice liddell\""),
        ("\"sha256\": \"", "\"sha256\": \"ü"),
        ("{", ""),
    ] {
        home.write(&good.replacen(from, to, 1));
        refusals.push(home.refusal().await);
    }
    home.write(&good.replacen("\"id\"", &format!("\"{}\": 1, \"id\"", secret.reveal()), 1));
    refusals.push(home.refusal().await);
    home.write(&" ".repeat((4 << 20) + 1));
    refusals.push(home.refusal().await);
    assert!(!refusals.concat().contains(secret.reveal()));
    insta::assert_snapshot!(refusals.join("\n").replace(&entry.id, "0f3a9b21"));
}

#[tokio::test]
async fn oauth_settings_without_an_issuer_do_not_leave_the_door_open() {
    let home = Home::new();
    for key in ["auth.jwks", "auth.resource", "auth.scopes"] {
        let error = Gate::open(&home.config(&[(key, "something")])).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("{key} is set but auth.issuer is not")), "{error}");
    }
}

#[tokio::test]
async fn only_one_well_formed_bearer_header_is_read() {
    let home = Home::new();
    let (_, secret) = home.add("alice");
    let gate = home.gate().await;
    let good = format!("Bearer {}", secret.reveal());
    let admit = async |values: &[&str]| gate.admit(&headers(values)).await.map(|identity| identity.caller);
    assert_eq!(admit(&[&good]).await, Ok(Caller::new("alice")));
    assert_eq!(admit(&["Basic YTpi"]).await, Err(Denied::Missing));
    assert_eq!(admit(&[secret.reveal()]).await, Err(Denied::Missing));
    let long = format!("{good}{}", "x".repeat(8 << 10));
    let two = format!("{good}, {good}");
    let inner = format!("{good} {}", secret.reveal());
    for values in [
        &[good.as_str(), &good] as &[_],
        &["Basic YTpi", &good],
        &["Bearer"],
        &["Bearer "],
        &[&long],
        &[&two],
        &[&inner],
        &["Bearer \"x\""],
    ] {
        let refused = admit(values).await.unwrap_err();
        assert!(matches!(refused, Denied::Invalid(why) if why != NOT_VALID), "{values:?}: {refused:?}");
    }
}

#[test]
fn a_token_in_the_url_is_refused() {
    for (query, refused) in [
        (None, false),
        (Some(""), false),
        (Some("a=b&my_access_token=c"), false),
        (Some("a=access_token"), false),
        (Some("access_token=bj_x"), true),
        (Some("a=b&access_token"), true),
    ] {
        assert_eq!(refuse_in_query(query).is_err(), refused, "{query:?}");
    }
}

async fn oauth_gate(home: &Home, issuer: &Issuer) -> Gate {
    let settings =
        [("auth.issuer", issuer.url.as_str()), ("auth.resource", RESOURCE), ("auth.scopes", "belljar,run")];
    Gate::open(&home.config(&settings)).await.unwrap()
}

#[tokio::test]
async fn tokens_of_both_kinds_work_side_by_side() {
    let home = Home::new();
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let gate = oauth_gate(&home, &issuer).await;
    assert!(!gate.is_open(), "an issuer alone closes the door");
    let (_, secret) = home.add("alice");
    let mut claims = issuer.claims();
    let token = signer.sign(&claims);
    assert_eq!(admit(&gate, &token).await, Err(Denied::Scope));
    claims["scope"] = json!("belljar run");
    let token = signer.sign(&claims);
    // Not the caller whose token is in the file.
    assert_eq!(admit(&gate, &token).await, Ok(Caller::new("oauth:alice")));
    assert_eq!(admit(&gate, secret.reveal()).await, Ok(Caller::new("alice")));
    let identity = gate.admit(&headers(&[&format!("Bearer {token}")])).await.unwrap();
    assert!(!identity.operator);
    home.write("{");
    assert!(admit(&gate, &token).await.is_ok());
    assert!(matches!(admit(&gate, secret.reveal()).await, Err(Denied::Unavailable(_))));
}

#[tokio::test]
async fn challenges_say_what_a_client_needs_to_know() {
    let home = Home::new();
    let issuer = Issuer::start(&[&Signer::ed("ed", 1)]).await;
    let oauth = oauth_gate(&home, &issuer).await;
    let plain = home.gate().await;
    let mut text = String::new();
    for (name, gate) in [("tokens", &plain), ("oauth", &oauth)] {
        for denied in [
            Denied::Missing,
            Denied::Invalid(NOT_VALID),
            Denied::Scope,
            Denied::Unavailable("the keys are not available".into()),
        ] {
            let challenge = denied.challenge(gate);
            let challenge = challenge.as_ref().map_or("-", |value| value.to_str().unwrap());
            text += &format!("{name} {} {challenge}\n", denied.status().as_u16());
        }
    }
    insta::assert_snapshot!(text);
}

#[derive(Clone, Default)]
struct Log(std::sync::Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn tokens_are_in_no_log_no_error_and_no_debug_output() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("warn,belljar=trace")
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // With a single subscriber, tracing asks only the thread that comes by first whether a line is wanted, and
    // that may be another test's.
    let _second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let _guard = tracing::subscriber::set_default(subscriber);
    let home = Home::new();
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    tracing::callsite::rebuild_interest_cache();
    let gate = oauth_gate(&home, &issuer).await;
    let (entry, secret) = home.add("alice");
    let hash: String = entry.sha256.clone().into();
    let mut claims = issuer.claims();
    claims["iss"] = json!("https://other.example.org");
    let foreign = signer.sign(&claims);
    let mut seen = format!("{secret:?} {entry:?}");
    for token in [secret.reveal(), &foreign, "bj_guessed-in-vain"] {
        seen += &format!("{:?}", gate.admit(&headers(&[&format!("Bearer {token}")])).await);
        seen += &format!("{:?}", gate.admit(&headers(&[&format!("Bearer {token} {token}")])).await);
    }
    home.write(&format!("{{\"version\": 1, \"{}\": []}}", secret.reveal()));
    seen += &format!("{:?}", admit(&gate, secret.reveal()).await);
    seen += &format!("{gate:?}");
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("malformed") && log.contains("reason=\"issuer\""), "{log}");
    let signature = foreign.rsplit('.').next().unwrap();
    for hidden in [secret.reveal(), &secret.reveal()[3..], &hash, &foreign, signature, "guessed-in-vain"] {
        assert!(!seen.contains(hidden), "{seen}");
        assert!(!log.contains(hidden), "{log}");
    }
}

fn gates() -> (tokio::runtime::Runtime, Home, Vec<Gate>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let home = Home::new();
    let gates = runtime.block_on(async {
        let issuer = Issuer::start(&[&Signer::ed("ed", 1)]).await;
        let open = home.gate().await;
        assert!(open.is_open());
        let oauth = oauth_gate(&home, &issuer).await;
        home.add("alice");
        vec![home.gate().await, oauth]
    });
    (runtime, home, gates)
}

#[test]
fn no_header_makes_it_panic_or_lets_anybody_in() {
    let (runtime, _home, gates) = gates();
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        "(?i:bearer)[ \t]{0,2}[!-~]{0,100}".prop_map(String::into_bytes),
        "Bearer bj_[A-Za-z0-9_-]{40,50}".prop_map(String::into_bytes),
        ("[ -~]{0,60}", "[ -~]{0,60}", "[A-Za-z0-9_-]{0,90}").prop_map(|(header, claims, signature)| {
            use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
            let header = format!("{{\"alg\":\"EdDSA\",\"kid\":\"ed\",{header}}}");
            format!("Bearer {}.{}.{signature}", BASE64.encode(header), BASE64.encode(claims)).into_bytes()
        }),
    ];
    proptest!(|(values in proptest::collection::vec(value, 0..3))| {
        let values = values.iter().filter_map(|value| HeaderValue::from_bytes(value).ok());
        let headers: HeaderMap = values.map(|value| (header::AUTHORIZATION, value)).collect();
        for gate in &gates {
            let denied = runtime.block_on(gate.admit(&headers)).unwrap_err();
            let challenge = denied.challenge(gate);
            prop_assert!(challenge.is_some() || denied.status() == StatusCode::SERVICE_UNAVAILABLE);
        }
    });
}

#[test]
fn the_file_is_private_has_only_hashes_and_stays_where_a_link_points() {
    let home = Home::new();
    let real = home.directory.path().join("real.json");
    fs::write(&real, "{\"version\": 1, \"tokens\": []}").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&real, home.file()).unwrap();
    // What a writer that died left behind.
    fs::write(home.directory.path().join("real.json.new"), "half").unwrap();
    let (entry, secret) = home.add("alice");
    assert!(fs::symlink_metadata(home.file()).unwrap().is_symlink());
    assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&real).unwrap();
    assert!(!text.contains(&secret.reveal()[3..]));
    assert_eq!(issue::list(&home.file()).unwrap(), [entry]);
    assert!(!home.directory.path().join("real.json.new").exists());
    assert_eq!((secret.reveal().len(), &secret.reveal()[..3]), (46, "bj_"));
}

#[test]
fn the_directory_is_made_and_is_private() {
    let home = Home::new();
    let file = home.directory.path().join("a/b/tokens.json");
    issue::add(&file, NewToken { name: "alice".into(), ..NewToken::default() }).unwrap();
    assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let home = Home::new();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let home = &home;
            scope.spawn(move || (0..10).for_each(|n| drop(home.add(&format!("caller-{writer}-{n}")))));
        }
    });
    assert_eq!(issue::list(&home.file()).unwrap().len(), 40);
}

#[test]
fn names_are_checked() {
    let home = Home::new();
    let add = |name: &str| issue::add(&home.file(), NewToken { name: name.into(), ..NewToken::default() });
    let longest = "x".repeat(64);
    for name in ["a", "A.b_c-d@example.org", &longest] {
        assert!(add(name).is_ok(), "{name}");
    }
    for name in ["", "a b", "oauth:alice", "ä", "a\n", "a/b", &"x".repeat(65)] {
        assert!(add(name).unwrap_err().to_string().contains("is not a name"), "{name}");
    }
}

#[test]
fn tokens_are_revoked_by_id_or_by_name() {
    let home = Home::new();
    let first = home.add("alice").0;
    ["alice", "alice", "bob"].iter().for_each(|name| drop(home.add(name)));
    let revoke = |which: &str| issue::revoke(&home.file(), which).map(|revoked| revoked.len());
    assert_eq!(revoke(&first.id).unwrap(), 1);
    assert_eq!(revoke("alice").unwrap(), 2);
    let unknown = revoke("alice").unwrap_err().to_string();
    assert_eq!(unknown, "there is no token \"alice\": there are tokens of bob");
    assert_eq!(revoke("bob").unwrap(), 1);
    assert_eq!(revoke("bob").unwrap_err().to_string(), "there is no token \"bob\": there are none at all");
}

/// A file that was damaged or edited: understood, or refused without showing what may be a secret.
#[test]
fn fuzz_token_files() {
    const SECRET: &str = "bj_c2VjcmV0";
    let home = Home::new();
    home.add("alice");
    let good = fs::read(home.file()).unwrap();
    let misplaced = format!(
        "{{\"version\":1,\"tokens\":[{{\"id\":\"{SECRET}\",\"name\":\"{SECRET}\"}}],\"{SECRET}\":1}}"
    );
    belljar_fuzz::fuzz("token_files", &[&good, misplaced.as_bytes(), b"{\"version\":2}"], |input| {
        // To write over one makes some file systems wait for the disk.
        fs::remove_file(home.file()).unwrap();
        fs::write(home.file(), input).unwrap();
        home.set_mode(0o600);
        match tokens::read(&home.file()) {
            Ok(entries) => {
                assert!(entries.iter().all(|entry| tokens::is_name(&entry.name)));
                belljar_fuzz::mark(entries.len().min(3))
            }
            Err(error) => {
                let text = format!("{error:#}");
                assert!(!text.contains(SECRET), "{text}");
                belljar_fuzz::mark(belljar_fuzz::kind(&text))
            }
        }
    });
}

#[test]
fn fuzz_keys() {
    let set = json!({"keys": [Signer::ed("ed", 1).public(), Signer::ed("other", 2).public()]}).to_string();
    belljar_fuzz::fuzz("keys", &[set.as_bytes(), b"{\"keys\":[]}"], |input| match jwks::parse(input) {
        Ok(keys) => belljar_fuzz::mark(keys.len()),
        Err(error) => belljar_fuzz::mark(belljar_fuzz::kind(&format!("{error:#}"))),
    });
}
