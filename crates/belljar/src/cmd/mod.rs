//! One file per command.

pub(crate) mod acp;
pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod hub;
pub(crate) mod install;
pub(crate) mod jail;
pub(crate) mod manual;
pub(crate) mod mcp;
pub(crate) mod remote;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod setup;
mod table;
pub(crate) mod template;
pub(crate) mod token;
pub(crate) mod tour;
