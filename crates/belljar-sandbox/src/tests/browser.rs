//! Calls of the browser, among themselves and beside others.

use super::*;

#[tokio::test]
async fn browser_calls_are_serial_among_themselves_and_beside_code() {
    let bench = Arc::new(Bench::new(Settings::default()));
    let id = bench.context("a", None).await.unwrap().id;
    let (browsed, body) = bench.browse(&id, "1").await.unwrap();
    assert_eq!((browsed.unwrap().text.as_deref(), &body[..]), (Some("1"), &b"picture"[..]));
    let (refused, _) = bench.browse(&id, "refuse").await.unwrap();
    assert!(matches!(refused, Err(Problem::NotFound { target }) if target.len() < 10_000));

    let (other, held) = (Arc::clone(&bench), id.clone());
    let waits = tokio::spawn(async move { other.browse(&held, "wait").await });
    bench.waiting(1).await;
    let (other, held) = (Arc::clone(&bench), id.clone());
    let queued = tokio::spawn(async move { other.browse(&held, "2").await });
    assert!(bench.run(&id, "1").await.unwrap().success, "code does not wait for the browser");
    assert!(bench.exec(&id, "ls").await.is_ok());
    assert!(!queued.is_finished());
    // Whoever goes away interrupts what they wait for.
    waits.abort();
    let (browsed, _) = queued.await.unwrap().unwrap();
    assert_eq!(browsed.unwrap().text.as_deref(), Some("2"));
    bench.waiting(0).await;
}

#[tokio::test]
async fn a_browser_call_survives_its_sandbox_and_can_be_cancelled() {
    let bench = Arc::new(Bench::new(Settings::default()));
    let id = bench.context("a", None).await.unwrap().id;
    let died = bench.browse(&id, "die").await.unwrap_err();
    assert!(died.to_string().starts_with("The sandbox ended (it was told to)"), "{died}");
    assert!(bench.browse(&id, "1").await.unwrap().0.is_ok(), "there is a fresh one");
    let cancel = CancellationToken::new();
    let (other, held, token) = (Arc::clone(&bench), id.clone(), cancel.clone());
    let call = tokio::spawn(async move {
        let browse = Browse::Evaluate { code: "wait".into() };
        other.service.browse(&other.caller, &held, browse, None, token).await
    });
    bench.waiting(1).await;
    cancel.cancel();
    assert!(matches!(call.await.unwrap(), Err(Error::Cancelled)));
    assert!(bench.browse("no such context", "1").await.is_err());
}
