//! Who we are to a registry: as told on the command line, or as `docker login` and `podman login` noted it.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;

use crate::{ImageError, Result};

const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Not to be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials of {:?}", self.username)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, Login>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Login {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// What this user's tools know for a registry.
pub fn credentials(registry: &str) -> Result<Option<Credentials>> {
    for path in files() {
        let Ok(text) = fs::read(&path) else { continue };
        if let Some(found) = in_file(&text, registry, &path)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn files() -> Vec<PathBuf> {
    let directory = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let docker = directory("DOCKER_CONFIG").or_else(|| Some(directory("HOME")?.join(".docker")));
    let podman = directory("REGISTRY_AUTH_FILE")
        .or_else(|| Some(directory("XDG_RUNTIME_DIR")?.join("containers/auth.json")));
    docker.map(|path| path.join("config.json")).into_iter().chain(podman).collect()
}

fn in_file(text: &[u8], registry: &str, path: &Path) -> Result<Option<Credentials>> {
    let config: DockerConfig = serde_json::from_slice(text).map_err(|error| {
        ImageError::new(format!("{} cannot be read: {error}", path.display()))
            .hint("log in anew, or name the user with --username and --password-stdin")
    })?;
    let names = names_of(registry);
    let helper = names.iter().find_map(|name| config.cred_helpers.get(name)).or(config.creds_store.as_ref());
    if let Some(helper) = helper
        && let Some(found) = names.iter().find_map(|name| ask(helper, name))
    {
        return Ok(Some(found));
    }
    let Some(login) = names.iter().find_map(|name| config.auths.get(name)) else { return Ok(None) };
    if let (Some(username), Some(password)) = (&login.username, &login.password) {
        return Ok(Some(Credentials { username: username.clone(), password: password.clone() }));
    }
    let decoded = login.auth.as_ref().and_then(|auth| STANDARD.decode(auth.trim()).ok());
    let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(decoded.and_then(|text| {
        let (username, password) = text.split_once(':')?;
        // Some tools pad it.
        let password = password.trim_end_matches('\0');
        Some(Credentials { username: username.into(), password: password.into() })
    }))
}

/// The forms in which tools write down a registry.
fn names_of(registry: &str) -> Vec<String> {
    let mut names =
        vec![registry.to_owned(), format!("https://{registry}"), format!("https://{registry}/v1/")];
    if ["docker.io", "index.docker.io", "registry-1.docker.io"].contains(&registry) {
        names.insert(0, DOCKER_HUB.into());
    }
    names
}

/// Programs that the user chose to keep passwords with.
fn ask(helper: &str, registry: &str) -> Option<Credentials> {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if helper.is_empty() || !helper.chars().all(fine) {
        return None;
    }
    let mut child = Command::new(format!("docker-credential-{helper}"))
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(registry.as_bytes()).ok()?;
    let output = child.wait_with_output().ok().filter(|output| output.status.success())?;
    let helped: Helped = serde_json::from_slice(&output.stdout).ok()?;
    Some(Credentials { username: helped.username, password: helped.secret })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str, registry: &str) -> Option<(String, String)> {
        let found = in_file(config.as_bytes(), registry, Path::new("config.json")).unwrap();
        found.map(|found| (found.username, found.password))
    }

    #[test]
    fn logins_are_found_as_the_tools_write_them() {
        let ann = Some(("ann".to_owned(), "se:cret".to_owned()));
        // "ann:se:cret"
        let config = r#"{"auths": {"localhost:5000": {"auth": "YW5uOnNlOmNyZXQ="}, "other": {}}}"#;
        assert_eq!(found(config, "localhost:5000"), ann);
        assert_eq!(found(config, "other"), None);
        assert_eq!(found(config, "example.org"), None);
        let hub = r#"{"auths": {"https://index.docker.io/v1/": {"username": "ann", "password": "se:cret"}}}"#;
        assert_eq!(found(hub, "docker.io"), ann);
        assert_eq!(found("{}", "docker.io"), None);
    }

    #[test]
    fn a_broken_file_is_named_and_a_helper_is_a_plain_word() {
        assert!(in_file(b"{", "x", Path::new("config.json")).unwrap_err().message.contains("config.json"));
        assert!(ask("../../tmp/evil", "x").is_none());
        let shown = format!("{:?}", Credentials { username: "ann".into(), password: "secret".into() });
        assert!(!shown.contains("secret"), "{shown}");
    }
}
