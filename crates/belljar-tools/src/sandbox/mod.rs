//! Toolset `sandbox`: code, files and a browser in one sandbox, which need not be named.

pub(crate) mod browse;
pub(crate) mod browser_click;
pub(crate) mod browser_goto;
pub(crate) mod browser_snapshot;
pub(crate) mod browser_type;
pub(crate) mod code_run;
mod failure;
pub(crate) mod file_list;
pub(crate) mod file_read;
pub(crate) mod file_write;
mod problem;
mod rendered;
pub(crate) mod sandbox_create;
pub(crate) mod sandbox_destroy;
pub(crate) mod sandbox_network;

use belljar_sandbox::ContextInfo;
pub(crate) use failure::Failure;

use crate::CallContext;

/// The sandbox that was named, or the one that the caller made last.
fn find(cx: &CallContext, given: Option<&str>) -> Result<ContextInfo, Failure> {
    match given.filter(|given| !given.is_empty()) {
        Some(given) => Ok(cx.service.find_context(&cx.caller, given)?),
        None => cx.service.current(&cx.caller).ok_or_else(|| {
            Failure::new("NO_SANDBOX", "there is no sandbox yet, or it is gone", "call sandbox_create first")
        }),
    }
}

#[cfg(test)]
mod tests;
