//! The backend that the settings ask for.

use std::{os::unix::fs::MetadataExt, sync::Arc};

use belljar_backends::{
    Opener, Router,
    docker::{self, DockerBackend, DockerOptions},
    local::{Interpreters, LocalBackend, LocalOptions},
    templates::Sources,
};
use belljar_sandbox::{Backend, Kind, TemplateInfo, VolumeStore};

use crate::config::{Config, Demand};

pub(crate) fn sources(config: &Config) -> Sources {
    Sources {
        home: config.home.clone(),
        python: config.python.clone(),
        node: config.node.clone(),
        browser: config.browser.clone(),
    }
}

/// Returns at once: the backend gets ready in the background, and its state says how far it is or why it
/// cannot. So a server lists its tools at once, even on a machine where they cannot be used.
pub(crate) fn open(config: &Config) -> Arc<dyn Backend> {
    route(config, options(config, Interpreters::Ready))
}

/// The same, for a single program.
pub(crate) fn open_for_one(config: &Config) -> Arc<dyn Backend> {
    route(config, options(config, Interpreters::Bare))
}

/// The same, with a place for what callers work on.
pub(crate) fn open_with_projects(config: &Config) -> Arc<dyn Backend> {
    let mut options = options(config, Interpreters::Ready);
    options.volumes.push(belljar_sandbox::PROJECT.to_owned());
    route(config, options)
}

/// The same, for a server whose sandboxes outlive it: those of the one before are taken over.
pub(crate) fn open_lasting(config: &Config) -> Arc<dyn Backend> {
    route(config, LocalOptions { keep: Some(config.serve.keep), ..options(config, Interpreters::Ready) })
}

/// The same with other volumes than the settings'.
pub(crate) fn open_with(config: &Config, volumes: &VolumeStore) -> Arc<dyn Backend> {
    route(config, LocalOptions { volumes: volumes.names(), ..options(config, Interpreters::Ready) })
}

/// Sandboxes for looking at the glass itself: of the local backend without interpreters.
pub(crate) fn open_without_templates(config: &Config) -> Arc<dyn Backend> {
    match config.backend {
        Kind::Local => LocalBackend::start(options(config, Interpreters::None)),
        Kind::Docker => DockerBackend::start(docker_options(config, &options(config, Interpreters::None))),
    }
}

/// The backend of the settings for the built-in template, and for each other one its own.
fn route(config: &Config, local: LocalOptions) -> Arc<dyn Backend> {
    let docker = docker_options(config, &local);
    let open = |kind| -> (Kind, Opener) {
        let (local, docker) = (local.clone(), docker.clone());
        let open: Opener = match kind {
            Kind::Local => Box::new(move || LocalBackend::start(local.clone())),
            Kind::Docker => Box::new(move || DockerBackend::start(docker.clone())),
        };
        (kind, open)
    };
    let other = match config.backend {
        Kind::Local => Kind::Docker,
        Kind::Docker => Kind::Local,
    };
    let used: Vec<Kind> = config.service.templates.all().iter().map(TemplateInfo::backend).collect();
    Router::start(open(config.backend), [open(other)].into(), &used)
}

fn docker_options(config: &Config, local: &LocalOptions) -> DockerOptions {
    DockerOptions {
        sources: local.sources.clone(),
        socket: docker::socket(&config.docker_host),
        runtime: config.docker_runtime.clone(),
        keep: local.keep,
        volumes: local.volumes.clone(),
        program: local.program.clone(),
    }
}

fn options(config: &Config, interpreters: Interpreters) -> LocalOptions {
    LocalOptions {
        sources: sources(config),
        interpreters,
        // Stays right when the file is replaced by a newer version while we run.
        program: "/proc/self/exe".into(),
        limits: config.service.limits.clone(),
        require_cgroups: config.cgroups == Demand::Required,
        require_landlock: config.landlock == Demand::Required,
        keep: None,
        build: build(),
        volumes: config.service.volumes.names(),
        omit: Vec::new(),
        image: None,
    }
}

/// Differs between two builds, and not between two starts of the same one.
fn build() -> String {
    let file = std::fs::metadata("/proc/self/exe");
    let file = file.map(|file| format!("{} {} {}", file.size(), file.mtime(), file.mtime_nsec()));
    format!("{} {}", crate::cli::VERSION, file.unwrap_or_default())
}
