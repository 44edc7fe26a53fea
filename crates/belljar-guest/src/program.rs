//! From what a caller asked for to a command that can be started.

use std::{io, path::Path, process::Command};

use belljar_proto::{FailureKind, Program};

use crate::{connection::Failure, environment::Environment};

pub(crate) const WORKSPACE: &str = "/workspace";
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
/// A command line as it is repeated in messages and lists.
const MAX_SHOWN: usize = 200;

pub(crate) fn command(
    program: &Program,
    trace: Option<&str>,
    environment: &Environment,
) -> Result<Command, Failure> {
    let invalid = |message: String| (FailureKind::Invalid, message);
    let Some((name, arguments)) = program.argv.split_first().filter(|(name, _)| !name.trim().is_empty())
    else {
        return Err(invalid("the command is empty".into()));
    };
    let variables = program.env.iter().flat_map(|(name, value)| [name, value]);
    if program.argv.iter().chain(&program.cwd).chain(variables).any(|text| text.contains('\0')) {
        return Err(invalid("the command, its environment or its directory contains a null byte".into()));
    }
    if let Some(name) = program.env.keys().find(|name| name.is_empty() || name.contains('=')) {
        return Err(invalid(format!("{name:?} cannot be the name of an environment variable")));
    }
    let mut command = match program.shell {
        true => {
            let shell = SHELLS.iter().find(|shell| Path::new(shell).exists()).unwrap_or(&SHELLS[1]);
            let mut command = Command::new(shell);
            command.arg("-c").arg(name);
            command
        }
        false => Command::new(name),
    };
    command.args(arguments);
    environment.apply(&mut command);
    if let Some(trace) = trace {
        command.env("TRACEPARENT", trace);
    }
    command.envs(&program.env);
    let cwd = match (program.cwd.as_deref().unwrap_or_default(), &environment.workdir) {
        ("", Some(workdir)) => Path::new(workdir).to_path_buf(),
        (given, _) => Path::new(WORKSPACE).join(given),
    };
    if !cwd.is_dir() {
        let what = if cwd.exists() { "is not a directory" } else { "does not exist" };
        return Err(invalid(format!("the working directory {:?} {what}", cwd.display().to_string())));
    }
    command.current_dir(cwd);
    Ok(command)
}

/// Why a program was not started, in words for whoever asked for it.
pub(crate) fn not_started(program: &Program, error: &io::Error) -> Failure {
    let name = shown(&program.argv[..program.argv.len().min(1)]);
    let (kind, message) = match error.raw_os_error() {
        Some(libc::ENOENT) if name.contains('/') => {
            (FailureKind::Invalid, format!("command not found: there is no file {name:?}"))
        }
        Some(libc::ENOENT) => {
            (FailureKind::Invalid, format!("command not found: no program {name:?} is on the PATH"))
        }
        Some(libc::EACCES) => (
            FailureKind::Invalid,
            format!("{name:?} may not be executed: it is a directory, or chmod +x is missing"),
        ),
        Some(libc::ENOEXEC) => {
            (FailureKind::Invalid, format!("{name:?} is not a program: a script needs a #! line"))
        }
        Some(libc::E2BIG) => {
            (FailureKind::Invalid, "the arguments are too long: put the data into a file".into())
        }
        Some(libc::EAGAIN | libc::ENOMEM) => (
            FailureKind::LimitReached,
            format!("{name:?} was not started: the sandbox has no room for another process"),
        ),
        _ => (FailureKind::NotStarted, format!("cannot start {name:?}: {error}")),
    };
    (kind, message)
}

pub(crate) fn shown(argv: &[String]) -> String {
    let mut line = argv.join(" ");
    if line.len() > MAX_SHOWN {
        line.truncate(line.floor_char_boundary(MAX_SHOWN));
        line.push('…');
    }
    line
}

/// A W3C `traceparent`; what is not one is nobody's trace.
pub(crate) fn trace(given: Option<String>) -> Option<String> {
    const DASHES: [usize; 4] = [2, 35, 52, 55];
    let fits = |(at, byte): (usize, u8)| match DASHES.contains(&at) {
        true => byte == b'-',
        false => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    given.filter(|text| (55..=64).contains(&text.len()) && text.bytes().enumerate().all(fits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(program: Program) -> String {
        match command(&program, None, &Environment::default()) {
            Err((FailureKind::Invalid, message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let program = |argv: &str| Program { argv: vec![argv.into()], ..Program::default() };
        assert_eq!(refused(Program::default()), "the command is empty");
        assert_eq!(refused(program(" ")), "the command is empty");
        assert!(refused(program("a\0b")).contains("null byte"));
        let env = [("A=B".to_string(), String::new())].into();
        assert!(refused(Program { env, ..program("ls") }).starts_with("\"A=B\" cannot be"));
        let cwd = Some("/no/such".into());
        assert_eq!(
            refused(Program { cwd, ..program("ls") }),
            "the working directory \"/no/such\" does not exist"
        );
        let cwd = Some("/etc/passwd".into());
        assert!(refused(Program { cwd, ..program("ls") }).ends_with("is not a directory"));
    }

    #[test]
    fn programs_start_where_the_template_says_unless_they_are_sent_elsewhere() {
        let start = |workdir: Option<&str>, cwd: Option<&str>| -> Result<String, String> {
            let environment = Environment::starting_in(workdir.map(String::from));
            let argv = vec!["true".into()];
            let program = Program { argv, cwd: cwd.map(String::from), ..Program::default() };
            let command = command(&program, None, &environment).map_err(|(_, why)| why)?;
            Ok(command.get_current_dir().unwrap().display().to_string())
        };
        assert_eq!(start(Some("/usr"), None), Ok("/usr".into()));
        assert_eq!(start(Some("/usr"), Some("/etc")), Ok("/etc".into()));
        assert_eq!(
            start(Some("/usr"), Some("no/such")).unwrap_err(),
            "the working directory \"/workspace/no/such\" does not exist"
        );
    }

    #[test]
    fn only_a_traceparent_is_one() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(trace(Some(good.into())).as_deref(), Some(good));
        for bad in ["", "x", &good.to_uppercase(), &good[1..], &good.replace('-', "\n"), &format!("{good}0")]
        {
            assert_eq!(trace(Some(bad.into())), None, "{bad:?}");
        }
    }
}
