//! The same filter as a profile for a container engine.
//!
//! An engine compares whole arguments and asks one thing of each, so it cannot say everything that the filter says. Where
//! it cannot, the profile allows more than the filter. That is why a container's guest takes on the filter as well.

use serde_json::{Value, json};

use super::{ALLOWED, ALLOWED_HERE, Call, filter};

/// Calls that the filter looks at more closely, or answers itself.
#[rustfmt::skip]
const CONDITIONAL: &[Call] = calls![
    libc::SYS_clone, libc::SYS_clone3, libc::SYS_socket, libc::SYS_socketpair, libc::SYS_setsockopt, libc::SYS_ioctl,
    libc::SYS_prlimit64, libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchmodat2, libc::SYS_mknodat, libc::SYS_openat,
    libc::SYS_sync,
];

#[cfg(target_arch = "x86_64")]
const CONDITIONAL_HERE: &[Call] = calls![libc::SYS_chmod, libc::SYS_creat, libc::SYS_mknod, libc::SYS_open];
#[cfg(not(target_arch = "x86_64"))]
const CONDITIONAL_HERE: &[Call] = calls![];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// In the form of `docker run --security-opt seccomp=`.
pub fn profile() -> Value {
    let filter = filter();
    let always: Vec<&str> = ALLOWED.iter().chain(ALLOWED_HERE).map(name).collect();
    let mut rules = vec![json!({ "names": always, "action": "SCMP_ACT_ALLOW" })];
    let called =
        |nr: u32| CONDITIONAL.iter().chain(CONDITIONAL_HERE).find(|call| call.1 as u32 == nr).map(name);
    for (nr, alternatives) in &filter.when {
        for tests in alternatives {
            let tests: Vec<_> = tests.iter().map(|test| test.as_profile()).collect();
            let mut asked: Vec<u32> = tests.iter().map(|test| test.0).collect();
            asked.dedup();
            let expressible = asked.len() == tests.len();
            let args: Vec<Value> = tests
                .into_iter()
                .filter(|_| expressible)
                .map(|(index, op, value, two)| json!({ "index": index, "value": value, "valueTwo": two, "op": op }))
                .collect();
            rules.push(json!({ "names": [called(*nr)], "action": "SCMP_ACT_ALLOW", "args": args }));
        }
    }
    for (nr, errno) in filter.answered.iter().filter(|(_, errno)| *errno != 0) {
        rules.push(json!({ "names": [called(*nr)], "action": "SCMP_ACT_ERRNO", "errnoRet": errno }));
    }
    json!({ "defaultAction": "SCMP_ACT_ERRNO", "architectures": [ARCHITECTURE], "syscalls": rules })
}

fn name(call: &Call) -> &'static str {
    call.0.rsplit("SYS_").next().unwrap_or(call.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_every_call_of_the_filter() {
        let profile = profile();
        let rules = profile["syscalls"].as_array().unwrap();
        let names = rules.iter().flat_map(|rule| rule["names"].as_array().unwrap());
        assert!(names.clone().all(Value::is_string), "a call has no name: {profile}");
        for name in names {
            let name = name.as_str().unwrap();
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
        }
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let conditions = |name: &str| -> Vec<&Value> {
            rules.iter().filter(|rule| rule["names"] == json!([name])).collect()
        };
        insta::assert_json_snapshot!(conditions("clone"));
        assert_eq!(conditions("socket").len(), 9, "each family with each protocol");
        assert!(
            conditions("setsockopt").iter().any(|rule| rule["args"] == json!([])),
            "wider, for the guest to close"
        );
    }

    #[test]
    fn dangerous_calls_are_in_no_rule() {
        let text = profile().to_string();
        for name in ["ptrace", "mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup", "userfaultfd"]
        {
            assert!(!text.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
