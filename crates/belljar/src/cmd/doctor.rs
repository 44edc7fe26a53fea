//! What this machine offers and lacks, and a real attack on a real sandbox.

use std::{
    io::Write,
    process::ExitCode,
    time::{Duration, Instant},
};

use belljar_backends::{
    docker,
    templates::{Browser, Node, Python, Sources, is_prepared},
};
use belljar_images::{ImageError, Store};
use belljar_jail::survey::{Finding, Status, survey};
use belljar_sandbox::{Backend, Kind, Probed, State, selftest};
use serde::Serialize;

use super::table;
use crate::{
    backend,
    cli::{DoctorArguments, Profile},
    cmd::template::size,
    config::Config,
};

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    version: &'static str,
    layers: Vec<Finding>,
    templates: Vec<Template>,
    /// The one whose sandboxes are attacked below.
    backend: Kind,
    /// The container engine, wherever sandboxes come from.
    docker: Engine,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    escape_test: Vec<Probed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Template {
    name: &'static str,
    status: Status,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

#[derive(Debug, Serialize)]
struct Engine {
    /// Whether there is one.
    present: bool,
    detail: String,
}

/// What a container has less of than a jail, and says so.
const WEAKER_IN_CONTAINERS: [&str; 3] = ["user namespace", "built root", "landlock"];

/// Columns of mark and name.
const BEFORE_DETAIL: usize = 31;
const LEAST_DETAIL: usize = 20;

/// What others need to let Belljar work, as it is shipped.
const APPARMOR: &str = include_str!("../../../../packaging/apparmor/belljar");
const DOCKER: &str = include_str!("../../../../packaging/docker/seccomp.json");

pub(crate) fn run(config: Config, arguments: DoctorArguments) -> anyhow::Result<ExitCode> {
    if let Some(profile) = arguments.profile {
        let text = match profile {
            Profile::Apparmor => apparmor(&std::env::current_exe()?.to_string_lossy())?,
            Profile::Docker => DOCKER.to_owned(),
        };
        std::io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(examine(&config))?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        as_text(&report, table::width())
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// For the program that asks, wherever it is.
fn apparmor(program: &str) -> anyhow::Result<String> {
    let means_something = |c: char| "\"*?[]{}^,@\\".contains(c) || c.is_whitespace() || c.is_control();
    anyhow::ensure!(
        !program.contains(means_something),
        "AppArmor would take {program:?} for a pattern: move belljar to a plainer path"
    );
    Ok(APPARMOR.replace("/usr/local/bin/belljar", program))
}

async fn examine(config: &Config) -> anyhow::Result<Report> {
    let sources = backend::sources(config);
    let kept = Kept::examine(config);
    let (docker, missing) = engine(config, &kept.in_engine()).await;
    let templates = vec![python(&sources), node(&sources), browser(&sources), kept.told(&missing)];
    let layers = survey();
    let mut report = Report {
        ok: false,
        version: crate::cli::VERSION,
        layers,
        templates,
        backend: config.backend,
        docker,
        problem: None,
        escape_test: Vec::new(),
        sandbox_ms: None,
    };
    let backend = backend::open_without_templates(config);
    match attack(&*backend).await {
        Ok((probed, took)) => {
            report.escape_test = probed;
            report.sandbox_ms = Some(took.as_secs_f64() * 1000.0);
        }
        Err(problem) => report.problem = Some(problem),
    }
    backend.shutdown(Duration::from_secs(2)).await;
    report.ok = report.problem.is_none()
        && report.escape_test.iter().all(|p| p.held || is_optional(p, report.backend, &report.layers));
    Ok(report)
}

/// The engine, and those of the images that it does not have.
async fn engine(config: &Config, images: &[String]) -> (Engine, Vec<String>) {
    let looked = match docker::socket(&config.docker_host) {
        Ok(socket) => docker::look(&socket, &config.docker_runtime, images).await,
        Err(why) => Err(why),
    };
    match looked {
        Ok(found) => {
            let weaker: String = found.weaker.iter().map(|what| format!("; {what}")).collect();
            let detail = format!("version {}{weaker}", found.version);
            (Engine { present: true, detail }, found.missing)
        }
        Err(why) => (Engine { present: false, detail: why }, images.to_vec()),
    }
}

/// The templates that somebody made of images.
#[derive(Debug, Default)]
struct Kept {
    /// By name, with the engine's name for its image if the engine has it; or what is wrong.
    templates: Vec<(String, Result<Option<String>, String>)>,
    disk_bytes: u64,
    problem: Option<String>,
}

impl Kept {
    fn examine(config: &Config) -> Self {
        let store = Store::below(&config.home);
        match store.examine().and_then(|found| Ok((found, store.disk_use()?))) {
            Ok((found, disk_bytes)) => {
                let image = |(name, found): (String, Result<belljar_images::Template, ImageError>)| {
                    (name, found.map(|template| template.engine_image).map_err(|e| e.to_string()))
                };
                Self { templates: found.into_iter().map(image).collect(), disk_bytes, problem: None }
            }
            Err(error) => Self { problem: Some(error.to_string()), ..Self::default() },
        }
    }

    fn in_engine(&self) -> Vec<String> {
        self.templates.iter().filter_map(|(_, found)| found.clone().ok().flatten()).collect()
    }

    fn told(&self, missing: &[String]) -> Template {
        if let Some(problem) = &self.problem {
            let detail = format!("templates of images cannot be read: {problem}");
            return Template { name: "images", status: Status::Missing, detail, fix: None };
        }
        let wrong = |(name, found): &(String, Result<Option<String>, String>)| match found {
            Err(why) => Some((name.clone(), why.clone())),
            Ok(Some(image)) if missing.contains(image) => {
                Some((name.clone(), format!("the container engine does not have its image {image}")))
            }
            Ok(_) => None,
        };
        let broken: Vec<(String, String)> = self.templates.iter().filter_map(wrong).collect();
        let mut detail = match self.templates.len() {
            0 => "no templates of images".to_owned(),
            1 => format!("1 template of an image, {} here", size(self.disk_bytes)),
            count => format!("{count} templates of images, {} here", size(self.disk_bytes)),
        };
        for (name, why) in &broken {
            detail.push_str(&format!("; {name} is broken: {why}"));
        }
        let names: Vec<&str> = broken.iter().map(|(name, _)| name.as_str()).collect();
        let fix = (!names.is_empty())
            .then(|| format!("belljar template remove {}, and add it again", names.join(" ")));
        let status = if broken.is_empty() { Status::Present } else { Status::Weaker };
        Template { name: "images", status, detail, fix }
    }
}

/// A probe that fails because the survey already called that layer absent, or because a container has no such layer.
fn is_optional(probed: &Probed, backend: Kind, layers: &[Finding]) -> bool {
    if backend == Kind::Docker {
        return WEAKER_IN_CONTAINERS.contains(&probed.layer.as_str());
    }
    layers.iter().any(|l| l.status == Status::Weaker && probed.layer.contains(l.layer.trim_end_matches('s')))
}

async fn attack(backend: &dyn Backend) -> Result<(Vec<Probed>, Duration), String> {
    let mut state = backend.state();
    let settled = state.wait_for(|state| !matches!(state, State::Preparing(_))).await.map(|s| s.clone());
    match settled {
        Ok(State::Ready) => {}
        Ok(State::Failed(why)) => return Err(why),
        _ => return Err("the backend ended".into()),
    }
    let started = Instant::now();
    let probed = selftest(backend).await.map_err(|e| e.to_string())?;
    Ok((probed, started.elapsed()))
}

fn python(sources: &Sources) -> Template {
    match Python::find(sources) {
        Ok(found) if is_prepared(sources) => {
            let detail = format!("Python {}, template ready", found.version());
            Template { name: "python", status: Status::Present, detail, fix: None }
        }
        Ok(found) => Template {
            name: "python",
            status: Status::Weaker,
            detail: format!("Python {}, template not built yet", found.version()),
            fix: Some("belljar setup (or wait at the first start)".into()),
        },
        Err(error) => {
            Template { name: "python", status: Status::Missing, detail: error.message, fix: error.hint }
        }
    }
}

fn node(sources: &Sources) -> Template {
    match Node::find(sources) {
        Ok((_, version)) => Template {
            name: "javascript",
            status: Status::Present,
            detail: format!("Node {version}"),
            fix: None,
        },
        Err(error) => {
            Template { name: "javascript", status: Status::Missing, detail: error.message, fix: error.hint }
        }
    }
}

fn browser(sources: &Sources) -> Template {
    let (status, detail, fix) = match Browser::find(sources) {
        Ok(found) => (Status::Present, format!("{}, {}", found.version, found.executable.display()), None),
        Err(error) => (Status::Missing, error.message, error.hint),
    };
    Template { name: "browser", status, detail, fix }
}

fn as_text(report: &Report, width: usize) -> String {
    let mut text = format!("belljar {}\n\nThis machine\n", report.version);
    let mut line = |status: Status, name: &str, detail: &str, fix: Option<&String>| {
        let mark = match status {
            Status::Present => "ok     ",
            Status::Weaker => "weaker ",
            Status::Missing => "MISSING",
        };
        text.push_str(&described(mark, name, detail, width));
        if let Some(fix) = fix {
            text.push_str(&described("       ", "", &format!("fix: {fix}"), width));
        }
    };
    for finding in &report.layers {
        line(finding.status, finding.layer, &finding.detail, finding.fix.as_ref());
    }
    for template in &report.templates {
        line(template.status, template.name, &template.detail, template.fix.as_ref());
    }
    let missing: Vec<&str> =
        report.layers.iter().filter(|l| l.status == Status::Missing).map(|l| l.layer).collect();
    let failed = report.problem.is_some() && report.backend == Kind::Local;
    let local = match (missing.is_empty(), failed) {
        (false, _) => format!("needs what is missing above: {}", missing.join(", ")),
        (true, true) => "no sandbox could be made, for the reason below".to_owned(),
        (true, false) => "can be used".to_owned(),
    };
    let backends = [
        (Kind::Local, missing.is_empty() && !failed, local.as_str()),
        (Kind::Docker, report.docker.present, report.docker.detail.as_str()),
    ];
    for (kind, there, detail) in backends {
        // Nothing is missing where nobody asked for it.
        let mark = match (there, report.backend == kind) {
            (true, _) => "ok     ",
            (false, true) => "MISSING",
            (false, false) => "-      ",
        };
        text.push_str(&described(mark, &format!("{kind} backend"), detail, width));
    }
    text.push_str(&format!("\nAttack from inside a real sandbox of the {} backend\n", report.backend));
    for probed in &report.escape_test {
        let mark = if probed.held { "held   " } else { "BROKEN " };
        text.push_str(&described(mark, &probed.layer, &probed.detail, width));
    }
    if let Some(problem) = &report.problem {
        text.push_str(&format!("  MISSING no sandbox could be made: {problem}\n"));
    }
    let weaker = report.layers.iter().any(|l| l.status == Status::Weaker);
    text.push_str(match (report.ok, weaker) {
        (true, _) if report.backend == Kind::Docker => "\nReady: every layer held that a container has.\n",
        (true, false) => "\nReady: every layer held.\n",
        (true, true) => "\nReady, with weaker isolation than this machine could have: see above.\n",
        (false, _) => "\nNot ready: see what is missing above.\n",
    });
    text
}

/// One line, or as many as its detail needs.
fn described(mark: &str, name: &str, detail: &str, width: usize) -> String {
    let lines = table::wrap(detail, width.saturating_sub(BEFORE_DETAIL).max(LEAST_DETAIL));
    let first = |at: usize| if at == 0 { (mark, name) } else { ("", "") };
    let lines = lines.iter().enumerate().map(|(at, line)| {
        let (mark, name) = first(at);
        format!("{}\n", format!("  {mark:7} {name:<20} {line}").trim_end())
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let finding = |layer, status, detail: &str, fix: Option<&str>| Finding {
            layer,
            status,
            detail: detail.into(),
            fix: fix.map(Into::into),
        };
        let probed =
            |layer: &str, held, detail: &str| Probed { layer: layer.into(), held, detail: detail.into() };
        Report {
            ok: true,
            version: "0.1.0",
            layers: vec![
                finding("kernel", Status::Present, "Linux 6.8.0", None),
                finding(
                    "cgroups",
                    Status::Weaker,
                    "limits hold for single processes only",
                    Some("run as root"),
                ),
            ],
            templates: vec![Template {
                name: "javascript",
                status: Status::Missing,
                detail: "Node 18 or newer is needed for JavaScript: node is 12.22.9".into(),
                fix: Some("apt-get install nodejs".into()),
            }],
            backend: Kind::Local,
            docker: Engine { present: false, detail: "there is no container engine at /nowhere".into() },
            problem: None,
            escape_test: vec![probed("seccomp", true, "mode 2, not refused: []")],
            sandbox_ms: Some(3.0),
        }
    }

    #[test]
    fn a_person_reads_what_is_there_what_is_missing_and_the_fix() {
        insta::assert_snapshot!([usize::MAX, 60].map(|width| as_text(&report(), width)).join("\n"));
    }

    #[test]
    fn templates_of_images_are_counted_and_broken_ones_named() {
        assert_eq!(Kept::default().told(&[]).detail, "no templates of images");
        let kept = Kept {
            templates: vec![
                ("gone".into(), Err("its layer sha256:ab is gone".into())),
                ("lost".into(), Ok(Some("sha256:cd".into()))),
                ("whole".into(), Ok(None)),
            ],
            disk_bytes: 2_500_000,
            problem: None,
        };
        assert_eq!(kept.in_engine(), ["sha256:cd"]);
        let told = kept.told(&kept.in_engine());
        insta::assert_snapshot!(told.detail, @"3 templates of images, 2.5 MB here; gone is broken: its layer sha256:ab is gone; lost is broken: the container engine does not have its image sha256:cd");
        assert_eq!(told.fix.as_deref(), Some("belljar template remove gone lost, and add it again"));
        assert_eq!((told.status, kept.told(&[]).status), (Status::Weaker, Status::Weaker));
    }

    #[test]
    fn the_profile_is_for_this_program() {
        let profile = apparmor("/home/a/belljar").unwrap();
        assert!(profile.contains("profile belljar /home/a/belljar flags=(unconfined)"), "{profile}");
        assert!(apparmor("/home/a b/belljar").is_err());
        assert!(apparmor("/home/**").is_err());
    }

    /// What the profile for containers says to a call with these arguments.
    fn container_allows(call: &str, arguments: &[u64]) -> bool {
        let profile: serde_json::Value = serde_json::from_str(DOCKER).unwrap();
        let rules = profile["syscalls"].as_array().unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        rules.iter().any(|rule| {
            assert_eq!(rule["action"], "SCMP_ACT_ALLOW");
            let tests = rule["args"].as_array().map_or(&[][..], |tests| tests);
            rule["names"].as_array().unwrap().iter().any(|name| name == call)
                && tests.iter().all(|test| {
                    assert_eq!(test["op"], "SCMP_CMP_EQ");
                    arguments.get(test["index"].as_u64().unwrap() as usize).copied() == test["value"].as_u64()
                })
        })
    }

    #[test]
    fn a_container_may_have_the_sockets_that_are_used_and_no_others() {
        for family in 0..64u64 {
            for protocol in 0..32 {
                // AF_UNIX, AF_INET, AF_INET6; AF_NETLINK with NETLINK_ROUTE.
                let used = matches!((family, protocol), (1 | 2 | 10, _) | (16, 0));
                let allowed = container_allows("socket", &[family, 1, protocol]);
                assert_eq!(allowed, used, "family {family}, protocol {protocol}");
            }
            assert_eq!(container_allows("socketpair", &[family, 1, 0]), family == 1, "family {family}");
        }
    }

    #[test]
    fn a_container_may_do_what_its_sandboxes_may_and_little_more() {
        let inside = belljar_jail::seccomp::profile::profile();
        for rule in inside["syscalls"].as_array().unwrap() {
            for name in rule["names"].as_array().unwrap() {
                let name = name.as_str().unwrap();
                assert!(container_allows(name, &[1, 1, 0]), "{name}");
            }
        }
        let refused = "add_key bpf clock_settime init_module io_uring_setup kexec_load keyctl open_by_handle_at \
                       perf_event_open pidfd_getfd process_madvise process_vm_readv ptrace userfaultfd";
        for refused in refused.split(' ') {
            assert!(!container_allows(refused, &[0; 6]), "{refused}");
        }
    }

    #[test]
    fn a_broken_layer_is_not_overlooked() {
        let broken = Report {
            ok: false,
            problem: Some("make a user namespace as an ordinary user: Operation not permitted".into()),
            escape_test: vec![Probed {
                layer: "landlock".into(),
                held: false,
                detail: "16 more rule sets fit".into(),
            }],
            ..report()
        };
        insta::assert_snapshot!(as_text(&broken, usize::MAX));
    }

    #[test]
    fn a_probe_may_fail_only_where_the_survey_said_so() {
        let report = report();
        let probed = |layer: &str| Probed { layer: layer.into(), held: false, detail: String::new() };
        assert!(is_optional(&probed("cgroup namespace"), Kind::Local, &report.layers));
        assert!(!is_optional(&probed("seccomp"), Kind::Local, &report.layers));
        assert!(!is_optional(&probed("landlock"), Kind::Local, &report.layers));
        assert!(is_optional(&probed("landlock"), Kind::Docker, &report.layers));
        assert!(!is_optional(&probed("cgroup namespace"), Kind::Docker, &report.layers));
    }
}
