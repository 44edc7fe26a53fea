//! The files of contexts as resources.

use std::time::Duration;

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use belljar_sandbox::{Caller, ContextInfo, Entry, EntryType, Error, SandboxService};
use belljar_tools::{
    CallContext, mime_of,
    uri::{self, ResourceUri},
};
use rmcp::{
    ErrorData,
    model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate},
};
use serde_json::json;

use crate::offers::Source;

/// Resources in one listing, of all contexts together.
const MAX_LISTED: usize = 200;
/// Bytes that one read returns.
const MAX_READ: usize = 8_000_000;
/// A sandbox that does not answer must not keep the others from being listed.
const PATIENCE: Duration = Duration::from_secs(2);

/// The files of the caller's contexts.
pub(crate) struct Files;

#[async_trait]
impl Source for Files {
    async fn resources(&self, cx: &CallContext) -> Vec<Resource> {
        list(&cx.service, &cx.caller).await
    }

    async fn templates(&self) -> Vec<ResourceTemplate> {
        templates()
    }

    async fn read(&self, cx: &CallContext, uri: &str) -> Option<Result<ReadResourceResult, ErrorData>> {
        let address = ResourceUri::parse(uri)?;
        let contents = read(&cx.service, &cx.caller, uri, address).await;
        Some(contents.map(|contents| ReadResourceResult::new(vec![contents])))
    }
}

fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(uri::FILE_TEMPLATE, "context file")
            .with_title("File of a context")
            .with_description(
                "A file in a context's sandbox; the path is relative to /workspace, or absolute",
            ),
        ResourceTemplate::new(uri::OUTPUT_TEMPLATE, "run output")
            .with_title("Whole output of a run")
            .with_description("Output of a run that was too long for its result")
            .with_mime_type("text/plain"),
    ]
}

async fn list(service: &SandboxService, caller: &Caller) -> Vec<Resource> {
    let mut resources = Vec::new();
    for context in service.list_contexts(caller) {
        for (directory, recursive) in [(uri::WORKSPACE, true), (uri::OUTPUTS.trim_end_matches('/'), false)] {
            if resources.len() >= MAX_LISTED {
                return resources;
            }
            let listing = service.list_files(caller, &context.id, directory, recursive);
            // A context that ended meanwhile, or has no outputs yet, has nothing to list.
            let Ok(Ok(mut listing)) = tokio::time::timeout(PATIENCE, listing).await else { continue };
            listing.entries.sort_by(|a, b| a.path.cmp(&b.path));
            let files = listing.entries.iter().filter(|entry| entry.kind == EntryType::File);
            resources.extend(files.take(MAX_LISTED - resources.len()).map(|entry| resource(&context, entry)));
        }
    }
    resources
}

fn resource(context: &ContextInfo, entry: &Entry) -> Resource {
    let mut resource = Resource::new(uri::of_file(&context.id, &entry.path), &entry.path)
        .with_size(entry.size)
        .with_description(format!("In context '{}'", context.name));
    resource.mime_type = mime_of(&entry.path).map(str::to_owned);
    resource
}

async fn read(
    service: &SandboxService,
    caller: &Caller,
    address: &str,
    ResourceUri { context, path }: ResourceUri,
) -> Result<ResourceContents, ErrorData> {
    let mut bytes = Vec::new();
    loop {
        let room = MAX_READ + 1 - bytes.len();
        let read = service.read_file(caller, &context, &path, bytes.len() as u64, room).await;
        let (chunk, size) = read.map_err(|error| refused(address, &error))?;
        if size > MAX_READ as u64 || bytes.len() > MAX_READ {
            return Err(ErrorData::invalid_params(
                format!(
                    "{path} has {size} bytes, a resource may have {MAX_READ}: read a part of it with run_code"
                ),
                Some(json!({ "uri": address, "size": size })),
            ));
        }
        bytes.extend_from_slice(&chunk);
        if chunk.is_empty() || bytes.len() as u64 >= size {
            break;
        }
    }
    let mime = mime_of(&path);
    Ok(match String::from_utf8(bytes) {
        Ok(text) => ResourceContents::text(text, address).with_mime_type(mime.unwrap_or("text/plain")),
        Err(error) => ResourceContents::blob(STANDARD.encode(error.as_bytes()), address)
            .with_mime_type(mime.unwrap_or("application/octet-stream")),
    })
}

fn refused(address: &str, error: &Error) -> ErrorData {
    match error {
        Error::NotFound(_) | Error::FileNotFound(_) | Error::AmbiguousName { .. } => {
            not_found(address, &error.to_string())
        }
        Error::InvalidParams(_) | Error::PathNotAllowed { .. } => {
            ErrorData::invalid_params(error.to_string(), Some(json!({ "uri": address })))
        }
        other => ErrorData::internal_error(other.to_string(), Some(json!({ "code": other.code() }))),
    }
}

/// Newer clients get -32602 for this instead; rmcp sees to it.
fn not_found(address: &str, why: &str) -> ErrorData {
    ErrorData::resource_not_found(format!("Resource not found: {why}"), Some(json!({ "uri": address })))
}
