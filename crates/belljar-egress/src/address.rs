//! Which addresses belong to everybody, and which to the machine, its neighbours or nobody.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is nobody's business in a sandbox; `None` for the public internet.
pub(crate) fn refusal(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => v6(address),
    }
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    // Public by its number, but in Azure it is the machine's own host, which hands out secrets.
    if address == Ipv4Addr::new(168, 63, 129, 16) {
        return Some("where Azure keeps its metadata");
    }
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "this network",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "a private network",
        (100, 64..=127, _) => "a carrier's private network",
        (127, ..) => "loopback",
        (169, 254, _) => "link-local, where clouds keep their metadata",
        (192, 0, 0) => "reserved for protocols",
        (192, 88, 99) => "a relay of 6to4",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "reserved for documentation",
        (198, 18..=19, _) => "reserved for benchmarks",
        (224..=239, ..) => "multicast",
        (240.., ..) => "reserved",
        _ => return None,
    })
}

/// Only what is handed out to the public; within that, not what carries another address inside.
fn v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, c, ..] = address.segments();
    Some(match (a, b, c) {
        (0, 0, 0) if address == Ipv6Addr::LOCALHOST => "loopback",
        (0, 0, 0) if address.to_ipv4_mapped().is_some() => "an IPv4 address in disguise",
        (0, ..) => "an IPv4 address in disguise, or reserved",
        (0x64, 0xff9b, _) => "an IPv4 address behind NAT64",
        (0xfe80..=0xfeff, ..) => "link-local",
        (0xfc00..=0xfdff, ..) => "a private network",
        (0xff00.., ..) => "multicast",
        (0x2001, 0..=0x1ff, _) => "a tunnel, or reserved for protocols",
        (0x2001, 0xdb8, _) | (0x3fff, 0..=0xfff, _) => "reserved for documentation",
        (0x2002, ..) => "an IPv4 address behind 6to4",
        (0x2000..=0x3fff, ..) => return None,
        _ => "reserved",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_public(text: &str) -> bool {
        refusal(text.parse().unwrap()).is_none()
    }

    #[test]
    fn the_public_internet_is_reachable() {
        for text in [
            "1.1.1.1",
            "93.184.216.34",
            "172.15.0.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert!(is_public(text), "{text}");
        }
    }

    #[test]
    fn private_and_special_addresses_are_not() {
        for text in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.8.8.8",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001:db8::1",
            "5f00::1",
            "100::1",
        ] {
            assert!(!is_public(text), "{text}");
        }
    }

    /// Of every cloud that is known to have them elsewhere than at 169.254.169.254.
    #[test]
    fn metadata_of_clouds_is_nobodys_business() {
        for text in [
            "168.63.129.16",      // Azure
            "100.100.100.200",    // Alibaba
            "192.0.0.192",        // Oracle, the older one
            "169.254.0.23",       // Tencent
            "169.254.42.42",      // Scaleway
            "169.254.170.2",      // containers of Amazon's
            "fd00:ec2::254",      // Amazon
            "fd00:c1::a9fe:a9fe", // Oracle
            "fd20:ce::254",       // Google
            "fd00:42::42",        // Scaleway
            "fe80::a9fe:a9fe",    // OpenStack
        ] {
            assert!(!is_public(text), "{text}");
        }
        assert!(is_public("168.63.129.15") && is_public("168.63.129.17"));
    }

    #[test]
    fn ipv4_mapped_and_compatible_addresses_are_refused() {
        for text in ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1"] {
            assert!(!is_public(text), "{text}");
        }
    }

    #[test]
    fn nat64_6to4_and_teredo_addresses_are_refused() {
        for text in ["64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:1::1"] {
            assert!(!is_public(text), "{text}");
        }
    }

    proptest! {
        /// The standard library knows some of them too, and never contradicts us.
        #[test]
        fn nothing_private_is_public(bits in any::<u32>()) {
            let address = Ipv4Addr::from(bits);
            let special = address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_broadcast() || address.is_unspecified() || address.is_documentation();
            prop_assert!(!special || refusal(address.into()).is_some());
            prop_assert!(refusal(address.to_ipv6_mapped().into()).is_some());
            prop_assert!(refusal(address.to_ipv6_compatible().into()).is_some());
        }
    }
}
