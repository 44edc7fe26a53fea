//! Telling clients that the lists have changed, in both eras.

use std::time::Duration;

use rmcp::{
    ErrorData, Peer, RoleServer,
    model::{PromptsCapability, ServerCapabilities, SubscriptionFilter},
    service::SubscriptionContext,
};
use tokio::sync::watch;

use crate::offers::Offers;

/// How soon it is noticed that a client which is told nothing has left.
const LOOK: Duration = Duration::from_secs(20);

/// What the lists of these offers may do.
pub(super) fn declare(offers: &Offers, capabilities: &mut ServerCapabilities) {
    let changes = offers.changed().is_some().then_some(true);
    if let Some(tools) = &mut capabilities.tools {
        tools.list_changed = changes;
    }
    if let Some(resources) = &mut capabilities.resources {
        resources.list_changed = changes;
    }
    if offers.has_prompts() {
        capabilities.prompts.get_or_insert_with(PromptsCapability::default).list_changed = changes;
    }
}

/// Tells a session of the older era, for as long as it lives.
pub(super) async fn tell(mut changed: watch::Receiver<u64>, peer: Peer<RoleServer>) {
    loop {
        match tokio::time::timeout(LOOK, changed.changed()).await {
            Ok(Ok(())) => {
                let told = async {
                    peer.notify_tool_list_changed().await?;
                    peer.notify_resource_list_changed().await?;
                    peer.notify_prompt_list_changed().await
                };
                // Fails when nobody listens at the moment; they may come back.
                let _ = tokio::time::timeout(LOOK, told).await;
            }
            Ok(Err(_)) => return,
            Err(_) => {}
        }
        if peer.is_transport_closed() {
            return;
        }
    }
}

pub(super) fn accepted(offers: &Offers, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
    offers.changed()?;
    let mut accepted = requested.clone();
    accepted.resource_subscriptions = None;
    Some(accepted)
}

/// Tells a client of the newer era that asked for it.
pub(super) async fn listen(offers: &Offers, context: SubscriptionContext) -> Result<(), ErrorData> {
    let Some(mut changed) = offers.changed() else { return Ok(()) };
    loop {
        tokio::select! {
            () = context.cancelled() => return Ok(()),
            change = changed.changed() => if change.is_err() { return Ok(()) },
        }
        // The sink refuses what its client did not ask for.
        let sink = context.sink();
        let _ = sink.notify_tool_list_changed().await;
        let _ = sink.notify_resource_list_changed().await;
        let _ = sink.notify_prompt_list_changed().await;
    }
}
