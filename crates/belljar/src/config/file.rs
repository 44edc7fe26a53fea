//! The settings file. It is never looked for in the working directory: that may be a stranger's project.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::{Environment, SETTINGS};

pub(super) const ENV: &str = "BELLJAR_CONFIG";

pub(super) struct File {
    pub(super) path: PathBuf,
    entries: Vec<(String, String)>,
}

impl File {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, text)| text.as_str())
    }
}

/// The file that was named, or the usual one if it exists.
pub(super) fn read(named: Option<&Path>, environment: &Environment) -> anyhow::Result<Option<File>> {
    let named = named
        .map(Path::to_owned)
        .or_else(|| environment(ENV).filter(|path| !path.is_empty()).map(PathBuf::from));
    let usual = || {
        super::xdg(environment, "XDG_CONFIG_HOME", ".config").map(|directory| directory.join("belljar.toml"))
    };
    let (path, must_exist) = match named {
        Some(path) => (path, true),
        None => match usual() {
            Some(path) => (path, false),
            None => return Ok(None),
        },
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read the settings file {}", path.display()));
        }
    };
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => bail!("{}: {}", path.display(), error.to_string().trim_end()),
    };
    let mut entries = Vec::new();
    flatten("", table, &mut entries);
    for (key, _) in &entries {
        if !SETTINGS.iter().any(|setting| setting.key == key) {
            bail!("{}: there is no setting {key:?}; did you mean {:?}?", path.display(), nearest(key));
        }
    }
    Ok(Some(File { path, entries }))
}

fn flatten(prefix: &str, table: toml::Table, entries: &mut Vec<(String, String)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
        match value {
            toml::Value::Table(inner) => flatten(&key, inner, entries),
            other => entries.push((key, as_text(other))),
        }
    }
}

fn as_text(value: toml::Value) -> String {
    match value {
        toml::Value::String(text) => text,
        toml::Value::Array(values) => values.into_iter().map(as_text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn nearest(key: &str) -> &'static str {
    // Someone who wrote only the last part meant that setting, however far the whole key is.
    SETTINGS
        .iter()
        .map(|setting| setting.key)
        .min_by_key(|known| (known.rsplit('.').next() != Some(key), distance(key, known)))
        .unwrap_or_default()
}

/// How many letters must be changed, added or removed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_the_one_meant() {
        assert_eq!(nearest("run.timout"), "run.timeout");
        assert_eq!(nearest("memory"), "limits.memory");
        assert_eq!(nearest("toolset"), "toolsets");
        assert_eq!(nearest("pool.max-age"), "pool.max_age");
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn fuzz_settings() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("belljar.toml");
        let seeds: [&[u8]; 4] = [
            b"toolsets = [\"contexts\", \"all\"]\n[run]\ntimeout = 10\n",
            b"[limits]\nmemory = \"1GiB\"\ncpus = 1.5\n",
            b"pool.size = -1\nhost = 7",
            b"[[run]]\n'a' = 2026-01-01",
        ];
        belljar_fuzz::fuzz("settings", &seeds, |input| {
            // To write over one makes some file systems wait for the disk.
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, input).unwrap();
            let environment = |name: &str| (name == "HOME").then(|| "/home/ann".to_owned());
            match super::super::Config::load(&Default::default(), &environment, Some(&path)) {
                Ok(config) => belljar_fuzz::mark(config.toolsets.len()),
                Err(error) => {
                    let text = format!("{error:#}");
                    assert!(text.len() < 100_000);
                    belljar_fuzz::mark(belljar_fuzz::kind(&text))
                }
            }
        });
    }
}
