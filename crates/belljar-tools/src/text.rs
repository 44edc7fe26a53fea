//! Text for a model: bounded, cut on character boundaries, and honest about what was cut.

use std::time::Duration;

use belljar_sandbox::{Mode, NetworkSettings, Output};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{MAX_RULES_SHOWN, uri};

/// What was left out of one output stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Truncated {
    /// Bytes that the program wrote.
    pub(crate) total_bytes: u64,
    /// Bytes of them that are shown here: the beginning and the end.
    pub(crate) shown_bytes: u64,
    /// File in the sandbox that holds the whole output; read it with code or download_file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) full_output: Option<String>,
    /// The same file as a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resource: Option<String>,
}

/// How many bytes each of two streams may show, when both together may show `cap`. What one does not need
/// goes to the other.
pub(crate) fn share(stdout: &Output, stderr: &Output, cap: usize) -> (usize, usize) {
    let (out, err) = (held(stdout), held(stderr));
    let half = cap / 2;
    if out + err <= cap {
        (out, err)
    } else if err <= half {
        (cap - err, err)
    } else if out <= half {
        (out, cap - out)
    } else {
        (cap - half, half)
    }
}

fn held(output: &Output) -> usize {
    output.head.len() + output.tail.len()
}

/// One stream in at most `budget` bytes, not counting the line that tells of a cut.
pub(crate) fn bounded(output: &Output, budget: usize, context_id: &str) -> (String, Option<Truncated>) {
    let (head, tail, cut) = fit(output, budget);
    if cut == 0 {
        return (format!("{head}{tail}"), None);
    }
    let resource = output.file.as_deref().map(|file| uri::of_file(context_id, file));
    let place = match (&output.file, &resource) {
        (Some(file), Some(resource)) if output.file_bytes < output.total => {
            format!("; the first {} bytes are in {file} (resource {resource})", grouped(output.file_bytes))
        }
        (Some(file), Some(resource)) => format!("; the whole output is in {file} (resource {resource})"),
        _ => String::new(),
    };
    let text = format!("{head}\n… [{} bytes cut{place}] …\n{tail}", grouped(cut));
    let truncated = Truncated {
        total_bytes: output.total,
        shown_bytes: (head.len() + tail.len()) as u64,
        full_output: output.file.clone(),
        resource,
    };
    (text, Some(truncated))
}

fn fit(output: &Output, budget: usize) -> (&str, &str, u64) {
    let held = held(output);
    if held <= budget {
        return (&output.head, &output.tail, output.cut);
    }
    let (head, tail) = if output.tail.is_empty() {
        let head = &output.head[..output.head.floor_char_boundary(budget / 2)];
        (head, last(&output.head, budget - head.len()))
    } else {
        let room = budget.saturating_sub(output.tail.len()).max(budget / 2);
        let head = &output.head[..output.head.floor_char_boundary(room)];
        (head, last(&output.tail, budget - head.len()))
    };
    (head, tail, output.cut + (held - head.len() - tail.len()) as u64)
}

/// At most the last `bytes` of `text`.
fn last(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

/// The beginning of a text, and a note when that is not all of it.
pub fn clipped(text: &str, cap: usize) -> (String, Option<String>) {
    if text.len() <= cap {
        return (text.to_owned(), None);
    }
    let shown = &text[..text.floor_char_boundary(cap)];
    let note =
        format!("only the first {} of {} bytes", grouped(shown.len() as u64), grouped(text.len() as u64));
    (shown.to_owned(), Some(note))
}

/// For repeating a value in a message.
pub(crate) fn shorten(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// 2900000 as `2,900,000`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// In the unit that a person would choose.
/// What can be reached from a sandbox whose maker says nothing about it.
pub(crate) fn network(settings: &NetworkSettings) -> &'static str {
    match (settings.default, settings.ceiling.max) {
        (Mode::None, Mode::None) => "There is no network.",
        (Mode::None, _) => "There is no network unless it is opened.",
        (Mode::Allowlist, _) => "The network reaches listed hosts only, through a proxy.",
        (Mode::Open, _) => "The public internet can be reached, through a proxy.",
    }
}

/// The most that can be had.
pub(crate) fn network_limit(settings: &NetworkSettings) -> String {
    let rules = settings.ceiling.all_allowed();
    let shown: Vec<_> = rules.iter().take(MAX_RULES_SHOWN).map(ToString::to_string).collect();
    let more = if rules.len() > shown.len() { ", …" } else { "" };
    match settings.ceiling.max {
        Mode::None => "The operator of this server allows no network.".to_owned(),
        Mode::Allowlist => {
            format!("The operator allows these hosts and no others: {}{more}.", shown.join(", "))
        }
        Mode::Open => "The operator allows the whole public internet.".to_owned(),
    }
}

pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let plural = |count: u64, unit: &str| format!("{count} {unit}{}", if count == 1 { "" } else { "s" });
    if seconds < 120.0 || seconds.fract() != 0.0 {
        format!("{} s", (seconds * 1000.0).round() / 1000.0)
    } else if (seconds as u64).is_multiple_of(3600) && seconds >= 7200.0 {
        plural(seconds as u64 / 3600, "hour")
    } else if (seconds as u64).is_multiple_of(60) {
        plural(seconds as u64 / 60, "minute")
    } else {
        format!("{seconds} s")
    }
}

/// To the nearest.
pub(crate) fn millis(duration: Duration) -> u64 {
    (duration.as_micros() as u64).saturating_add(500) / 1000
}

/// `SIGTERM`, or the number of one that has no name here.
pub(crate) fn signal(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}

/// `2025-10-22T06:53:42Z`.
pub(crate) fn iso(timestamp: Timestamp) -> String {
    iso_seconds(timestamp.as_second())
}

/// A time outside of what a calendar can say, which a sandbox may set on its files, becomes the epoch.
pub(crate) fn iso_seconds(seconds: i64) -> String {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

/// A guess by the file's name, `None` when there is none.
pub fn mime_of(path: &str) -> Option<&'static str> {
    let (_, extension) = path.rsplit('/').next()?.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "html" | "htm" => "text/html",
        "css" => "text/css",
        "py" => "text/x-python",
        "js" | "mjs" | "cjs" => "text/javascript",
        "json" | "ipynb" => "application/json",
        "xml" => "application/xml",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "parquet" => "application/vnd.apache.parquet",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uncut(text: &str) -> Output {
        Output { head: text.to_owned(), total: text.len() as u64, ..Output::default() }
    }

    #[test]
    fn a_cut_says_how_much_and_where_the_rest_is() {
        let output = Output {
            head: "first line".to_owned(),
            tail: "last line\n".to_owned(),
            total: 2_900_020,
            cut: 2_900_000,
            file: Some("/outputs/run-3.stdout.txt".to_owned()),
            file_bytes: 2_900_020,
        };
        insta::assert_snapshot!(bounded(&output, 1000, "ctx-1").0);
        let partial = Output { file_bytes: 1_000_000, ..output.clone() };
        insta::assert_snapshot!(bounded(&partial, 1000, "ctx-1").0);
        insta::assert_debug_snapshot!(bounded(&output, 1000, "ctx-1").1);
    }

    #[test]
    fn one_loud_stream_does_not_silence_the_other() {
        let (loud, quiet) = (uncut(&"x".repeat(200)), uncut("short"));
        assert_eq!(share(&loud, &quiet, 100), (95, 5));
        assert_eq!(share(&quiet, &loud, 100), (5, 95));
        assert_eq!(share(&loud, &loud, 101), (51, 50));
        assert_eq!(share(&quiet, &quiet, 100), (5, 5));
    }

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!(
            ["0", "12", "123", "1,234", "123,456", "2,900,000"],
            [0, 12, 123, 1234, 123456, 2900000].map(grouped).each_ref().map(String::as_str)
        );
        let times =
            [0.25, 30.0, 90.0, 300.0, 3600.0, 7200.0, 130.0].map(|s| duration(Duration::from_secs_f64(s)));
        assert_eq!(times.join("; "), "0.25 s; 30 s; 90 s; 5 minutes; 60 minutes; 2 hours; 130 s");
        assert_eq!(iso_seconds(1_761_116_022), "2025-10-22T06:53:42Z");
        assert_eq!(iso_seconds(i64::MAX), "1970-01-01T00:00:00Z");
    }

    proptest! {
        #[test]
        fn cutting_keeps_the_ends_and_the_budget(head in "\\PC{0,80}", tail in "\\PC{0,80}", hidden in 0u64..5, budget in 0usize..200) {
            // Without a cut, all of the stream is in the head.
            let output = if hidden == 0 {
                uncut(&format!("{head}{tail}"))
            } else {
                Output { total: (head.len() + tail.len()) as u64 + hidden, cut: hidden, head, tail, ..Output::default() }
            };
            let whole = format!("{}{}", output.head, output.tail);
            let (text, truncated) = bounded(&output, budget, "ctx-1");
            match truncated {
                None => prop_assert_eq!(text, whole),
                Some(truncated) => {
                    prop_assert!(truncated.shown_bytes <= budget.max(whole.len()) as u64);
                    prop_assert!(truncated.shown_bytes < output.total);
                    let (start, end) = text.split_once("\n… [").unwrap();
                    let (_, end) = end.split_once("] …\n").unwrap();
                    prop_assert!(whole.starts_with(start) && whole.ends_with(end));
                    prop_assert_eq!((start.len() + end.len()) as u64, truncated.shown_bytes);
                    if whole.len() > budget {
                        prop_assert!(start.len() + end.len() <= budget);
                        // Nothing is wasted but what a character on either edge takes.
                        prop_assert!(start.len() + end.len() + 8 > budget);
                    }
                }
            }
        }

        #[test]
        fn clipping_never_splits_a_character(text in "\\PC{0,60}", cap in 0usize..80) {
            let (shown, note) = clipped(&text, cap);
            prop_assert!(text.starts_with(&shown) && shown.len() <= cap.max(text.len()));
            prop_assert_eq!(note.is_some(), text.len() > cap);
        }
    }

    #[test]
    fn fuzz_truncation() {
        belljar_fuzz::fuzz(
            "truncation",
            &[b"\x14\x05some text that is cut", "\u{1}\u{2}é漢😀".as_bytes()],
            |input| {
                let [budget, at, bytes @ ..] = input else { return 0 };
                let (budget, text) = (usize::from(*budget), String::from_utf8_lossy(bytes));
                let (head, tail) = text.split_at(text.floor_char_boundary(usize::from(*at)));
                let output = Output {
                    head: head.into(),
                    tail: tail.into(),
                    total: text.len() as u64 + 5,
                    cut: 5,
                    file: Some("/outputs/run-1.stdout.txt".into()),
                    file_bytes: 3,
                };
                let (shown, cut) = bounded(&output, budget, "ctx-1");
                let cut = cut.unwrap();
                assert!(
                    cut.shown_bytes as usize <= budget.max(text.len().min(budget))
                        && shown.len() <= budget + 300
                );
                let (one, two) = share(&output, &uncut(&text), budget);
                assert!(one + two <= budget.max(text.len() * 2));
                let (clip, note) = clipped(&text, budget);
                assert!(
                    clip.len() <= budget
                        && text.starts_with(&clip)
                        && note.is_some() == (clip.len() < text.len())
                );
                assert!(shorten(&text, budget).chars().count() <= budget + 1);
                belljar_fuzz::mark((note.is_some(), cut.shown_bytes == 0, one < two, tail.is_empty()))
            },
        );
    }
}
