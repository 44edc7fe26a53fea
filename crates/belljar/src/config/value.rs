//! What settings accept. Every source hands over text, so that one parser serves them all.

use std::{path::PathBuf, time::Duration};

use tracing_subscriber::EnvFilter;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Accepts {
    Path,
    /// A path, or nothing.
    OptionalPath,
    /// Words with commas between them.
    List,
    OptionalList,
    Text,
    LogFilter,
    Switch,
    /// Processors and memory, with a colon between them.
    Flavor,
    Count(u64, u64),
    Decimal(f64, f64),
    Duration,
    /// Megabytes, or a number with a unit.
    Size,
    OneOf(&'static [&'static str]),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Path(Option<PathBuf>),
    List(Vec<String>),
    Text(String),
    Switch(bool),
    Count(u64),
    Decimal(f64),
    Duration(Duration),
    Bytes(u64),
    Flavor {
        cpus: f64,
        memory: u64,
    },
    /// Which of the words it is.
    OneOf(usize),
}

impl Accepts {
    /// What stands for the value in the help of a flag.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Path | Self::OptionalPath => "PATH",
            Self::List | Self::OptionalList => "LIST",
            Self::Text => "TEXT",
            Self::Flavor => "CPUS:MEMORY",
            Self::LogFilter => "FILTER",
            Self::Switch => "BOOL",
            Self::Count(..) | Self::Decimal(..) => "NUMBER",
            Self::Duration => "DURATION",
            Self::Size => "SIZE",
            Self::OneOf(_) => "WORD",
        }
    }

    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::List | Self::OptionalList)
    }

    pub(crate) fn is_switch(&self) -> bool {
        matches!(self, Self::Switch)
    }

    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Path | Self::OptionalPath => "a path".to_owned(),
            Self::List | Self::OptionalList => "names with commas between them".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Flavor => "processors and memory such as 2:2048 or 0.5:1GiB".to_owned(),
            Self::LogFilter => {
                "a level (error, warn, info, debug, trace), or a list such as warn,belljar=debug".to_owned()
            }
            Self::Switch => "true or false".to_owned(),
            Self::Count(low, high) => format!("a whole number from {low} to {high}"),
            Self::Decimal(low, high) => format!("a number from {low} to {high}"),
            Self::Duration => "a duration such as 30s, 5m or 1h, or a number of seconds".to_owned(),
            Self::Size => "a number of megabytes, or a size such as 512MB or 2GiB".to_owned(),
            Self::OneOf(words) => words.join(" or "),
        }
    }

    pub(crate) fn parse(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        Some(match self {
            Self::Path => Value::Path(Some(std::path::absolute(text).ok()?)),
            Self::OptionalPath if text.is_empty() => Value::Path(None),
            Self::OptionalPath => Value::Path(Some(std::path::absolute(text).ok()?)),
            Self::List => {
                let words: Vec<_> = text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
                Value::List((!words.is_empty()).then(|| words.into_iter().map(str::to_owned).collect())?)
            }
            Self::OptionalList => {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                Value::List(words.map(str::to_owned).collect())
            }
            Self::Text => Value::Text(text.to_owned()),
            Self::Flavor => {
                let (cpus, memory) = text.split_once(':')?;
                let cpus = cpus.trim().parse().ok().filter(|cpus| (0.05..=1_024.0).contains(cpus))?;
                Value::Flavor { cpus, memory: size(memory.trim())? }
            }
            Self::LogFilter => {
                Value::Text(EnvFilter::try_new(log_filter(text).0).ok().map(|_| text.to_owned())?)
            }
            Self::Switch => Value::Switch(match text.to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => true,
                "false" | "0" | "no" | "off" => false,
                _ => return None,
            }),
            Self::Count(low, high) => Value::Count(
                text.replace('_', "").parse().ok().filter(|count| (low..=high).contains(&count))?,
            ),
            Self::Decimal(low, high) => {
                Value::Decimal(text.parse().ok().filter(|number| (low..=high).contains(&number))?)
            }
            Self::Duration => Value::Duration(duration(text)?),
            Self::Size => Value::Bytes(size(text)?),
            Self::OneOf(words) => Value::OneOf(words.iter().position(|word| *word == text)?),
        })
    }
}

/// For arguments of commands, which are written as settings are.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    duration(text.trim()).ok_or_else(|| format!("it is not {}", Accepts::Duration.describe()))
}

pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    size(text.trim()).ok_or_else(|| format!("it is not {}", Accepts::Size.describe()))
}

/// The filter without the words that are about the form of a line, and whether lines are JSON objects.
pub(crate) fn log_filter(text: &str) -> (String, bool) {
    let words: Vec<_> = text.split(',').map(str::trim).collect();
    let filter: Vec<_> = words.iter().copied().filter(|word| !["json", "text"].contains(word)).collect();
    (filter.join(","), words.contains(&"json"))
}

/// A number and the unit after it. Only what is finite and more than nothing.
fn number_and_unit(text: &str) -> Option<(f64, String)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    (number.is_finite() && number > 0.0).then(|| (number, text[end..].trim().to_ascii_lowercase()))
}

fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let seconds = match unit.as_str() {
        "ms" => 0.001,
        "" | "s" | "sec" | "seconds" => 1.0,
        "m" | "min" | "minutes" => 60.0,
        "h" | "hours" => 3_600.0,
        "d" | "days" => 86_400.0,
        _ => return None,
    };
    // A century is as good as for ever, and can still be added to a clock.
    Duration::try_from_secs_f64(number * seconds).ok().filter(|duration| duration.as_secs() < 3_155_760_000)
}

/// Units are powers of 1,024 however they are spelled, as everywhere in memory limits.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit.as_str() {
        "b" => 0,
        "k" | "kb" | "kib" => 10,
        "" | "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    let bytes = number * (1u64 << shift) as f64;
    (1.0..1e18).contains(&bytes).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("30", 30_000),
            ("1.5", 1_500),
            ("5m", 300_000),
            ("1 h", 3_600_000),
            ("250ms", 250),
            ("2d", 172_800_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "0", "-1", "s", "5 parsecs", "1e400", "99999999999999999999d", "1.2.3", "∞"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("2048", 2048 << 20),
            ("512MB", 512 << 20),
            ("2GiB", 2 << 30),
            ("1.5g", 3 << 29),
            ("64 k", 64 << 10),
            ("10b", 10),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "0", "-5", "MB", "5 MBit", "99999999999t"] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn the_others() {
        assert_eq!(Accepts::List.parse(" a, b,,"), Some(Value::List(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(Accepts::List.parse(" , "), None);
        assert_eq!(Accepts::Switch.parse("ON"), Some(Value::Switch(true)));
        assert_eq!(Accepts::Switch.parse("maybe"), None);
        assert_eq!(Accepts::Count(1, 5).parse("5"), Some(Value::Count(5)));
        assert_eq!(Accepts::Count(1, 5).parse("6"), None);
        assert_eq!(Accepts::Decimal(0.5, 2.0).parse("NaN"), None);
        assert_eq!(Accepts::OneOf(&["auto", "required"]).parse("required"), Some(Value::OneOf(1)));
        assert_eq!(Accepts::OptionalPath.parse(""), Some(Value::Path(None)));
        assert_eq!(Accepts::LogFilter.parse("warn,belljar=loud"), None);
        assert!(Accepts::LogFilter.parse("json").is_some());
        assert_eq!(log_filter("json,warn,rmcp=error"), ("warn,rmcp=error".to_owned(), true));
        assert_eq!(Accepts::OptionalList.parse(""), Some(Value::List(Vec::new())));
        let flavor = Value::Flavor { cpus: 0.5, memory: 1 << 30 };
        assert_eq!(Accepts::Flavor.parse("0.5:1GiB"), Some(flavor));
        assert_eq!(Accepts::Flavor.parse("0:1GiB"), None);
        assert_eq!(Accepts::Flavor.parse("2"), None);
    }
}
