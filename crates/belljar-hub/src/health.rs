//! How a server says that it is well: at `/health`, in the root of its address.

use reqwest::StatusCode;
use serde_json::Value;

use crate::{
    config::origin,
    error::{ErrorClass, Failure, chain, classify},
    transport::HttpClient,
};

const MAX_PAGE: usize = 64 << 10;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    Unwell(Failure),
    /// There is no such page, or none that we understand.
    NotTold,
}

pub(crate) async fn ask(client: &HttpClient, url: &str) -> Health {
    let Some(origin) = origin(url) else { return Health::NotTold };
    // Without the headers: it needs none, the rules of such pages say.
    match client.get(&format!("{origin}/health"), MAX_PAGE).await {
        Ok((status, body)) => judge(status, &body),
        Err(error) => {
            let class = classify(&error);
            // It answered, with something strange.
            if class == ErrorClass::Transport {
                return Health::NotTold;
            }
            Health::Unwell(Failure { class, why: chain(&error) })
        }
    }
}

fn judge(status: StatusCode, body: &[u8]) -> Health {
    let page: Value = serde_json::from_slice(body).unwrap_or_default();
    let unwell = |why: String| Health::Unwell(Failure { class: ErrorClass::Unhealthy, why });
    let reason = || match page["reason"].as_str() {
        Some(reason) => crate::error::bounded(&format!("it says that it is unhealthy: {reason}")),
        None => "it says that it is unhealthy".to_owned(),
    };
    if status.is_server_error() {
        return unwell(if page.is_object() { reason() } else { format!("/health answers HTTP {status}") });
    }
    if !status.is_success() {
        return Health::NotTold;
    }
    let flags = [page["healthy"].as_bool(), page["ok"].as_bool()];
    match page["status"].as_str() {
        Some("unhealthy") => unwell(reason()),
        _ if flags.contains(&Some(false)) => unwell(reason()),
        Some("healthy" | "ok") => Health::Well,
        _ if flags.contains(&Some(true)) => Health::Well,
        _ => Health::NotTold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_told_in_four_shapes() {
        let judge = |status: u16, body: &str| judge(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        for body in [
            r#"{"status":"healthy","checks":{}}"#,
            r#"{"status":"ok"}"#,
            r#"{"healthy":true}"#,
            r#"{"ok":true}"#,
        ] {
            assert_eq!(judge(200, body), Health::Well, "{body}");
            assert!(matches!(judge(503, body), Health::Unwell(_)), "{body}");
        }
        for body in [r#"{"status":"unhealthy"}"#, r#"{"healthy":false}"#, r#"{"ok":false,"status":"ok"}"#] {
            assert!(matches!(judge(200, body), Health::Unwell(_)), "{body}");
        }
        for body in ["", "<html>", "[]", "{}", r#"{"status":"UP"}"#, r#"{"ok":"yes"}"#] {
            assert_eq!(judge(200, body), Health::NotTold, "{body}");
        }
        assert_eq!(judge(404, ""), Health::NotTold);
        assert_eq!(judge(401, r#"{"status":"unhealthy"}"#), Health::NotTold);
        let Health::Unwell(failure) = judge(503, r#"{"status":"unhealthy","reason":"no database"}"#) else {
            panic!("it is unwell")
        };
        assert_eq!(failure.why, "it says that it is unhealthy: no database");
    }
}
