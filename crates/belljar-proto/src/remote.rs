//! How a guest reaches a host that did not make its sandbox: the host listens at a socket in a directory that both see,
//! and the guest calls there. The first bytes of a call say what it is for. On the call of the guest itself frames with
//! [`ToGuest`](crate::supervisor::ToGuest) follow, from the host; all other streams are what they would be anywhere.

/// So many bytes come first.
pub const CALL_BYTES: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// The guest, to be told what to do.
    Guest,
    /// A stream that was asked for under this number.
    Stream(u64),
    /// One more byte follows, with two descriptors: sockets that were asked for under this number.
    Sockets(u64),
}

impl Caller {
    pub fn encode(self) -> [u8; CALL_BYTES] {
        let (kind, number) = match self {
            Self::Guest => (b'g', 0),
            Self::Stream(number) => (b's', number),
            Self::Sockets(number) => (b'l', number),
        };
        let mut bytes = [kind; CALL_BYTES];
        bytes[1..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: [u8; CALL_BYTES]) -> Option<Self> {
        let [kind, number @ ..] = bytes;
        let number = u64::from_le_bytes(number);
        match kind {
            b'g' => Some(Self::Guest),
            b's' => Some(Self::Stream(number)),
            b'l' => Some(Self::Sockets(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_who_they_say() {
        for caller in [Caller::Guest, Caller::Stream(0), Caller::Stream(u64::MAX), Caller::Sockets(7)] {
            assert_eq!(Caller::decode(caller.encode()), Some(caller));
        }
        assert_eq!(Caller::decode([0; CALL_BYTES]), None);
        assert_eq!(&Caller::Stream(1).encode()[..3], b"s\x01\0", "frozen");
    }
}
