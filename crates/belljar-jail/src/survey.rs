//! What this machine offers and lacks, read from files alone. Whether it really works is for a test in a real
//! sandbox to show.

use std::{fs, path::Path};

use serde::Serialize;

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
#[derive(Debug, Default)]
pub struct Facts {
    pub release: String,
    /// With CAP_SYS_ADMIN.
    pub privileged: bool,
    pub is_root: bool,
    pub max_user_namespaces: Option<u64>,
    pub unprivileged_userns_clone: Option<u64>,
    pub apparmor_restricts: Option<u64>,
    /// 2: a seccomp filter is on this very process, as in a container.
    pub seccomp_mode: u64,
    pub in_container: bool,
    /// A user namespace can be made, as a trial showed.
    pub may_unshare: bool,
    pub landlock_abi: u32,
    pub cgroups: Option<Result<String, String>>,
}

/// What a container needs so that an ordinary user in it can make sandboxes.
const IN_DOCKER: &str = "belljar doctor --profile docker > belljar-seccomp.json, then docker run --user 1000:1000 \
                         --security-opt seccomp=belljar-seccomp.json --security-opt systempaths=unconfined \
                         --security-opt apparmor=unconfined";

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
            in_container: ["/.dockerenv", "/run/.containerenv"].iter().any(|p| Path::new(p).exists()),
            may_unshare: sys::may_make_user_namespace(),
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
        return missing(
            "this is root without CAP_SYS_ADMIN, as in a container: sandboxes would have root's own user",
            &format!("run it as an ordinary user; in a container: {IN_DOCKER}"),
        );
    }
    if facts.unprivileged_userns_clone == Some(0) {
        return missing(
            "kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1, or run belljar as root",
        );
    }
    if facts.apparmor_restricts == Some(1) {
        return missing(
            "AppArmor denies user namespaces to programs it does not know (Ubuntu 23.10 and newer)",
            "belljar doctor --profile apparmor | sudo tee /etc/apparmor.d/belljar && sudo apparmor_parser -r \
             /etc/apparmor.d/belljar; or sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; or run belljar \
             as root",
        );
    }
    if facts.seccomp_mode == 2 && facts.in_container && !facts.may_unshare {
        return missing("this container's seccomp profile denies unshare (Docker's default)", IN_DOCKER);
    }
    let detail = "for ordinary users: all sandboxes share this user's rights outside".into();
    Finding { layer, status: Status::Present, detail, fix: None }
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
            fix: Some(if facts.in_container {
                "limit the container as a whole: docker run --memory 4g --pids-limit 1000 --cpus 2".into()
            } else {
                "systemd-run --user --scope -p Delegate=yes belljar …, or run belljar as root".into()
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
    use super::*;

    fn user(change: impl FnOnce(&mut Facts)) -> Finding {
        let mut facts =
            Facts { release: "6.8.0-45-generic".into(), max_user_namespaces: Some(100), ..Facts::default() };
        change(&mut facts);
        user_namespaces(&facts)
    }

    #[test]
    fn ubuntus_apparmor_rule_is_recognised() {
        let finding = user(|f| f.apparmor_restricts = Some(1));
        assert_eq!(finding.status, Status::Missing);
        assert!(finding.fix.unwrap().contains("/etc/apparmor.d/belljar"));
        assert_eq!(user(|f| (f.apparmor_restricts, f.privileged) = (Some(1), true)).status, Status::Present);
    }

    #[test]
    fn dockers_seccomp_profile_is_recognised() {
        let finding = user(|f| (f.seccomp_mode, f.in_container) = (2, true));
        assert_eq!(finding.status, Status::Missing);
        assert!(finding.fix.unwrap().contains("seccomp=belljar-seccomp.json"));
        let allowed = user(|f| (f.seccomp_mode, f.in_container, f.may_unshare) = (2, true, true));
        assert_eq!(allowed.status, Status::Present);
    }

    #[test]
    fn root_that_may_not_do_what_root_does_is_recognised() {
        let finding = user(|f| f.is_root = true);
        assert_eq!(finding.status, Status::Missing);
        assert!(
            finding.detail.contains("CAP_SYS_ADMIN") && finding.fix.unwrap().contains("--user 1000:1000")
        );
        assert_eq!(user(|f| (f.is_root, f.privileged) = (true, true)).status, Status::Present);
    }

    #[test]
    fn switches_that_forbid_user_namespaces_are_recognised() {
        assert_eq!(user(|f| f.unprivileged_userns_clone = Some(0)).status, Status::Missing);
        assert_eq!(user(|f| f.max_user_namespaces = Some(0)).status, Status::Missing);
        assert_eq!(user(|_| ()).status, Status::Present);
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
