//! What is wrong with a toolkit, with the line where it is.

use std::{fmt, ops::Range};

use toml::Spanned;

/// A message may repeat what stands in the file, but not all of it.
const MAX_MESSAGE: usize = 500;
/// Nobody mends more than that at once.
const MAX_PROBLEMS: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problems {
    /// As the user knows it.
    file: String,
    found: Vec<(usize, String)>,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (line, message)) in self.found.iter().take(MAX_PROBLEMS).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}:{line}: {message}", self.file)?;
        }
        match self.found.get(MAX_PROBLEMS) {
            Some((line, _)) => {
                write!(f, "\n{}:{line}: and {} more", self.file, self.found.len() - MAX_PROBLEMS)
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problems {}

/// Collects problems, so that all of them are told at once.
pub(super) struct Check<'a> {
    text: &'a str,
    problems: Problems,
}

impl<'a> Check<'a> {
    pub(super) fn new(file: &str, text: &'a str) -> Self {
        Self { text, problems: Problems { file: file.to_owned(), found: Vec::new() } }
    }

    pub(super) fn add(&mut self, span: Range<usize>, message: impl Into<String>) {
        let before = self.text.get(..span.start).unwrap_or_default();
        // One line, whatever it repeats from the file.
        let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.into() };
        let mut message: String = message.into().chars().map(shown).collect();
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            message.push('…');
        }
        self.problems.found.push((before.matches('\n').count() + 1, message));
    }

    pub(super) fn at<T>(&mut self, place: &Spanned<T>, message: impl Into<String>) {
        self.add(place.span(), message);
    }

    /// The value, or `None` after its problem was noted.
    pub(super) fn keep<T, V>(&mut self, place: &Spanned<T>, value: Result<V, String>) -> Option<V> {
        value.map_err(|message| self.at(place, message)).ok()
    }

    pub(super) fn finish(mut self) -> Result<(), Problems> {
        self.problems.found.sort_by_key(|(line, _)| *line);
        if self.problems.found.is_empty() { Ok(()) } else { Err(self.problems) }
    }

    /// A file that is not even a toolkit by its form.
    pub(super) fn malformed(mut self, error: &toml::de::Error) -> Problems {
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        self.add(error.span().unwrap_or_default(), message);
        self.problems
    }
}
