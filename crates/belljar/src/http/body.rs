//! Bodies within limits: of one, in size and time, and of all together, in memory.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::reply::{self, INVALID_REQUEST, Reply};
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
}

/// Gives its room back when dropped.
pub(super) struct Room(#[expect(dead_code, reason = "held, not read")] OwnedSemaphorePermit);

impl Bodies {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, room: Arc::new(Semaphore::new(TOTAL.max(limit) / UNIT)) }
    }

    pub(super) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<(Bytes, Room), Reply> {
        let announced =
            headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let expects = headers.contains_key(header::EXPECT);
        if announced.is_some_and(|length| length > self.limit as u64) {
            let small_enough = announced.is_some_and(|length| length <= THROWN_AWAY);
            return Err(self.too_large((!expects && small_enough).then_some(body)).await);
        }
        let wanted = announced.map_or(self.limit, |length| length as usize).div_ceil(UNIT).max(1);
        let read = async {
            // The limit is a fraction of the room, so this only waits for others to finish.
            let room =
                self.room.clone().acquire_many_owned(wanted as u32).await.map_err(|_| Failure::Broken)?;
            Ok((self.collect(body, announced).await?, Room(room)))
        };
        match tokio::time::timeout(TIME, read).await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(Failure::TooLarge(rest))) => Err(self.too_large(Some(rest)).await),
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

    async fn collect(&self, mut body: Body, announced: Option<u64>) -> Result<Bytes, Failure> {
        let mut collected =
            BytesMut::with_capacity(announced.map_or(0, |length| (length as usize).min(UNIT)));
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::Broken)?;
            let Ok(data) = frame.into_data() else { continue };
            if collected.len() + data.len() > self.limit {
                return Err(Failure::TooLarge(body));
            }
            collected.extend_from_slice(&data);
        }
        Ok(collected.freeze())
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
    Broken,
}

/// What is left of the request must not be taken for the next one.
fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CONNECTION, axum::http::HeaderValue::from_static("close"));
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
        let read = bodies.read(&headers, Body::from(body)).await;
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
    async fn room_is_given_back() {
        let bodies = Bodies::new(1 << 20);
        let free = bodies.room.available_permits();
        let (_, room) = bodies.read(&HeaderMap::new(), Body::from("x")).await.ok().unwrap();
        assert_eq!(bodies.room.available_permits(), free - 16);
        drop(room);
        assert_eq!(bodies.room.available_permits(), free);
    }
}
