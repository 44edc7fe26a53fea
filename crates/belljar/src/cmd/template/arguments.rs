//! What `belljar template` is told.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use crate::config;

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Make a template of a container image: from a registry, an archive or a Dockerfile
    Add(AddArguments),
    /// List the templates and what they take on disk
    List(ListArguments),
    /// Say all about a template
    Inspect(InspectArguments),
    /// Remove templates, and what only they needed
    Remove(RemoveArguments),
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true).args(["image", "tar", "dockerfile"])))]
pub(crate) struct AddArguments {
    /// What tools call it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// An image in a registry, by tag or digest, such as python:3.12-slim
    #[arg(long, value_name = "REF")]
    pub(crate) image: Option<String>,
    /// What `docker save` or `docker export` wrote, or an OCI layout; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) tar: Option<PathBuf>,
    /// A directory with a Dockerfile, which an installed engine builds
    #[arg(long, value_name = "DIR")]
    pub(crate) dockerfile: Option<PathBuf>,
    /// Who we are to the registry [default: what `docker login` noted]
    #[arg(long, value_name = "NAME", requires = "password_stdin", requires = "image")]
    pub(crate) username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
    /// Speak to a registry on this machine without TLS
    #[arg(long, requires = "image")]
    pub(crate) plain_http: bool,
    /// How much it may take unpacked
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = config::parse_size)]
    pub(crate) max_size: u64,
    /// Where its programs start [default: the image's WORKDIR, else /workspace]
    #[arg(long, value_name = "PATH")]
    pub(crate) workdir: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArguments {
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}
