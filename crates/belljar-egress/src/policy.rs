//! What a sandbox may reach, and what the operator lets it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    host::{Host, parse_port},
    http::Headers,
    refusal::{Reason, Refusal},
};

/// Ports of a rule that names none.
const USUAL_PORTS: [u16; 2] = [80, 443];
const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
/// Headers with the method that some servers go by, whatever the first line says.
const OVERRIDES: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const MAX_RULE: usize = 400;

/// How much of the outside a sandbox can reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// There is no proxy.
    #[default]
    None,
    /// Listed hosts only.
    Allowlist,
    /// The public internet.
    Open,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::None, Self::Allowlist, Self::Open];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Allowlist => "allowlist",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Hosts that may be reached: `HOST[:PORT[+PORT…]] [METHOD…]`, where HOST may begin with `*.`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rule {
    pattern: Pattern,
    /// Never empty.
    ports: Vec<u16>,
    /// Empty: all of them.
    methods: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Exact(Host),
    /// Every name below this one, but not the name itself.
    Below(String),
}

impl Rule {
    fn covers(&self, host: &Host, port: u16) -> bool {
        let named = match (&self.pattern, host) {
            (Pattern::Exact(named), host) => named == host,
            (Pattern::Below(parent), Host::Name(name)) => name
                .strip_suffix(parent.as_str())
                .is_some_and(|below| below.len() > 1 && below.ends_with('.')),
            (Pattern::Below(_), Host::Address(_)) => false,
        };
        named && self.ports.contains(&port)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let short = |text: &str| text.chars().take(100).collect::<String>();
        let wrong = |why: &str| format!("{:?} is no rule: {why}", short(text));
        if text.len() > MAX_RULE {
            return Err(wrong("it is too long"));
        }
        let mut words = text.split_whitespace();
        let place = words.next().ok_or_else(|| wrong("it is empty"))?;
        let after_brackets = place.rfind(']').map_or(0, |end| end + 1);
        let (host, ports) = match place[after_brackets..].find(':') {
            None => (place, USUAL_PORTS.to_vec()),
            Some(colon) => {
                let (host, ports) = place.split_at(after_brackets + colon);
                let ports = ports[1..].split('+').map(parse_port).collect::<Result<Vec<_>, _>>();
                (host, ports.map_err(wrong)?)
            }
        };
        let pattern = match host.strip_prefix("*.") {
            Some(parent) => match Host::parse(parent).map_err(wrong)? {
                Host::Name(parent) => Pattern::Below(parent),
                Host::Address(_) => return Err(wrong("nothing is below an address")),
            },
            None if host == "*" => return Err(wrong("for every host there is the mode open")),
            None => Pattern::Exact(Host::parse(host).map_err(wrong)?),
        };
        let known = |method: &str| METHODS.contains(&method).then(|| method.to_owned());
        let methods = words.map(|word| {
            known(&word.to_ascii_uppercase())
                .ok_or_else(|| wrong(&format!("{:?} is not one of {}", short(word), METHODS.join(", "))))
        });
        Ok(Self { pattern, ports, methods: methods.collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            Pattern::Exact(host) => write!(f, "{host}")?,
            Pattern::Below(parent) => write!(f, "*.{parent}")?,
        }
        if self.ports != USUAL_PORTS {
            let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
            write!(f, ":{}", ports.join("+"))?;
        }
        self.methods.iter().try_for_each(|method| write!(f, " {method}"))
    }
}

impl TryFrom<String> for Rule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.to_string()
    }
}

/// What one sandbox was given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub mode: Mode,
    /// With [`Mode::Allowlist`]; `None` stands for the operator's list.
    #[serde(default)]
    pub allow: Option<Vec<Rule>>,
}

/// What the operator lets sandboxes reach, whoever asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ceiling {
    pub max: Mode,
    /// What [`Mode::Allowlist`] means; nobody gets more if that is `max`.
    pub allow: Vec<Rule>,
    /// Hosts that may be reached though their addresses are not public.
    pub private: Vec<(Host, u16)>,
}

/// A host that may be reached, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Its addresses need not be public.
    pub(crate) private: bool,
    /// Somebody inside made the name up: it is looked up as it stands, whatever the host's own domain is.
    pub(crate) made_up: bool,
    /// Every list that has a say names the methods that it allows.
    limits: Vec<Vec<String>>,
}

impl Grant {
    /// Whether only some methods may be used, so that they have to be seen.
    pub(crate) fn is_limited(&self) -> bool {
        !self.limits.is_empty()
    }

    pub(crate) fn check_method(&self, method: &str) -> Result<(), Refusal> {
        if self.limits.iter().all(|allowed| allowed.iter().any(|allowed| allowed == method)) {
            return Ok(());
        }
        let message = format!("{method} is not allowed there, only {}", self.limits[0].join(", "));
        Err(Refusal::new(Reason::Method, message))
    }

    /// Whether the method that was checked is the one that is meant.
    pub(crate) fn check_headers(&self, headers: &Headers) -> Result<(), Refusal> {
        // Many servers do not tell `_` from `-`.
        let overrides =
            |name: &str| OVERRIDES.contains(&name.to_ascii_lowercase().replace('_', "-").as_str());
        match headers.names().find(|name| self.is_limited() && overrides(name)) {
            None => Ok(()),
            Some(name) => {
                let message = format!("{name} is not allowed there, where only some methods are");
                Err(Refusal::new(Reason::Method, message))
            }
        }
    }
}

impl Ceiling {
    /// Whether a sandbox may have this policy at all.
    pub fn check(&self, policy: &Policy) -> Result<(), String> {
        if policy.mode > self.max {
            return Err(match self.max {
                Mode::None => "the operator of this server allows no network (network.max is none)".into(),
                max => format!("the operator of this server allows at most {max} (network.max)"),
            });
        }
        if policy.mode != Mode::Allowlist && policy.allow.is_some() {
            return Err(format!("a list of hosts goes with allowlist, not with {}", policy.mode));
        }
        Ok(())
    }

    /// What [`Mode::Allowlist`] means without a list of one's own.
    pub fn all_allowed(&self) -> Vec<Rule> {
        let private = self.private.iter().map(|(host, port)| Rule {
            pattern: Pattern::Exact(host.clone()),
            ports: vec![*port],
            methods: Vec::new(),
        });
        self.allow.iter().cloned().chain(private).collect()
    }

    fn names_private(&self, host: &Host, port: u16) -> bool {
        self.private.iter().any(|(named, on)| named == host && *on == port)
    }

    pub(crate) fn judge(&self, policy: &Policy, host: &Host, port: u16) -> Result<Grant, Refusal> {
        let private = self.names_private(host, port);
        let refuse = |whose: &str| {
            let message = format!("{host}:{port} is not on {whose} allow-list");
            Err(Refusal::new(Reason::NotAllowed, message))
        };
        // Checked when it was set, and again here: this is where it counts.
        let mode = policy.mode.min(self.max);
        let mut limits = Vec::new();
        let mut made_up = mode == Mode::Open && !private;
        if mode == Mode::None {
            return Err(Refusal::new(Reason::NotAllowed, "this sandbox has no network"));
        }
        if mode == Mode::Allowlist {
            let operators = self.max == Mode::Allowlist || policy.allow.is_none();
            if operators && !private {
                match covering(&self.allow, host, port) {
                    None => return refuse("the operator's"),
                    Some(found) => found.apply(&mut limits, &mut made_up),
                }
            }
            if let Some(own) = &policy.allow {
                match covering(own, host, port) {
                    None => return refuse("this sandbox's"),
                    Some(found) => found.apply(&mut limits, &mut made_up),
                }
            }
        }
        Ok(Grant { private, made_up, limits })
    }
}

struct Covering {
    methods: Option<Vec<String>>,
    made_up: bool,
}

impl Covering {
    fn apply(self, limits: &mut Vec<Vec<String>>, made_up: &mut bool) {
        limits.extend(self.methods);
        *made_up |= self.made_up;
    }
}

/// What the rules for a host come to together.
fn covering(rules: &[Rule], host: &Host, port: u16) -> Option<Covering> {
    let found: Vec<_> = rules.iter().filter(|rule| rule.covers(host, port)).collect();
    let limited = !found.is_empty() && found.iter().all(|rule| !rule.methods.is_empty());
    let methods = limited.then(|| found.iter().flat_map(|rule| rule.methods.clone()).collect());
    let made_up = found.iter().all(|rule| matches!(rule.pattern, Pattern::Below(_)));
    (!found.is_empty()).then_some(Covering { methods, made_up })
}

#[cfg(test)]
mod tests;
