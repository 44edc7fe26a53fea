//! The escape suite: hostile programs inside real sandboxes. Each layer is shown to be there from inside, and each
//! probe is shown to notice when its layer is left out, so that none of them can pass by accident.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::{
    collections::BTreeMap,
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::Duration,
};

use belljar_backends::{
    GUEST,
    local::{Interpreters, LocalBackend, LocalOptions},
    templates::Sources,
};
use belljar_jail::protocol::Layer;
use belljar_sandbox::{
    Backend, Caller, Language, Limits, NewContext, Probed, RunRequest, SandboxService, Settings, State,
    selftest,
};
use tokio_util::sync::CancellationToken;

/// Templates are expensive: the suite uses those of this machine, as `belljar setup` left them.
fn home() -> PathBuf {
    let data = || std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let user = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".local/share");
    std::env::var_os("BELLJAR_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| data().unwrap_or_else(user).join("belljar"))
}

async fn backend(interpreters: Interpreters, omit: &[Layer]) -> Arc<LocalBackend> {
    let backend = LocalBackend::start(LocalOptions {
        sources: Sources { home: home(), ..Sources::default() },
        interpreters,
        program: env!("CARGO_BIN_EXE_belljar").into(),
        limits: Limits::default(),
        require_cgroups: false,
        require_landlock: false,
        keep: None,
        build: String::new(),
        volumes: Vec::new(),
        omit: omit.to_vec(),
        image: None,
    });
    let mut state = backend.state();
    let settled = state.wait_for(|state| !matches!(state, State::Preparing(_))).await.unwrap().clone();
    assert_eq!(settled, State::Ready);
    backend
}

async fn probe(omit: &[Layer]) -> BTreeMap<String, Probed> {
    let backend = backend(Interpreters::None, omit).await;
    let probed = selftest(&*backend).await.unwrap();
    backend.shutdown(Duration::from_secs(5)).await;
    probed.into_iter().map(|p| (p.layer.clone(), p)).collect()
}

fn broken(probed: &BTreeMap<String, Probed>) -> Vec<&str> {
    probed.values().filter(|p| !p.held).map(|p| p.layer.as_str()).collect()
}

#[tokio::test]
async fn every_layer_holds() {
    let probed = probe(&[]).await;
    assert_eq!(probed.len(), 20, "{probed:#?}");
    assert_eq!(broken(&probed), [""; 0], "{probed:#?}");
}

/// The probe's own test: outside any sandbox it must find nothing that holds.
#[test]
fn outside_a_sandbox_no_layer_holds() {
    let mut program = tempfile::NamedTempFile::new().unwrap();
    program.write_all(GUEST).unwrap();
    program.as_file().set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = program.into_temp_path();
    let output = Command::new(&program).arg("probe").output().unwrap();
    let probed: BTreeMap<String, Probed> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Probed>(line).unwrap())
        .map(|p| (p.layer.clone(), p))
        .collect();
    assert_eq!(probed.len(), 18);
    // Where the tests run in a container of some kind, that container's own limits may show.
    let held: Vec<_> = probed.values().filter(|p| p.held).map(|p| p.layer.as_str()).collect();
    let mut expected =
        vec!["user namespace", "built root", "seccomp", "socket families", "rlimits", "host name"];
    expected.extend(["pid namespace", "no nested namespaces", "landlock", "setuid files"]);
    if rustix::process::geteuid().is_root() {
        // An ordinary user is kept from these by the host's own permissions.
        expected.extend(["read-only root", "capabilities", "guest memory"]);
    }
    for layer in expected {
        assert!(!held.contains(&layer), "{layer} seems to hold on the host: {:?}", probed[layer]);
    }
}

macro_rules! without {
    ($($test:ident: $omit:expr => $notices:expr;)*) => {$(
        #[tokio::test]
        async fn $test() {
            let probed = probe(&$omit).await;
            let mut expected: Vec<&str> = $notices.to_vec();
            expected.sort_unstable();
            assert_eq!(broken(&probed), expected, "{probed:#?}");
        }
    )*};
}

without! {
    a_missing_user_namespace_is_noticed: [Layer::UserNamespace, Layer::Capabilities]
        => ["user namespace", "capabilities"];
    a_missing_network_namespace_is_noticed: [Layer::Network] => ["network namespace"];
    a_missing_ipc_namespace_is_noticed: [Layer::Ipc] => ["ipc namespace"];
    a_missing_uts_namespace_is_noticed: [Layer::Uts] => ["host name"];
    missing_capability_drops_are_noticed: [Layer::Capabilities] => ["capabilities"];
    a_missing_no_new_privs_is_noticed: [Layer::NoNewPrivs, Layer::Seccomp, Layer::Landlock]
        => ["no_new_privs", "seccomp", "socket families", "no nested namespaces", "landlock", "setuid files"];
    a_missing_filter_is_noticed: [Layer::Seccomp] => ["seccomp", "socket families", "no nested namespaces", "setuid files"];
    a_missing_landlock_is_noticed: [Layer::Landlock] => ["landlock"];
    missing_rlimits_are_noticed: [Layer::Rlimits] => ["rlimits"];
    missing_limits_are_noticed: [Layer::Cgroups, Layer::Rlimits] => ["rlimits", "memory limit", "process limit"];
}

/// What the zygote's children are held to: they enter a sandbox by another way than everything else in it.
const KERNEL_PROBE: &str = r#"
import ctypes, json, os, socket
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *arguments):
    return libc.syscall(number, *arguments) < 0 and ctypes.get_errno() == 1
def family(number):
    try: socket.socket(number, socket.SOCK_RAW).close()
    except PermissionError: return True
    except OSError: return False
    return False
def writable(path):
    try: open(path, "w").close()
    except OSError: return False
    return True
def rulesets():
    pid = os.fork()
    if pid == 0:
        handled, added = ctypes.c_uint64(1 << 11), 0
        for _ in range(16):
            fd = libc.syscall(444, ctypes.byref(handled), 8, 0)
            if fd < 0 or libc.syscall(446, fd, 0): break
            added += 1
        os._exit(added)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps({
    "caps": [status[c].strip() for c in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privs": status["NoNewPrivs"], "seccomp": status["Seccomp"], "uid": os.getresuid(), "gid": os.getresgid(),
    "uid_map": open("/proc/self/uid_map").read().split()[::2],
    "calls": {name: refused(n, 0, 0, 0) for name, n in
              dict(mount=165, unshare=272, setns=308, ptrace=101, bpf=321, keyctl=250, io_uring_setup=425).items()},
    "families": [family(n) for n in (38, 16, 17)],
    "writable": [p for p in ("/x", "/usr/x", "/etc/x", "/opt/x", "/dev/x") if writable(p)],
    "rulesets": rulesets(), "interfaces": os.listdir("/proc/net/dev_snmp6"),
    "processes": sorted(int(p) for p in os.listdir("/proc") if p.isdigit()),
    "environment": sorted(os.environ),
    "descriptors": sorted({os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in os.listdir("/proc/self/fd")
                           if os.path.exists(f"/proc/self/fd/{fd}")}),
    "cgroups": sorted({line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup")
                       if line.split(":")[1] in ("memory", "cpu", "pids", "")}),
    "limits": {l[:26].strip(): l[26:].split()[1] for l in open("/proc/self/limits").read().splitlines()
               if l.startswith(("Max open files", "Max core", "Max processes"))},
}))
"#;

#[tokio::test]
async fn interpreters_from_the_zygote_are_held_to_the_same() {
    let service = SandboxService::new(
        backend(Interpreters::Ready, &[]).await,
        Settings { pool_size: 0, ..Settings::default() },
    );
    let caller = Caller::new("test");
    let new = NewContext {
        name: "probe".into(),
        language: Language::Python,
        template: None,
        description: String::new(),
        flavor: None,
        network: None,
    };
    let context = service.create_context(&caller, new).await.unwrap();
    let request = RunRequest { code: KERNEL_PROBE.into(), ..RunRequest::default() };
    let outcome = service.run(&caller, &context.id, request, CancellationToken::new()).await.unwrap();
    service.shutdown().await;
    assert!(outcome.success, "{}", outcome.stderr.head);
    let mut found: serde_json::Value = serde_json::from_str(&outcome.stdout.head).unwrap();
    // Names of variables differ with the interpreter's installation; none may come from the host's environment.
    let environment: Vec<String> = serde_json::from_value(found["environment"].take()).unwrap();
    for name in &environment {
        let ours = [
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "TZ",
            "TERM",
            "TMPDIR",
            "LD_LIBRARY_PATH",
            "LC_CTYPE",
        ];
        let prefixes =
            ["PYTHON", "XDG_", "MPL", "IPYTHON", "npm_", "KMP_", "CLICOLOR", "FORCE_", "PAGER", "GIT_PAGER"];
        let known = ours.contains(&name.as_str()) || prefixes.iter().any(|p| name.starts_with(p));
        assert!(known, "{name} leaked into the sandbox");
    }
    insta::assert_json_snapshot!(found);
}

/// The same layers for an ordinary user, who has neither root's rights nor, here, any cgroup. Where the machine forbids
/// it, `doctor` must have recognised why and say what to do.
#[test]
fn an_ordinary_user_is_held_by_the_same_layers() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        // Then this whole suite runs as an ordinary user.
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("belljar");
    std::fs::copy(env!("CARGO_BIN_EXE_belljar"), &program).unwrap();
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let output = Command::new(&program)
        .args(["doctor", "--json"])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home.path())
        .env("BELLJAR_HOME", home.path().join("home"))
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    if report["ok"] == true {
        let probes = report["escape_test"].as_array().unwrap();
        assert_eq!(probes.len(), 20);
        assert!(probes.iter().all(|p| p["held"] == true), "{probes:#?}");
    } else {
        let layers = report["layers"].as_array().unwrap();
        let recognised = layers.iter().any(|l| l["status"] == "missing" && l["fix"].is_string());
        assert!(recognised, "nobody would know what to do: {report:#}");
    }
    let left = std::fs::read_dir(home.path().join("home/run")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing may be left on disk");
}
