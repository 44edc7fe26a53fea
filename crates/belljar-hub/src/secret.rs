//! Values that must not be seen: in no log, no error, no listing.

use std::fmt;

/// Shows itself to nobody but whoever asks for it by [`Secret::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What is shorter than this is found everywhere, and worth no hiding.
const SHORTEST: usize = 6;

/// Takes known secrets out of texts that servers and libraries write.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Vec<String>);

impl Redactor {
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut known: Vec<_> = secrets
            .into_iter()
            // The word that matters in "Bearer abc" is the second one.
            .flat_map(|text| text.split_whitespace().chain([text]))
            .filter(|text| text.len() >= SHORTEST)
            .map(str::to_owned)
            .collect();
        // The whole before its parts.
        known.sort_by_key(|text| std::cmp::Reverse(text.len()));
        known.dedup();
        Self(known)
    }

    pub(crate) fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "[secret]");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_seen() {
        assert_eq!(format!("{:?}", Secret::new("sesame-open")), "…");
        let redactor = Redactor::new(["Bearer sesame-open", "abc"]);
        assert_eq!(redactor.clean("got sesame-open, abc"), "got [secret], abc");
        assert_eq!(redactor.clean("Bearer sesame-open!"), "[secret]!");
    }
}
