//! References to the environment: a word `env:NAME` stands for the variable's value, `env:NAME|text` has a default.
//! They are read once, at start, and a value never shows up in a message.

use std::fmt;

use crate::config::Environment;

const MARK: &str = "env:";

/// A text some of whose words may come from the environment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Resolved(Result<String, Missing>);

/// The variable that is not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing(pub(super) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the environment variable {} is not set where Belljar runs: tell the operator", self.0)
    }
}

/// Values may be secret.
impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_ok() { "Resolved(…)" } else { "Resolved(missing)" })
    }
}

impl Resolved {
    pub(super) fn new(text: &str, environment: &Environment) -> Self {
        let words: Result<Vec<_>, _> = text.split(' ').map(|word| resolve(word, environment)).collect();
        Self(words.map(|words| words.join(" ")))
    }

    pub(super) fn get(&self) -> Result<&str, &Missing> {
        self.0.as_deref()
    }
}

/// Whether some of the text comes from the environment.
pub(super) fn refers(text: &str) -> bool {
    text.split(' ').any(|word| word.starts_with(MARK))
}

fn resolve(word: &str, environment: &Environment) -> Result<String, Missing> {
    let Some(reference) = word.strip_prefix(MARK) else { return Ok(word.to_owned()) };
    let (name, default) = match reference.split_once('|') {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    // A variable that is set to nothing is as good as not set.
    let set = environment(name).filter(|value| !value.is_empty());
    set.or_else(|| default.map(str::to_owned)).ok_or_else(|| Missing(name.to_owned()))
}

/// A literal that must not stand in a file: what gives access comes from the environment.
pub(super) fn check_secret(header: &str, value: &str) -> Result<(), String> {
    let name = header.to_ascii_lowercase();
    let secret =
        ["auth", "token", "key", "secret", "password", "cookie"].iter().any(|word| name.contains(word));
    if secret && !refers(value) {
        return Err(format!(
            "the header {header:?} gives access, so its value must come from the environment: env:NAME"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_and_never_shown() {
        let environment = |name: &str| (name == "TOKEN").then(|| "s3cret".to_owned());
        let resolved = Resolved::new("Bearer env:TOKEN", &environment);
        assert_eq!(resolved.get(), Ok("Bearer s3cret"));
        assert_eq!(format!("{resolved:?}"), "Resolved(…)");
        assert_eq!(Resolved::new("env:URL|http://x", &environment).get(), Ok("http://x"));
        assert_eq!(Resolved::new("env:URL", &environment).get(), Err(&Missing("URL".to_owned())));
        assert_eq!(Resolved::new("plain text", &environment).get(), Ok("plain text"));
    }

    #[test]
    fn what_gives_access_is_never_a_literal() {
        assert!(check_secret("Authorization", "Bearer abc").is_err());
        assert!(check_secret("X-Api-Key", "abc").is_err());
        assert!(check_secret("Authorization", "Bearer env:TOKEN").is_ok());
        assert!(check_secret("Accept", "application/json").is_ok());
    }
}
