//! Bytes from a guest, a host or an interpreter that is not what it seems.

use std::fmt::Debug;

use belljar_fuzz::{fuzz, kind, mark};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    FromGuest, Request,
    frame::{Decoder, encode},
    kernel::{FromKernel, ToKernel},
    supervisor,
};

/// What comes out of a stream that arrives in pieces of this size.
fn decoded<H: DeserializeOwned + Serialize + Debug>(
    stream: &[u8],
    piece: usize,
) -> (Vec<(String, Vec<u8>)>, Option<String>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for bytes in stream.chunks(piece) {
        decoder.extend(bytes);
        loop {
            match decoder.take::<H>() {
                Ok(Some(frame)) => {
                    // What was understood can be said.
                    encode(&frame.header, &frame.body, &mut Vec::new()).unwrap();
                    frames.push((format!("{:?}", frame.header), frame.body));
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }
    (frames, None)
}

/// The first byte of the input says in what pieces the rest arrives.
fn frames<H: DeserializeOwned + Serialize + Debug>(input: &[u8]) -> u64 {
    let Some((&piece, stream)) = input.split_first() else { return 0 };
    let at_once = decoded::<H>(stream, stream.len().max(1));
    assert_eq!(at_once, decoded::<H>(stream, usize::from(piece) + 1), "pieces make a difference");
    let (frames, error) = at_once;
    let kinds: Vec<_> = frames.iter().map(|(header, body)| (kind(header), body.len().min(4))).collect();
    mark((kinds, error.map(|error| kind(&error))))
}

/// What `H` understands: a fuzzer that starts from nonsense stays with nonsense.
fn seed<H: DeserializeOwned>(headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![7];
    for header in headers {
        let header: serde_json::Value = serde_json::from_str(header).unwrap();
        serde_json::from_value::<H>(header.clone()).unwrap();
        encode(&header, body, &mut bytes).unwrap();
    }
    bytes
}

#[test]
fn fuzz_frames_from_guest() {
    let talk = seed::<FromGuest>(
        &[
            r#"{"hello":{"generation":2,"digest":"x"}}"#,
            r#"{"event":{"id":1,"event":{"output":{"stream":"stdout"}}}}"#,
            r#"{"event":{"id":1,"event":{"display":{"result":true,"parts":[["text/plain",3]]}}}}"#,
            r#"{"reply":{"id":1,"reply":{"failed":{"kind":"internal","message":"no"}}}}"#,
        ],
        b"abc",
    );
    fuzz("frames_from_guest", &[&talk], frames::<FromGuest>);
}

#[test]
fn fuzz_frames_to_guest() {
    let talk = seed::<Request>(
        &[
            r#"{"id":1,"call":{"run":{"language":"python","limits":{"timeout_ms":1,"output_cap":1,"streaming":"off"}}}}"#,
            r#"{"id":2,"call":{"write_file":{"path":"a","offset":0}}}"#,
            r#"{"id":3,"call":{"interrupt":{"target":1}}}"#,
        ],
        b"print(1)",
    );
    fuzz("frames_to_guest", &[&talk], frames::<Request>);
}

#[test]
fn fuzz_frames_of_kernels() {
    let from = seed::<FromKernel>(
        &[
            r#"{"hello":{"pid":7,"language":"python","version":"3"}}"#,
            r#"{"display":{"id":1,"result":true,"parts":[["text/plain",1]]}}"#,
            r#"{"done":{"id":1,"ok":false,"error":{"name":"E","message":"m"}}}"#,
        ],
        b"1",
    );
    let to = seed::<ToKernel>(&[r#"{"t":"run","id":1}"#, r#"{"t":"interrupt","id":1}"#], b"1");
    let both = |input: &[u8]| mark((frames::<FromKernel>(input), frames::<ToKernel>(input)));
    fuzz("frames_of_kernels", &[&from, &to], both);
}

#[test]
fn fuzz_packets() {
    fn packet<P: DeserializeOwned + Serialize>(input: &[u8]) -> Option<String> {
        match serde_json::from_slice::<P>(input) {
            Ok(packet) => {
                let again = serde_json::to_vec(&packet).unwrap();
                serde_json::from_slice::<P>(&again).unwrap();
                None
            }
            Err(error) => Some(kind(&error.to_string())),
        }
    }
    let seeds: [&[u8]; 4] = [
        br#"{"t":"kernel","id":1}"#,
        br#"{"t":"browser","id":1}"#,
        br#"{"t":"kernel_exited","id":1,"status":9,"out_of_memory":false}"#,
        br#"{"t":"init","config":{"digest":"","first":null,"javascript":[],"memory_bytes":1,"processes":1}}"#,
    ];
    fuzz("packets", &seeds, |input| {
        mark((packet::<supervisor::FromGuest>(input), packet::<supervisor::ToGuest>(input)))
    });
}
