//! An attack on a real sandbox: the guest's hostile probe tries what must not work and says what held.

use std::time::Duration;

use belljar_proto::{Call, Program, Reply, RunLimits, Streaming};
use serde::{Deserialize, Serialize};

use crate::{Backend, BackendError, Limits, guest::GuestClient};

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Probed {
    pub layer: String,
    pub held: bool,
    pub detail: String,
}

/// Makes a small sandbox, attacks it from inside, and ends it.
pub async fn selftest(backend: &dyn Backend) -> Result<Vec<Probed>, BackendError> {
    // Small, because the probe tries to use twice as much.
    let limits = Limits { memory_bytes: 64 << 20, processes: 32, ..Limits::default() };
    let machine = backend.create(None, &limits, None).await?;
    let stream = machine.dial().await?;
    let connected = GuestClient::connect(stream, Some(&backend.guest_digest())).await;
    let guest = connected.map_err(|e| BackendError::new(e.to_string()))?;
    let call = Call::Exec {
        program: Program {
            // The guest's own program, which is nowhere to be found by name.
            argv: vec![
                "/proc/self/exe".into(),
                "probe".into(),
                limits.memory_bytes.to_string(),
                limits.processes.to_string(),
            ],
            ..Program::default()
        },
        limits: RunLimits {
            timeout_ms: LIMIT.as_millis() as u64,
            output_cap: 64 << 10,
            streaming: Streaming::Off,
        },
    };
    let answer = guest.call(call, &[]).await;
    machine.destroy().await?;
    let (reply, body) = answer.map_err(|e| BackendError::new(e.to_string()))?;
    let exited = match reply {
        Reply::Exited(exited) => exited,
        other => return Err(BackendError::new(format!("the probe did not run: {other:?}"))),
    };
    let stdout = String::from_utf8_lossy(&body[..(exited.stdout.head as usize).min(body.len())]).into_owned();
    let probed: Vec<Probed> = stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if probed.is_empty() {
        let said = String::from_utf8_lossy(&body).into_owned();
        return Err(BackendError::new(format!("the probe found nothing: {exited:?} {said}")));
    }
    Ok(probed)
}
