//! Sandboxes that end, and who hears of it.

use super::*;

#[tokio::test]
async fn one_that_ends_before_it_is_anybodys_is_followed_by_the_next() {
    let bench = Bench::new(Settings::default());
    bench.world.short_lived.store(2, Ordering::SeqCst);
    bench.context("a", None).await.unwrap();
    assert_eq!(bench.world.limits.lock().unwrap().len(), 3);
    bench.world.short_lived.store(100, Ordering::SeqCst);
    let refused = bench.context("b", None).await.unwrap_err();
    assert_eq!(refused.to_string(), Error::CreationFailed("the jailer ended".into()).to_string());
}

#[tokio::test]
async fn a_loss_is_told_by_the_first_that_can_and_only_once() {
    let bench = Bench::new(Settings::default());
    let id = bench.context("a", None).await.unwrap().id;
    let lose = async || {
        let context = bench.service.find(&bench.caller, &id).unwrap();
        let closed = context.sandbox().guest.closed();
        bench.service.stat_file(&bench.caller, &id, "die").await.unwrap_err();
        closed.cancelled().await;
    };
    let run = async || {
        let request = RunRequest { code: "1".into(), ..RunRequest::default() };
        bench.service.run(&bench.caller, &id, request, CancellationToken::new()).await.unwrap().notes
    };
    lose().await;
    let told = bench.service.write_file(&bench.caller, &id, "a", b"x").await.unwrap_err().to_string();
    assert!(told.contains("files are gone"), "{told}");
    assert_eq!(run().await, [""; 0]);
    lose().await;
    let argv = vec!["server".into()];
    let spawned = SpawnRequest { argv, ..SpawnRequest::default() };
    let told = bench.service.spawn(&bench.caller, &id, spawned).await.unwrap_err().to_string();
    assert!(told.contains("files are gone"), "{told}");
    lose().await;
    let notes = run().await;
    assert!(notes.len() == 1 && notes[0].contains("files are gone"), "{notes:?}");
    assert_eq!(run().await, [""; 0]);
}
