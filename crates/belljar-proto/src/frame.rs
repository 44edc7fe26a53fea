//! `u32 N | u32 J | J bytes of JSON | N-4-J bytes of body`, little endian.

use serde::{Serialize, de::DeserializeOwned};

/// The most one frame may hold, header and body together.
pub const MAX_FRAME: usize = 16 << 20;
/// The most a JSON header may hold: headers are small, data travels in the body.
pub const MAX_HEADER: usize = 1 << 20;
/// Room for what arrives at once.
const SPACE: usize = 64 << 10;
/// Bytes before the JSON.
pub const PREFIX: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub enum FrameError {
    TooLong { length: usize, limit: usize },
    HeaderOutside,
    BadHeader(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { length, limit } => write!(f, "frame of {length} bytes, the limit is {limit}"),
            Self::HeaderOutside => write!(f, "frame header is longer than its frame"),
            Self::BadHeader(why) => write!(f, "frame header is not what was expected: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Appends one frame to `out`.
pub fn encode<H: Serialize>(header: &H, body: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    if let Err(error) = serde_json::to_writer(&mut *out, header) {
        out.truncate(start);
        return Err(FrameError::BadHeader(error.to_string()));
    }
    let json = out.len() - start - PREFIX;
    let total = 4 + json + body.len();
    if json > MAX_HEADER || total > MAX_FRAME {
        out.truncate(start);
        return Err(FrameError::TooLong { length: total, limit: MAX_FRAME });
    }
    out[start..start + 4].copy_from_slice(&(total as u32).to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&(json as u32).to_le_bytes());
    out.extend_from_slice(body);
    Ok(())
}

/// Collects bytes as they arrive and hands out whole frames. Never holds more than one frame plus one read.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    consumed: usize,
}

/// A frame whose header was parsed.
#[derive(Debug)]
pub struct Frame<H> {
    pub header: H,
    pub body: Vec<u8>,
}

impl Decoder {
    pub fn extend(&mut self, bytes: &[u8]) {
        self.forget();
        self.buffer.extend_from_slice(bytes);
    }

    /// What arrives is appended here, so that it is not copied once more.
    pub fn space(&mut self) -> &mut Vec<u8> {
        self.forget();
        self.buffer.reserve(SPACE);
        &mut self.buffer
    }

    fn forget(&mut self) {
        if self.consumed > 0 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
    }

    /// The next whole frame, `None` while more bytes are needed.
    pub fn take<H: DeserializeOwned>(&mut self) -> Result<Option<Frame<H>>, FrameError> {
        let bytes = &self.buffer[self.consumed..];
        let Some((lengths, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        let total = u32::from_le_bytes([lengths[0], lengths[1], lengths[2], lengths[3]]) as usize;
        let json = u32::from_le_bytes([lengths[4], lengths[5], lengths[6], lengths[7]]) as usize;
        if total > MAX_FRAME || json > MAX_HEADER {
            return Err(FrameError::TooLong { length: total.max(json), limit: MAX_FRAME });
        }
        let Some(payload) = total.checked_sub(4) else { return Err(FrameError::HeaderOutside) };
        if json > payload {
            return Err(FrameError::HeaderOutside);
        }
        if rest.len() < payload {
            return Ok(None);
        }
        let header =
            serde_json::from_slice(&rest[..json]).map_err(|e| FrameError::BadHeader(e.to_string()))?;
        let body = rest[json..payload].to_vec();
        self.consumed += PREFIX + payload;
        if self.consumed == self.buffer.len() {
            self.buffer.clear();
            self.consumed = 0;
            // One large frame must not keep its memory for the life of the connection.
            self.buffer.shrink_to(64 << 10);
        }
        Ok(Some(Frame { header, body }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn refuses_a_length_beyond_the_limit_before_waiting_for_it() {
        let mut decoder = Decoder::default();
        decoder.extend(&u32::MAX.to_le_bytes());
        decoder.extend(&0u32.to_le_bytes());
        assert!(matches!(decoder.take::<Value>(), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn refuses_a_header_that_leaves_its_frame() {
        let mut decoder = Decoder::default();
        decoder.extend(&6u32.to_le_bytes());
        decoder.extend(&3u32.to_le_bytes());
        assert_eq!(decoder.take::<Value>().unwrap_err(), FrameError::HeaderOutside);
    }

    #[test]
    fn refuses_to_send_what_the_other_side_would_refuse() {
        let mut out = b"kept".to_vec();
        assert!(encode(&json!({}), &vec![0; MAX_FRAME], &mut out).is_err());
        assert_eq!(out, b"kept");
    }

    proptest! {
        #[test]
        fn frames_survive_any_splitting(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
                                        step in 1usize..64) {
            let mut wire = Vec::new();
            for (n, body) in bodies.iter().enumerate() {
                encode(&json!({ "n": n }), body, &mut wire).unwrap();
            }
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for chunk in wire.chunks(step) {
                decoder.extend(chunk);
                while let Some(frame) = decoder.take::<Value>().unwrap() {
                    prop_assert_eq!(&frame.header, &json!({ "n": seen.len() }));
                    seen.push(frame.body);
                }
            }
            prop_assert_eq!(seen, bodies);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut decoder = Decoder::default();
            decoder.extend(&bytes);
            while let Ok(Some(_)) = decoder.take::<Value>() {}
        }
    }
}
