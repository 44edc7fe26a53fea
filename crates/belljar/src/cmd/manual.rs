//! What a shell and `man` know of this program, made from its own command line.

use std::{fs, io::Write, path::Path, process::ExitCode};

use anyhow::Context;

use crate::cli::{self, CompletionsArguments, ManArguments};

pub(crate) fn completions(arguments: &CompletionsArguments) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut cli::command(), "belljar", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// One page for the program and one for every command.
pub(crate) fn pages(arguments: &ManArguments) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut command = cli::command();
    command.build();
    page(&command, "belljar", directory)?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        page(inner, &format!("belljar-{}", inner.get_name()), directory)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn page(command: &clap::Command, name: &str, directory: &Path) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name).render(&mut text)?;
    let file = directory.join(format!("{name}.1"));
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_its_words() {
        let directory = tempfile::tempdir().unwrap();
        pages(&ManArguments { directory: directory.path().to_owned() }).unwrap();
        let mut names: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        for command in cli::command().get_subcommands() {
            assert!(names.contains(&format!("belljar-{}.1", command.get_name())), "{names:?}");
        }
        let main = fs::read_to_string(directory.path().join("belljar.1")).unwrap();
        assert!(main.contains("under glass"), "{main}");
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut cli::command(), "belljar", &mut text);
            assert!(String::from_utf8(text).unwrap().contains("doctor"), "{shell}");
        }
    }
}
