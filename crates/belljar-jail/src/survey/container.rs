//! Which kind of container this is, if it is one, and what has to be said to whoever runs it.

/// What a container needs so that an ordinary user in it can make sandboxes.
const IN_ENGINE: &str = "belljar doctor --profile docker > belljar-seccomp.json, then docker run --user 1000:1000 \
                         --security-opt seccomp=belljar-seccomp.json --security-opt systempaths=unconfined \
                         --security-opt apparmor=unconfined";
const IN_POD: &str = "belljar doctor --profile docker, kept as /var/lib/kubelet/seccomp/belljar-seccomp.json on the node; \
                      then in the pod hostUsers: false, in its securityContext runAsUser: 1000, seccompProfile: {type: \
                      Localhost, localhostProfile: belljar-seccomp.json} and appArmorProfile: {type: Unconfined}, and in \
                      the container's securityContext procMount: Unmasked";
const IN_LXC: &str = "let the container nest: security.nesting=true (Incus, LXD), features: nesting=1 (Proxmox), or \
                      lxc.include = /usr/share/lxc/config/nesting.conf";
const IN_ANY: &str =
    "let the container make user namespaces, mount in them, and see all of /proc; as with Docker:";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// Docker, Podman or their like.
    Engine,
    /// Kubernetes'.
    Pod,
    Lxc,
    Unknown,
}

impl Container {
    /// From files as this process sees them. None of these is everywhere: an engine may leave no file of its own, cgroups have a
    /// namespace of their own, and the first process's environment is its user's to read.
    pub(super) fn recognise(
        exists: impl Fn(&str) -> bool,
        read: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let read = |path| read(path).unwrap_or_default();
        let environments = [read("/proc/1/environ"), read("/proc/self/environ")];
        let variable = |name: &str| {
            environments.iter().flat_map(|all| all.split('\0')).find_map(|one| one.strip_prefix(name))
        };
        let cgroup = read("/proc/1/cgroup");
        let is_below = |names: &[&str]| names.iter().any(|name| cgroup.contains(name));
        let written = read("/run/systemd/container");
        let manager = [written.trim(), variable("container=").unwrap_or_default()];
        let is_run_by = |names: &[&str]| manager.iter().any(|one| names.contains(one));
        if exists("/var/run/secrets/kubernetes.io")
            || variable("KUBERNETES_SERVICE_HOST=").is_some()
            || is_below(&["kubepods"])
        {
            return Some(Self::Pod);
        }
        if exists("/.dockerenv")
            || exists("/run/.containerenv")
            || is_run_by(&["docker", "podman", "oci"])
            || is_below(&["/docker", "libpod", "/crio", "containerd"])
        {
            return Some(Self::Engine);
        }
        let has_socket = exists("/dev/incus/sock") || exists("/dev/lxd/sock");
        if is_run_by(&["lxc", "lxc-libvirt"]) || has_socket || is_below(&["/lxc"]) {
            return Some(Self::Lxc);
        }
        // Systems that start from a medium have such a root too, but a first process of a machine's.
        let is_layered = root_type(&read("/proc/self/mountinfo")).is_some_and(|kind| kind == "overlay");
        let named = manager.iter().any(|one| !matches!(*one, "" | "wsl"));
        (named || is_layered && !exists("/run/systemd/system")).then_some(Self::Unknown)
    }

    pub(super) fn remedy(self) -> String {
        match self {
            Self::Engine => IN_ENGINE.into(),
            Self::Pod => IN_POD.into(),
            Self::Lxc => IN_LXC.into(),
            Self::Unknown => format!("{IN_ANY} {IN_ENGINE}"),
        }
    }

    pub(super) fn limit_as_a_whole(self) -> &'static str {
        match self {
            Self::Engine | Self::Unknown => {
                "limit the container as a whole: docker run --memory 4g --pids-limit 1000 --cpus 2"
            }
            Self::Pod => {
                "limit the container as a whole: resources.limits in the pod, podPidsLimit in the kubelet's settings"
            }
            Self::Lxc => {
                "limit the container as a whole: limits.memory, limits.processes, limits.cpu (Incus, LXD)"
            }
        }
    }
}

fn root_type(mounts: &str) -> Option<&str> {
    let root = mounts.lines().rev().find(|line| line.split(' ').nth(4) == Some("/"))?;
    root.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files with their text; a file without any only exists.
    fn recognise(files: &[(&str, &str)]) -> Option<Container> {
        let find =
            |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.to_string());
        Container::recognise(|path| find(path).is_some(), find)
    }

    const LAYERED: (&str, &str) =
        ("/proc/self/mountinfo", "9 1 0:2 / / rw - overlay overlay rw\n10 9 0:5 / /proc rw - proc proc rw\n");

    #[test]
    fn containers_are_known_by_whatever_their_makers_leave() {
        for (files, expected) in [
            (&[("/.dockerenv", "")][..], Container::Engine),
            (&[("/run/.containerenv", "")], Container::Engine),
            (&[("/proc/self/environ", "A=1\0container=podman\0")], Container::Engine),
            (&[("/proc/1/cgroup", "0::/system.slice/docker-ab.scope/docker/ab\n")], Container::Engine),
            (&[("/var/run/secrets/kubernetes.io", "")], Container::Pod),
            (&[("/proc/1/environ", "KUBERNETES_SERVICE_HOST=10.0.0.1\0")], Container::Pod),
            (&[("/proc/1/cgroup", "0::/kubepods.slice/kubepods-pod1.slice\n")], Container::Pod),
            // CRI-O leaves Podman's file too.
            (&[("/run/.containerenv", ""), ("/var/run/secrets/kubernetes.io", "")], Container::Pod),
            (&[("/run/systemd/container", "lxc\n"), ("/run/systemd/system", "")], Container::Lxc),
            (&[("/proc/1/environ", "container=lxc\0")], Container::Lxc),
            (&[("/dev/incus/sock", "")], Container::Lxc),
            (&[("/proc/1/cgroup", "1:name=systemd:/lxc.payload.a\n")], Container::Lxc),
            (&[("/run/systemd/container", "systemd-nspawn\n")], Container::Unknown),
            (&[LAYERED], Container::Unknown),
        ] {
            assert_eq!(recognise(files), Some(expected), "{files:?}");
        }
    }

    #[test]
    fn machines_are_no_containers() {
        let disk = (
            "/proc/self/mountinfo",
            "9 1 254:0 / / rw - ext4 /dev/vda rw\n10 9 0:9 / /x rw - overlay o rw\n",
        );
        assert_eq!(recognise(&[disk, ("/proc/1/cgroup", "0::/init.scope\n")]), None);
        assert_eq!(recognise(&[LAYERED, ("/run/systemd/system", "")]), None, "started from a medium");
        assert_eq!(recognise(&[("/run/systemd/container", "wsl\n")]), None);
        assert_eq!(recognise(&[("/proc/self/environ", "MY_container=docker\0")]), None);
        assert_eq!(recognise(&[]), None);
    }
}
