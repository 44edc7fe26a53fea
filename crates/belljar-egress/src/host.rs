//! Names of hosts, in the one form in which they are compared.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustls::pki_types::{InvalidDnsNameError, ServerName};

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A host as a request or a rule names it. Two spellings of one host are the same value, and what is written in a way
/// that programs read differently is no host at all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// In small letters, without a dot at its end.
    Name(String),
    Address(IpAddr),
}

impl Host {
    /// Without a port; IPv6 in brackets.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or("a bracket is missing")?;
            let address = inner.parse::<Ipv6Addr>().map_err(|_| "it is no IPv6 address")?;
            return Ok(Self::Address(address.into()));
        }
        if text.is_empty() || text.len() > MAX_NAME {
            return Err("a name has 1 to 253 characters");
        }
        if !text.is_ascii() {
            return Err("letters beyond ASCII must be written as xn--…");
        }
        if text.contains('\0') {
            return Err("it contains a null byte");
        }
        if text.contains('@') {
            return Err("a user name does not belong here");
        }
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
            return Err("it contains a character that no name has");
        }
        if text.ends_with('.') {
            return Err("it ends with a dot");
        }
        if text.split('.').any(|label| label.is_empty() || label.len() > MAX_LABEL) {
            return Err("a part of it is empty or too long");
        }
        let name = text.to_ascii_lowercase();
        if ends_in_a_number(&name) {
            // Only the usual form: some programs read 0177.0.0.1, 127.1 or 2130706433 as addresses, others do not.
            let address = name.parse::<Ipv4Addr>().map_err(|_| "it is an address in an unusual form")?;
            return Ok(Self::Address(address.into()));
        }
        Ok(Self::Name(name))
    }

    /// `host:port`, where the port may be left out if there is a usual one.
    pub fn parse_with_port(text: &str, usual: Option<u16>) -> Result<(Self, u16), &'static str> {
        let after_brackets = text.rfind(']').map_or(0, |end| end + 1);
        let (host, port) = match text[after_brackets..].find(':') {
            Some(colon) => {
                let (host, port) = text.split_at(after_brackets + colon);
                (host, Some(parse_port(&port[1..])?))
            }
            None => (text, usual),
        };
        Ok((Self::parse(host)?, port.ok_or("it has no port")?))
    }
}

pub(crate) fn parse_port(text: &str) -> Result<u16, &'static str> {
    let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit());
    let port = digits.then(|| text.parse::<u16>().ok()).flatten();
    port.filter(|port| *port > 0).ok_or("its port is not a number from 1 to 65535")
}

/// As browsers see it: such a name is meant as an IPv4 address.
fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()));
    hex || last.bytes().all(|b| b.is_ascii_digit())
}

impl Host {
    /// As certificates have it: addresses without brackets.
    pub(crate) fn bare(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Address(address) => address.to_string(),
        }
    }

    /// Who has to be at the other end of TLS.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, InvalidDnsNameError> {
        ServerName::try_from(self.bare())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> &'static str {
        match Host::parse(text) {
            Err(why) => why,
            Ok(host) => panic!("{text:?} was taken for {host:?}"),
        }
    }

    #[test]
    fn a_null_byte_is_refused() {
        assert_eq!(refused("example.org\0.evil.test"), "it contains a null byte");
    }

    #[test]
    fn a_trailing_dot_is_refused() {
        assert_eq!(refused("example.org."), "it ends with a dot");
        assert_eq!(refused("127.0.0.1."), "it ends with a dot");
    }

    #[test]
    fn case_makes_no_other_host() {
        assert_eq!(Host::parse("Example.Org"), Host::parse("example.org"));
    }

    #[test]
    fn letters_beyond_ascii_are_refused_and_punycode_is_itself() {
        assert_eq!(refused("pуpi.org"), "letters beyond ASCII must be written as xn--…");
        assert_eq!(refused("docs。example"), "letters beyond ASCII must be written as xn--…");
        assert_ne!(Host::parse("xn--exmple-4nf.org"), Host::parse("example.org"));
    }

    #[test]
    fn userinfo_is_refused() {
        assert_eq!(refused("example.org@evil.test"), "a user name does not belong here");
        assert!(Host::parse_with_port("user:secret@evil.test:443", None).is_err());
    }

    #[test]
    fn addresses_in_unusual_forms_are_refused() {
        for text in [
            "2130706433",
            "0177.0.0.1",
            "127.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "1.2.3.4.5",
            "a.0x",
            "256.1.1.1",
        ] {
            assert_eq!(refused(text), "it is an address in an unusual form", "{text}");
        }
    }

    #[test]
    fn what_no_name_contains_is_refused() {
        for text in
            ["", "a b", "a/b", "a\\b", "a%2eb", "a#b", "a?b", "a..b", ".a", "[::1", "[fe80::1%eth0]", "::1"]
        {
            refused(text);
        }
        for text in ["a:", "a:0", "a:65536", "a:+1", "a:1:2", "a: 1", "[::1]x:1", "a"] {
            assert!(Host::parse_with_port(text, None).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_and_ports_are_told_apart() {
        let of = |text| Host::parse_with_port(text, Some(443)).map(|(host, port)| (host.to_string(), port));
        assert_eq!(of("A.test:80"), Ok(("a.test".into(), 80)));
        assert_eq!(of("a.test"), Ok(("a.test".into(), 443)));
        assert_eq!(of("[::1]:80"), Ok(("[::1]".into(), 80)));
        assert_eq!(of("192.0.2.1"), Ok(("192.0.2.1".into(), 443)));
    }

    proptest! {
        #[test]
        fn what_is_a_host_reads_back_as_itself(text in "\\PC{0,40}|[a-zA-Z0-9.\\-\\[\\]:@]{0,40}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
            let _ = Host::parse_with_port(&text, Some(1));
        }
    }
}
