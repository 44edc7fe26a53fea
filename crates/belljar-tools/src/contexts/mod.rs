//! Toolset `contexts`: live interpreters, each in its own sandbox.

pub(crate) mod create_context;
pub(crate) mod download_file;
pub(crate) mod list_contexts;
pub(crate) mod list_files;
pub(crate) mod run_code;
pub(crate) mod stop_context;
pub(crate) mod upload_file;
