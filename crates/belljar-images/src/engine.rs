//! Container engines, through the programs that people use them with.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde::Deserialize;

use crate::{
    Doing, ImageError, Limits, Origin, Progress, Result, Step, Template, archive,
    manifest::{self, Config, Process, printable},
    store::Change,
    stream::{Budget, LayerStream},
    tar::Reader,
};

const MAX_ANSWER: u64 = 4 << 20;

/// Where an image comes from that an engine shall keep.
#[derive(Debug, Clone)]
pub enum EngineSource {
    Image(String),
    Tar(PathBuf),
    Dockerfile(PathBuf),
}

#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) program: &'static str,
    /// Where it listens; empty: where the program thinks.
    host: String,
}

impl Engine {
    /// The first of these that is installed, and has an engine behind it.
    pub(crate) fn find(programs: &[&'static str], host: &str) -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let installed =
            |name: &str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
        let found = programs.iter().find(|program| installed(program)).ok_or_else(|| {
            ImageError::new(format!(
                "this takes a container engine, and none of {} is installed",
                programs.join(", ")
            ))
            .hint("apt-get install docker.io (or podman), or build the image elsewhere and use --tar")
        })?;
        let host = if host.starts_with('/') { format!("unix://{host}") } else { host.to_owned() };
        let engine = Self { program: found, host };
        // The program alone does nothing: it asks somebody.
        engine.ask("find the engine", |c| {
            c.arg("version");
        })?;
        Ok(engine)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        match (self.program, self.host.is_empty()) {
            ("docker", false) => drop(command.env("DOCKER_HOST", &self.host)),
            ("podman", false) => drop(command.args(["--remote", "--url", &self.host])),
            _ => {}
        }
        command.stdin(Stdio::null());
        command
    }

    /// What the engine prints goes to the user, on standard error.
    pub(crate) fn run(&self, doing: &str, hint: &str, configure: impl FnOnce(&mut Command)) -> Result<()> {
        let mut command = self.command();
        configure(&mut command);
        let status = command.stdout(Stdio::from(io::stderr())).status();
        let status = status.doing(|| format!("start {}", self.program))?;
        if status.success() {
            return Ok(());
        }
        let said = format!("{} could not {doing}: what it says is above", self.program);
        Err(ImageError::new(said).hint(hint))
    }

    fn ask(&self, doing: &str, configure: impl FnOnce(&mut Command)) -> Result<Vec<u8>> {
        let mut command = self.command();
        configure(&mut command);
        let output = command.output().doing(|| format!("start {}", self.program))?;
        if output.status.success() && output.stdout.len() as u64 <= MAX_ANSWER {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.trim().lines().last().map(|last| format!(": {}", printable(last)));
        Err(ImageError::new(format!("{} could not {doing}{}", self.program, last.unwrap_or_default())).hint(
            "is the engine running, and may this user use it? The setting `docker.host` says where it is",
        ))
    }
}

/// Adds a template of which an engine keeps the image, for the backend that uses it.
pub fn add_to_engine(
    change: &Change<'_>,
    name: &str,
    source: &EngineSource,
    host: &str,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Template> {
    change.check_free(name)?;
    let engine = &Engine::find(&["docker", "podman"], host)?;
    let (reference, origin) = match source {
        EngineSource::Image(reference) => {
            // Never an option of the engine's.
            if reference.starts_with('-') || reference.is_empty() {
                return Err(ImageError::new(format!("{} is no reference to an image", printable(reference))));
            }
            let there = engine.ask("look at the image", |c| {
                c.args(["image", "inspect", reference]);
            });
            if there.is_err() {
                let hint = "is the name right? What needs a password is pulled after `docker login`";
                engine.run(&format!("pull the image {}", printable(reference)), hint, |c| {
                    c.args(["pull", reference]);
                })?;
            }
            (reference.clone(), Origin::Image(reference.clone()))
        }
        EngineSource::Tar(path) => {
            let is_image = archive::holds_image(change, path, limits, progress)?;
            let how = if is_image { ["load", "--input"] } else { ["import", "--"] };
            progress(Step::Begin { what: "handing the archive to the engine", bytes: None });
            let said = engine.ask("load the archive", |c| {
                c.args(how).arg(path);
            })?;
            // "Loaded image: NAME", "Loaded image ID: ID", "ID", "ID: ID": engines do not agree on more.
            let said = String::from_utf8_lossy(&said);
            let reference = said.split_whitespace().last().unwrap_or_default();
            (reference.to_owned(), Origin::Tar(path.display().to_string()))
        }
        EngineSource::Dockerfile(directory) => {
            let id = build(change, engine, directory)?;
            (id, Origin::Dockerfile(directory.display().to_string()))
        }
    };
    let found = inspect(engine, &reference)?;
    let config = Config {
        architecture: found.architecture.clone(),
        os: found.os.clone(),
        config: found.config.clone(),
        rootfs: None,
    };
    config.check(0)?;
    let languages = languages(engine, &found, &config, limits, progress)?;
    change.add_of_engine(name, origin, found.id, languages, &config)
}

/// Builds a Dockerfile's image; returns its id.
pub(crate) fn build(change: &Change<'_>, engine: &Engine, directory: &Path) -> Result<String> {
    if !directory.join("Dockerfile").is_file() && !directory.join("Containerfile").is_file() {
        return Err(ImageError::new(format!("there is no Dockerfile in {}", directory.display())));
    }
    let note = change.temporary("image-id");
    engine.run(
        &format!("build the image of {}", directory.display()),
        "the last lines name the step that failed",
        |c| {
            let verb = if engine.program == "buildah" { "bud" } else { "build" };
            c.arg(verb).arg("--iidfile").arg(&note).arg("--").arg(directory);
        },
    )?;
    let id = std::fs::read_to_string(&note).doing(|| "read the image's id".into())?;
    Ok(id.trim().to_owned())
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    id: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<Process>,
}

fn inspect(engine: &Engine, reference: &str) -> Result<Inspected> {
    let text = engine.ask("look at the image", |c| {
        c.args(["image", "inspect", reference]);
    })?;
    let found: Vec<Inspected> = manifest::parse(&text, "what the engine says of the image")?;
    found.into_iter().next().ok_or_else(|| ImageError::new("the engine does not know the image"))
}

/// Whose interpreter is in the image: by reading its files' names, without running anything of it.
fn languages(
    engine: &Engine,
    image: &Inspected,
    config: &Config,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Vec<String>> {
    let made = engine.ask("make a container to look into", |c| {
        c.args(["create", "--network", "none", &image.id, "/none"]);
    })?;
    let container = String::from_utf8_lossy(&made).trim().to_owned();
    progress(Step::Begin { what: "looking for interpreters", bytes: None });
    let exported = engine
        .command()
        .args(["export", &container])
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| format!("start {}", engine.program));
    let found = exported.and_then(|child| programs_in(child, config, limits, progress));
    // Only a name without a process; it goes whatever came of this.
    let _ = engine.ask("remove the container", |c| {
        c.args(["rm", "--force", &container]);
    });
    found
}

fn programs_in(
    mut child: Child,
    config: &Config,
    limits: &Limits,
    progress: Progress<'_>,
) -> Result<Vec<String>> {
    let paths: BTreeSet<String> = search_path(config)?;
    let (mut python, mut node) = (false, false);
    let mut look = |input: &mut dyn Read| -> Result<()> {
        let mut budget = Budget::new(limits.clone());
        let mut reader = Reader::new(LayerStream::new(input, &mut budget, progress)?);
        while let Some(entry) = reader.next_entry()? {
            reader.get_mut().budget.entry()?;
            let name = String::from_utf8_lossy(&entry.path);
            if let Some((directory, name)) = name.trim_start_matches("./").rsplit_once('/')
                && paths.contains(directory)
            {
                python |= name == "python3";
                node |= name == "node";
            }
        }
        Ok(())
    };
    let looked = match child.stdout.take() {
        Some(mut stdout) => look(&mut stdout),
        None => Ok(()),
    };
    // It ends when nobody reads any more.
    let _ = child.kill();
    let _ = child.wait();
    looked?;
    let found = [("python", python), ("javascript", node)];
    Ok(found.iter().filter(|(_, there)| *there).map(|(name, _)| (*name).to_owned()).collect())
}

fn search_path(config: &Config) -> Result<BTreeSet<String>> {
    let env = config.environment()?;
    let path = env.get("PATH").map_or(crate::store::SEARCH, String::as_str);
    Ok(path.split(':').map(|directory| directory.trim_matches('/').to_owned()).collect())
}
