//! Images from Dockerfiles: an engine builds, and hands over what it built.

use std::path::Path;

use crate::{
    ImageError, Limits, Origin, Progress, Result, Step, Template, archive,
    engine::{self, Engine},
    store::Change,
};

/// Adds a template from a directory with a Dockerfile. `host` says where the engine listens; empty: where it usually does.
pub fn build(
    change: &Change<'_>,
    name: &str,
    directory: &Path,
    host: &str,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Template> {
    change.check_free(name)?;
    let engine = Engine::find(&["docker", "podman", "buildah"], host)?;
    let id = engine::build(change, &engine, directory)?;
    let saved = change.temporary("saved");
    progress(Step::Begin { what: "taking the image from the engine", bytes: None });
    engine.run("hand over the image", "is there room on the disk?", |c| {
        match engine.program {
            "buildah" => c.arg("push").arg(&id).arg(format!("docker-archive:{}", saved.display())),
            _ => c.arg("save").arg("--output").arg(&saved).arg(&id),
        };
    })?;
    let origin = Origin::Dockerfile(directory.display().to_string());
    let loaded = archive::load_as(change, name, &saved, origin, limits, progress);
    // Removed with the next change at the latest.
    let _ = std::fs::remove_file(&saved);
    loaded.map_err(|error: ImageError| error.doing(format_args!("what {} built", engine.program)))
}
