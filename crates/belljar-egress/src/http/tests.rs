use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn request(text: &str) -> Result<Request, &'static str> {
    Request::parse(text.as_bytes())
}

fn head(headers: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: a.test\r\n{headers}\r\n")
}

fn framing(headers: &str) -> Result<Framing, &'static str> {
    request(&head(headers)).and_then(|request| request.framing())
}

async fn whole(framing: Framing, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut reader = Reader::new(Cursor::new(bytes.to_vec()));
    let mut body = Body::new(framing);
    let mut all = Vec::new();
    while let Some(bytes) = body.next(&mut reader).await? {
        all.extend(bytes);
    }
    Ok(all)
}

#[test]
fn a_plain_request_is_understood_and_written_back() {
    let text = "GET http://a.test/x?y=1 HTTP/1.1\r\nHost: a.test\r\nX-Y:  z \r\n\r\n";
    let request = request(text).unwrap();
    assert_eq!((request.method.as_str(), request.target.as_str()), ("GET", "http://a.test/x?y=1"));
    assert_eq!(request.headers.get("x-y"), Some(&b"z"[..]));
    let mut out = Vec::new();
    request.write(&mut out);
    assert_eq!(String::from_utf8(out).unwrap(), text.replace(":  z ", ": z"));
}

#[test]
fn smuggling_with_two_lengths_is_refused() {
    for headers in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: \r\n",
        "Content-Length: 99999999999999999999\r\n",
    ] {
        assert!(framing(headers).is_err(), "{headers:?}");
    }
    assert_eq!(framing("Content-Length: 5\r\n"), Ok(Framing::Length(5)));
    assert_eq!(framing("transfer-encoding: CHUNKED\r\n"), Ok(Framing::Chunked));
    assert_eq!(framing(""), Ok(Framing::Empty));
}

#[test]
fn smuggling_with_odd_lines_is_refused() {
    for text in [
        head("X: a\nY: b\r\n"),
        head("X: a\rY: b\r\n"),
        head(" X: folded\r\n"),
        head("X : blank\r\n"),
        head("X\r\n"),
        head(": empty\r\n"),
        head("X: a\0b\r\n"),
        head("Content-Length: \x0c5\r\n"),
        head("Content-Length: 5\x0b\r\n"),
        head("Host: b.test\r\n"),
        "GET /a HTTP/1.1\r\n\r\n".into(),
        "GET  /a HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "GET /a HTTP/2.0\r\nHost: a\r\n\r\n".into(),
        "GET /ä HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "G(T /a HTTP/1.1\r\nHost: a\r\n\r\n".into(),
        "\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n".into(),
    ] {
        assert!(request(&text).is_err(), "{text:?}");
    }
    assert!(request("GET /a HTTP/1.0\r\n\r\n").is_ok());
}

#[tokio::test]
async fn smuggling_with_odd_chunks_is_refused() {
    for bytes in [
        "5;x=y\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: y\r\n\r\n",
        "fffffffffffffffff\r\n",
        "5\r\nhello\r\n",
        "5\r\nhel",
    ] {
        assert!(whole(Framing::Chunked, bytes.as_bytes()).await.is_err(), "{bytes:?}");
    }
    assert_eq!(
        whole(Framing::Chunked, b"5\r\nhello\r\nA\r\n, world!!!\r\n0\r\n\r\n").await.unwrap(),
        b"hello, world!!!"
    );
}

#[tokio::test]
async fn a_body_that_ends_early_is_no_body() {
    assert!(whole(Framing::Length(6), b"hello").await.is_err());
    assert_eq!(whole(Framing::Length(4), b"hello").await.unwrap(), b"hell");
    assert_eq!(whole(Framing::UntilClose, b"hello").await.unwrap(), b"hello");
    assert_eq!(whole(Framing::Empty, b"hello").await.unwrap(), b"");
}

#[test]
fn what_is_about_one_connection_is_not_passed_on() {
    let mut request = request(&head(
        "Connection: close, X-Mine, Content-Length\r\nX-Mine: 1\r\nProxy-Authorization: Basic eA==\r\nUpgrade: h2c\r\nContent-Length: 3\r\nAccept: */*\r\n",
    ))
    .unwrap();
    request.headers.end_hop();
    let mut out = Vec::new();
    request.write(&mut out);
    assert_eq!(String::from_utf8(out).unwrap(), head("Content-Length: 3\r\nAccept: */*\r\n"));
}

#[test]
fn a_response_is_understood() {
    let response = Response::parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\n").unwrap();
    assert_eq!((response.status, response.framing("GET")), (404, Ok(Framing::Length(3))));
    assert_eq!(response.framing("HEAD"), Ok(Framing::Empty));
    assert_eq!(Response::parse(b"HTTP/1.0 200\r\n\r\n").unwrap().framing("GET"), Ok(Framing::UntilClose));
    for bad in [
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 999 X\r\n\r\n",
        "HTTP/1.1 200 O\x03K\r\n\r\n",
    ] {
        assert!(Response::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
    assert!(Response::parse(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n").is_err());
}

proptest! {
    #[test]
    fn what_is_understood_is_written_so_that_it_is_understood_alike(
        text in "[A-Z]{1,5} [!-~]{1,20} HTTP/1\\.1\r\n(Host: a\r\n)?([a-zA-Z\\-]{1,8}:[ -~\r\n\t]{0,12}\r\n){0,4}\r\n"
    ) {
        if let Ok(request) = Request::parse(text.as_bytes()) {
            let mut out = Vec::new();
            request.write(&mut out);
            let again = Request::parse(&out).unwrap();
            prop_assert_eq!(again.framing(), request.framing());
            prop_assert_eq!((again.method, again.target, again.headers), (request.method, request.target, request.headers));
        }
    }

    #[test]
    fn nothing_makes_the_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Request::parse(&bytes);
        let _ = Response::parse(&bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _ = runtime.block_on(whole(Framing::Chunked, &bytes));
        let _ = runtime.block_on(async { Reader::new(Cursor::new(bytes)).head().await });
    }

    #[test]
    fn chunks_come_back_whole(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8)) {
        let mut encoded = Vec::new();
        pieces.iter().for_each(|piece| write_chunk(piece, &mut encoded));
        last_chunk(&mut encoded);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        prop_assert_eq!(runtime.block_on(whole(Framing::Chunked, &encoded)).unwrap(), pieces.concat());
    }
}
