//! From a host's name to a connection: looked up once, every address checked, the checked address dialled.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};

use crate::{
    address,
    host::Host,
    policy::Grant,
    refusal::{Reason, Refusal},
};

const LOOKUP_LIMIT: Duration = Duration::from_secs(15);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const MAX_ADDRESSES: usize = 4;
/// Look-ups of one sandbox at once: each takes a thread of those that all sandboxes share.
const MAX_LOOKUPS: usize = 8;

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

/// How one sandbox has names looked up.
pub(crate) struct Lookups {
    resolver: Arc<dyn Resolve>,
    places: Arc<Semaphore>,
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookups")
    }
}

impl Lookups {
    pub(crate) fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, places: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }

    async fn resolve(&self, name: String) -> io::Result<Vec<IpAddr>> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(io::Error::other)?;
        let resolver = Arc::clone(&self.resolver);
        // A task of its own: its thread goes on when nobody waits any more, and has its place until it ends.
        let looking = tokio::spawn(async move {
            let found = resolver.resolve(&name).await;
            drop(place);
            found
        });
        looking.await.map_err(io::Error::other).flatten()
    }

    /// The addresses of a host that may be dialled: never empty.
    pub(crate) async fn look_up(
        &self,
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
                let found = timeout(LOOKUP_LIMIT, self.resolve(asked)).await;
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
            // The same for all of them: whoever asks is not told what the network around this machine looks like.
            (true, Some(why)) => {
                let message = format!(
                    "{host} has no address that may be reached; ask the operator to name it in network.private if it should be"
                );
                Err(Refusal::new(Reason::Private, message).with_aside(why))
            }
            (true, None) => Err(unreachable(format!("{host} has no address"))),
        }
    }
}

/// Whether packets to this address would stay here: services that trust the machine are reached at its public addresses
/// too. Nothing is sent.
fn is_our_own(address: IpAddr) -> bool {
    is_bound_here(UdpSocket::bind((address, 0)).map(drop))
}

/// Only a machine's own addresses can be bound. When that cannot be found out, it may be one of them.
fn is_bound_here(bound: io::Result<()>) -> bool {
    !matches!(bound, Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable)
}

/// Connects to the first of them that answers.
pub(crate) async fn dial(host: &Host, addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), Refusal> {
    let mut last = Refusal::new(Reason::Unreachable, format!("{host} has no address"));
    for address in addresses {
        let why = match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Only speed depends on it.
                let _ = stream.set_nodelay(true);
                return Ok((stream, *address));
            }
            Ok(Err(e)) => format!("{host} does not answer: {e}"),
            Err(_) => format!("{host} does not answer"),
        };
        last = Refusal::new(Reason::Unreachable, why).with_aside(format!("{host} is at {address}"));
    }
    Err(last)
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
        fn new(answers: &[&[&'static str]]) -> Arc<Self> {
            let answers = answers.iter().rev().map(|answer| answer.to_vec()).collect();
            Arc::new(Self { answers: Mutex::new(answers), asked: Mutex::default() })
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

    async fn look(resolver: &Arc<Fickle>, place: &str, private: &[&str]) -> Result<Vec<String>, Refusal> {
        let (host, port, grant) = grant(place, private);
        let lookups = Lookups::new(Arc::<Fickle>::clone(resolver));
        let found = lookups.look_up(&host, port, &grant).await?;
        Ok(found.iter().map(SocketAddr::to_string).collect())
    }

    #[tokio::test]
    async fn rebinding_changes_nothing_because_a_name_is_looked_up_once() {
        let resolver = Fickle::new(&[&["93.184.216.34"], &["127.0.0.1"]]);
        assert_eq!(look(&resolver, "rebind.test:80", &[]).await.unwrap(), ["93.184.216.34:80"]);
        assert_eq!(*resolver.asked.lock().unwrap(), ["rebind.test."]);
        // The next connection is judged by its own answer.
        let refusal = look(&resolver, "rebind.test:80", &[]).await.unwrap_err();
        assert_eq!(refusal.reason, Reason::Private);
        assert_eq!(refusal.aside.unwrap(), "rebind.test is at 127.0.0.1, which is loopback");
    }

    #[tokio::test]
    async fn whoever_asks_is_not_told_where_private_names_are() {
        let mut told = Vec::new();
        for address in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "fd00::17", "168.63.129.16"] {
            let refusal = look(&Fickle::new(&[&[address]]), "db.corp.test:80", &[]).await.unwrap_err();
            assert!(!refusal.message.contains(address) && refusal.aside.unwrap().contains(address));
            told.push(refusal.message);
        }
        told.dedup();
        assert_eq!(
            told,
            [
                "db.corp.test has no address that may be reached; ask the operator to name it in network.private if it should be"
            ]
        );
    }

    #[tokio::test]
    async fn whoever_does_not_answer_stays_unknown() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refusal = dial(&Host::parse("db.test").unwrap(), &[free]).await.unwrap_err();
        assert!(!refusal.message.contains("127.0.0.1") && refusal.aside.unwrap().contains("127.0.0.1"));
    }

    /// Never answers, and counts who waits.
    #[derive(Default)]
    struct Stuck(std::sync::atomic::AtomicUsize);

    #[async_trait]
    impl Resolve for Stuck {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_sandbox_cannot_use_up_the_threads_of_all() {
        let stuck = Arc::new(Stuck::default());
        let lookups = Arc::new(Lookups::new(Arc::<Stuck>::clone(&stuck)));
        // The second round finds that those of the first still look, though nobody waits for them.
        for _ in 0..2 {
            let mut asking = tokio::task::JoinSet::new();
            for _ in 0..3 * MAX_LOOKUPS {
                let lookups = Arc::clone(&lookups);
                asking.spawn(async move {
                    let (host, port, grant) = grant("slow.test:80", &[]);
                    lookups.look_up(&host, port, &grant).await.unwrap_err().message
                });
            }
            for message in asking.join_all().await {
                assert_eq!(message, "looking up slow.test took too long");
            }
            assert_eq!(stuck.0.load(std::sync::atomic::Ordering::Relaxed), MAX_LOOKUPS);
        }
        // Another sandbox does not notice.
        let other = Fickle::new(&[&["93.184.216.34"]]);
        assert!(look(&other, "quick.test:80", &[]).await.is_ok());
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
        // The second is no address that packets are sent from.
        for own in ["127.0.0.1", "127.0.0.2"] {
            assert!(is_our_own(own.parse().unwrap()), "{own}");
        }
        for other in ["93.184.216.34", "2606:4700::1111"] {
            // A machine without IPv6 cannot tell, and cannot go there.
            let known = UdpSocket::bind((other, 0)).map_err(|e| e.kind());
            let known = known.is_err_and(|kind| kind == io::ErrorKind::AddrNotAvailable);
            assert_eq!(is_our_own(other.parse().unwrap()), !known, "{other}");
        }
        assert!(!is_our_own("93.184.216.34".parse().unwrap()));
    }

    #[test]
    fn what_cannot_be_found_out_is_refused() {
        let error = |number| Err(io::Error::from_raw_os_error(number));
        let (no_permission, no_descriptors, no_memory, no_such_family) = (13, 24, 12, 97);
        for number in [no_permission, no_descriptors, no_memory, no_such_family] {
            assert!(is_bound_here(error(number)), "{number}");
        }
        assert!(is_bound_here(Ok(())));
        assert!(!is_bound_here(Err(io::ErrorKind::AddrNotAvailable.into())));
    }
}
