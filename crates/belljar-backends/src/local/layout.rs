//! What a local sandbox looks like from inside.

use std::{collections::BTreeMap, fs, io, path::Path};

use belljar_jail::protocol::{Bind, BrowserSpec, GuestConfig, RootSpec, Small, ZygoteSpec};

use super::browser;
use crate::templates::{KERNEL, PRELOAD, Python, SITE, TemplateError, Templates};

const FONTS: &str = "/opt/belljar/matplotlib";
pub(super) const NODE_KERNEL: &str = "/opt/belljar/node";
const BIN: &str = "/opt/belljar/bin";
/// Starts a kernel where there is no zygote.
pub(super) const ALONE: &str = "belljar_alone.py";

/// Directories of the host that are links on some distributions and real on others.
const TOP: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files and directories of the host's /etc that programs need and that tell nothing about the host.
const ETC: [&str; 5] = ["alternatives", "fonts", "ld.so.cache", "mime.types", "ssl/certs"];

/// What a Python installation has in its `lib`, each with a version.
const OF_PYTHON: [&str; 8] = ["python", "libpython", "tcl", "tk", "libtcl", "libtk", "itcl", "thread"];

const PASSWD: &str = "root:x:0:0:root:/:/bin/false\nuser:x:1000:1000:user:/workspace:/bin/bash\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost belljar\n::1 localhost\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

pub(crate) struct Layout {
    pub(crate) root: RootSpec,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) zygote: Result<ZygoteSpec, String>,
    /// How Python is started where there is no zygote; empty when there is none.
    pub(crate) alone: Vec<String>,
    pub(crate) browser: Result<BrowserSpec, String>,
    pub(crate) guest: GuestConfig,
}

pub(crate) fn layout(templates: &Templates) -> Layout {
    let mut root = RootSpec::default();
    let mut bind = |source: &Path, target: &str| {
        root.binds.push(show(source, target));
    };
    bind(Path::new("/usr"), "/usr");
    for name in ETC {
        let path = Path::new("/etc").join(name);
        if path.exists() {
            bind(&path, &path.to_string_lossy());
        }
    }
    let mut links = Vec::new();
    for name in TOP {
        let path = Path::new("/").join(name);
        match fs::read_link(&path) {
            Ok(target) => {
                links.push((path.to_string_lossy().into_owned(), target.to_string_lossy().into_owned()))
            }
            Err(_) if path.is_dir() => bind(&path, &path.to_string_lossy()),
            Err(_) => {}
        }
    }
    let mut env = environment();
    let mut zygote = Err(why_no_python(templates));
    let mut alone = Vec::new();
    let mut guest = GuestConfig { digest: crate::guest_digest(), ..GuestConfig::default() };
    if let Some(python) = templates.python() {
        let executable = bind_python(python, &mut bind);
        bind(&python.directory.join("site"), SITE);
        bind(&python.directory.join("matplotlib"), FONTS);
        bind(&python.kernel.join("code"), KERNEL);
        python_environment(python, &mut env);
        for name in ["python", "python3"] {
            links.push((format!("{BIN}/{name}"), executable.clone()));
        }
        alone = vec![executable.clone(), "-B".into(), "-S".into(), format!("{KERNEL}/{ALONE}")];
        alone.extend(["--fonts", FONTS].into_iter().chain(PRELOAD).map(String::from));
        let mut zygote_env = env.clone();
        zygote_env.insert("BELLJAR_FONT_CACHE".into(), FONTS.into());
        zygote = Ok(ZygoteSpec {
            argv: vec![executable, "-B".into(), "-S".into(), format!("{KERNEL}/belljar_zygote.py")],
            env: zygote_env,
            preload: PRELOAD.map(String::from).to_vec(),
        });
    }
    if let Some(node) = templates.node() {
        let executable = bind_executable(&node.executable, "/opt/node/bin/node", &mut bind);
        bind(&node.directory, NODE_KERNEL);
        links.push((format!("{BIN}/node"), executable.clone()));
        guest.javascript = vec![executable, "--expose-internals".into(), format!("{NODE_KERNEL}/kernel.cjs")];
    }
    let browser = match templates.browser() {
        Some(found) => Ok(browser::spec(found, &mut bind)),
        None => Err(why_no_browser(templates)),
    };
    guest.browser = browser.is_ok();
    root.symlinks = links;
    root.files = files();
    Layout { root, env, zygote, alone, browser, guest }
}

pub(super) fn show(source: &Path, target: &str) -> Bind {
    // What must fit to the host's programs while these change is never copied.
    let live = ["/usr", "/etc/alternatives"].contains(&target)
        || target.strip_prefix('/').is_some_and(|name| TOP.contains(&name));
    let small = if live { None } else { Small::of(source) };
    Bind { source: source.to_path_buf(), target: target.into(), small }
}

/// Who and where one is.
pub(super) fn files() -> Vec<(String, String)> {
    [
        ("/etc/passwd", PASSWD),
        ("/etc/group", GROUP),
        ("/etc/hosts", HOSTS),
        ("/etc/nsswitch.conf", NSSWITCH),
        ("/etc/resolv.conf", ""),
        ("/etc/hostname", "belljar\n"),
    ]
    .map(|(path, text)| (path.to_string(), text.to_string()))
    .to_vec()
}

pub(super) fn why_no_python(templates: &Templates) -> String {
    match &templates.python {
        Some(Err(error)) => with_hint(error),
        _ => "there are no interpreters in this sandbox".into(),
    }
}

fn why_no_browser(templates: &Templates) -> String {
    match &templates.browser {
        Some(Err(error)) => with_hint(error),
        _ => "there is no browser in this sandbox".into(),
    }
}

fn with_hint(error: &TemplateError) -> String {
    match &error.hint {
        Some(hint) => format!("{error} ({hint})"),
        None => error.to_string(),
    }
}

pub(super) fn environment() -> BTreeMap<String, String> {
    [
        ("PATH", "/opt/belljar/bin:/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/workspace"),
        ("USER", "user"),
        ("LOGNAME", "user"),
        ("SHELL", "/bin/bash"),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("TERM", "dumb"),
        ("TMPDIR", "/tmp"),
        // Caches must not litter the workspace.
        ("XDG_CACHE_HOME", "/tmp/.cache"),
        ("XDG_CONFIG_HOME", "/tmp/.config"),
        ("npm_config_cache", "/tmp/.npm"),
    ]
    .map(|(k, v)| (k.to_string(), v.to_string()))
    .into()
}

fn python_environment(python: &Python, env: &mut BTreeMap<String, String>) {
    env.insert("PYTHONPATH".into(), SITE.into());
    env.extend(python_defaults());
    // A shared libpython outside the linker's own directories was found by a path that does not exist inside.
    if python.host.prefix != Path::new("/usr") && python.host.prefix.join("lib").is_dir() {
        env.insert("LD_LIBRARY_PATH".into(), "/opt/python/lib".into());
    }
}

/// What every Python inside is told, whosever it is.
pub(super) fn python_defaults() -> impl Iterator<Item = (String, String)> {
    [
        ("PYTHONNOUSERSITE", "1"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("IPYTHONDIR", "/tmp/.ipython"),
        ("MPLCONFIGDIR", "/tmp/.matplotlib"),
        ("MPLBACKEND", "Agg"),
    ]
    .into_iter()
    .map(|(k, v)| (k.to_string(), v.to_string()))
}

/// Where the host's `executable` is inside: where it was when that is below /usr, else at `target`. Never more than
/// the file itself: what lies beside it may be somebody's home.
fn bind_executable(executable: &Path, target: &str, bind: &mut impl FnMut(&Path, &str)) -> String {
    if executable.starts_with("/usr") {
        return executable.to_string_lossy().into_owned();
    }
    bind(executable, target);
    target.into()
}

/// The same for Python, which needs its standard library, too.
fn bind_python(python: &Python, bind: &mut impl FnMut(&Path, &str)) -> String {
    let [major, minor, _] = python.host.version;
    let version = format!("python{major}.{minor}");
    if python.host.prefix != Path::new("/usr") {
        bind_library(&python.host.prefix.join("lib"), &version, bind);
    }
    bind_executable(&python.host.executable, &format!("/opt/python/bin/{version}"), bind)
}

/// Python's `lib`, or if there is anything else in it, the standard library and libpython alone. A single file of the host's
/// is the same inode in all sandboxes, and their mount tables name its path: a directory is better.
fn bind_library(library: &Path, version: &str, bind: &mut impl FnMut(&Path, &str)) {
    if has_nothing_else(library).unwrap_or(false) {
        return bind(library, "/opt/python/lib");
    }
    bind(&library.join(version), &format!("/opt/python/lib/{version}"));
    for entry in fs::read_dir(library).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("libpython") && name.contains(".so") {
            bind(&entry.path(), &format!("/opt/python/lib/{name}"));
        }
    }
}

/// Links count by where they lead: what is outside of the directory does not exist inside.
fn has_nothing_else(library: &Path) -> io::Result<bool> {
    let library = library.canonicalize()?;
    for entry in fs::read_dir(&library)? {
        let entry = entry?;
        if !is_pythons(&entry.file_name().to_string_lossy())
            || !entry.path().canonicalize()?.starts_with(&library)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `python3.12`, `libpython3.12.so.1.0`, `libtcl9tk9.0.so`.
fn is_pythons(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    // A letter for threads without a lock.
    let is_part =
        |part: &str| ["so", "a"].contains(&part) || is_number(part.strip_suffix('t').unwrap_or(part));
    let is_version = |rest: &str| rest.split("tk").flat_map(|piece| piece.split('.')).all(is_part);
    name == "pkgconfig" || OF_PYTHON.iter().any(|own| name.strip_prefix(own).is_some_and(is_version))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn names_of_pythons_own() {
        for name in [
            "python3",
            "python3.13t",
            "libpython3.11.so.1.0",
            "libpython3.11.a",
            "pkgconfig",
            "tcl8.6",
            "thread3.0.4",
        ] {
            assert!(is_pythons(name), "{name}");
        }
        assert!(is_pythons("libtcl9tk9.0.so") && is_pythons("itcl4.3.5"));
        for name in [
            "python",
            "python-secrets",
            "python3-old",
            "tk-notes",
            "thread-dumps",
            "libpq.so.5",
            "tkinter",
            "",
        ] {
            assert!(!is_pythons(name), "{name}");
        }
    }

    #[test]
    fn what_lies_beside_a_python_is_not_shown() {
        let library = tempfile::tempdir().unwrap();
        let shown = || {
            let mut targets = Vec::new();
            bind_library(library.path(), "python3.11", &mut |_, target| targets.push(target.to_owned()));
            targets.sort();
            targets
        };
        for name in ["libpython3.11.so.1.0", "libpython3.11.a", "pkgconfig", "python3.11"] {
            fs::write(library.path().join(name), "").unwrap();
        }
        assert_eq!(shown(), ["/opt/python/lib"]);
        let alone = ["/opt/python/lib/libpython3.11.so.1.0", "/opt/python/lib/python3.11"];
        let at = |name: &str| library.path().join(name);
        symlink("python3.11", at("python3")).unwrap();
        assert_eq!(shown(), ["/opt/python/lib"], "a link to what is there");
        symlink("/usr", at("tcl8.6")).unwrap();
        assert_eq!(shown(), alone, "a link to elsewhere");
        fs::remove_file(at("tcl8.6")).unwrap();
        fs::write(at("diary"), "").unwrap();
        assert_eq!(shown(), alone);
    }
}
