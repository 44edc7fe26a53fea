//! The container engine: Docker, or Podman by the same interface.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use belljar_jail::{protocol::RootSpec, seccomp};
use belljar_sandbox::Limits;
use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::{
        ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountType,
        MountVolumeOptions, MountVolumeOptionsDriverConfig, ResourcesUlimits, SystemInfoCgroupVersionEnum,
    },
    query_parameters::{
        CreateContainerOptions, CreateImageOptions, ListContainersOptions, RemoveContainerOptions,
    },
};
use futures::TryStreamExt;
use tokio::sync::OnceCell;

use super::tar;

/// Requests are answered in milliseconds; making a container on a busy machine takes longer.
const REQUEST_LIMIT_SECONDS: u64 = 120;
const USUAL: &str = "/var/run/docker.sock";
/// Whose a container is: the instance of the server, and the sandbox.
pub(super) const OWNER: &str = "belljar.owner";
pub(super) const HANDLE: &str = "belljar.handle";
/// With a registry's name, so that every engine finds it under the one that it was given.
const REPOSITORY: &str = "localhost/belljar-sandbox";
/// What an engine covers by itself, and more that is the host's business. Of /sys only the container's own cgroups are left,
/// which tell the guest when memory ran out.
const MASKED: [&str; 29] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/partitions",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/firmware",
    "/sys/fs/bpf",
    "/sys/fs/btrfs",
    "/sys/fs/ext4",
    "/sys/fs/f2fs",
    "/sys/fs/fuse",
    "/sys/fs/pstore",
    "/sys/fs/selinux",
    "/sys/fs/xfs",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// How often it is looked whether a container is gone that the engine is removing already, and how long between.
const REMOVALS: usize = 1000;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);
/// Runtimes that bring a kernel along, as their names say it.
const KERNELS: [&str; 3] = ["runsc", "gvisor", "kata"];
const SHARED_MEMORY: i64 = 64 << 20;
/// Of user 1000 in all containers together, for engines that must be told one; each container has `pids_limit` besides.
const MAX_PROCESSES: i64 = 32_768;
pub(super) const GUEST: &str = "/opt/belljar/guest";
pub(super) const DOOR: &str = "/run/belljar";

pub(super) struct Engine {
    docker: Docker,
    runtime: Option<String>,
    pub(super) version: String,
    /// What is weaker here than it could be.
    pub(super) weaker: Vec<String>,
    /// The filter of system calls as the engine wants it: the text itself, or for Podman a file with it.
    pub(super) seccomp: String,
    pub(super) podman: bool,
    /// It can show directories as overlays.
    overlays: bool,
    /// Containers run on this machine's kernel, and not on one of their own.
    shares_kernel: bool,
    image: OnceCell<String>,
}

/// Everything that one container is made of.
pub(super) struct Spec<'a> {
    pub(super) id: &'a str,
    pub(super) owner: &'a str,
    pub(super) image: String,
    pub(super) env: Vec<String>,
    /// Sources on the host and where they are seen, read-only, as they are.
    pub(super) binds: Vec<(PathBuf, String)>,
    /// The same, but with inodes of the container's own where the engine can do that.
    pub(super) shown: Vec<(PathBuf, String)>,
    /// An empty directory of the host's.
    pub(super) empty: &'a Path,
    pub(super) limits: &'a Limits,
}

/// Where the engine is, as a setting says it; empty: where it usually is.
pub fn socket(given: &str) -> Result<PathBuf, String> {
    match given.split_once("://") {
        None if given.is_empty() => Ok(USUAL.into()),
        Some(("unix", path)) => Ok(path.into()),
        None if given.starts_with('/') => Ok(given.into()),
        _ => Err(format!(
            "{given:?} is not a socket of this machine: sandboxes are reached through a directory that they share with \
             it, so the engine must be here. Use unix:///path/of/docker.sock"
        )),
    }
}

impl Engine {
    pub(super) async fn connect(socket: &Path, runtime: &str) -> Result<Self, String> {
        let remedy = |why: String| {
            format!(
                "there is no container engine at {}: {why}. Install Docker or Podman and start it, name its socket with \
                 the setting `docker.host`, or use --backend local",
                socket.display()
            )
        };
        let docker =
            Docker::connect_with_unix(&socket.to_string_lossy(), REQUEST_LIMIT_SECONDS, API_DEFAULT_VERSION);
        let docker = docker.map_err(|e| remedy(readable(&e)))?;
        let docker = docker.negotiate_version().await.map_err(|e| remedy(readable(&e)))?;
        let info = docker.info().await.map_err(|e| remedy(readable(&e)))?;
        let known = info.runtimes.unwrap_or_default();
        if !runtime.is_empty() && !known.contains_key(runtime) {
            let mut known: Vec<String> = known.into_keys().collect();
            known.sort();
            return Err(format!(
                "the container engine knows no runtime {runtime:?}, only {}. Install it and name it in the engine's \
                 daemon.json, or change the setting `docker.runtime`",
                known.join(", ")
            ));
        }
        let used =
            if runtime.is_empty() { info.default_runtime.unwrap_or_default() } else { runtime.to_owned() };
        let program = known.get(&used).and_then(|found| found.path.clone()).unwrap_or_default();
        let is_kernel = |name: &str| KERNELS.iter().any(|kernel| name.contains(kernel));
        let shares_kernel = !is_kernel(&used) && !is_kernel(&program);
        let security = info.security_options.unwrap_or_default();
        let mut weaker = Vec::new();
        if !security.iter().any(|option| option.contains("name=seccomp")) && runtime.is_empty() {
            weaker.push("the engine has no seccomp: the guest's own filter is the only one".into());
        }
        if !security.iter().any(|option| option.contains("userns") || option.contains("rootless")) {
            weaker.push(
                "no user namespace: the sandboxes' user 1000 is the machine's user 1000 (turn on userns-remap, or run \
                 the engine rootless)"
                    .into(),
            );
        }
        // Podman makes empty volumes of them.
        let version = docker.version().await.map_err(|e| remedy(readable(&e)))?;
        let podman = version.components.unwrap_or_default().iter().any(|part| part.name.contains("Podman"));
        let overlays = !podman && has_overlayfs();
        if !overlays {
            let why = if podman { "Podman cannot show them otherwise" } else { "overlayfs is missing" };
            weaker.push(format!(
                "files below /usr are the machine's own: who locks or watches one sees others do so ({why})"
            ));
        }
        // Later versions of cgroups have one by default.
        if podman && info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1) {
            weaker.push(
                "no cgroup namespace: Podman gives none by its socket on cgroups of version 1 (boot the machine with \
                 systemd.unified_cgroup_hierarchy=1)"
                    .into(),
            );
        }
        weaker.push("no Landlock".into());
        Ok(Self {
            docker,
            runtime: (!runtime.is_empty()).then(|| runtime.to_owned()),
            version: info.server_version.unwrap_or_default(),
            weaker,
            seccomp: seccomp::profile::profile().to_string(),
            podman,
            overlays,
            shares_kernel,
            image: OnceCell::new(),
        })
    }

    /// An image of directories, links and small files, which the built-in template's files are mounted into. Imported when
    /// the engine does not have it yet.
    pub(super) async fn base_image(&self, root: &RootSpec) -> Result<String, String> {
        let make = || async {
            let archive = tar::of(root, !self.podman);
            let digest = crate::templates::hex_digest(&[&archive]);
            // Not in the tag, which Podman does not take.
            let name = format!("{REPOSITORY}-{}", &digest[..16]);
            if let Ok(found) = self.docker.inspect_image(&name).await
                && let Some(id) = found.id
            {
                return Ok(id);
            }
            let options = CreateImageOptions {
                from_src: Some("-".into()),
                repo: Some(name.clone()),
                tag: Some("latest".into()),
                ..CreateImageOptions::default()
            };
            let body = bollard::body_full(archive.into());
            let said: Result<Vec<_>, Error> =
                self.docker.create_image(Some(options), Some(body), None).try_collect().await;
            said.map_err(|e| format!("import the sandboxes' image: {}", readable(&e)))?;
            let made = self.docker.inspect_image(&name).await;
            let made = made.map_err(|e| format!("find the sandboxes' image: {}", readable(&e)))?;
            made.id.ok_or_else(|| "the sandboxes' image has no id".into())
        };
        self.image.get_or_try_init(make).await.cloned()
    }

    /// Whether directories can be put into a container that runs.
    pub(super) fn takes_mounts(&self) -> bool {
        self.shares_kernel && rustix::process::geteuid().is_root()
    }

    pub(super) async fn has_image(&self, image: &str) -> Result<(), String> {
        let found = self.docker.inspect_image(image).await;
        found.map(drop).map_err(|e| format!("the engine does not have the image {image}: {}", readable(&e)))
    }

    pub(super) async fn start(&self, spec: &Spec<'_>) -> Result<(), String> {
        let name = name(spec.id);
        let options =
            CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
        let created = self.docker.create_container(Some(options), self.body(spec)).await;
        created.map_err(|e| format!("create a container: {}", readable(&e)))?;
        let started = self.docker.start_container(&name, None).await;
        started.map_err(|e| format!("start a container: {}", readable(&e)))
    }

    fn body(&self, spec: &Spec<'_>) -> ContainerCreateBody {
        let show = |shown: &(PathBuf, String)| match self.overlays && shown.0.is_dir() {
            true => overlay(shown, spec.empty),
            false => bind(shown),
        };
        let mounts = spec.binds.iter().map(bind).chain(spec.shown.iter().map(show)).collect();
        let limit = |name: &str, limit: i64| ResourcesUlimits {
            name: Some(name.into()),
            soft: Some(limit),
            hard: Some(limit),
        };
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        let Limits { cpus, memory_bytes, processes, workspace_bytes, tmp_bytes } = *spec.limits;
        let own = [("/workspace", workspace_bytes), ("/tmp", tmp_bytes), ("/outputs", workspace_bytes / 2)];
        let tmpfs = own.map(|(path, size)| {
            let options = match self.podman {
                // It knows no more than this; memory's limit counts inodes, too.
                true => format!("rw,nosuid,nodev,exec,size={size},mode=1777"),
                false => {
                    let mode = if path == "/tmp" { "1777" } else { "755" };
                    // One inode for every 8 KiB keeps a flood of empty files from eating kernel memory.
                    let inodes = (size / 8192).max(1024);
                    format!(
                        "rw,nosuid,nodev,exec,size={size},nr_inodes={inodes},mode={mode},uid=1000,gid=1000"
                    )
                }
            };
            (path.to_owned(), options)
        });
        let mut ulimits =
            vec![limit("core", 1), limit("nofile", 1024), limit("memlock", 8 << 20), limit("msgqueue", 0)];
        if self.podman {
            // Unnamed, Podman asks for more than its own, which a machine may not allow. It is counted over all containers.
            ulimits.push(limit("nproc", MAX_PROCESSES));
        }
        ContainerCreateBody {
            image: Some(spec.image.clone()),
            hostname: Some("belljar".into()),
            user: Some("1000:1000".into()),
            working_dir: Some("/workspace".into()),
            entrypoint: words(&[GUEST, "connect", &format!("{DOOR}/socket")]),
            cmd: Some(Vec::new()),
            env: Some(spec.env.clone()),
            labels: Some(HashMap::from([
                (OWNER.to_owned(), spec.owner.to_owned()),
                (HANDLE.to_owned(), spec.id.to_owned()),
            ])),
            host_config: Some(HostConfig {
                mounts: Some(mounts),
                tmpfs: Some(tmpfs.into()),
                shm_size: Some(SHARED_MEMORY),
                readonly_rootfs: Some(true),
                network_mode: Some("none".into()),
                ipc_mode: Some("private".into()),
                cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
                cap_drop: words(&["ALL"]),
                security_opt: Some(vec!["no-new-privileges".into(), format!("seccomp={}", self.seccomp)]),
                masked_paths: words(&MASKED),
                readonly_paths: words(&READ_ONLY),
                memory: Some(memory_bytes as i64),
                // Memory and swap together: none of the latter.
                memory_swap: Some(memory_bytes as i64),
                nano_cpus: Some(nano_cpus(cpus)),
                pids_limit: Some(processes.into()),
                ulimits: Some(ulimits),
                // The guest is what an init would be.
                init: Some(false),
                auto_remove: Some(true),
                log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
                runtime: self.runtime.clone(),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    pub(super) async fn update(&self, id: &str, limits: &Limits) -> Result<(), String> {
        let body = bollard::models::ContainerUpdateBody {
            memory: Some(limits.memory_bytes as i64),
            memory_swap: Some(limits.memory_bytes as i64),
            nano_cpus: Some(nano_cpus(limits.cpus)),
            ..Default::default()
        };
        self.docker.update_container(&name(id), body).await.map_err(|e| readable(&e))
    }

    /// Ends a container and waits until it is gone. Safe to repeat.
    pub(super) async fn remove(&self, id: &str) -> Result<(), String> {
        let name = name(id);
        let mut refused = String::new();
        for _ in 0..REMOVALS {
            let options =
                RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
            match self.docker.remove_container(&name, Some(options)).await {
                Ok(()) => return Ok(()),
                Err(Error::DockerResponseServerError { status_code: 404, .. }) => return Ok(()),
                // It ended by itself, and is being removed.
                Err(Error::DockerResponseServerError { status_code: 409 | 500, message }) => {
                    refused = message
                }
                Err(error) => return Err(readable(&error)),
            }
            tokio::time::sleep(REMOVAL_PAUSE).await;
        }
        Err(refused)
    }

    /// Handles of an owner's containers.
    pub(super) async fn list(&self, owner: &str) -> Result<Vec<String>, String> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("{OWNER}={owner}")])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let mut listed = self.docker.list_containers(Some(options.clone())).await;
        for _ in 0..REMOVALS {
            let Some(id) = listed.as_ref().err().and_then(half_removed) else { break };
            tracing::warn!(
                "the engine lists nothing since it has lost the files of container {id}, which is removed"
            );
            let force = RemoveContainerOptions { force: true, ..RemoveContainerOptions::default() };
            self.docker.remove_container(&id, Some(force)).await.map_err(|e| readable(&e))?;
            listed = self.docker.list_containers(Some(options.clone())).await;
        }
        let found = listed.map_err(|e| readable(&e))?;
        Ok(found.into_iter().filter_map(|container| container.labels?.remove(HANDLE)).collect())
    }

    /// Host's number of its first process.
    pub(super) async fn pid(&self, id: &str) -> Result<i32, String> {
        let found = self.docker.inspect_container(&name(id), None).await.map_err(|e| readable(&e))?;
        let pid = found.state.and_then(|state| state.pid).unwrap_or_default();
        i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(|| "its container does not run".into())
    }

    /// Processor time in nanoseconds, and bytes of memory.
    pub(super) async fn used(&self, id: &str) -> Option<(u64, u64)> {
        let options = bollard::query_parameters::StatsOptions { stream: false, one_shot: true };
        let mut stats = Box::pin(self.docker.stats(&name(id), Some(options)));
        let stats = stats.try_next().await.ok()??;
        let cpu = stats.cpu_stats?.cpu_usage?.total_usage?;
        Some((cpu, stats.memory_stats.and_then(|memory| memory.usage).unwrap_or_default()))
    }
}

fn bind((source, target): &(PathBuf, String)) -> Mount {
    Mount {
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.clone()),
        typ: Some(MountType::BIND),
        read_only: Some(true),
        ..Mount::default()
    }
}

/// A volume without a name, which the engine makes and removes with its container. It is read-only because an overlay
/// without an upper layer is.
fn overlay((source, target): &(PathBuf, String), empty: &Path) -> Mount {
    let layer = |path: &Path| {
        let path = path.to_string_lossy();
        path.replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
    };
    let options = [
        ("type", "overlay".to_owned()),
        ("device", "overlay".to_owned()),
        ("o", format!("ro,nosuid,nodev,lowerdir={}:{}", layer(source), layer(empty))),
    ];
    Mount {
        target: Some(target.clone()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            driver_config: Some(MountVolumeOptionsDriverConfig {
                name: Some("local".into()),
                options: Some(options.map(|(name, value)| (name.to_owned(), value)).into()),
            }),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// The engine is on this machine.
fn has_overlayfs() -> bool {
    std::fs::read_to_string("/proc/filesystems")
        .is_ok_and(|known| known.lines().any(|line| line == "nodev\toverlay"))
}

fn name(id: &str) -> String {
    format!("belljar-{id}")
}

fn nano_cpus(cpus: f64) -> i64 {
    // An engine refuses more than the machine has, which would mean no limit anyway.
    let here = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
    (cpus.min(here) * 1e9) as i64
}

/// Podman was seen with half of a container: still listed, its files gone. It then lists none of those that have the same
/// label, which is ours, until the other half is removed.
fn half_removed(error: &Error) -> Option<String> {
    let Error::DockerResponseServerError { status_code: 500, message } = error else { return None };
    let id =
        message.strip_prefix("getting container from store \"")?.strip_suffix("\": container not known")?;
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}

pub(super) fn readable(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_podman_forgot_half_of_is_told_by_its_error() {
        let said = |status_code, message: &str| {
            half_removed(&Error::DockerResponseServerError { status_code, message: message.into() })
        };
        let id = "28bff524d0f510ea7be12db7d9c453bffbf2502bfea8e6144a5e034e83a8bae5";
        let lost = format!("getting container from store \"{id}\": container not known");
        assert_eq!(said(500, &lost).as_deref(), Some(id));
        assert_eq!(said(404, &lost), None);
        assert_eq!(said(500, "getting container from store \"../mine\": container not known"), None);
        assert_eq!(said(500, "no space left on device"), None);
    }

    #[test]
    fn an_engine_elsewhere_is_refused() {
        assert_eq!(socket("").unwrap(), Path::new("/var/run/docker.sock"));
        assert_eq!(socket("unix:///run/a.sock").unwrap(), Path::new("/run/a.sock"));
        assert_eq!(socket("/run/b.sock").unwrap(), Path::new("/run/b.sock"));
        for elsewhere in ["tcp://10.0.0.1:2375", "ssh://a@b", "relative.sock"] {
            assert!(socket(elsewhere).unwrap_err().contains("not a socket of this machine"));
        }
    }
}
