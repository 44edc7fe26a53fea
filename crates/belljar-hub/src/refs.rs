//! References to the environment in settings: `${NAME}`, and `${NAME:-otherwise}`.

/// Looks up an environment variable.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    NotSet(String),
    /// What stands between the braces is no name.
    NoName(String),
    Unclosed,
}

pub(crate) fn resolve(text: &str, environment: Environment<'_>) -> Result<String, Unresolved> {
    let mut resolved = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        resolved.push_str(before);
        let Some((reference, after)) = after.split_once('}') else { return Err(Unresolved::Unclosed) };
        let (name, otherwise) = match reference.split_once(":-") {
            Some((name, otherwise)) => (name, Some(otherwise)),
            None => (reference, None),
        };
        if !is_name(name) {
            return Err(Unresolved::NoName(reference.to_owned()));
        }
        // A variable that is set to nothing is as good as not set.
        let value = environment(name).filter(|value| !value.is_empty());
        match value.or_else(|| otherwise.map(str::to_owned)) {
            Some(value) => resolved.push_str(&value),
            None => return Err(Unresolved::NotSet(name.to_owned())),
        }
        rest = after;
    }
    resolved.push_str(rest);
    Ok(resolved)
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !text.is_empty() && text.chars().all(plain) && !text.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn environment(name: &str) -> Option<String> {
        (name == "TOKEN").then(|| "${TOKEN}".to_owned()).or_else(|| (name == "EMPTY").then(String::new))
    }

    #[test]
    fn references_are_replaced_once() {
        let resolve = |text| resolve(text, &environment);
        assert_eq!(resolve("Bearer ${TOKEN}!").unwrap(), "Bearer ${TOKEN}!");
        assert_eq!(resolve("${NONE:-a}${EMPTY:-b}$c").unwrap(), "ab$c");
        assert_eq!(resolve("${NONE}"), Err(Unresolved::NotSet("NONE".into())));
        assert_eq!(resolve("${EMPTY}"), Err(Unresolved::NotSet("EMPTY".into())));
        assert_eq!(resolve("${input:key}"), Err(Unresolved::NoName("input:key".into())));
        assert_eq!(resolve("${A"), Err(Unresolved::Unclosed));
    }

    proptest! {
        #[test]
        fn what_has_no_reference_stays_as_it_is(text in "[^$]{0,40}") {
            prop_assert_eq!(resolve(&text, &environment).unwrap(), text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[$:A{}-]{0,20}") {
            let _ = resolve(&text, &environment);
        }
    }
}
