//! What one sandbox may do in a second, and what is left of it when it ends.

use std::time::Instant;

use super::*;

#[tokio::test]
async fn what_was_open_is_written_down_when_all_has_settled() {
    let upstream = Upstream::start(true, HELLO).await;
    let mut rig = Rig::new(&upstream, &["a.test"], None, &[]);
    let place = format!("a.test:{}", upstream.port);
    let _open = [rig.tunnel(&place).await.unwrap(), rig.tunnel(&place).await.unwrap()];
    assert_eq!(rig.log.recent(0).1, 0);
    drop(rig.proxy.take());
    rig.gateway.settle().await;
    assert_eq!(rig.log.recent(0).1, 2);
}

#[tokio::test]
async fn connections_are_begun_at_a_pace() {
    let upstream = Upstream::start(false, HELLO).await;
    let rig = Rig::new(&upstream, &["a.test"], Some(&["a.test:PORT"]), &[]);
    let began = Instant::now();
    for _ in 0..300 {
        assert!(rig.raw(&get("b.test:80")).await.starts_with("HTTP/1.1 403 "));
    }
    assert!(began.elapsed() >= Duration::from_millis(950), "{:?}", began.elapsed());
    assert_eq!(rig.reasons(300).await.len(), 100);
}
