//! From a host's name to a connection: looked up once, every address checked, the checked address dialled.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{net::TcpStream, time::timeout};

use crate::{
    address,
    host::Host,
    policy::Grant,
    refusal::{Reason, Refusal},
};

const LOOKUP_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const MAX_ADDRESSES: usize = 4;

#[async_trait]
pub(crate) trait Resolve: Send + Sync {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// As this machine looks names up.
pub(crate) struct System;

#[async_trait]
impl Resolve for System {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
    }
}

/// The addresses of a host that may be dialled: never empty.
pub(crate) async fn look_up(
    resolver: &dyn Resolve,
    host: &Host,
    port: u16,
    grant: &Grant,
) -> Result<Vec<SocketAddr>, Refusal> {
    let unreachable = |why: String| Refusal::new(Reason::Unreachable, why);
    let found = match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) if grant.made_up && !name.contains('.') => {
            let why = format!("{name} is a name of this machine's own network");
            return Err(Refusal::new(Reason::Private, why));
        }
        Host::Name(name) => {
            // With a dot at its end it is looked up as it stands, not below the machine's own domain.
            let asked = if grant.made_up { format!("{name}.") } else { name.clone() };
            let found = timeout(LOOKUP_LIMIT, resolver.resolve(&asked)).await;
            let found = found.map_err(|_| unreachable(format!("looking up {name} took too long")))?;
            found.map_err(|e| unreachable(format!("{name} was not found: {e}")))?
        }
    };
    let mut why = None;
    let mut good = Vec::new();
    for address in found {
        let own = || is_our_own(address).then_some("this machine's own");
        match address::refusal(address).or_else(own).filter(|_| !grant.private) {
            None => good.push(SocketAddr::new(address, port)),
            Some(what) => {
                why.get_or_insert_with(|| format!("{host} is at {address}, which is {what}"));
            }
        }
    }
    good.dedup();
    good.truncate(MAX_ADDRESSES);
    match (good.is_empty(), why) {
        (false, _) => Ok(good),
        (true, Some(why)) => Err(Refusal::new(Reason::Private, why)),
        (true, None) => Err(unreachable(format!("{host} has no address"))),
    }
}

/// Whether packets to this address would stay here: services that trust the machine are reached at its public address
/// too. Nothing is sent.
fn is_our_own(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    // Without a way there it is not ours, and dialling it says why.
    source.is_ok_and(|source| source.ip() == address)
}

/// Connects to the first of them that answers.
pub(crate) async fn dial(host: &Host, addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Refusal> {
    let mut last = String::new();
    for address in addresses {
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Only speed depends on it.
                let _ = stream.set_nodelay(true);
                return Ok((stream, *address));
            }
            Ok(Err(e)) => last = format!("{host} ({address}) does not answer: {e}"),
            Err(_) => last = format!("{host} ({address}) does not answer"),
        }
    }
    Err(Refusal::new(Reason::Unreachable, last))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::policy::{Ceiling, Mode, Policy};

    /// Says something else each time, and remembers what it was asked.
    struct Fickle {
        answers: Mutex<Vec<Vec<&'static str>>>,
        asked: Mutex<Vec<String>>,
    }

    impl Fickle {
        fn new(answers: &[&[&'static str]]) -> Self {
            let answers = answers.iter().rev().map(|answer| answer.to_vec()).collect();
            Self { answers: Mutex::new(answers), asked: Mutex::default() }
        }
    }

    #[async_trait]
    impl Resolve for Fickle {
        async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
            self.asked.lock().unwrap().push(name.into());
            let answer = self.answers.lock().unwrap().pop().ok_or(io::ErrorKind::NotFound)?;
            Ok(answer.iter().map(|address| address.parse().unwrap()).collect())
        }
    }

    fn grant(place: &str, private: &[&str]) -> (Host, u16, Grant) {
        let parse = |text: &str| Host::parse_with_port(text, None).unwrap();
        let ceiling = Ceiling {
            max: Mode::Open,
            allow: Vec::new(),
            private: private.iter().map(|p| parse(p)).collect(),
        };
        let (host, port) = parse(place);
        let grant = ceiling.judge(&Policy { mode: Mode::Open, allow: None }, &host, port).unwrap();
        (host, port, grant)
    }

    async fn look(resolver: &Fickle, place: &str, private: &[&str]) -> Result<Vec<String>, Refusal> {
        let (host, port, grant) = grant(place, private);
        let found = look_up(resolver, &host, port, &grant).await?;
        Ok(found.iter().map(SocketAddr::to_string).collect())
    }

    #[tokio::test]
    async fn rebinding_changes_nothing_because_a_name_is_looked_up_once() {
        let resolver = Fickle::new(&[&["93.184.216.34"], &["127.0.0.1"]]);
        assert_eq!(look(&resolver, "rebind.test:80", &[]).await.unwrap(), ["93.184.216.34:80"]);
        assert_eq!(*resolver.asked.lock().unwrap(), ["rebind.test."]);
        // The next connection is judged by its own answer.
        let refusal = look(&resolver, "rebind.test:80", &[]).await.unwrap_err();
        assert_eq!(
            (refusal.reason, refusal.message.as_str()),
            (Reason::Private, "rebind.test is at 127.0.0.1, which is loopback")
        );
    }

    #[tokio::test]
    async fn every_address_is_checked() {
        let resolver = Fickle::new(&[
            &["10.0.0.1", "93.184.216.34", "::ffff:10.0.0.1", "64:ff9b::a00:1"],
            &["169.254.169.254"],
        ]);
        assert_eq!(look(&resolver, "mixed.test:443", &[]).await.unwrap(), ["93.184.216.34:443"]);
        assert_eq!(look(&resolver, "metadata.test:80", &[]).await.unwrap_err().reason, Reason::Private);
    }

    #[tokio::test]
    async fn private_addresses_are_for_whom_the_operator_named() {
        let resolver = Fickle::new(&[&["10.0.0.1"], &["10.0.0.1"]]);
        let named = ["registry.internal:8080"];
        assert_eq!(look(&resolver, "registry.internal:8080", &named).await.unwrap(), ["10.0.0.1:8080"]);
        assert_eq!(
            look(&resolver, "registry.internal:81", &named).await.unwrap_err().reason,
            Reason::Private
        );
        assert_eq!(look(&resolver, "10.0.0.1:8080", &named).await.unwrap_err().reason, Reason::Private);
    }

    #[tokio::test]
    async fn names_of_the_machines_own_network_are_refused() {
        let resolver = Fickle::new(&[&["93.184.216.34"]]);
        assert_eq!(look(&resolver, "intranet:80", &[]).await.unwrap_err().reason, Reason::Private);
        assert!(resolver.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn the_machine_knows_itself() {
        assert!(is_our_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_our_own(Ipv4Addr::new(93, 184, 216, 34).into()));
    }
}
