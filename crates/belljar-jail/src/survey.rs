//! What this machine offers and lacks, read from files but for one trial. Whether all of it really works is for a test in a
//! real sandbox to show.

mod container;
mod trial;

use std::{fs, path::Path};

use serde::Serialize;

use self::{container::Container, trial::Trial};
use crate::{cgroup, sys};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Present,
    /// Works without it, but isolation is weaker.
    Weaker,
    Missing,
}

#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub layer: &'static str,
    pub status: Status,
    pub detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What the findings are drawn from; a test can make one up.
#[derive(Debug, Clone, Default)]
struct Facts {
    release: String,
    /// With CAP_SYS_ADMIN.
    privileged: bool,
    is_root: bool,
    max_user_namespaces: Option<u64>,
    unprivileged_userns_clone: Option<u64>,
    apparmor_restricts: Option<u64>,
    /// 2: a seccomp filter is on this very process, as in a container.
    seccomp_mode: u64,
    container: Option<Container>,
    trial: Trial,
    landlock_abi: u32,
    cgroups: Option<Result<String, String>>,
}

/// The machine's AppArmor has its say in containers too.
const OUTSIDE_OF_CONTAINER: &str = "; AppArmor outside of it denies user namespaces as well: load the profile that belljar \
                                    doctor --profile apparmor prints there, and name it (apparmor=belljar) in place of \
                                    unconfined";

pub fn survey() -> Vec<Finding> {
    findings(&Facts::read())
}

impl Facts {
    fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let seccomp = status.lines().find_map(|l| l.strip_prefix("Seccomp:")?.trim().parse().ok());
        let cgroups = cgroup::discover().map(|found| match found.version {
            cgroup::Version::V1 => "version 1: memory, cpu, pids".to_string(),
            cgroup::Version::V2 => format!("version 2, below {}", found.bases[0].display()),
        });
        Self {
            release: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
            privileged: sys::has_sys_admin(),
            is_root: rustix::process::geteuid().is_root(),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            seccomp_mode: seccomp.unwrap_or(0),
            container: Container::recognise(
                |path| Path::new(path).exists(),
                |path| Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned()),
            ),
            trial: trial::try_it(),
            landlock_abi: sys::landlock_abi(),
            cgroups: Some(cgroups),
        }
    }
}

fn findings(facts: &Facts) -> Vec<Finding> {
    vec![kernel(facts), user_namespaces(facts), seccomp(facts), cgroups(facts), landlock(facts)]
}

fn kernel(facts: &Facts) -> Finding {
    let mut numbers = facts.release.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let enough = version >= (5, 12);
    Finding {
        layer: "kernel",
        status: if enough { Status::Present } else { Status::Missing },
        detail: format!("Linux {}", facts.release),
        fix: (!enough).then(|| "Linux 5.12 or newer is needed (mount_setattr)".into()),
    }
}

fn user_namespaces(facts: &Facts) -> Finding {
    let layer = "user namespaces";
    let missing = |detail: &str, fix: &str| Finding {
        layer,
        status: Status::Missing,
        detail: detail.into(),
        fix: Some(fix.into()),
    };
    if facts.max_user_namespaces == Some(0) {
        return missing(
            "user.max_user_namespaces is 0",
            "sudo sysctl -w user.max_user_namespaces=15000 (keep it in /etc/sysctl.d/)",
        );
    }
    if facts.privileged {
        let detail = "running as root: every sandbox gets a user of its own".into();
        return Finding { layer, status: Status::Present, detail, fix: None };
    }
    if facts.is_root {
        let remedy = facts.container.unwrap_or(Container::Engine).remedy();
        return missing(
            "this is root without CAP_SYS_ADMIN, as in a container: sandboxes would have root's own user",
            &format!("run it as an ordinary user; in a container: {remedy}"),
        );
    }
    if facts.trial == Trial::Works {
        let detail = "for ordinary users: all sandboxes share this user's rights outside".into();
        return Finding { layer, status: Status::Present, detail, fix: None };
    }
    if facts.unprivileged_userns_clone == Some(0) {
        return missing(
            "kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1, or run belljar as root",
        );
    }
    let restricted = facts.apparmor_restricts == Some(1) && facts.trial != Trial::NoProc;
    if let Some(container) = facts.container {
        let detail = match facts.trial {
            Trial::NoProc => "part of /proc is covered in this container, so no sandbox can have one",
            Trial::NoNamespace if facts.seccomp_mode == 2 => {
                "this container's seccomp profile denies unshare (Docker's default)"
            }
            Trial::NoNamespace => "this container denies user namespaces",
            _ => "this container denies mounts in user namespaces, as AppArmor's default profile does",
        };
        let also = if restricted { OUTSIDE_OF_CONTAINER } else { "" };
        return missing(detail, &format!("{}{also}", container.remedy()));
    }
    if restricted {
        return missing(
            "AppArmor denies user namespaces to programs it does not know (Ubuntu 23.10 and newer)",
            "belljar doctor --profile apparmor | sudo tee /etc/apparmor.d/belljar && sudo apparmor_parser -r \
             /etc/apparmor.d/belljar; or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; or run belljar \
             as root",
        );
    }
    match facts.trial {
        Trial::NoProc => missing(
            "part of /proc is covered, as by systemd's ProtectKernelTunables=, so no sandbox can have one",
            "start it where /proc is whole, or run belljar as root",
        ),
        _ if facts.seccomp_mode == 2 => missing(
            "a filter of system calls that is on this process denies them, as systemd's RestrictNamespaces= does",
            "start it without that filter",
        ),
        _ => missing(
            "something denies them to this program",
            "sudo dmesg | grep -i denied names what does (AppArmor, SELinux); or run belljar as root",
        ),
    }
}

fn seccomp(facts: &Facts) -> Finding {
    let available = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists() || facts.seccomp_mode == 2;
    Finding {
        layer: "seccomp",
        status: if available { Status::Present } else { Status::Missing },
        detail: if available {
            "system call filter".into()
        } else {
            "this kernel has no seccomp filters".into()
        },
        fix: (!available).then(|| "a kernel with CONFIG_SECCOMP_FILTER".into()),
    }
}

fn cgroups(facts: &Facts) -> Finding {
    match &facts.cgroups {
        Some(Ok(detail)) => {
            Finding { layer: "cgroups", status: Status::Present, detail: detail.clone(), fix: None }
        }
        other => Finding {
            layer: "cgroups",
            status: Status::Weaker,
            detail: match other {
                Some(Err(why)) => format!("limits hold for single processes only: {why}"),
                _ => "limits hold for single processes only".into(),
            },
            fix: Some(match facts.container {
                Some(container) => container.limit_as_a_whole().into(),
                None => "systemd-run --user --scope -p Delegate=yes belljar …, or run belljar as root".into(),
            }),
        },
    }
}

fn landlock(facts: &Facts) -> Finding {
    let present = facts.landlock_abi > 0;
    Finding {
        layer: "landlock",
        status: if present { Status::Present } else { Status::Weaker },
        detail: if present { format!("version {}", facts.landlock_abi) } else { "not in this kernel".into() },
        fix: (!present).then(|| "Linux 5.13 or newer with `landlock` in the boot parameter lsm=".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn user(change: impl FnOnce(&mut Facts)) -> Finding {
        let mut facts =
            Facts { release: "6.8.0-45-generic".into(), max_user_namespaces: Some(100), ..Facts::default() };
        change(&mut facts);
        user_namespaces(&facts)
    }

    #[test]
    fn whatever_settings_say_a_trial_that_works_decides() {
        for container in [None, Some(Container::Engine), Some(Container::Pod), Some(Container::Lxc)] {
            for (restricts, mode) in [(None, 0), (Some(0), 0), (Some(1), 0), (Some(1), 2)] {
                for clone in [None, Some(0), Some(1)] {
                    let change = |f: &mut Facts| {
                        (f.container, f.apparmor_restricts, f.seccomp_mode) = (container, restricts, mode);
                        f.unprivileged_userns_clone = clone;
                    };
                    let with = |trial| {
                        user(|f| {
                            change(f);
                            f.trial = trial;
                        })
                    };
                    assert_eq!(
                        with(Trial::Works).status,
                        Status::Present,
                        "{container:?} {restricts:?} {mode}"
                    );
                    for trial in [Trial::NoNamespace, Trial::NoRights, Trial::NoProc] {
                        let finding = with(trial);
                        assert_eq!(finding.status, Status::Missing, "{finding:?}");
                        assert!(finding.fix.is_some(), "{finding:?}");
                        let root = user(|f| {
                            change(f);
                            (f.trial, f.privileged, f.is_root) = (trial, true, true);
                        });
                        assert_eq!(root.status, Status::Present, "root needs none of it: {root:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn whoever_is_refused_is_told_by_what_and_what_to_do() {
        let mut told = BTreeMap::<_, Vec<_>>::new();
        for container in [None, Some(Container::Engine), Some(Container::Pod)] {
            for apparmor_restricts in [None, Some(1)] {
                for trial in [Trial::NoNamespace, Trial::NoRights, Trial::NoProc] {
                    for seccomp_mode in [0, 2] {
                        let finding = user(|f| {
                            (f.container, f.apparmor_restricts) = (container, apparmor_restricts);
                            (f.trial, f.seccomp_mode) = (trial, seccomp_mode);
                        });
                        let seen = format!(
                            "{container:?}, {trial:?}, AppArmor {apparmor_restricts:?}, seccomp {seccomp_mode}"
                        );
                        told.entry((finding.detail, finding.fix)).or_default().push(seen);
                    }
                }
            }
        }
        let told: Vec<_> = told
            .into_iter()
            .map(|((detail, fix), seen)| {
                format!("{}\n  {detail}\n  fix: {}\n", seen.join("\n"), fix.unwrap())
            })
            .collect();
        insta::assert_snapshot!(told.join("\n"));
    }

    #[test]
    fn root_that_may_not_do_what_root_does_is_recognised() {
        let finding = user(|f| (f.is_root, f.trial) = (true, Trial::Works));
        assert_eq!(finding.status, Status::Missing);
        assert!(
            finding.detail.contains("CAP_SYS_ADMIN") && finding.fix.unwrap().contains("--user 1000:1000")
        );
        assert_eq!(user(|f| (f.is_root, f.privileged) = (true, true)).status, Status::Present);
    }

    #[test]
    fn switches_that_forbid_user_namespaces_are_recognised() {
        assert!(user(|f| f.unprivileged_userns_clone = Some(0)).detail.contains("unprivileged_userns_clone"));
        assert!(user(|f| f.max_user_namespaces = Some(0)).detail.contains("max_user_namespaces"));
    }

    #[test]
    fn the_trial_says_what_the_same_steps_say_elsewhere() {
        let works = std::process::Command::new("unshare")
            .args(["--user", "--mount", "--pid", "--fork", "--mount-proc", "true"])
            .output()
            .is_ok_and(|output| output.status.success());
        assert_eq!(trial::try_it() == Trial::Works, works);
    }

    #[test]
    fn missing_delegation_is_weaker_not_fatal() {
        let facts = Facts { cgroups: Some(Err("/sys/fs/cgroup is not writable".into())), ..Facts::default() };
        let finding = cgroups(&facts);
        assert_eq!(finding.status, Status::Weaker);
        assert!(finding.fix.unwrap().contains("Delegate=yes"));
    }

    #[test]
    fn an_old_kernel_is_named() {
        let facts = |release: &str| Facts { release: release.into(), ..Facts::default() };
        assert_eq!(kernel(&facts("5.10.0-28-amd64")).status, Status::Missing);
        assert_eq!(kernel(&facts("5.15.0")).status, Status::Present);
        assert_eq!(kernel(&facts("6.18.44-fc")).status, Status::Present);
    }
}
