//! The first words of TLS: for which host a client says it speaks.

use crate::{
    host::Host,
    refusal::{Reason, Refusal},
};

/// A hello with every key share there is has some 2 KiB.
pub(crate) const MAX_HELLO: usize = 16 << 10;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const EARLY_DATA: u16 = 42;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) name: Option<String>,
    /// It may be for another host, which only the server can read. Chromium pretends so every time.
    pub(crate) encrypted: bool,
    /// What follows it may be for a server that throws it away, and then waits for another hello.
    pub(crate) early_data: bool,
}

/// Whether bytes from a client begin TLS.
pub(crate) fn is_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE)
}

impl Hello {
    /// `None` while there is not enough of it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>, Refusal> {
        let wrong = || Refusal::malformed("the TLS hello is malformed");
        // No more than this counts, however much of it came at once.
        let Some(message) = handshake(&bytes[..bytes.len().min(MAX_HELLO)])? else {
            return if bytes.len() < MAX_HELLO { Ok(None) } else { Err(wrong()) };
        };
        Self::from_message(&message).map(Some).ok_or_else(wrong)
    }

    /// A hello without its records and its length.
    pub(crate) fn from_message(message: &[u8]) -> Option<Self> {
        let mut all = Cut(message);
        all.take(2 + 32)?; // version, random
        let session = all.u8()?;
        all.take(session.into())?;
        let ciphers = all.u16()?;
        all.take(ciphers.into())?;
        let compressions = all.u8()?;
        all.take(compressions.into())?;
        let mut hello = Self::default();
        if all.0.is_empty() {
            return Some(hello);
        }
        let length = all.u16()?;
        let mut extensions = Cut(all.take(length.into())?);
        if !all.0.is_empty() {
            return None;
        }
        while !extensions.0.is_empty() {
            let (kind, length) = (extensions.u16()?, extensions.u16()?);
            let extension = extensions.take(length.into())?;
            match kind {
                // A second one could be the one that counts.
                SERVER_NAME if hello.name.is_some() => return None,
                SERVER_NAME => hello.name = Some(server_name(extension)?),
                ENCRYPTED_CLIENT_HELLO => hello.encrypted = true,
                EARLY_DATA => hello.early_data = true,
                _ => {}
            }
        }
        Some(hello)
    }

    /// Whether it is for `host` and nobody else.
    pub(crate) fn check(&self, host: &Host) -> Result<(), Refusal> {
        let mismatch = |message: String| Err(Refusal::new(Reason::Mismatch, message));
        match (&self.name, host) {
            (Some(name), host) if Host::parse(name).as_ref() == Ok(host) => Ok(()),
            (Some(name), host) => {
                let name: String = name.chars().filter(|c| c.is_ascii_graphic()).take(100).collect();
                mismatch(format!("TLS in the tunnel to {host} is for {name}"))
            }
            // Addresses are not sent as names.
            (None, Host::Address(_)) => Ok(()),
            (None, host) => {
                mismatch(format!("TLS in the tunnel to {host} does not say for which host it is"))
            }
        }
    }
}

/// The hello without its records, once all of them are there.
fn handshake(bytes: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    let wrong = || Refusal::malformed("what is in the tunnel is not TLS");
    let mut rest = Cut(bytes);
    let mut message = Vec::new();
    loop {
        if message.len() >= 4 {
            let length = u32::from_be_bytes([0, message[1], message[2], message[3]]) as usize;
            if message[0] != CLIENT_HELLO || length > MAX_HELLO {
                return Err(wrong());
            }
            if message.len() >= 4 + length {
                return Ok(Some(message[4..4 + length].to_vec()));
            }
        }
        let (Some(kind), Some(version), Some(length)) = (rest.u8(), rest.u16(), rest.u16()) else {
            return Ok(None);
        };
        if kind != HANDSHAKE || version >> 8 != 3 || length == 0 {
            return Err(wrong());
        }
        match rest.take(length.into()) {
            Some(record) => message.extend_from_slice(record),
            None => return Ok(None),
        }
    }
}

/// Exactly one name, of the only kind there is.
fn server_name(extension: &[u8]) -> Option<String> {
    let mut list = Cut(extension);
    let length = list.u16()?;
    let (kind, size) = (list.u8()?, list.u16()?);
    let name = list.take(size.into())?;
    let whole = list.0.is_empty() && usize::from(length) == name.len() + 3 && kind == 0;
    whole.then(|| String::from_utf8(name.to_vec()).ok()).flatten()
}

struct Cut<'a>(&'a [u8]);

impl<'a> Cut<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};

    use super::*;

    /// What rustls really sends.
    pub(crate) fn real(name: &str) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let mut client =
            ClientConnection::new(Arc::new(config), name.to_owned().try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn with_extensions(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut all = Vec::new();
        for (kind, body) in extensions {
            all.extend(kind.to_be_bytes());
            all.extend((body.len() as u16).to_be_bytes());
            all.extend(*body);
        }
        let mut message = vec![3, 3];
        message.extend([7; 32]);
        message.extend([0, 0, 2, 0x13, 1, 1, 0]);
        message.extend((all.len() as u16).to_be_bytes());
        message.extend(all);
        records(&message, message.len() + 4)
    }

    /// What rustls really sends, with something for the server alone.
    pub(crate) fn encrypted(name: &str) -> Vec<u8> {
        let mut message = real(name)[9..].to_vec();
        let extensions = 34 + 1 + usize::from(message[34]);
        let extensions = extensions
            + 2
            + usize::from(u16::from_be_bytes([message[extensions], message[extensions + 1]]))
            + 2;
        let length = u16::from_be_bytes([message[extensions], message[extensions + 1]]) + 5;
        message[extensions..extensions + 2].copy_from_slice(&length.to_be_bytes());
        message.splice(extensions + 2..extensions + 2, [0xfe, 0x0d, 0, 1, 7]);
        records(&message, message.len() + 4)
    }

    /// The message in records of so many bytes.
    pub(crate) fn records(message: &[u8], size: usize) -> Vec<u8> {
        let mut handshake = vec![CLIENT_HELLO];
        handshake.extend(&(message.len() as u32).to_be_bytes()[1..]);
        handshake.extend(message);
        let record =
            |part: &[u8]| [&[HANDSHAKE, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        handshake.chunks(size).flat_map(record).collect()
    }

    pub(crate) fn name_list(name: &[u8]) -> Vec<u8> {
        let size = (name.len() as u16).to_be_bytes();
        let length = (name.len() as u16 + 3).to_be_bytes();
        [&length[..], &[0], &size, name].concat()
    }

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_real_hello_names_its_host() {
        let hello = Hello::parse(&real("a.example.com")).unwrap().unwrap();
        assert_eq!(hello, Hello { name: Some("a.example.com".into()), ..Hello::default() });
        assert!(hello.check(&host("A.example.com")).is_ok());
        let hello = Hello::parse(&real("192.0.2.1")).unwrap().unwrap();
        assert!(hello.check(&host("192.0.2.1")).is_ok());
    }

    #[test]
    fn sni_must_be_the_host_of_the_tunnel() {
        let hello = Hello::parse(&real("evil.test")).unwrap().unwrap();
        let refusal = hello.check(&host("example.org")).unwrap_err();
        assert_eq!(
            (refusal.reason, refusal.message.as_str()),
            (Reason::Mismatch, "TLS in the tunnel to example.org is for evil.test")
        );
        assert!(hello.check(&host("192.0.2.1")).is_err());
        for name in ["example.org.", "example.org\0.evil.test", "EXAMPLE.ORG", ""] {
            let bytes = with_extensions(&[(SERVER_NAME, &name_list(name.as_bytes()))]);
            let hello = Hello::parse(&bytes).unwrap().unwrap();
            assert_eq!(hello.check(&host("example.org")).is_ok(), name == "EXAMPLE.ORG", "{name:?}");
        }
    }

    #[test]
    fn a_hello_that_names_nobody_is_for_no_name() {
        let hello = Hello::parse(&with_extensions(&[])).unwrap().unwrap();
        assert_eq!(hello.check(&host("example.org")).unwrap_err().reason, Reason::Mismatch);
    }

    #[test]
    fn an_encrypted_hello_is_known_as_one_whatever_it_says_in_the_clear() {
        let hello = Hello::parse(&encrypted("example.org")).unwrap().unwrap();
        assert_eq!(hello, Hello { name: Some("example.org".into()), encrypted: true, early_data: false });
    }

    #[test]
    fn a_second_name_is_refused() {
        let name = name_list(b"example.org");
        assert!(Hello::parse(&with_extensions(&[(SERVER_NAME, &name), (SERVER_NAME, &name)])).is_err());
        let two = [&[0, 24][..], &name[2..], &name[2..]].concat();
        assert!(Hello::parse(&with_extensions(&[(SERVER_NAME, &two)])).is_err());
    }

    #[test]
    fn a_hello_in_pieces_is_put_together() {
        let whole = real("a.example.com");
        let pieces = records(&whole[9..], 100);
        assert_eq!(Hello::parse(&pieces), Hello::parse(&whole));
        for end in 0..pieces.len() {
            assert_eq!(Hello::parse(&pieces[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn one_that_is_too_long_is_refused_even_if_it_is_there_at_once() {
        let padding = [0; MAX_HELLO - 200];
        let whole = with_extensions(&[(SERVER_NAME, &name_list(b"a.test")), (21, &padding)]);
        assert!(Hello::parse(&whole).is_ok_and(|hello| hello.is_some()));
        // The same in many records has more bytes.
        assert!(Hello::parse(&records(&whole[9..], 50)).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), real_one in any::<bool>(), at in 0usize..300) {
            if real_one {
                let mut whole = real("a.example.com");
                if let (Some(byte), Some(with)) = (whole.get_mut(at), bytes.first()) {
                    *byte = *with;
                }
                bytes = whole;
            }
            let _ = Hello::parse(&bytes);
        }
    }
}
