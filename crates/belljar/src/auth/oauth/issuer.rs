//! An issuer on loopback, for tests. The keys in `fixtures` were made for this and open nothing.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Json, Router,
    http::{StatusCode, header},
    routing::get,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, jwk::Jwk};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Auth;

pub(in crate::auth) const RESOURCE: &str = "https://belljar.example.org/mcp";
const RSA: &[u8] = include_bytes!("fixtures/rsa.der");
const P256: &[u8] = include_bytes!("fixtures/p256.der");

pub(in crate::auth) struct Signer {
    pub(super) id: &'static str,
    pub(super) algorithm: Algorithm,
    pub(super) key: EncodingKey,
}

impl Signer {
    pub(super) fn rsa(algorithm: Algorithm) -> Self {
        Self { id: "rsa", algorithm, key: EncodingKey::from_rsa_der(RSA) }
    }

    pub(super) fn p256() -> Self {
        Self { id: "p256", algorithm: Algorithm::ES256, key: EncodingKey::from_ec_der(P256) }
    }

    pub(in crate::auth) fn ed(id: &'static str, seed: u8) -> Self {
        let header = b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
        let key = EncodingKey::from_ed_der(&[header.as_slice(), &[seed; 32]].concat());
        Self { id, algorithm: Algorithm::EdDSA, key }
    }

    pub(in crate::auth) fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
        jwk.common.key_id = Some(self.id.to_owned());
        if self.id == "rsa" {
            // Signs in six ways.
            jwk.common.key_algorithm = None;
        }
        serde_json::to_value(jwk).unwrap()
    }

    pub(super) fn header(&self) -> Header {
        let typ = Some("at+jwt".to_owned());
        Header { kid: Some(self.id.to_owned()), typ, ..Header::new(self.algorithm) }
    }

    pub(super) fn sign_with(&self, header: &Header, claims: &Value) -> String {
        jsonwebtoken::encode(header, claims, &self.key).unwrap()
    }

    pub(in crate::auth) fn sign(&self, claims: &Value) -> String {
        self.sign_with(&self.header(), claims)
    }
}

pub(in crate::auth) struct Issuer {
    pub(in crate::auth) url: String,
    pub(super) keys: Arc<Mutex<Value>>,
    up: Arc<AtomicBool>,
    pub(super) fetches: watch::Receiver<usize>,
}

impl Issuer {
    pub(in crate::auth) async fn start(signers: &[&Signer]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let keys = Arc::new(Mutex::new(Value::Null));
        let up = Arc::new(AtomicBool::new(true));
        let (count, fetches) = watch::channel(0);
        let metadata = json!({ "issuer": url, "jwks_uri": format!("{url}/keys") });
        let foreign = json!({ "issuer": "https://other.example.org", "jwks_uri": format!("{url}/keys") });
        let clear = json!({ "issuer": format!("{url}/clear"), "jwks_uri": "http://192.0.2.1/keys" });
        let moved = [(header::LOCATION, format!("{url}/keys"))];
        let answer = {
            let (keys, up) = (Arc::clone(&keys), Arc::clone(&up));
            async move || {
                count.send_modify(|count| *count += 1);
                match up.load(Ordering::Relaxed) {
                    true => Ok(Json(keys.lock().unwrap().clone())),
                    false => Err(StatusCode::BAD_GATEWAY),
                }
            }
        };
        let huge = {
            let keys = Arc::clone(&keys);
            async move || format!("{}{}", keys.lock().unwrap(), " ".repeat(2 << 20))
        };
        let router = Router::new()
            .route("/keys", get(answer))
            .route("/moved", get(async move || (StatusCode::FOUND, moved)))
            .route("/huge", get(huge))
            .route("/.well-known/openid-configuration", get(async move || Json(metadata)))
            .route("/.well-known/oauth-authorization-server/foreign", get(async move || Json(foreign)))
            .route("/.well-known/oauth-authorization-server/clear", get(async move || Json(clear)));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let issuer = Self { url, keys, up, fetches };
        issuer.publish(signers);
        issuer
    }

    pub(super) fn publish(&self, signers: &[&Signer]) {
        let keys: Vec<_> = signers.iter().map(|signer| signer.public()).collect();
        *self.keys.lock().unwrap() = json!({ "keys": keys });
    }

    pub(super) fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
    }

    pub(super) fn fetches(&self) -> usize {
        *self.fetches.borrow()
    }

    pub(super) fn auth(&self) -> Auth {
        Auth {
            tokens: "/nowhere".into(),
            issuer: self.url.clone(),
            jwks: String::new(),
            resource: RESOURCE.to_owned(),
            scopes: Vec::new(),
        }
    }

    pub(in crate::auth) fn claims(&self) -> Value {
        json!({ "iss": self.url, "aud": RESOURCE, "sub": "alice", "exp": seconds() + 300 })
    }

    pub(super) fn claims_but(&self, changed: &Value) -> Value {
        let mut claims = self.claims();
        for (name, value) in changed.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        claims
    }
}

pub(super) fn seconds() -> u64 {
    jsonwebtoken::get_current_timestamp()
}
