//! Names of hosts, in every spelling that leads to this machine or its neighbours; and rules about them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use belljar_fuzz::{fuzz, kind, mark};
use url::Url;

use super::runtime;
use crate::{
    Ceiling, Host, Mode, Policy, Reason, Rule,
    dial::{Lookups, Resolve},
};

/// What IANA keeps from the public, and forms that carry another address.
const SPECIAL: [(&str, u32); 33] = [
    ("168.63.129.16", 32),
    ("0.0.0.0", 8),
    ("10.0.0.0", 8),
    ("100.64.0.0", 10),
    ("127.0.0.0", 8),
    ("169.254.0.0", 16),
    ("172.16.0.0", 12),
    ("192.0.0.0", 24),
    ("192.0.2.0", 24),
    ("192.88.99.0", 24),
    ("192.168.0.0", 16),
    ("198.18.0.0", 15),
    ("198.51.100.0", 24),
    ("203.0.113.0", 24),
    ("224.0.0.0", 4),
    ("240.0.0.0", 4),
    ("::", 128),
    ("::1", 128),
    ("::", 96),
    ("::ffff:0:0", 96),
    ("::ffff:0:0:0", 96),
    ("64:ff9b::", 96),
    ("64:ff9b:1::", 48),
    ("100::", 64),
    ("2001::", 23),
    ("2001:db8::", 32),
    ("2002::", 16),
    ("3fff::", 20),
    ("5f00::", 16),
    ("fc00::", 7),
    ("fe80::", 10),
    ("fec0::", 10),
    ("ff00::", 8),
];

fn is_special(address: IpAddr) -> bool {
    SPECIAL.iter().any(|(network, length)| match (address, network.parse().unwrap()) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (u32::from(address) ^ u32::from(network)) >> (32 - length) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            (u128::from(address) ^ u128::from(network)) >> (128 - length) == 0
        }
        _ => false,
    })
}

/// As the C library reads addresses: 127.1, 0177.0.0.1 and 2130706433 are all loopback.
fn leniently(text: &str) -> Option<Ipv4Addr> {
    let number = |part: &str| {
        let small = part.to_ascii_lowercase();
        match small.strip_prefix("0x") {
            Some("") => Some(0),
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None if small.len() > 1 && small.starts_with('0') => u64::from_str_radix(&small, 8).ok(),
            None => small.parse().ok(),
        }
    };
    let parts = text.split('.').map(number).collect::<Option<Vec<u64>>>()?;
    let (last, first) = parts.split_last()?;
    let left = 4 - u32::try_from(first.len()).ok().filter(|count| *count < 4)?;
    if first.iter().any(|part| *part > 255) || *last >= 1 << (8 * left) {
        return None;
    }
    let start = first.iter().fold(0, |all, part| (all << 8) | part);
    u32::try_from((start << (8 * left)) | last).ok().map(Ipv4Addr::from)
}

/// Whatever it is asked.
struct Says(Vec<IpAddr>);

#[async_trait]
impl Resolve for Says {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(self.0.clone())
    }
}

/// The first line is a place, those after it are where its name leads.
#[test]
fn fuzz_hosts() {
    let runtime = runtime();
    let seeds: [&[u8]; 13] = [
        b"a.test\n93.184.216.34\n10.0.0.1\n::ffff:10.0.0.1",
        b"A.example.org:443\n2606:4700::1111\nfe80::1\n64:ff9b::7f00:1",
        b"127.0.0.1:80",
        b"a.test\n168.63.129.16",
        b"2130706433",
        b"0177.0.0.1",
        b"0x7f.1",
        b"[::ffff:169.254.169.254]:80",
        b"[fd00:ec2::254]",
        b"metadata.google.internal:80\n169.254.169.254",
        b"xn--bcher-kva.example:8080\n1.1.1.1",
        b"a.test@b.test:1",
        b"8.8.8.8:53",
    ];
    fuzz("hosts", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let mut lines = text.split('\n');
        let place = lines.next().unwrap_or_default();
        let (host, port) = match Host::parse_with_port(place, Some(80)) {
            Ok(found) => found,
            Err(why) => return mark(why),
        };
        let shown = host.to_string();
        assert_eq!(Host::parse(&shown).as_ref(), Ok(&host), "it is not itself when it is written");
        assert_eq!(Host::parse_with_port(&format!("{shown}:{port}"), None), Ok((host.clone(), port)));
        assert!(shown.is_ascii() && shown.len() <= 253 && !shown.ends_with('.'));
        let after_brackets = place.rfind(']').map_or(0, |end| end + 1);
        let written =
            &place[..place[after_brackets..].find(':').map_or(place.len(), |at| after_brackets + at)];
        // What others take for an address is that address for us.
        if let Some(address) = leniently(written) {
            assert_eq!(host, Host::Address(address.into()), "{written}");
        }
        if let Ok(url) = Url::parse(&format!("http://{written}/")) {
            let theirs = match url.host() {
                Some(url::Host::Ipv4(address)) => Host::Address(address.into()),
                Some(url::Host::Ipv6(address)) => Host::Address(address.into()),
                Some(url::Host::Domain(name)) => Host::Name(name.to_owned()),
                None => panic!("{written} is no host for others"),
            };
            assert_eq!(host, theirs, "{written}");
        }
        let ceiling = Ceiling { max: Mode::Open, allow: Vec::new(), private: Vec::new() };
        let grant = ceiling.judge(&Policy { mode: Mode::Open, allow: None }, &host, port).unwrap();
        let resolver = Arc::new(Says(lines.take(20).filter_map(|line| line.parse().ok()).collect()));
        let lookups = Lookups::new(Arc::<Says>::clone(&resolver));
        let named = matches!(host, Host::Name(_));
        match runtime.block_on(lookups.look_up(&host, port, &grant)) {
            Ok(found) => {
                assert!(!found.is_empty() && found.len() <= 4);
                for address in &found {
                    assert!(!is_special(address.ip()), "{address} is nobody's business");
                    assert!(address.port() == port && (!named || resolver.0.contains(&address.ip())));
                    assert!(named || host == Host::Address(address.ip()));
                }
                mark((named, found.len(), found.iter().filter(|a| SocketAddr::is_ipv4(a)).count()))
            }
            Err(refusal) => {
                let aside = refusal.aside.unwrap_or_default();
                let said = refusal.message.replace(&shown, "");
                let told = resolver.0.iter().any(|address| said.contains(&address.to_string()));
                assert!(!told || refusal.reason != Reason::Private, "it is told where that is");
                mark((named, refusal.reason, aside.split_once(", which is").map(|(_, what)| kind(what))))
            }
        }
    });
}

/// Whether a rule, as it is written, stands for a host: by its letters alone.
fn stands_for(rule: &str, host: &str, port: u16) -> bool {
    let place = rule.split(' ').next().unwrap_or_default();
    let (name, ports) = match place.strip_suffix(']').is_some() || !place.contains(':') {
        true => (place, "80+443"),
        false => place.rsplit_once(':').unwrap_or((place, "")),
    };
    let named = match name.strip_prefix('*') {
        Some(parent) => {
            let address = host.starts_with('[') || host.parse::<Ipv4Addr>().is_ok();
            !address && host.ends_with(parent) && host.len() > parent.len()
        }
        None => name == host,
    };
    named && ports.split('+').any(|one| one.parse() == Ok(port))
}

/// The first line is a place, the second the operator's rules, the third the sandbox's, with commas between them.
#[test]
fn fuzz_policies() {
    let seeds: [&[u8]; 6] = [
        b"a.example.com:443\n*.example.com,b.test\n*.example.com GET",
        b"example.com\n*.example.com:80+443+8080 get post,example.com\nexample.com POST",
        b"10.0.0.1:80\n10.0.0.1:80,[2606::1]:443\n10.0.0.1 HEAD",
        b"[2606::1]:443\n[2606:0:0::1]:443\n[2606::0001]",
        b"notexample.com\nexample.com\nexample.com",
        b"a.test:8080\nhttps://a.test\n*",
    ];
    fuzz("policies", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let mut lines = text.split('\n');
        let place = Host::parse_with_port(lines.next().unwrap_or_default(), Some(443));
        let mut failed = Vec::new();
        let mut rules = |line: Option<&str>| -> Vec<Rule> {
            let mut all = Vec::new();
            for text in line.unwrap_or_default().split(',').take(6) {
                match text.parse::<Rule>() {
                    Ok(rule) => {
                        assert_eq!(
                            rule.to_string().parse().as_ref(),
                            Ok(&rule),
                            "it is another when it is written"
                        );
                        all.push(rule);
                    }
                    Err(why) => {
                        assert!(why.len() < 1500, "{why}");
                        failed.push(
                            why.rsplit("is no rule: ")
                                .next()
                                .and_then(|why| why.split('"').next())
                                .map(str::to_owned),
                        );
                    }
                }
            }
            all
        };
        let (operators, own) = (rules(lines.next()), rules(lines.next()));
        let Ok((host, port)) = place else { return mark((failed.first(), operators.len(), own.len())) };
        let shown = host.to_string();
        let listed = |rules: &[Rule], method: &str| {
            rules.iter().map(Rule::to_string).any(|rule| {
                let methods: Vec<_> = rule.split(' ').skip(1).collect();
                stands_for(&rule, &shown, port) && (methods.is_empty() || methods.contains(&method))
            })
        };
        let mut shape = Vec::new();
        for max in Mode::ALL {
            let ceiling = Ceiling { max, allow: operators.clone(), private: Vec::new() };
            for mode in Mode::ALL {
                let policy = Policy { mode, allow: (mode == Mode::Allowlist).then(|| own.clone()) };
                let grant = ceiling.judge(&policy, &host, port);
                for method in ["GET", "POST", "BREW"] {
                    // What is let through is what every list that has a say lets through, and nothing else.
                    let may = match (max, mode) {
                        (Mode::None, _) | (_, Mode::None) => false,
                        (Mode::Open, Mode::Open) => true,
                        (Mode::Open, Mode::Allowlist) => listed(&own, method),
                        (Mode::Allowlist, Mode::Allowlist) => {
                            listed(&own, method) && listed(&operators, method)
                        }
                        (Mode::Allowlist, Mode::Open) => listed(&operators, method),
                    };
                    let does = grant.as_ref().is_ok_and(|grant| grant.check_method(method).is_ok());
                    assert_eq!(does, may, "{method} {shown}:{port}, {max}, {mode}");
                    shape.push(does);
                }
            }
        }
        mark((shape, failed.first(), matches!(host, Host::Name(_)), shown.parse::<Ipv6Addr>().is_ok()))
    });
}
