//! Changes to bytes that have a way of upsetting those who read them.

/// What formats are made of.
const WORDS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b":",
    b",",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e999",
    b"18446744073709551616",
    b"\\u0000",
    b"\\ud800",
    b"\n",
    b"\r\n",
    b"\0",
    b"\t",
    b" ",
    b"/",
    b"//",
    b"../",
    b"./",
    b"%2e",
    b"%00",
    b"%",
    b"..",
    b"~",
    b"\x1b[31m",
    b"\x1b]8;;",
    b"\x7f",
    b"\xff",
    b"\xc3",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x98\x80",
    b"\xed\xa0\x80",
    b"bj_",
    b"\"id\":1",
    b"\"id\":null",
    b"\"jsonrpc\":\"2.0\"",
    b"\"method\":",
    b"\"params\":",
    b"\"t\":",
    b"[ref_1]",
    b"http://",
    b"about:",
    b"file:///",
    b"localhost",
    b"[::1]",
    b"=",
    b"#",
    b"'",
    b"\"\"\"",
];
const NUMBERS: &[u32] = &[
    0,
    1,
    3,
    4,
    7,
    8,
    127,
    128,
    255,
    256,
    4095,
    65_535,
    65_536,
    1 << 20,
    (1 << 20) + 1,
    16 << 20,
    i32::MAX as u32,
    u32::MAX,
];

pub(crate) struct Mutator {
    state: u64,
}

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed | 1 }
    }

    /// Xorshift: quick, and the same everywhere.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Below `limit`, which is not 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn place(&mut self, bytes: &[u8]) -> usize {
        self.below(bytes.len() + 1)
    }

    fn piece(&mut self, bytes: &[u8]) -> (usize, usize) {
        let from = self.place(bytes);
        let to = from + self.below((bytes.len() - from).min(64) + 1);
        (from, to)
    }

    /// One of `live`, changed.
    pub(crate) fn change(&mut self, live: &[Vec<u8>], limit: usize) -> Vec<u8> {
        let mut bytes = live[self.below(live.len())].clone();
        for _ in 0..=self.below(6) {
            self.change_once(&mut bytes, live);
        }
        bytes.truncate(limit);
        bytes
    }

    fn change_once(&mut self, bytes: &mut Vec<u8>, live: &[Vec<u8>]) {
        let at = self.place(bytes);
        match self.below(11) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.next() as u8,
            2 => bytes.insert(at, self.next() as u8),
            3 => {
                let (from, to) = self.piece(bytes);
                bytes.drain(from..to);
            }
            4 => {
                let (from, to) = self.piece(bytes);
                let piece = bytes[from..to].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let word = WORDS[self.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            6 => {
                let word = WORDS[self.below(WORDS.len())];
                let to = (at + word.len()).min(bytes.len());
                bytes.splice(at..to, word.iter().copied());
            }
            7 => {
                // A length, as frames have them.
                let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                let at = at & !3;
                let to = (at + 4).min(bytes.len());
                bytes.splice(at.min(bytes.len())..to, number);
            }
            8 => {
                let other = &live[self.below(live.len())];
                let (from, to) = (self.place(other), other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..to]);
            }
            9 => {
                let other = &live[self.below(live.len())];
                let (from, to) = self.piece(other);
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            _ => {
                let times = self.below(40);
                let (from, to) = self.piece(bytes);
                let piece = bytes[from..to].repeat(times);
                bytes.splice(at..at, piece);
            }
        }
    }
}
