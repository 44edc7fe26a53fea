//! What servers offer, as they last said it.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use rmcp::{
    Peer, RoleClient,
    model::{PaginatedRequestParams, Prompt, Resource, ResourceTemplate, ServerCapabilities, Tool},
    service::ServiceError,
};

use crate::config::Filter;

/// A server that never comes to the end of a list is not followed further.
const MAX_PAGES: usize = 50;
/// Entries of one list.
const MAX_ENTRIES: usize = 1_000;

/// Of all servers, each by its name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    pub servers: BTreeMap<String, Arc<ServerCatalogue>>,
}

impl Catalogue {
    /// Every tool with its server's name, in a stable order.
    pub fn tools(&self) -> impl Iterator<Item = (&str, &Tool)> {
        self.servers
            .iter()
            .flat_map(|(name, server)| server.tools.iter().map(move |tool| (name.as_str(), tool)))
    }

    pub fn resources(&self) -> impl Iterator<Item = (&str, &Resource)> {
        self.servers
            .iter()
            .flat_map(|(name, server)| server.resources.iter().map(move |one| (name.as_str(), one)))
    }

    pub fn templates(&self) -> impl Iterator<Item = (&str, &ResourceTemplate)> {
        self.servers
            .iter()
            .flat_map(|(name, server)| server.templates.iter().map(move |one| (name.as_str(), one)))
    }

    pub fn prompts(&self) -> impl Iterator<Item = (&str, &Prompt)> {
        self.servers
            .iter()
            .flat_map(|(name, server)| server.prompts.iter().map(move |one| (name.as_str(), one)))
    }
}

/// Of one server. Empty until it has answered for the first time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerCatalogue {
    /// Those that its settings allow.
    pub tools: Vec<Tool>,
    pub resources: Vec<Resource>,
    pub templates: Vec<ResourceTemplate>,
    pub prompts: Vec<Prompt>,
}

impl ServerCatalogue {
    pub(crate) async fn fetch(
        peer: &Peer<RoleClient>,
        can: &ServerCapabilities,
        filter: &Filter,
    ) -> Result<Self, ServiceError> {
        let mut catalogue = Self::default();
        if can.tools.is_some() {
            catalogue.tools = pages(|page| async move {
                let list = peer.list_tools(page).await?;
                Ok((list.tools, list.next_cursor))
            })
            .await?;
            catalogue.tools.retain(|tool| filter.admits(&tool.name));
        }
        // A server without one of these is as useful as before.
        if can.resources.is_some() {
            catalogue.resources = lenient(
                pages(|page| async move {
                    let list = peer.list_resources(page).await?;
                    Ok((list.resources, list.next_cursor))
                })
                .await,
            )?;
            catalogue.templates = lenient(
                pages(|page| async move {
                    let list = peer.list_resource_templates(page).await?;
                    Ok((list.resource_templates, list.next_cursor))
                })
                .await,
            )?;
        }
        if can.prompts.is_some() {
            catalogue.prompts = lenient(
                pages(|page| async move {
                    let list = peer.list_prompts(page).await?;
                    Ok((list.prompts, list.next_cursor))
                })
                .await,
            )?;
        }
        Ok(catalogue)
    }
}

/// Servers claim lists that they then know nothing of.
fn lenient<T>(list: Result<Vec<T>, ServiceError>) -> Result<Vec<T>, ServiceError> {
    match list {
        Err(ServiceError::McpError(_) | ServiceError::UnexpectedResponse) => Ok(Vec::new()),
        other => other,
    }
}

async fn pages<T, F>(fetch: impl Fn(Option<PaginatedRequestParams>) -> F) -> Result<Vec<T>, ServiceError>
where
    F: Future<Output = Result<(Vec<T>, Option<String>), ServiceError>>,
{
    let mut all = Vec::new();
    let mut page = None;
    for _ in 0..MAX_PAGES {
        let (entries, next) = fetch(page.take()).await?;
        all.extend(entries);
        if all.len() >= MAX_ENTRIES {
            all.truncate(MAX_ENTRIES);
            break;
        }
        match next {
            Some(cursor) => page = Some(PaginatedRequestParams::default().with_cursor(Some(cursor))),
            None => break,
        }
    }
    Ok(all)
}
