//! A client that costs next to nothing, so that what it measures is the server.
//!
//! `belljar-bench` takes orders as JSON, one per line, and answers each with one line. Requests come ready to be sent, with
//! `$ID` where their number goes; answers are searched for the number and for what they must contain, and not parsed.
//! `belljar-bench empty` is the other end: an MCP server whose only tool does nothing; `belljar-bench relay N` is the same
//! behind N processes that pass everything on.

mod empty;
mod http;
mod order;
mod peer;
mod relay;
mod template;

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
    process::ExitCode,
};

use anyhow::Context;
use serde_json::{Value, json};

use crate::{order::Order, peer::Peer};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => obey(),
        ["empty"] => empty::serve(),
        ["relay", behind] => {
            behind.parse().with_context(|| format!("`{behind}` is no number")).and_then(relay::serve)
        }
        _ => Err(anyhow::anyhow!(
            "call it with `empty`, with `relay N`, or with nothing and orders on standard input"
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "belljar-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey() -> anyhow::Result<()> {
    let mut peers: HashMap<String, Peer> = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let order: Order =
            serde_json::from_str(&line).with_context(|| format!("not an order: {line:.200}"))?;
        let answer =
            carry_out(&mut peers, order).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

fn carry_out(peers: &mut HashMap<String, Peer>, order: Order) -> anyhow::Result<Value> {
    match order {
        Order::Start { name, command, env, log } => {
            let peer = Peer::start(&command, &env, log.as_deref())?;
            let pid = peer.pid();
            peers.insert(name, peer);
            Ok(json!({ "pid": pid }))
        }
        Order::Connect { name, path } => {
            peers.insert(name, Peer::connect(&path)?);
            Ok(json!({}))
        }
        Order::Http { name, address, head } => {
            peers.insert(name, Peer::http(&address, head)?);
            Ok(json!({}))
        }
        Order::Tell { name, line } => {
            known(peers, &name)?.tell(line.as_bytes())?;
            Ok(json!({}))
        }
        Order::Calls { name, calls } => known(peers, &name)?.calls(&calls),
        Order::Flood { name, calls } => known(peers, &name)?.flood(&calls),
        Order::Close { name, patience } => {
            let peer = peers.remove(&name).with_context(|| format!("there is no `{name}`"))?;
            let (seconds, by_itself) = peer.close(patience)?;
            Ok(json!({ "seconds": seconds, "by_itself": by_itself }))
        }
    }
}

fn known<'a>(peers: &'a mut HashMap<String, Peer>, name: &str) -> anyhow::Result<&'a mut Peer> {
    peers.get_mut(name).with_context(|| format!("there is no `{name}`: start it first"))
}
