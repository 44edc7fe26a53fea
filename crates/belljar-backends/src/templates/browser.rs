//! The browser: the host's Chromium, as it is installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};

use super::{Sources, TemplateError, capture, remember};

/// Where distributions put the shell that has no windows at all. Not the commands on PATH: those are scripts that add
/// flags of their own.
const PLACES: [&str; 2] =
    ["/usr/lib/chromium/chromium-headless-shell", "/usr/lib64/chromium-browser/headless_shell"];
/// Lies beside every Chromium, and beside no script that starts one.
const DATA: &str = "icudtl.dat";
const HINT: &str = "apt-get install chromium-headless-shell fonts-dejavu-core, or name another Chromium with the \
                    setting `browser`";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Browser {
    pub executable: PathBuf,
    /// As it calls itself.
    pub version: String,
}

impl Browser {
    pub fn find(sources: &Sources) -> Result<Self, TemplateError> {
        let executable = |browser: &Self| browser.executable.clone();
        remember(sources, "browser", sources.browser.as_deref(), executable, || Self::look_for(sources))
    }

    fn look_for(sources: &Sources) -> Result<Self, TemplateError> {
        let place = || PLACES.iter().map(PathBuf::from).find(|path| path.is_file());
        let named = sources.browser.clone().or_else(place);
        let Some(named) = named else {
            return Err(TemplateError::new("there is no Chromium on this machine").hint(HINT));
        };
        let executable = fs::canonicalize(&named).map_err(|e| {
            TemplateError::io(&format!("open the browser {}", named.display()), &e).hint(HINT)
        })?;
        if !executable.with_file_name(DATA).is_file() {
            let message = format!("{} is no Chromium: {DATA} is not beside it", executable.display());
            return Err(TemplateError::new(message)
                .hint("the setting `browser` takes Chromium's own program, not a script that starts it"));
        }
        let version = capture(Command::new(&executable).arg("--version").env_clear())?;
        Ok(Self { executable, version: version.trim().into() })
    }

    /// Where the program and its data lie.
    pub(crate) fn directory(&self) -> &Path {
        self.executable.parent().unwrap_or(Path::new("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_chromium_with_its_data_is_taken() {
        let home = tempfile::tempdir().unwrap();
        let named = home.path().join("chromium");
        let mut sources = Sources { home: home.path().to_path_buf(), ..Sources::default() };
        sources.browser = Some(named.clone());
        let missing = Browser::find(&sources).unwrap_err();
        assert!(missing.message.contains("chromium") && missing.hint.is_some(), "{missing:?}");
        fs::copy("/bin/echo", &named).unwrap();
        let script = Browser::find(&sources).unwrap_err();
        assert!(script.message.contains(DATA), "{script:?}");
        fs::write(home.path().join(DATA), "").unwrap();
        let found = Browser::find(&sources).unwrap();
        assert_eq!(found.executable, fs::canonicalize(&named).unwrap());
    }
}
