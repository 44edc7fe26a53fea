use std::fmt::Debug;

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::*;

/// Everything that is reported, as text.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}"));
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "belljar::egress"
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Heard {
    fn take(&self) -> Vec<BTreeMap<String, String>> {
        mem::take(&mut *self.0.lock().unwrap())
    }
}

fn sum(reports: &[BTreeMap<String, String>], field: &str) -> u64 {
    reports.iter().filter_map(|report| report.get(field)?.parse::<u64>().ok()).sum()
}

fn with<'a>(reports: &'a [BTreeMap<String, String>], message: &str) -> Vec<&'a BTreeMap<String, String>> {
    reports.iter().filter(|report| report["message"] == message).collect()
}

fn listen() -> (Heard, tracing::subscriber::DefaultGuard) {
    let heard = Heard::default();
    let guard = tracing::subscriber::set_default(heard.clone());
    // Somebody without a listener may have met the place of the report first.
    tracing::callsite::rebuild_interest_cache();
    (heard, guard)
}

/// A connection that is over.
fn connection(log: &Arc<Log>, to: &str, sent: u64, refused: bool) {
    let mut trail = Trail::new(log, &Arc::default(), "http");
    trail.note(|record| {
        record.to = to.into();
        record.secrets = vec!["TOKEN".into()];
    });
    trail.bytes.sent.store(sent, Ordering::Relaxed);
    if refused {
        trail.refuse(&Refusal::malformed("no"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_added_up_and_nothing_of_it_is_lost() {
    let (heard, _guard) = listen();
    let log = Log::new("ctx-1 ann");
    for number in 0..5000 {
        connection(&log, ["a.test:80", "b.test:80"][number % 2], 3, false);
    }
    let at_once = heard.take();
    assert_eq!(with(&at_once, "allowed").len() as u64, REPORTED_AT_ONCE);
    assert_eq!(at_once.len() as u64, REPORTED_AT_ONCE);
    sleep(INTERVAL + Duration::from_millis(1)).await;
    let later = heard.take();
    assert_eq!((later.len(), with(&later, "omitted").len()), (2, 2), "{later:?}");
    assert_eq!(
        later.iter().map(|report| report["to"].as_str()).collect::<Vec<_>>(),
        ["\"a.test:80\"", "\"b.test:80\""]
    );
    assert!(later.iter().all(|report| report["secrets"] == "[\"TOKEN\"]" && report["refused"] == "0"));
    assert_eq!(REPORTED_AT_ONCE + sum(&later, "omitted"), 5000);
    assert_eq!(sum(&at_once, "sent") + sum(&later, "sent"), 3 * 5000);
    // In time, each is reported again.
    connection(&log, "a.test:80", 1, false);
    assert_eq!(with(&heard.take(), "allowed").len(), 1);
    assert_eq!(log.recent(0).1, 5001);
}

#[tokio::test(start_paused = true)]
async fn many_places_do_not_make_many_reports_and_the_end_tells_all() {
    let (heard, _guard) = listen();
    let log = Log::new("ctx-1 ann");
    for number in 0..1000 {
        connection(&log, &format!("{number}.test:80"), 1, true);
    }
    drop(log);
    let reports = heard.take();
    assert_eq!(reports.len() as u64, REPORTED_AT_ONCE + PLACES as u64 + 1);
    assert_eq!(REPORTED_AT_ONCE + sum(&reports, "omitted"), 1000);
    assert_eq!(sum(&reports, "refused"), 1000 - REPORTED_AT_ONCE);
    assert_eq!(sum(&reports, "sent"), 1000);
}

#[tokio::test(start_paused = true)]
async fn what_came_to_nothing_hides_nothing_else() {
    let (heard, _guard) = listen();
    let log = Log::new("ctx-1 ann");
    for _ in 0..1000 {
        connection(&log, "a.test:80", 0, true);
    }
    connection(&log, "b.test:80", 7, false);
    let reports = heard.take();
    assert_eq!(with(&reports, "refused").len() as u64, REPORTED_AT_ONCE);
    assert_eq!(with(&reports, "allowed")[0]["to"], "\"b.test:80\"");
}

#[tokio::test(start_paused = true)]
async fn what_is_looked_into_goes_slower() {
    let (log, rate) = (Log::new("test"), Arc::new(Rate::new(INSPECTED << 20, 1)));
    let trail = || Trail::new(&log, &Arc::default(), "http").within(&rate);
    let took = async |trail: &Trail| {
        let began = tokio::time::Instant::now();
        trail.bytes.count(&trail.bytes.received, 1 << 20).await;
        began.elapsed().as_millis()
    };
    let (passed, inspected) = (trail(), trail());
    inspected.bytes.inspect();
    assert!((240..=260).contains(&took(&passed).await));
    assert!((990..=1010).contains(&took(&inspected).await));
    // Both are of one sandbox.
    let together = tokio::time::Instant::now();
    tokio::join!(took(&passed), took(&passed));
    assert!(together.elapsed() >= Duration::from_millis(490));
    assert_eq!(passed.bytes.sum(), 3 << 20);
}
