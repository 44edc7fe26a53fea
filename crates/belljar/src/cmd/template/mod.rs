//! Container images as templates.

mod arguments;

use std::{
    fmt::Write as _,
    io::{IsTerminal, Read, Write},
    process::ExitCode,
};

use anyhow::{Context, bail};
use belljar_images::{Access, Credentials, EngineSource, ImageError, Limits, Step, Store, Template};
use belljar_sandbox::Kind;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

pub(crate) use arguments::TemplateCommand;
use arguments::{AddArguments, InspectArguments, ListArguments, RemoveArguments};

use super::table::{self, number, text};
use crate::config::Config;

/// Longer than any password.
const MAX_PASSWORD: u64 = 64 << 10;

pub(crate) fn run(config: &Config, command: TemplateCommand) -> anyhow::Result<ExitCode> {
    let store = Store::below(&config.home);
    let done = match command {
        TemplateCommand::Add(arguments) => add(&store, config, &arguments),
        TemplateCommand::List(arguments) => list(&store, &arguments),
        TemplateCommand::Inspect(arguments) => inspect(&store, &arguments),
        TemplateCommand::Remove(arguments) => remove(&store, &arguments),
    };
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => match error.downcast::<ImageError>() {
            Ok(ImageError { message, hint: Some(hint) }) => bail!("{message}\n   hint: {hint}"),
            Ok(ImageError { message, hint: None }) => bail!("{message}"),
            Err(error) => Err(error),
        },
    }
}

/// The template is the backend's that the settings name, as `--backend docker`.
fn add(store: &Store, config: &Config, arguments: &AddArguments) -> anyhow::Result<()> {
    belljar_images::valid_name(&arguments.name)?;
    let access = Access { credentials: password(arguments)?, plain_http: arguments.plain_http };
    let limits = Limits { bytes: arguments.max_size, ..Limits::default() };
    let bar = Bar::new()?;
    let progress = |step: Step<'_>| bar.show(step);
    let change = store.change(&progress)?;
    let (name, host) = (&arguments.name, &config.docker_host);
    let added = match (config.backend, &arguments.image, &arguments.tar, &arguments.dockerfile) {
        (Kind::Local, Some(reference), _, _) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(belljar_images::pull(&change, name, reference, &access, &limits, &progress))
        }
        (Kind::Local, _, Some(file), _) => belljar_images::load(&change, name, file, &limits, &progress),
        (Kind::Local, _, _, Some(directory)) => {
            belljar_images::build(&change, name, directory, host, &limits, &progress)
        }
        (Kind::Docker, image, tar, dockerfile) => {
            let image = image.clone().map(EngineSource::Image);
            let tar = tar.clone().map(EngineSource::Tar);
            let source = image.or(tar).or_else(|| dockerfile.clone().map(EngineSource::Dockerfile));
            let source = source.context("say where it comes from: --image, --tar or --dockerfile")?;
            belljar_images::add_to_engine(&change, name, &source, host, &limits, &progress)
        }
        _ => bail!("say where it comes from: --image, --tar or --dockerfile"),
    };
    bar.clear();
    // Layers of what could not be added are nobody's.
    let mut template = added.inspect_err(|_| drop(change.collect()))?;
    if let Some(workdir) = &arguments.workdir {
        change.set_workdir(&mut template, workdir)?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&template)?)?;
        return Ok(());
    }
    writeln!(out, "added {} from {}", template.name, template.origin)?;
    out.write_all(told(&template).as_bytes())?;
    if template.languages.is_empty() {
        writeln!(out, "it has neither python3 nor node on its PATH: commands can be run in it, but no code")?;
    }
    Ok(())
}

fn password(arguments: &AddArguments) -> anyhow::Result<Option<Credentials>> {
    let Some(username) = arguments.username.clone() else { return Ok(None) };
    let mut password = String::new();
    std::io::stdin().lock().take(MAX_PASSWORD).read_to_string(&mut password).context("read the password")?;
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    Ok(Some(Credentials { username, password }))
}

fn list(store: &Store, arguments: &ListArguments) -> anyhow::Result<()> {
    let templates = store.list()?;
    let disk = store.disk_use()?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(
            out,
            "{}",
            serde_json::to_string_pretty(&json!({"templates": templates, "disk_bytes": disk}))?
        )?;
    } else if templates.is_empty() {
        writeln!(std::io::stderr(), "there are none: belljar template add NAME --image REF makes one")?;
    } else {
        out.write_all(as_table(&templates, disk, table::width()).as_bytes())?;
    }
    Ok(())
}

fn inspect(store: &Store, arguments: &InspectArguments) -> anyhow::Result<()> {
    let template = store.get(&arguments.name)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&template)?)?;
        return Ok(());
    }
    let mut text =
        format!("{}, added {}\n  from       {}\n", template.name, template.created_at, template.origin);
    text.push_str(&told(&template));
    for (at, layer) in template.layers.iter().enumerate() {
        let _ = writeln!(text, "  {:9}  {layer}", if at == 0 { "layers" } else { "" });
    }
    for (at, (name, value)) in template.env.iter().enumerate() {
        let _ = writeln!(text, "  {:9}  {name}={value}", if at == 0 { "env" } else { "" });
    }
    out.write_all(text.as_bytes())?;
    Ok(())
}

fn remove(store: &Store, arguments: &RemoveArguments) -> anyhow::Result<()> {
    let change = store.change(&|_| ())?;
    for name in &arguments.names {
        let freed = change.remove(name)?;
        let mut out = std::io::stdout().lock();
        if arguments.json {
            writeln!(out, "{}", json!({ "name": name, "status": "removed", "freed_bytes": freed }))?;
        } else {
            writeln!(out, "removed {name}, {} freed", size(freed))?;
        }
    }
    Ok(())
}

/// What there is to know about it, line by line.
fn told(template: &Template) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "  {what:9}  {value}");
    };
    line("backend", template.backend.as_str());
    if let Some(digest) = template.digest.as_ref().or(template.engine_image.as_ref()) {
        line("digest", digest);
    }
    if !template.layers.is_empty() {
        let layers = template.layers.len();
        let layers = if layers == 1 { "1 layer".to_owned() } else { format!("{layers} layers") };
        line("size", &format!("{} in {} files, {layers}", size(template.bytes), template.entries));
    }
    let languages =
        if template.languages.is_empty() { "none".to_owned() } else { template.languages.join(", ") };
    line("languages", &languages);
    line("workdir", template.workdir.as_deref().unwrap_or("/workspace"));
    if let Some(user) = &template.user {
        line("user", &format!("{user}, who is the sandbox's own user here"));
    }
    text
}

fn as_table(templates: &[Template], disk: u64, width: usize) -> String {
    let columns =
        [text("NAME", 8), text("BACKEND", 7), number("SIZE"), text("LANGUAGES", 9), text("FROM", 12)];
    let row = |template: &Template| {
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        vec![
            template.name.clone(),
            template.backend.as_str().to_owned(),
            or_none(if template.layers.is_empty() { String::new() } else { size(template.bytes) }),
            or_none(template.languages.join(", ")),
            template.origin.to_string(),
        ]
    };
    let mut listed = table::table(&columns, &templates.iter().map(row).collect::<Vec<_>>(), width);
    let _ = writeln!(listed, "{} on disk; layers that several have are there once", size(disk));
    listed
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        1_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A bar for people who watch; a line per step where nobody does.
struct Bar {
    bar: ProgressBar,
    with_bytes: ProgressStyle,
    without: ProgressStyle,
    watched: bool,
}

impl Bar {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            bar: ProgressBar::new(0),
            with_bytes: ProgressStyle::with_template(
                "{bar:30} {percent:>3} %  {msg}, {bytes} of {total_bytes}",
            )?,
            without: ProgressStyle::with_template("{spinner} {msg}, {bytes}")?,
            watched: std::io::stderr().is_terminal(),
        })
    }

    fn show(&self, step: Step<'_>) {
        match step {
            Step::Begin { what, .. } if !self.watched => {
                // Only for whoever looks on.
                let _ = writeln!(std::io::stderr(), "{what}");
            }
            Step::Begin { what, bytes } => {
                self.bar.reset();
                self.bar.set_style(if bytes.is_some() {
                    self.with_bytes.clone()
                } else {
                    self.without.clone()
                });
                self.bar.set_length(bytes.unwrap_or(0));
                self.bar.set_message(what.to_owned());
            }
            Step::Advance { bytes } => self.bar.inc(bytes),
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates() -> Vec<Template> {
        let template = |value: serde_json::Value| serde_json::from_value(value).unwrap();
        vec![
            template(json!({
                "version": 1, "name": "science", "backend": "local",
                "origin": {"image": "registry.example/team/science:1"}, "created_at": "2026-01-02T03:04:05Z",
                "digest": format!("sha256:{}", "ab".repeat(32)), "layers": [format!("sha256:{}", "cd".repeat(32))],
                "env": {"PATH": "/usr/bin"}, "workdir": "/app", "user": "app", "languages": ["python", "javascript"],
                "bytes": 123_456_789, "entries": 4321,
            })),
            template(json!({
                "version": 1, "name": "tools", "backend": "docker", "origin": {"dockerfile": "tools"},
                "created_at": "2026-01-02T03:04:05Z", "engine_image": format!("sha256:{}", "ef".repeat(32)),
            })),
        ]
    }

    #[test]
    fn a_person_reads_what_there_is() {
        let templates = templates();
        let all: String = templates.iter().map(|template| told(template) + "\n").collect();
        let [whole, narrow] = [usize::MAX, 60].map(|width| as_table(&templates, 987_654_321, width));
        insta::assert_snapshot!(format!("{whole}\n{narrow}\n{all}"));
    }
}
