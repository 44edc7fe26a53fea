//! Secrets by placeholder.

use super::*;

#[tokio::test]
async fn a_secret_is_used_and_never_seen() {
    let upstream = Upstream::start(true, ECHO).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    let placeholder = rig.gateway.secrets()[0].placeholder();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {placeholder}\r\nX-Other: {placeholder}\r\nRange: bytes=0-9\r\nAccept-Encoding: gzip\r\n\r\n"
    );
    let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
    let heard = upstream.heard();
    assert!(heard[0].contains(&format!("Authorization: Bearer {VALUE}\r\n")), "{heard:?}");
    assert!(heard[0].contains(&format!("X-Other: {placeholder}\r\n")));
    assert!(!heard[0].contains("Range") && heard[0].contains("Accept-Encoding: identity"));
    // Neither in the headers of the answer nor in its body.
    assert!(!answer.contains(VALUE), "{answer}");
    assert!(answer.matches(&format!("Bearer {placeholder}")).count() == 2, "{answer}");
    assert_eq!(rig.reasons(1).await, []);
    assert_eq!(rig.log.recent(1).0[0].secrets, ["TOKEN"]);
}

#[tokio::test]
async fn a_secret_goes_to_its_own_host_alone() {
    let upstream = Upstream::start(true, ECHO).await;
    let rig = Rig::new(&upstream, &["a.test", "b.test"], None, &["TOKEN=b.test:PORT/Authorization"]);
    let placeholder = rig.gateway.secrets()[0].placeholder();
    let request =
        format!("GET / HTTP/1.1\r\nHost: a.test:{}\r\nAuthorization: {placeholder}\r\n\r\n", upstream.port);
    // Not ended here: the server's own certificate is what the client sees.
    let place = format!("a.test:{}", upstream.port);
    let answer = rig.https(&place, "a.test", &upstream.authority, &request).await.unwrap();
    assert!(answer.contains(&placeholder) && !upstream.heard()[0].contains(VALUE));
}

#[tokio::test]
async fn a_host_with_a_secret_is_not_spoken_to_in_the_clear() {
    let upstream = Upstream::start(false, ECHO).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    assert!(rig.raw(&get(&place)).await.starts_with("HTTP/1.1 403 Refused by Belljar: a.test has a secret"));
    let mut stream = rig.tunnel(&place).await.unwrap();
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {place}\r\n\r\n").as_bytes()).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 403 "));
    assert_eq!(rig.reasons(2).await, [Reason::Secret, Reason::Secret]);
    assert_eq!(upstream.heard(), [""; 0]);
}

#[tokio::test]
async fn an_answer_that_cannot_be_searched_is_not_passed_on() {
    let compressed = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello";
    let upstream = Upstream::start(true, compressed).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    let request = format!("GET / HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 ") && !answer.contains("hello"), "{answer}");
}

#[tokio::test]
async fn a_secret_does_not_come_back_as_the_name_of_a_header() {
    let named = "HTTP/1.1 200 OK\r\nThe-Real-Token-0123: 1\r\nX-Kept: yes\r\nContent-Length: 0\r\n\r\n";
    let upstream = Upstream::start(true, named).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    let request = format!("GET / HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
    assert!(answer.contains("X-Kept: yes") && !answer.to_lowercase().contains(VALUE), "{answer}");
}

#[tokio::test]
async fn a_placeholder_with_something_around_it_goes_nowhere() {
    let upstream = Upstream::start(true, ECHO).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    let placeholder = rig.gateway.secrets()[0].placeholder();
    let request = format!("GET / HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer x{placeholder}x\r\n\r\n");
    let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 Refused by Belljar: the placeholder of TOKEN must"), "{answer}");
    assert_eq!(rig.reasons(1).await, [Reason::Secret]);
    assert_eq!(upstream.heard(), [""; 0]);
}

#[tokio::test]
async fn credentials_do_not_come_back_escaped() {
    let escaped = "HTTP/1.1 200 OK\r\nX-Echo: the%2Dreal%2dtoken%2D0123\r\n\r\n{\"t\": \"the\\u002Dreal\\u002dtoken-0123\", \"h\": \"the&#45;real&#x2D;token-0123\"}";
    let upstream = Upstream::start(true, escaped).await;
    let rig = Rig::new(&upstream, &["a.test"], None, &["TOKEN=a.test:PORT/Authorization"]);
    let place = format!("a.test:{}", upstream.port);
    let request = format!("GET / HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let answer = rig.https(&place, "a.test", &rig.authority, &request).await.unwrap();
    assert!(answer.contains("200 OK") && !answer.contains("0123"), "{answer}");
    assert_eq!(answer.matches(&rig.gateway.secrets()[0].placeholder()).count(), 3);
}
