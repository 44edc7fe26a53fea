use std::sync::Arc;

use async_trait::async_trait;
use belljar_sandbox::{HTTP_PROXY, Mode, NetworkInfo, Policy, Record, Rule, SOCKS_PROXY};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Failure, find, rendered};
use crate::{
    Annotations, CallContext, MAX_ITEMS, MAX_SUMMARY, Options, Tool, ToolError, ToolOutput, ToolSpec, args,
    schema, text,
};

const NAME: &str = "sandbox_network";

#[derive(Deserialize, JsonSchema)]
struct Args {
    /// Id or name of the sandbox. Default: the one that sandbox_create made last.
    sandbox_id: Option<String>,
    /// What can be reached from inside from now on: nothing, listed hosts, or the public internet. Leave it out to only
    /// look.
    #[schemars(extend("enum" = ["none", "allowlist", "open"]))]
    network: Option<Network>,
    /// With allowlist: the hosts, each as "HOST[:PORT] [METHOD…]", for example "example.org", "*.example.com:443" or
    /// "api.example.com GET HEAD". Without it, the operator's list.
    allow: Option<Vec<String>>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Network {
    None,
    Allowlist,
    Open,
}

impl Network {
    pub(super) fn mode(self) -> Mode {
        match self {
            Self::None => Mode::None,
            Self::Allowlist => Mode::Allowlist,
            Self::Open => Mode::Open,
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct Shown {
    sandbox_id: String,
    /// none, allowlist or open.
    network: &'static str,
    /// Hosts that can be reached; with allowlist only.
    allow: Vec<String>,
    /// Where programs find the way out; in their environment already. Left out when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<Proxy>,
    /// Variables with a placeholder: send it to that host as if it were the secret.
    secrets: Vec<Bound>,
    /// The last connections, the newest last.
    connections: Vec<Line>,
    /// How many there were in all.
    connections_total: u64,
}

#[derive(Serialize, JsonSchema)]
struct Proxy {
    http: &'static str,
    socks: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct Bound {
    variable: String,
    host: String,
}

#[derive(Serialize, JsonSchema)]
struct Line {
    /// ISO 8601, UTC.
    at: String,
    /// Host and port.
    to: String,
    /// Left out where it could not be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    /// allowed, or why not.
    outcome: String,
    bytes_sent: u64,
    bytes_received: u64,
}

struct SandboxNetwork {
    spec: ToolSpec,
}

pub(crate) fn make(options: &Options) -> Arc<dyn Tool> {
    let description = format!(
        "See or change what programs and pages in a sandbox can reach outside, while it runs. Everything goes through \
         a proxy that curl, pip, npm, git, requests, fetch and the browser use by themselves; there is no DNS and no \
         other way out. {} Private addresses are never reached unless the operator named them. A change holds at once \
         and ends open connections. The result lists the last connections, and why one was refused.",
        text::network_limit(&options.settings.network),
    );
    Arc::new(SandboxNetwork {
        spec: ToolSpec {
            name: NAME.into(),
            title: "See or change a sandbox's network".into(),
            description,
            input_schema: schema::input::<Args>(),
            output_schema: Some(schema::output_or_failure::<Shown>()),
            annotations: Annotations {
                read_only: false,
                destructive: false,
                idempotent: true,
                open_world: true,
            },
        },
    })
}

#[async_trait]
impl Tool for SandboxNetwork {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, ToolError> {
        Ok(rendered::finish(NAME, self.act(cx, args).await))
    }
}

impl SandboxNetwork {
    async fn act(&self, cx: &CallContext, args: Value) -> Result<ToolOutput, Failure> {
        let args: Args = args::parse(&self.spec.input_schema, args)?;
        let sandbox = find(cx, args.sandbox_id.as_deref())?;
        let info = match policy(args.network, args.allow)? {
            Some(policy) => cx.service.set_network(&cx.caller, &sandbox.id, policy).await?,
            None => cx.service.network(&cx.caller, &sandbox.id)?,
        };
        shown(info)
    }
}

/// `None`: nothing is to be changed.
fn policy(network: Option<Network>, allow: Option<Vec<String>>) -> Result<Option<Policy>, Failure> {
    let hint = "each is HOST, HOST:PORT or *.HOST, with methods after it if only some are allowed";
    let Some(mode) = network.map(Network::mode).or(allow.is_some().then_some(Mode::Allowlist)) else {
        return Ok(None);
    };
    if allow.as_ref().is_some_and(|allow| allow.len() > MAX_ITEMS) {
        return Err(Failure::invalid(
            format!("there are more than {MAX_ITEMS} rules"),
            "use *.HOST for many hosts",
        ));
    }
    let parse = |text: &String| text.parse::<Rule>().map_err(|why| Failure::invalid(why, hint));
    let allow = allow.map(|allow| allow.iter().map(parse).collect::<Result<Vec<_>, _>>()).transpose()?;
    Ok(Some(Policy { mode, allow }))
}

fn shown(info: NetworkInfo) -> Result<ToolOutput, Failure> {
    let proxy = (info.mode != Mode::None).then_some(Proxy { http: HTTP_PROXY, socks: SOCKS_PROXY });
    let bound = |(variable, host): (String, String)| Bound { variable, host };
    let shown = Shown {
        network: info.mode.as_str(),
        allow: info.allow.iter().map(Rule::to_string).collect(),
        proxy,
        secrets: info.secrets.into_iter().map(bound).collect(),
        connections: info.recent.into_iter().map(line).collect(),
        connections_total: info.total,
        sandbox_id: info.context,
    };
    let subject = format!("{} (network {})", shown.sandbox_id, shown.network);
    rendered::ok(NAME, &subject, &shown)
}

fn line(record: Record) -> Line {
    let outcome = match record.refused {
        None => "allowed".to_owned(),
        Some((reason, why)) => format!("{}: {}", reason.as_str(), rendered::line(&why, MAX_SUMMARY)),
    };
    Line {
        at: text::iso(record.at),
        to: rendered::line(&record.to, MAX_SUMMARY),
        method: record.method.map(|method| rendered::line(&method, MAX_SUMMARY)),
        outcome,
        bytes_sent: record.sent,
        bytes_received: record.received,
    }
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::Reason;

    use super::*;

    #[test]
    fn the_result_is_as_agreed() {
        let record = |refused, method: Option<&str>| Record {
            at: jiff::Timestamp::from_second(1_761_116_022).unwrap(),
            kind: "connect",
            to: "example.org:443".into(),
            method: method.map(str::to_owned),
            address: None,
            sent: 1,
            received: 2,
            seconds: 0.5,
            refused,
            secrets: Vec::new(),
        };
        let why = "evil.test:443 is not on\nthis sandbox's allow-list".to_owned();
        let info = NetworkInfo {
            context: "ctx-1".into(),
            mode: Mode::Allowlist,
            allow: vec!["*.example.com GET".parse().unwrap()],
            secrets: vec![("API_KEY".into(), "api.example.com".into())],
            recent: vec![record(None, None), record(Some((Reason::NotAllowed, why)), Some("CONNECT"))],
            total: 7,
        };
        insta::assert_debug_snapshot!(shown(info).unwrap());
    }

    #[test]
    fn what_is_asked_for_is_understood() {
        assert_eq!(policy(None, None).unwrap(), None);
        let listed = policy(None, Some(vec!["example.org".into()])).unwrap().unwrap();
        assert_eq!((listed.mode, listed.allow.unwrap().len()), (Mode::Allowlist, 1));
        assert_eq!(policy(Some(Network::Open), None).unwrap().unwrap().mode, Mode::Open);
        assert!(policy(None, Some(vec!["https://example.org/".into()])).is_err());
    }
}
