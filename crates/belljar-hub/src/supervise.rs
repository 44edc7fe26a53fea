//! The task that looks after one server: connects, connects again, asks how it is, and fetches what it offers.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rmcp::model::SubscriptionFilter;
use tokio::time::{Instant, sleep_until};

use crate::{
    catalogue::ServerCatalogue,
    connection::Connection,
    error::{ErrorClass, Failure, chain, classify},
    server::{Server, State},
};

/// Several notifications about the same change are one.
const SETTLE: Duration = Duration::from_millis(50);

pub(crate) async fn supervise(server: Arc<Server>) {
    tokio::select! {
        () = Supervisor { server: server.clone(), failures: 0 }.run() => {}
        () = server.closing.cancelled() => {}
    }
    let connections = std::mem::take(&mut server.inner().connections);
    connections.iter().for_each(|connection| connection.close());
    server.state.send_replace(State::Closed);
}

struct Supervisor {
    server: Arc<Server>,
    /// Attempts that failed, and connections that did not last, since one did.
    failures: usize,
}

impl Supervisor {
    async fn run(mut self) {
        loop {
            match self.server.state() {
                State::Starting | State::Reconnecting => self.connect().await,
                State::Down => {
                    let at = self.server.inner().retry_at.unwrap_or_else(Instant::now);
                    sleep_until(at).await;
                    self.connect().await;
                }
                State::Ready | State::Idle => {
                    let tick = Instant::now() + self.server.timing.check.min(self.server.timing.idle) / 2;
                    tokio::select! {
                        () = self.server.work.notified() => {}
                        () = sleep_until(tick) => {}
                    }
                    self.maintain().await;
                }
                State::Closed => return,
            }
        }
    }

    /// One attempt, after the pause that is due. The state says how it went.
    async fn connect(&mut self) {
        let server = self.server.clone();
        let timing = &server.timing;
        if self.failures > 0 && server.state() != State::Down {
            match timing.retries.get(self.failures - 1) {
                Some(pause) => tokio::time::sleep(jittered(*pause)).await,
                // It lets itself be connected to, and dies, again and again.
                None => return self.give_up(),
            }
        }
        match self.attempt().await {
            Ok(()) => {
                server.inner().retry_at = None;
                server.state.send_replace(State::Ready);
            }
            Err(failure) => {
                tracing::info!(
                    target: "belljar::hub",
                    server = server.name,
                    class = %failure.class,
                    "cannot connect: {}",
                    failure.why
                );
                self.failures += 1;
                server.inner().last_error = Some(failure);
                if self.failures > timing.retries.len() {
                    self.give_up();
                }
            }
        }
    }

    /// Until the circuit closes again, calls fail at once.
    fn give_up(&self) {
        let server = &self.server;
        server.inner().retry_at = Some(Instant::now() + jittered(server.timing.circuit));
        if server.state.send_replace(State::Down) != State::Down {
            tracing::warn!(target: "belljar::hub", server = server.name, "{}", server.unavailable());
        }
    }

    async fn attempt(&self) -> Result<(), Failure> {
        let server = &self.server;
        let connection = server.open().await?;
        let fetched = self.fetch(&connection).await;
        if let Err(failure) = fetched {
            connection.close();
            return Err(failure);
        }
        if let Some(info) = connection.info() {
            let named = info.server_info.as_ref().map(|this| format!("{} {}", this.name, this.version));
            let named = named.unwrap_or_else(|| "unnamed".into());
            let shown = (crate::error::bounded(&named), info.protocol_version.to_string());
            server.inner().shown = Some(shown);
        }
        server.connects.fetch_add(1, Ordering::Relaxed);
        let (ended, work) = (connection.ended(), server.work.clone());
        server.tasks.spawn(async move {
            ended.cancelled().await;
            work.notify_one();
        });
        if !connection.is_legacy() {
            server.tasks.spawn(listen(server.clone(), connection.clone()));
        }
        server.inner().connections.insert(0, connection);
        Ok(())
    }

    async fn fetch(&self, connection: &Connection) -> Result<(), Failure> {
        let server = &self.server;
        server.stale.store(false, Ordering::Relaxed);
        let capabilities = connection.capabilities();
        let fetch = ServerCatalogue::fetch(connection.peer(), &capabilities, &server.config.tools);
        // Several lists, each of which may have pages.
        let limit = 4 * server.timing.probe;
        let catalogue = match tokio::time::timeout(limit, fetch).await {
            Ok(Ok(catalogue)) => catalogue,
            Ok(Err(error)) => {
                let why = server.redactor.clean(&chain(&error));
                return Err(Failure {
                    class: classify(&error),
                    why: format!("it does not say what it offers: {why}"),
                });
            }
            Err(_) => {
                let why = format!("it did not say what it offers within {} s", limit.as_secs_f64());
                return Err(Failure { class: ErrorClass::Timeout, why });
            }
        };
        let mut inner = server.inner();
        inner.listed = Some(Instant::now());
        if *inner.catalogue != catalogue {
            inner.catalogue = Arc::new(catalogue);
            drop(inner);
            server.changed.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    async fn maintain(&mut self) {
        let server = self.server.clone();
        let timing = &server.timing;
        let connections = server.inner().connections.clone();
        let had_any = !connections.is_empty();
        for connection in &connections {
            if connection.is_over() {
                continue;
            }
            if connection.opened.elapsed() >= timing.check {
                self.failures = 0;
            }
            if connection.in_flight() == 0
                && connection.needs_check(timing.check)
                && let Err(failure) = server.check(connection).await
            {
                server.discard(connection, failure);
            }
        }
        // With the lock held: nobody can be about to use one that is closed here.
        server.inner().connections.retain(|connection| {
            let idle = connection.unused_for() >= timing.idle;
            if idle {
                connection.close();
            }
            !idle
        });
        let lost = connections
            .iter()
            .any(|connection| connection.is_over() && connection.unused_for() < timing.idle);
        let first = {
            let mut inner = server.inner();
            inner.connections.retain(|connection| !connection.is_over());
            inner.connections.first().cloned()
        };
        match first {
            Some(connection) if server.stale.load(Ordering::Relaxed) => {
                tokio::time::sleep(SETTLE).await;
                if let Err(failure) = self.fetch(&connection).await {
                    server.discard(&connection, failure);
                }
            }
            Some(_) => {}
            // Somebody waits for one already.
            None if server.state() == State::Reconnecting => {}
            None if lost => {
                self.failures +=
                    usize::from(connections.iter().all(|one| one.opened.elapsed() < timing.check));
                server.state.send_replace(State::Reconnecting);
            }
            None if had_any => {
                server.state.send_if_modified(|state| std::mem::replace(state, State::Idle) == State::Ready);
            }
            None => {
                // Discarded by a call.
                if server.state() == State::Ready {
                    server.state.send_replace(State::Reconnecting);
                }
            }
        }
    }
}

/// In the newer era a server tells changes only to those who ask it to.
async fn listen(server: Arc<Server>, connection: Arc<Connection>) {
    let ended = connection.ended();
    let hear = async {
        loop {
            let filter = SubscriptionFilter::builder()
                .tools_list_changed()
                .resources_list_changed()
                .prompts_list_changed()
                .build();
            let Ok(mut subscription) = connection.peer().listen(filter).await else { return };
            while let Ok(Some(_)) = subscription.next().await {
                server.stale.store(true, Ordering::Relaxed);
                server.work.notify_one();
            }
            drop(subscription);
            tokio::time::sleep(server.timing.check).await;
            // What was missed meanwhile.
            server.stale.store(true, Ordering::Relaxed);
            server.work.notify_one();
        }
    };
    tokio::select! {
        () = hear => {}
        () = ended.cancelled() => {}
        () = server.closing.cancelled() => {}
    }
}

/// A fifth more or less, so that many clients of one server do not come back all at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64(0.8 + 0.4 * (random % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_fifth() {
        for _ in 0..1_000 {
            let pause = jittered(Duration::from_secs(10));
            assert!((Duration::from_secs(8)..=Duration::from_secs(12)).contains(&pause), "{pause:?}");
        }
    }
}
