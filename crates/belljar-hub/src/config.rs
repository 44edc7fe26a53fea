//! Which servers there are, and how patient to be with them. [`HubConfig::from_json`] reads the usual file.

use std::{collections::BTreeMap, ffi::OsString, fmt, path::PathBuf, sync::Arc, time::Duration};

use crate::{secret::Secret, transport::Connector};

/// Connections to one server.
pub(crate) const MAX_CONNECTIONS: usize = 10;

#[derive(Debug, Clone)]
pub struct HubConfig {
    pub servers: BTreeMap<String, ServerConfig>,
    pub timing: Timing,
    /// The command that becomes a stdio server's parent and ends it with us: see [`crate::leash`].
    pub leash: Vec<OsString>,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            servers: BTreeMap::new(),
            timing: Timing::default(),
            // Stays right when the file is replaced by a newer version while we run.
            leash: vec!["/proc/self/exe".into(), crate::leash::NAME.into()],
        }
    }
}

#[derive(Debug, Clone)]
pub struct ServerConfig {
    pub transport: Transport,
    pub tools: Filter,
    /// At most this many connections at once.
    pub connections: usize,
    /// For one call, instead of [`Timing::call`].
    pub timeout: Option<Duration>,
    /// Instead of [`Timing::idle`].
    pub idle: Option<Duration>,
    /// The owner of the hub has to bring a [`Connector`] for such a server.
    pub sandbox: Option<Sandboxed>,
}

impl ServerConfig {
    pub fn new(transport: Transport) -> Self {
        // The state of a server that we start is in its process, so a second one would be another server.
        let connections = if matches!(transport, Transport::Http { .. }) { MAX_CONNECTIONS } else { 1 };
        Self { transport, tools: Filter::default(), connections, timeout: None, idle: None, sandbox: None }
    }
}

#[derive(Clone)]
pub enum Transport {
    Stdio { command: String, args: Vec<String>, env: BTreeMap<String, Secret>, cwd: Option<PathBuf> },
    Http { url: String, headers: BTreeMap<String, Secret> },
    Custom(Arc<dyn Connector>),
}

impl Transport {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stdio { .. } => "stdio",
            Self::Http { .. } => "http",
            Self::Custom(connector) => connector.name(),
        }
    }

    pub(crate) fn secrets(&self) -> Vec<&str> {
        match self {
            Self::Stdio { env, .. } => env.values().map(Secret::expose).collect(),
            Self::Http { url, headers } => {
                let query = url.split_once('?').map(|(_, query)| query);
                let values = query.into_iter().flat_map(|query| query.split('&'));
                let values = values.filter_map(|pair| pair.split_once('=').map(|(_, value)| value));
                headers.values().map(Secret::expose).chain(values).collect()
            }
            Self::Custom(connector) => connector.secrets(),
        }
    }
}

/// Arguments and addresses may hold secrets too, whatever one tells people.
impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdio { command, args, env, cwd } => f
                .debug_struct("Stdio")
                .field("command", command)
                .field("args", &args.len())
                .field("env", env)
                .field("cwd", cwd)
                .finish(),
            Self::Http { url, headers } => f
                .debug_struct("Http")
                .field("url", &origin(url).unwrap_or_default())
                .field("headers", headers)
                .finish(),
            Self::Custom(connector) => f.debug_tuple("Custom").field(&connector.name()).finish(),
        }
    }
}

/// Scheme, host and port.
pub(crate) fn origin(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    Some(url.origin().ascii_serialization())
}

/// Which of a server's tools are offered. Names may have `*` in them, for anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// `None`: all.
    pub allow: Option<Vec<String>>,
    /// Counts more than `allow`.
    pub deny: Vec<String>,
}

impl Filter {
    pub fn admits(&self, tool: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, tool));
        self.allow.as_deref().is_none_or(any) && !any(&self.deny)
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    let mut at = 0;
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return name.len() >= at + part.len() && name.ends_with(part);
        }
        match name[at..].find(part) {
            Some(found) => at += found + part.len(),
            None => return false,
        }
    }
    true
}

/// A stdio server that runs under glass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandboxed {
    /// Host directories, and what the server may do there.
    pub mounts: BTreeMap<PathBuf, Access>,
    /// As written; empty: none.
    pub network: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// All the times there are. Tests shorten them, and a settings file may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// To begin a connection, with all that a server may have to download first.
    pub connect: Duration,
    /// For one call. Progress of it begins this time anew.
    pub call: Duration,
    /// For one call, whatever its progress.
    pub call_total: Duration,
    /// For an answer to a question about its health, or for a list.
    pub probe: Duration,
    /// A connection that was silent for this long is asked how it is before it is used, and in the background.
    pub check: Duration,
    /// A connection that nobody used for this long is closed.
    pub idle: Duration,
    /// Before each further attempt to connect.
    pub retries: Vec<Duration>,
    /// Between attempts in the background, after those.
    pub circuit: Duration,
    /// How long what a server offers is taken for granted.
    pub ttl: Duration,
    /// How long a list waits for servers that have not answered for the first time yet.
    pub patience: Duration,
    /// How long a server may take to end when its input is closed.
    pub close: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            connect: seconds(60),
            call: seconds(120),
            call_total: seconds(3_600),
            probe: seconds(5),
            check: seconds(30),
            idle: seconds(300),
            retries: vec![seconds(1), seconds(2), seconds(3)],
            circuit: seconds(30),
            ttl: seconds(300),
            patience: seconds(3),
            close: seconds(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tools_are_chosen_by_name() {
        let filter =
            Filter { allow: Some(vec!["get_*".into(), "echo".into()]), deny: vec!["*_secret".into()] };
        assert!(filter.admits("get_issue") && filter.admits("echo") && filter.admits("get_"));
        assert!(!filter.admits("get_secret") && !filter.admits("echoes") && !filter.admits("delete"));
        assert!(Filter::default().admits("anything"));
        assert!(
            matches("a*b*c", "a-b-c") && matches("*", "") && matches("a**c", "ac") && matches("*a*a*", "aa")
        );
        assert!(!matches("a*a", "a") && !matches("*ab*ab", "ab") && !matches("", "x"));
    }

    proptest! {
        #[test]
        fn a_pattern_matches_as_the_same_regular_expression_would(pattern in "[ab*]{0,8}", name in "[ab]{0,8}") {
            fn naive(pattern: &[u8], name: &[u8]) -> bool {
                match pattern.split_first() {
                    None => name.is_empty(),
                    Some((b'*', rest)) => (0..=name.len()).any(|skip| naive(rest, &name[skip..])),
                    Some((byte, rest)) => name.split_first().is_some_and(|(first, tail)| first == byte && naive(rest, tail)),
                }
            }
            prop_assert_eq!(matches(&pattern, &name), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }

    #[test]
    fn nothing_secret_is_shown() {
        let http = Transport::Http {
            url: "https://user:pass@example.com/mcp?key=hidden-key".into(),
            headers: BTreeMap::from([("Authorization".to_owned(), Secret::new("Bearer hidden"))]),
        };
        let stdio = Transport::Stdio {
            command: "server".into(),
            args: vec!["--token=hidden".into()],
            env: BTreeMap::from([("TOKEN".to_owned(), Secret::new("hidden"))]),
            cwd: None,
        };
        let shown = format!("{:?} {:?}", ServerConfig::new(http.clone()), ServerConfig::new(stdio));
        assert!(!shown.contains("hidden") && !shown.contains("pass"), "{shown}");
        assert!(shown.contains("TOKEN") && shown.contains("https://example.com"), "{shown}");
        assert!(http.secrets().contains(&"hidden-key"));
    }
}
