//! The guest: pid 1 of a sandbox.
//!
//! It starts and feeds interpreters, runs programs, drives a browser, reads and writes files, and reaps what dies. It trusts nobody:
//! neither the code it runs nor the length of anything it is sent. One thread, one event loop.

mod background;
mod beneath;
mod browser;
mod capture;
mod connection;
mod environment;
mod exec;
mod files;
mod kernel;
mod probe;
mod processes;
mod program;
mod remote;
mod supervisor;
mod tap;
mod wires;

use std::{
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
};

/// Where the sandbox's maker left the socket to itself.
const CONTROL_FD: i32 = 3;

/// The pid namespace in which a machine starts.
const HOSTS_PROCESSES: &str = "pid:[4026531836]";

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some("probe") {
        return probe::run();
    }
    // It ends whatever else it sees after a run, so it must not see the machine.
    if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|space| space.as_os_str() == HOSTS_PROCESSES) {
        return std::process::ExitCode::from(70);
    }
    // It was executed from memory, and would show under the name of that.
    let _ = rustix::thread::set_name(c"belljar-guest");
    // Programs in the sandbox have the same user: without this they could write to our memory through /proc.
    if rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).is_err() {
        return std::process::ExitCode::from(70);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return std::process::ExitCode::from(70);
    };
    let local = tokio::task::LocalSet::new();
    let mut arguments = std::env::args_os().skip(1);
    // Returns when the maker of this sandbox is gone: then so is the sandbox.
    let ended = match (arguments.next(), arguments.next()) {
        (Some(word), Some(door)) if word == "connect" => {
            // Engines set them by themselves; programs shall find what they find anywhere else.
            for name in ["HOSTNAME", "container"] {
                // SAFETY: there is no other thread that could look at the environment.
                unsafe { std::env::remove_var(name) };
            }
            local.block_on(&runtime, remote::serve(Path::new(&door).into()))
        }
        _ => {
            // SAFETY: by contract with the one that starts the guest, this descriptor is open and nobody else's.
            let control = unsafe { OwnedFd::from_raw_fd(CONTROL_FD) };
            local.block_on(&runtime, supervisor::serve(control))
        }
    };
    std::process::ExitCode::from(if ended.is_ok() { 0 } else { 70 })
}
