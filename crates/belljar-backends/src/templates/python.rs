//! The Python template: pinned packages for the host's Python, bytecode compiled, beside our kernel.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

use super::{Hold, Progress, Sources, TemplateError, build_atomically, capture, hex_digest, hold, remember};

/// With the digest of every wheel: pip takes no other.
const REQUIREMENTS: &str = include_str!("../../templates/python-requirements.lock");
/// The kernel's sources: a template of its own, because they change more often than the packages.
const SOURCES: [(&str, &str); 5] = [
    ("belljar_alone.py", include_str!("../../../belljar-guest/kernels/python/belljar_alone.py")),
    ("belljar_kernel.py", include_str!("../../../belljar-guest/kernels/python/belljar_kernel.py")),
    ("belljar_shell.py", include_str!("../../../belljar-guest/kernels/python/belljar_shell.py")),
    ("belljar_tools.py", include_str!("../../../belljar-guest/kernels/python/belljar_tools.py")),
    ("belljar_zygote.py", include_str!("../../../belljar-guest/kernels/python/belljar_zygote.py")),
];
/// Change it when the steps below change.
const RECIPE: &str = "4";
const OLDEST: (u32, u32) = (3, 10);
/// The newest that the pinned packages have wheels for.
const NEWEST: (u32, u32) = (3, 13);
const NAMES: [&str; 6] = ["python3", "python3.13", "python3.12", "python3.11", "python3.10", "python"];

const FIND: &str = "import sys, os, json; print(json.dumps({
    'version': list(sys.version_info[:3]),
    'prefix': os.path.realpath(sys.base_prefix),
    'executable': os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable)}))";

/// Where sandboxes have the packages, and the kernel.
pub(crate) const SITE: &str = "/opt/belljar/site";
pub(crate) const KERNEL: &str = "/opt/belljar/kernel";
/// Imported once by the zygote, shared by every Python context.
pub(crate) const PRELOAD: [&str; 4] = ["numpy", "pandas", "matplotlib", "matplotlib.pyplot"];
/// Prints the files that the zygote will read, in that order.
const LIST: &str = include_str!("../../templates/prefetch.py");
const PREFETCH: &str = "prefetch";

/// An interpreter of the host's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Found {
    pub version: [u32; 3],
    pub prefix: PathBuf,
    pub executable: PathBuf,
}

/// A template that can be mounted.
#[derive(Debug, Clone)]
pub struct Python {
    pub host: Found,
    /// Holds `site` (packages) and `matplotlib` (its font cache).
    pub directory: PathBuf,
    /// Holds `code`, and the list of files that are wanted first, which names paths of the host.
    pub kernel: PathBuf,
    pub holds: [Hold; 2],
}

impl Found {
    fn name(&self) -> String {
        let host = format!("{self:?}");
        let parts = [RECIPE.as_bytes(), REQUIREMENTS.as_bytes(), host.as_bytes()];
        format!("python-{}", &hex_digest(&parts)[..16])
    }

    fn kernel_name(&self) -> String {
        let packages = self.name();
        let mut parts = vec![packages.as_bytes(), LIST.as_bytes()];
        for (name, text) in &SOURCES {
            parts.extend([name.as_bytes(), text.as_bytes()]);
        }
        format!("kernel-{}", &hex_digest(&parts)[..16])
    }

    pub(super) fn is_built(&self, sources: &Sources) -> bool {
        let built = |name| sources.directory().join(name).is_dir();
        built(self.name()) && built(self.kernel_name())
    }

    pub fn version(&self) -> String {
        let [major, minor, patch] = self.version;
        format!("{major}.{minor}.{patch}")
    }
}

impl Python {
    /// The first usable Python of the host.
    pub fn find(sources: &Sources) -> Result<Found, TemplateError> {
        let executable = |found: &Found| found.executable.clone();
        remember(sources, "python", sources.python.as_deref(), executable, || Self::look_for(sources))
    }

    fn look_for(sources: &Sources) -> Result<Found, TemplateError> {
        let candidates: Vec<PathBuf> = match &sources.python {
            Some(path) => vec![path.clone()],
            None => NAMES.iter().map(PathBuf::from).collect(),
        };
        let mut seen = Vec::new();
        for candidate in candidates {
            let mut command = Command::new(&candidate);
            command.args(["-I", "-c", FIND]);
            let found = match capture(&mut command).map(|json| serde_json::from_str::<Found>(&json)) {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    seen.push(format!("{} said something strange ({error})", candidate.display()));
                    continue;
                }
                Err(error) => {
                    // Of the usual names most are missing everywhere; one that was asked for by name is not.
                    if sources.python.is_some() {
                        seen.push(error.message);
                    }
                    continue;
                }
            };
            if (OLDEST..=NEWEST).contains(&(found.version[0], found.version[1])) {
                return Ok(found);
            }
            seen.push(format!("{} is {}", candidate.display(), found.version()));
        }
        let seen = if seen.is_empty() { "none was found".into() } else { seen.join(", ") };
        Err(TemplateError::new(format!("Python 3.10 to 3.13 is needed: {seen}"))
            .hint("apt-get install python3 python3-pip, or name one with the setting `python`"))
    }

    pub(super) fn prepare(sources: &Sources, progress: Progress<'_>) -> Result<Self, TemplateError> {
        let host = Self::find(sources)?;
        let directory = sources.directory().join(host.name());
        if !directory.is_dir() {
            build_atomically(&directory, |fresh| fill(&host, fresh, progress))?;
        }
        let kernel = sources.directory().join(host.kernel_name());
        if !kernel.is_dir() {
            build_atomically(&kernel, |fresh| fill_kernel(&host, &directory, fresh))?;
        }
        let holds = [hold(&directory)?, hold(&kernel)?];
        Ok(Self { host, directory, kernel, holds })
    }
}

impl Python {
    /// Asks the kernel to read what the zygote is about to import, so that it does not wait for the disk file by file.
    pub fn prefetch(&self) {
        let list = fs::read_to_string(self.kernel.join(PREFETCH)).unwrap_or_default();
        for path in list.lines() {
            // Only a matter of speed, so it may fail.
            if let Ok(file) = fs::File::open(self.kernel.join(path)) {
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed);
            }
        }
    }
}

fn fill(host: &Found, fresh: &Path, progress: Progress<'_>) -> Result<(), TemplateError> {
    let io = |doing: &'static str| move |e: std::io::Error| TemplateError::io(doing, &e);
    let (site, fonts) = (fresh.join("site"), fresh.join("matplotlib"));
    fs::create_dir(&fonts).map_err(io("make the font cache"))?;
    let requirements = fresh.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(io("write the requirements"))?;
    install(host, &requirements, &site, progress)?;

    progress("compiling bytecode", 0.75);
    compile(host, &site, SITE);

    progress("finding fonts", 0.92);
    let mut cache = python(host);
    cache.env("PYTHONPATH", &site).env("MPLCONFIGDIR", &fonts);
    capture(cache.args(["-c", "import matplotlib.font_manager"]))?;
    progress("checking that everything imports", 0.96);
    let mut check = python(host);
    check.env("PYTHONPATH", &site).env("MPLCONFIGDIR", &fonts);
    capture(check.args([
        "-c",
        "import IPython, numpy, pandas, matplotlib.pyplot, scipy, sklearn, sympy, requests, PIL, openpyxl",
    ]))?;
    let manifest = serde_json::to_vec_pretty(host).unwrap_or_default();
    fs::write(fresh.join("manifest.json"), manifest).map_err(io("write the manifest"))
}

fn fill_kernel(host: &Found, packages: &Path, fresh: &Path) -> Result<(), TemplateError> {
    let code = fresh.join("code");
    fs::create_dir(&code).map_err(|e| TemplateError::io("make the kernel's directory", &e))?;
    for (name, text) in SOURCES {
        fs::write(code.join(name), text).map_err(|e| TemplateError::io("write the kernel", &e))?;
    }
    compile(host, &code, KERNEL);
    let mut list = python(host);
    let paths = std::env::join_paths([code, packages.join("site")])
        .map_err(|e| TemplateError::new(format!("a directory's name cannot be used: {e}")))?;
    list.env("PYTHONPATH", paths)
        .env("MPLCONFIGDIR", packages.join("matplotlib"))
        .env("OPENBLAS_NUM_THREADS", "1");
    let wanted = capture(list.args(["-B", "-S", "-c", LIST]).args(PRELOAD))?;
    // It is about to move, so what is in it is listed relative to it.
    let wanted = wanted.replace(&format!("{}/", fresh.display()), "");
    fs::write(fresh.join(PREFETCH), wanted).map_err(|e| TemplateError::io("write the list of files", &e))
}

/// For a directory that sandboxes have as `inside`. Bytecode names its source: with another name it would tell where the host has
/// it, and each import would put it right.
fn compile(host: &Found, directory: &Path, inside: &str) {
    let mut compile = python_module(host, "compileall");
    // Unchecked: these files never change, so importing need not look at their sources.
    compile.args(["-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]);
    compile.arg("-s").arg(directory).args(["-p", inside]);
    // Some packages ship test files for other versions of the language; they are allowed not to compile.
    let _ = compile.arg(directory).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

fn python(host: &Found) -> Command {
    let mut command = Command::new(&host.executable);
    command.env_remove("PYTHONDONTWRITEBYTECODE").env_remove("PYTHONPATH").env_remove("PYTHONHOME");
    command.env("PYTHONNOUSERSITE", "1");
    command
}

/// `python -m name`, ended by the kernel when we end: a build must not go on without its builder.
fn python_module(host: &Found, name: &str) -> Command {
    const RUN: &str = "import ctypes, runpy, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); \
                       sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)";
    let mut command = python(host);
    command.args(["-c", RUN, name]);
    command
}

fn install(
    host: &Found,
    requirements: &Path,
    site: &Path,
    progress: Progress<'_>,
) -> Result<(), TemplateError> {
    let complaints = requirements.with_file_name("pip.log");
    let log = fs::File::create(&complaints).map_err(|e| TemplateError::io("make a log", &e))?;
    let mut pip = python_module(host, "pip");
    pip.args(["install", "--no-compile", "--disable-pip-version-check", "--no-input"])
        .args(["--only-binary=:all:", "--no-deps", "--require-hashes", "--progress-bar=off", "--target"])
        .arg(site)
        .arg("-r")
        .arg(requirements)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = pip.spawn().map_err(|e| TemplateError::io("start pip", &e))?;
    let total = REQUIREMENTS.lines().filter(|l| l.contains("==")).count().max(1);
    let mut done = 0;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(package) = line.strip_prefix("Collecting ") {
                done += 1;
                let name = package.split(['=', ' ', '<', '>']).next().unwrap_or(package);
                progress(&format!("fetching {name}"), 0.5 * done as f64 / total as f64);
            } else if line.starts_with("Installing collected packages") {
                progress("installing packages", 0.55);
            }
        }
    }
    let status = child.wait().map_err(|e| TemplateError::io("wait for pip", &e))?;
    if status.success() {
        return Ok(());
    }
    let stderr = fs::read_to_string(&complaints).unwrap_or_default();
    let error = TemplateError::new(format!("pip could not install the Python packages:\n{}", stderr.trim()));
    Err(if stderr.contains("No module named pip") {
        error.hint("apt-get install python3-pip")
    } else {
        error.hint(
            "the template is built once and needs a package index that time only; try `belljar setup` again",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned_by_digest() {
        let pins = |text: &str| -> Vec<String> {
            let names = text.lines().filter(|line| line.contains("==") && !line.starts_with('#'));
            names.map(|line| line.trim_end_matches(" \\").to_owned()).collect()
        };
        let asked = include_str!("../../templates/python-requirements.txt");
        assert_eq!(pins(REQUIREMENTS), pins(asked), "scripts/lock-template.py writes the digests");
        let bare = REQUIREMENTS.lines().filter(|line| line.contains("==") && !line.ends_with('\\'));
        assert_eq!(bare.count(), 0, "a package without a digest");
    }
}
