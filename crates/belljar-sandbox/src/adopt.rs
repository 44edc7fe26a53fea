//! Contexts that outlive a server: what they are called is kept with their sandboxes, and the next server goes on with
//! them.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;

use crate::{
    BackendError, Caller, SandboxService, Survivor, context::Context, guest::GuestClient, label::Label,
    sandbox::Sandbox,
};

/// A sandbox that does not answer the new server by then is of no use to anybody.
const PATIENCE: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 64;

impl SandboxService {
    /// Makes a sandbox this context's own: it gets the caller's volumes, and survives this server.
    pub(crate) async fn claim(&self, context: &Context, sandbox: &Sandbox) -> Result<(), BackendError> {
        let mounts = self.settings.volumes.mounts(&context.caller);
        let mut mounts = mounts.map_err(|e| BackendError::new(format!("no volume for this caller: {e}")))?;
        mounts.extend(self.project(&context.caller));
        sandbox.machine.claim(&context.label().encode(), &context.limits, &mounts).await?;
        self.usage.owned_by(sandbox.machine.id(), &context.caller, true);
        Ok(())
    }

    /// Resolves when the contexts of an earlier server are here.
    pub async fn adopted(&self) {
        // The sender lives as long as self.
        let _ = self.adopted.subscribe().wait_for(|adopted| *adopted).await;
    }

    pub(crate) async fn adopt(&self) {
        let survivors = self.backend.survivors().await;
        let count = survivors.len();
        let taking = futures::stream::iter(survivors).map(|survivor| self.take_in(survivor));
        let taken = taking.buffer_unordered(AT_ONCE).filter(|taken| std::future::ready(*taken));
        let adopted = taken.count().await;
        if count > 0 {
            tracing::info!("{adopted} of {count} contexts live on");
        }
        self.adopted.send_replace(true);
    }

    async fn take_in(&self, survivor: Survivor) -> bool {
        let Survivor { machine, label } = survivor;
        let label = match Label::decode(&label) {
            Ok(label) => label,
            Err(why) => {
                tracing::warn!(
                    "sandbox {} cannot be taken over: its label is not readable: {why}",
                    machine.id()
                );
                // Dropping it ends it.
                return false;
            }
        };
        let connect = async {
            let stream = machine.dial().await.map_err(|e| e.to_string())?;
            // Its guest may be of an earlier build; it speaks the same generation of the protocol.
            GuestClient::connect(stream, None).await.map_err(|e| e.to_string())
        };
        let connected =
            tokio::time::timeout(PATIENCE, connect).await.unwrap_or_else(|_| Err("no answer".into()));
        match connected {
            Ok(guest) => {
                self.usage.owned_by(machine.id(), &Caller::new(&label.caller), false);
                let context = Context::revived(label, Sandbox::new(machine, guest));
                self.reopen_network(&context).await;
                self.keep(Arc::new(context));
                true
            }
            Err(why) => {
                tracing::warn!("context {} is lost: {why}", label.id);
                false
            }
        }
    }

    /// Lets claimed sandboxes live on when this process ends.
    pub async fn leave(&self) {
        // First of all: from here on nothing that is dropped ends a sandbox.
        self.backend.leave();
        self.stopping.cancel();
        self.pool.clear();
        // The next server binds these sockets anew.
        self.cut_networks();
        self.gateway.settle().await;
    }

    /// Begins to end everything, without waiting for it.
    pub fn abandon(&self) {
        self.backend.abandon();
    }
}
