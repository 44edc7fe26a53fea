//! What a client says in TLS after its first hello: a server may ask for another one, and believe that.

use crate::{
    hello::{CLIENT_HELLO, HANDSHAKE, Hello, MAX_HELLO},
    host::Host,
    refusal::{Reason, Refusal},
};

const APPLICATION_DATA: u8 = 23;
/// Type and length of a handshake message.
const MESSAGE_HEAD: usize = 4;

/// Looks at TLS from its first byte on, until nothing that follows can be a hello.
pub(crate) struct Watch {
    host: Host,
    /// What is there of a record's five.
    head: Vec<u8>,
    kind: u8,
    /// Bytes that are to come of the record.
    left: usize,
    /// What is there of a hello, or of the head of any message.
    message: Vec<u8>,
    /// Bytes that are to come of a message that is no hello.
    skip: usize,
    early_data: bool,
    over: bool,
}

impl Watch {
    /// Every hello must be for `host`, and in the clear.
    pub(crate) fn new(host: Host) -> Self {
        let (head, message) = (Vec::new(), Vec::new());
        Self { host, head, kind: 0, left: 0, message, skip: 0, early_data: false, over: false }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// The next bytes. A hello is judged with its last one; without that, nobody can make anything of it.
    pub(crate) fn see(&mut self, mut bytes: &[u8]) -> Result<(), Refusal> {
        while !self.over && !bytes.is_empty() {
            if self.left > 0 {
                let part = cut(&mut bytes, self.left);
                self.left -= part.len();
                if self.kind == HANDSHAKE {
                    self.handshake(part)?;
                }
                continue;
            }
            let missing = 5 - self.head.len();
            self.head.extend_from_slice(cut(&mut bytes, missing));
            if let [kind, major, _, high, low] = self.head[..] {
                if kind == HANDSHAKE && major != 3 {
                    return Err(Refusal::malformed("what is in the tunnel is not TLS"));
                }
                // Alerts and changes of ciphers end nothing: some servers pass over them. Data does, unless it came
                // early: a server that asks for another hello passes over that too.
                self.over = kind == APPLICATION_DATA && !self.early_data;
                (self.kind, self.left) = (kind, u16::from_be_bytes([high, low]).into());
                self.head.clear();
            }
        }
        Ok(())
    }

    fn handshake(&mut self, mut part: &[u8]) -> Result<(), Refusal> {
        while !part.is_empty() {
            self.skip -= cut(&mut part, self.skip).len();
            let missing = MESSAGE_HEAD.saturating_sub(self.message.len());
            self.message.extend_from_slice(cut(&mut part, missing));
            let [kind, a, b, c, ..] = self.message[..] else { return Ok(()) };
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if kind != CLIENT_HELLO {
                self.skip = length;
                self.message.clear();
                continue;
            }
            let missing = MESSAGE_HEAD + length - self.message.len();
            self.message.extend_from_slice(cut(&mut part, missing));
            if self.message.len() == MESSAGE_HEAD + length {
                self.judge()?;
                self.message.clear();
            } else if self.message.len() > MAX_HELLO {
                // Only now: what is encrypted may look like a long hello, but nothing more comes of it.
                return Err(Refusal::malformed("a TLS hello is too long"));
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), Refusal> {
        let hello = Hello::from_message(&self.message[MESSAGE_HEAD..])
            .ok_or_else(|| Refusal::malformed("the TLS hello is malformed"))?;
        hello.check(&self.host)?;
        if hello.encrypted {
            let message =
                format!("a later hello of TLS in the tunnel to {} hides for which host it is", self.host);
            return Err(Refusal::new(Reason::Mismatch, message));
        }
        self.early_data |= hello.early_data;
        Ok(())
    }
}

/// Takes at most so many bytes from the front.
fn cut<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (front, rest) = bytes.split_at(most.min(bytes.len()));
    *bytes = rest;
    front
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hello::tests::{encrypted, name_list, real, records, with_extensions};

    /// A record of this kind.
    pub(crate) fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3][..], &(payload.len() as u16).to_be_bytes(), payload].concat()
    }

    /// A hello that says that data follows at once.
    fn early(name: &str) -> Vec<u8> {
        with_extensions(&[(0, &name_list(name.as_bytes())), (42, &[])])
    }

    fn watch(parts: &[Vec<u8>], size: usize) -> Result<bool, Reason> {
        let mut watch = Watch::new(Host::parse("a.test").unwrap());
        for piece in parts.concat().chunks(size) {
            watch.see(piece).map_err(|refusal| refusal.reason)?;
            assert!(watch.message.len() <= MAX_HELLO + size && watch.head.len() <= 5);
        }
        Ok(watch.is_over())
    }

    #[test]
    fn a_second_hello_is_for_the_same_host() {
        let (alert, change) = (record(21, &[1, 90]), record(20, &[1]));
        let data = record(APPLICATION_DATA, b"anything");
        let in_pieces = |name: &str| records(&real(name)[9..], 30);
        for size in [1, 3, 100, 1 << 16] {
            assert_eq!(watch(&[real("a.test"), real("a.test")], size), Ok(false));
            assert_eq!(watch(&[real("a.test"), change.clone(), in_pieces("a.test")], size), Ok(false));
            for between in [&[][..], &change, &alert] {
                let between = between.to_vec();
                for second in
                    [real("evil.test"), in_pieces("evil.test"), encrypted("a.test"), with_extensions(&[])]
                {
                    let said = [real("a.test"), between.clone(), second];
                    assert_eq!(watch(&said, size), Err(Reason::Mismatch));
                }
            }
            // After this, all that is said is between the two of them.
            let after = [real("a.test"), change.clone(), data.clone(), real("evil.test")];
            assert_eq!(watch(&after, size), Ok(true));
        }
    }

    #[test]
    fn data_that_comes_early_hides_no_hello() {
        let data = record(APPLICATION_DATA, b"anything");
        for size in [1, 1 << 16] {
            let said = [early("a.test"), data.clone(), real("evil.test")];
            assert_eq!(watch(&said, size), Err(Reason::Mismatch));
            assert_eq!(watch(&[early("a.test"), data.clone(), data.clone()], size), Ok(false));
        }
    }

    #[test]
    fn two_hellos_in_one_record_are_two() {
        let both = [&real("a.test")[5..], &real("evil.test")[5..]].concat();
        assert_eq!(watch(&[record(HANDSHAKE, &both)], 50), Err(Reason::Mismatch));
    }

    #[test]
    fn the_rest_of_a_handshake_passes_even_if_it_looks_like_a_hello() {
        let key = record(HANDSHAKE, &[&[16, 0, 0, 66][..], &[7; 66]].concat());
        let finished = [&[CLIENT_HELLO, 200, 1, 1][..], &[9; 36]].concat();
        let (change, finished) = (record(20, &[1]), record(HANDSHAKE, &finished));
        let data = record(APPLICATION_DATA, b"anything");
        assert_eq!(watch(&[real("a.test"), key, change, finished, data], 9), Ok(true));
    }

    #[test]
    fn a_hello_without_end_is_not_waited_for() {
        let endless = [&[CLIENT_HELLO, 200, 1, 1][..], &[9; 16000]].concat();
        let said = [real("a.test"), record(HANDSHAKE, &endless), record(HANDSHAKE, &endless)];
        assert_eq!(watch(&said, 1000), Err(Reason::Malformed));
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(parts in prop::collection::vec((20u8..25, prop::collection::vec(any::<u8>(), 0..60)), 0..6), size in 1usize..50) {
            let said: Vec<_> = parts.iter().map(|(kind, payload)| record(*kind, payload)).collect();
            prop_assert_eq!(watch(&said, size), watch(&said, 1 << 16));
        }
    }
}
