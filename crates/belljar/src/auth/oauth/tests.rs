use std::time::Duration;

use axum::http::StatusCode;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::Value;

use super::{
    issuer::{Issuer, RESOURCE, Signer, seconds},
    *,
};

const MINUTE: Duration = Duration::from_secs(60);

fn invalid() -> Result<Caller, Denied> {
    Err(Denied::not_valid())
}

#[tokio::test]
async fn a_token_of_the_issuer_is_accepted_in_every_algorithm() {
    use Algorithm::{PS256, PS384, PS512, RS256, RS384, RS512};
    let (p256, ed) = (Signer::p256(), Signer::ed("ed", 1));
    let issuer = Issuer::start(&[&Signer::rsa(RS256), &p256, &ed]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let rsa = [RS256, RS384, RS512, PS256, PS384, PS512].map(Signer::rsa);
    for signer in rsa.iter().chain([&p256, &ed]) {
        let token = signer.sign(&issuer.claims());
        let caller = resource.verify(&token, Instant::now()).await;
        assert_eq!(caller, Ok(Caller::new("oauth:alice")), "{:?}", signer.algorithm);
        let without_id = Header { kid: None, ..signer.header() };
        let token = signer.sign_with(&without_id, &issuer.claims());
        assert!(resource.verify(&token, Instant::now()).await.is_ok(), "{:?}", signer.algorithm);
    }
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test]
async fn claims_are_checked() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let verify = async |changed: &Value| {
        resource.verify(&signer.sign(&issuer.claims_but(changed)), Instant::now()).await
    };
    let now = seconds();
    for good in [
        json!({ "aud": ["https://other.example.org", RESOURCE] }),
        json!({ "exp": now - 30 }),
        json!({ "nbf": now + 30 }),
        json!({ "sub": "ä".repeat(256) }),
        json!({ "client_id": "mallory" }),
    ] {
        assert!(verify(&good).await.is_ok(), "{good}");
    }
    for bad in [
        json!({ "iss": "https://other.example.org" }),
        json!({ "iss": format!("{}/", issuer.url) }),
        json!({ "iss": [issuer.url] }),
        json!({ "iss": null }),
        json!({ "aud": "https://other.example.org/mcp" }),
        json!({ "aud": format!("{RESOURCE}/") }),
        json!({ "aud": [] }),
        json!({ "aud": null }),
        json!({ "exp": now - 120 }),
        json!({ "exp": null }),
        json!({ "exp": "tomorrow" }),
        json!({ "exp": -1 }),
        json!({ "nbf": now + 120 }),
        json!({ "nbf": "yesterday" }),
        json!({ "sub": null }),
        json!({ "sub": "" }),
        json!({ "sub": 7 }),
        json!({ "sub": "x".repeat(257) }),
        json!({ "sub": "a\nb" }),
    ] {
        assert_eq!(verify(&bad).await, invalid(), "{bad}");
    }
}

#[tokio::test]
async fn a_signature_must_be_the_issuers() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer, &Signer::rsa(Algorithm::RS256)]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let claims = issuer.claims();
    let good = signer.sign(&claims);
    let (message, signature) = good.rsplit_once('.').unwrap();
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let payload = part(claims.clone());
    let header = Header { kid: Some("ed".into()), ..Header::new(Algorithm::HS256) };
    let public = signer.public();
    // Whoever checks a token with a key of the wrong kind takes the public key for a shared secret.
    let confused =
        |secret: &[u8]| jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(secret)).unwrap();
    let other = Signer::ed("ed", 2);
    for (what, token) in [
        ("another key", other.sign(&claims)),
        ("another key, no id", other.sign_with(&Header { kid: None, ..other.header() }, &claims)),
        ("an unknown key", Signer::ed("unknown", 1).sign(&claims)),
        ("another key's id", Signer { id: "rsa", ..Signer::ed("", 1) }.sign(&claims)),
        ("none", format!("{}.{payload}.", part(json!({ "alg": "none", "kid": "ed" })))),
        ("none, signed", format!("{}.{payload}.{signature}", part(json!({ "alg": "None" })))),
        ("no signature", format!("{message}.")),
        ("other claims", good.replace(&payload, &part(issuer.claims_but(&json!({ "sub": "bob" }))))),
        ("public key as text", confused(public["x"].as_str().unwrap().as_bytes())),
        ("public key", confused(&URL_SAFE_NO_PAD.decode(public["x"].as_str().unwrap()).unwrap())),
        ("two parts", message.to_owned()),
        ("four parts", format!("{good}.{signature}")),
        (
            "id token",
            signer.sign_with(&Header { typ: Some("logout+jwt".into()), ..signer.header() }, &claims),
        ),
        (
            "critical",
            signer.sign_with(&Header { crit: Some(vec!["b64".into()]), ..signer.header() }, &claims),
        ),
    ] {
        assert_eq!(resource.verify(&token, Instant::now()).await, invalid(), "{what}");
    }
    assert!(resource.verify(&good, Instant::now()).await.is_ok());
}

#[tokio::test]
async fn every_scope_must_be_there() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let scopes = vec!["belljar".to_owned(), "run".to_owned()];
    let resource = Resource::open(&Auth { scopes, ..issuer.auth() }).await.unwrap();
    for (claims, expected) in [
        (json!({ "scope": "run profile belljar" }), true),
        (json!({ "scp": ["belljar", "run"] }), true),
        (json!({ "scp": "belljar run" }), true),
        (json!({ "scope": "belljar", "scp": ["run"] }), true),
        (json!({ "scope": "belljar" }), false),
        (json!({ "scope": "belljar runner" }), false),
        (json!({ "scp": ["belljar run"] }), false),
        (json!({}), false),
    ] {
        let verified = resource.verify(&signer.sign(&issuer.claims_but(&claims)), Instant::now()).await;
        let expected = if expected { Ok(Caller::new("oauth:alice")) } else { Err(Denied::Scope) };
        assert_eq!(verified, expected, "{claims}");
    }
    // Who is not valid does not learn which scopes would be needed.
    let expired = signer.sign(&issuer.claims_but(&json!({ "exp": seconds() - 120 })));
    assert_eq!(resource.verify(&expired, Instant::now()).await, invalid());
}

#[tokio::test]
async fn a_flood_of_unknown_keys_is_no_flood_of_fetches() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let unknown = Signer::ed("unknown", 1).sign(&issuer.claims());
    let later = Instant::now() + MINUTE;
    let flood = (0..100).map(|_| resource.verify(&unknown, later));
    assert!(futures::future::join_all(flood).await.iter().all(|verified| *verified == invalid()));
    assert_eq!(issuer.fetches(), 2);
    assert_eq!(resource.verify(&unknown, later + MINUTE / 3).await, invalid());
    assert_eq!(issuer.fetches(), 2);
    assert_eq!(resource.verify(&unknown, later + MINUTE / 2).await, invalid());
    assert_eq!(issuer.fetches(), 3);
}

#[tokio::test]
async fn a_new_key_is_found_and_an_old_one_forgotten() {
    let (old, new) = (Signer::ed("old", 1), Signer::ed("new", 2));
    let issuer = Issuer::start(&[&old]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let later = Instant::now() + MINUTE;
    issuer.publish(&[&new]);
    assert!(resource.verify(&old.sign(&issuer.claims()), later).await.is_ok());
    assert!(resource.verify(&new.sign(&issuer.claims()), later).await.is_ok());
    assert_eq!(resource.verify(&old.sign(&issuer.claims()), later).await, invalid());
}

#[tokio::test]
async fn old_keys_are_renewed_while_nobody_waits() {
    let signer = Signer::ed("ed", 1);
    let mut issuer = Issuer::start(&[&signer]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let token = signer.sign(&issuer.claims());
    let later = Instant::now() + 9 * MINUTE;
    assert!(resource.verify(&token, later).await.is_ok());
    tokio::task::yield_now().await;
    assert_eq!(issuer.fetches(), 1);
    assert!(resource.verify(&token, later + 2 * MINUTE).await.is_ok());
    let fetched = issuer.fetches.wait_for(|count| *count == 2);
    tokio::time::timeout(Duration::from_secs(30), fetched).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_issuer_that_is_down_is_survived_for_a_day() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let token = signer.sign(&issuer.claims());
    issuer.set_up(false);
    let start = Instant::now();
    for hours in [1, 12, 23] {
        assert!(resource.verify(&token, start + 60 * hours * MINUTE).await.is_ok(), "{hours}");
    }
    let late = start + 60 * 25 * MINUTE;
    let refused = resource.verify(&token, late).await.unwrap_err();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    issuer.set_up(true);
    // Not sooner than allowed.
    assert_eq!(resource.verify(&token, late).await, Err(refused));
    assert!(resource.verify(&token, late + MINUTE).await.is_ok());
}

#[tokio::test]
async fn without_any_keys_nobody_gets_in_until_there_are_some() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let token = signer.sign(&issuer.claims());
    issuer.set_up(false);
    let resource = Resource::open(&issuer.auth()).await.unwrap();
    let refused = resource.verify(&token, Instant::now()).await;
    assert!(matches!(refused, Err(Denied::Unavailable(_))), "{refused:?}");
    issuer.set_up(true);
    assert!(resource.verify(&token, Instant::now() + MINUTE).await.is_ok());
}

#[tokio::test]
async fn keys_come_from_where_the_settings_say() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), issuer.keys.lock().unwrap().to_string()).unwrap();
    let url = &issuer.url;
    let accepts = async |jwks: String| {
        let resource = Resource::open(&Auth { jwks, ..issuer.auth() }).await.unwrap();
        resource.verify(&signer.sign(&issuer.claims()), Instant::now()).await.is_ok()
    };
    assert!(accepts(file.path().to_string_lossy().into_owned()).await);
    assert!(accepts(format!("{url}/keys")).await);
    assert!(!accepts(format!("{url}/moved")).await, "redirects are not followed");
    assert!(!accepts(format!("{url}/huge")).await);
    assert!(!accepts(format!("{url}/missing")).await);

    for path in ["foreign", "clear"] {
        let name = format!("{url}/{path}");
        let resource = Resource::open(&Auth { issuer: name.clone(), ..issuer.auth() }).await.unwrap();
        let token = signer.sign(&issuer.claims_but(&json!({ "iss": name })));
        let refused = resource.verify(&token, Instant::now()).await;
        assert!(matches!(refused, Err(Denied::Unavailable(_))), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn keys_of_the_wrong_kind_are_left_out() {
    let signer = Signer::ed("ed", 1);
    let issuer = Issuer::start(&[&signer]).await;
    let with = async |changed: Value| {
        let mut key = signer.public();
        for (name, value) in changed.as_object().unwrap() {
            key[name] = value.clone();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        // The second key is there only so that the set is not refused as a whole.
        std::fs::write(file.path(), json!({ "keys": [key, Signer::p256().public(), 7, {}] }).to_string())
            .unwrap();
        let jwks = file.path().to_string_lossy().into_owned();
        let resource = Resource::open(&Auth { jwks, ..issuer.auth() }).await.unwrap();
        resource.verify(&signer.sign(&issuer.claims()), Instant::now()).await
    };
    assert!(with(json!({ "use": "sig", "key_ops": ["verify"] })).await.is_ok());
    for wrong in [
        json!({ "use": "enc" }),
        json!({ "key_ops": ["encrypt"] }),
        json!({ "alg": "ES256" }),
        json!({ "alg": "RSA-OAEP" }),
        json!({ "alg": "something new" }),
        json!({ "crv": "P-256" }),
        json!({ "crv": "Ed448" }),
        json!({ "x": "AAAA" }),
        json!({ "x": "not base64!" }),
        json!({ "kty": "oct", "k": "AAAA" }),
        json!({ "kid": "other" }),
    ] {
        assert_eq!(with(wrong.clone()).await, invalid(), "{wrong}");
    }
}

async fn refusal(auth: Auth) -> String {
    format!("{:#}", Resource::open(&auth).await.unwrap_err())
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_with_the_remedy() {
    let good = Auth {
        tokens: "/nowhere".into(),
        issuer: "https://login.example.org".into(),
        jwks: "/nowhere/keys.json".into(),
        resource: RESOURCE.into(),
        scopes: Vec::new(),
    };
    let weak = tempfile::NamedTempFile::new().unwrap();
    let short = json!({ "kty": "RSA", "n": URL_SAFE_NO_PAD.encode([1; 128]), "e": "AQAB" });
    std::fs::write(weak.path(), json!({ "keys": [short, { "kty": "oct", "k": "AAAA" }] }).to_string())
        .unwrap();
    let path = weak.path().to_string_lossy().into_owned();
    let refusals = [
        refusal(Auth { resource: String::new(), ..good.clone() }).await,
        refusal(Auth { resource: "/mcp".into(), ..good.clone() }).await,
        refusal(Auth { resource: format!("{RESOURCE}?a=b"), ..good.clone() }).await,
        refusal(Auth { issuer: "http://login.example.org".into(), ..good.clone() }).await,
        refusal(Auth { issuer: "login.example.org".into(), ..good.clone() }).await,
        refusal(Auth { scopes: vec!["a\"b".into()], ..good.clone() }).await,
        refusal(Auth { jwks: "ftp://example.org/keys".into(), ..good.clone() }).await,
        refusal(Auth { jwks: path.clone(), ..good.clone() }).await.replace(&path, "weak.json"),
        refusal(good).await,
    ];
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn metadata_is_looked_for_where_the_standards_put_it() {
    let places = |issuer: &str| {
        let urls = metadata_of(&Url::parse(issuer).unwrap());
        urls.iter().map(|url| format!("{url}\n")).collect::<String>()
    };
    let issuers =
        ["https://login.example.org", "https://login.example.org/", "https://example.org:8443/a/b/"];
    insta::assert_snapshot!(issuers.map(places).join("\n"));
}

#[tokio::test]
async fn the_metadata_of_this_server_is_as_agreed() {
    let issuer = Issuer::start(&[&Signer::ed("ed", 1)]).await;
    let scopes = vec!["belljar".to_owned()];
    let resource = Resource::open(&Auth { scopes, ..issuer.auth() }).await.unwrap();
    assert_eq!(
        resource.metadata(),
        json!({
            "resource": RESOURCE,
            "authorization_servers": [issuer.url],
            "scopes_supported": ["belljar"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Belljar",
        })
    );
    assert_eq!(
        resource.metadata_url(),
        "https://belljar.example.org/.well-known/oauth-protected-resource/mcp"
    );
}

#[test]
fn http_is_for_loopback_only() {
    for (url, safe) in [
        ("https://example.org", true),
        ("http://localhost:8080", true),
        ("http://127.0.0.1", true),
        ("http://127.9.9.9:1", true),
        ("http://[::1]:80", true),
        ("http://example.org", false),
        ("http://localhost.example.org", false),
        ("http://127.0.0.1.example.org", false),
        ("http://localhost@example.org", false),
        ("http://[::2]", false),
        ("ftp://localhost", false),
        ("file:///etc/keys", false),
    ] {
        assert_eq!(is_safe(&Url::parse(url).unwrap()), safe, "{url}");
    }
}
