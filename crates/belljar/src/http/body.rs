//! Bodies within limits: of one, in size and time, and of all together, in memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
};
use belljar_sandbox::Caller;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::reply::{self, INVALID_REQUEST, REFUSED, Reply};
use crate::observe::metrics::Denied;

/// A body that is not there after this long does not come.
const TIME: Duration = Duration::from_secs(30);
/// Bodies of all callers together, in units of [`UNIT`].
const TOTAL: usize = 256 << 20;
const UNIT: usize = 64 << 10;
/// Of a body that is too large, so much is read and thrown away: a client that is still sending does not listen.
const THROWN_AWAY: u64 = 256 << 20;

pub(super) struct Bodies {
    limit: usize,
    room: Arc<Semaphore>,
    /// What each caller holds of it.
    held: Arc<Mutex<HashMap<Caller, usize>>>,
}

/// Room for a body that is not small. Given back when dropped.
pub(super) struct Room {
    permit: Option<OwnedSemaphorePermit>,
    held: Arc<Mutex<HashMap<Caller, usize>>>,
    caller: Caller,
    units: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        if let Some(units) = held.get_mut(&self.caller) {
            *units -= self.units;
            if *units == 0 {
                held.remove(&self.caller);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bodies {
    pub(super) fn new(limit: usize) -> Self {
        let total = TOTAL.max(4 * limit) / UNIT;
        Self { limit, room: Arc::new(Semaphore::new(total)), held: Arc::default() }
    }

    pub(super) async fn read(
        &self,
        headers: &HeaderMap,
        body: Body,
        caller: &Caller,
    ) -> Result<(Bytes, Room), Reply> {
        let announced =
            headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let expects = headers.contains_key(header::EXPECT);
        if announced.is_some_and(|length| length > self.limit as u64) {
            let small_enough = announced.is_some_and(|length| length <= THROWN_AWAY);
            return Err(self.too_large((!expects && small_enough).then_some(body)).await);
        }
        match tokio::time::timeout(TIME, self.collect(body, caller)).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(Failure::TooLarge(rest))) => Err(self.too_large(Some(rest)).await),
            Ok(Err(Failure::TooMuch)) => {
                let message =
                    "Your large requests in progress take up too much memory: wait for some of them";
                let mut refused =
                    reply::denied(Denied::Size, StatusCode::TOO_MANY_REQUESTS, REFUSED, message);
                refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
                Err(closing(refused))
            }
            Ok(Err(Failure::Broken)) => {
                let message = "The body ended early or could not be read";
                Err(reply::refusal(StatusCode::BAD_REQUEST, INVALID_REQUEST, message))
            }
            Err(_) => {
                let message = format!("The body was not complete after {} seconds", TIME.as_secs());
                let refused =
                    reply::denied(Denied::Slow, StatusCode::REQUEST_TIMEOUT, INVALID_REQUEST, &message);
                Err(closing(refused))
            }
        }
    }

    async fn collect(&self, mut body: Body, caller: &Caller) -> Result<(Bytes, Room), Failure> {
        let mut room = Room { permit: None, held: self.held.clone(), caller: caller.clone(), units: 0 };
        let mut collected = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::Broken)?;
            let Ok(data) = frame.into_data() else { continue };
            let size = collected.len() + data.len();
            if size > self.limit {
                return Err(Failure::TooLarge(body));
            }
            // The first unit is free: nobody's large bodies stand in the way of somebody's small ones.
            self.grow(&mut room, size / UNIT).await?;
            collected.extend_from_slice(&data);
        }
        Ok((collected.freeze(), room))
    }

    async fn grow(&self, room: &mut Room, units: usize) -> Result<(), Failure> {
        let more = units.saturating_sub(room.units);
        if more == 0 {
            return Ok(());
        }
        {
            let mut held = lock(&self.held);
            let held = held.entry(room.caller.clone()).or_default();
            // At most a quarter of all there is, but always room for one body.
            let most = (TOTAL / 4).max(self.limit) / UNIT + 1;
            if *held + more > most {
                return Err(Failure::TooMuch);
            }
            *held += more;
            room.units += more;
        }
        let permit = self.room.clone().acquire_many_owned(more as u32).await.map_err(|_| Failure::Broken)?;
        match &mut room.permit {
            Some(all) => all.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }

    async fn too_large(&self, rest: Option<Body>) -> Reply {
        if let Some(mut rest) = rest {
            let discard = async {
                let mut seen = 0;
                while let Some(Ok(frame)) = rest.frame().await {
                    seen += frame.data_ref().map_or(0, |data| data.len() as u64);
                    if seen > THROWN_AWAY {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(TIME, discard).await;
        }
        let message = format!("The body is larger than {} bytes (http.body_limit)", self.limit);
        closing(reply::denied(Denied::Size, StatusCode::PAYLOAD_TOO_LARGE, INVALID_REQUEST, &message))
    }
}

enum Failure {
    TooLarge(Body),
    /// For one caller.
    TooMuch,
    Broken,
}

/// What is left of the request must not be taken for the next one.
fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(bodies: &Bodies, length: Option<&str>, body: Vec<u8>) -> Result<usize, StatusCode> {
        let mut headers = HeaderMap::new();
        if let Some(length) = length {
            headers.insert(header::CONTENT_LENGTH, length.parse().unwrap());
        }
        let read = bodies.read(&headers, Body::from(body), &Caller::new("ann")).await;
        read.map(|(bytes, _)| bytes.len()).map_err(|reply| reply.status())
    }

    #[tokio::test]
    async fn a_body_has_a_size_limit_whether_or_not_it_tells_its_size() {
        let bodies = Bodies::new(10);
        assert_eq!(status(&bodies, Some("10"), vec![0; 10]).await, Ok(10));
        assert_eq!(status(&bodies, None, vec![0; 10]).await, Ok(10));
        assert_eq!(status(&bodies, None, vec![0; 11]).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
        assert_eq!(status(&bodies, Some("11"), vec![0; 11]).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
        assert_eq!(
            status(&bodies, Some("999999999999"), vec![0; 11]).await,
            Err(StatusCode::PAYLOAD_TOO_LARGE)
        );
        // A size that lies is no way around it.
        assert_eq!(status(&bodies, Some("5"), vec![0; 11]).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
    }

    #[tokio::test]
    async fn one_callers_large_bodies_leave_room_for_others() {
        let bodies = Bodies::new(16 << 20);
        let (ann, bob) = (Caller::new("ann"), Caller::new("bob"));
        let read = |caller: Caller, size: usize| {
            let bodies = &bodies;
            async move { bodies.read(&HeaderMap::new(), Body::from(vec![0; size]), &caller).await }
        };
        let free = bodies.room.available_permits();
        let mut rooms = Vec::new();
        for _ in 0..4 {
            rooms.push(read(ann.clone(), 16 << 20).await.ok().unwrap());
        }
        assert_eq!(read(ann.clone(), 16 << 20).await.err().unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(read(ann.clone(), 1000).await.is_ok() && read(bob, 16 << 20).await.is_ok());
        drop(rooms);
        assert!(read(ann, 16 << 20).await.is_ok());
        assert_eq!(bodies.room.available_permits(), free);
        assert!(lock(&bodies.held).is_empty());
    }
}
