//! Tables that fit the terminal, and what is shown in them.

use std::io::IsTerminal;

use jiff::{SpanRound, Timestamp, Unit};
use serde_json::Value;

/// Where nobody says how wide the terminal is, nothing is cut.
pub(super) fn width() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    console::Term::stdout().size_checked().map_or(80, |(_, columns)| usize::from(columns).max(20))
}

pub(super) fn height() -> usize {
    console::Term::stdout().size_checked().map_or(24, |(rows, _)| usize::from(rows))
}

/// One column: its heading, whether it holds numbers, and how narrow it may become.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) number: bool,
    pub(super) least: usize,
}

pub(super) const fn text(name: &'static str, least: usize) -> Column {
    Column { name, number: false, least }
}

pub(super) const fn number(name: &'static str) -> Column {
    Column { name, number: true, least: usize::MAX }
}

/// The widest columns that may become narrower do so until the table fits.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let longest = |at: usize, name: &str| {
        rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0).max(name.len())
    };
    let mut widths: Vec<_> =
        columns.iter().enumerate().map(|(at, column)| longest(at, column.name)).collect();
    while widths.iter().sum::<usize>() + 2 * (columns.len() - 1) > width {
        let shrinks = |at: &usize| widths[*at] > columns[*at].least;
        let Some(widest) = (0..columns.len()).filter(shrinks).max_by_key(|at| widths[*at]) else { break };
        widths[widest] -= 1;
    }
    let names = columns.iter().map(|column| column.name.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&names).chain(rows) {
        let cell = |at: usize| {
            let width = widths[at];
            let shown = cut(&row[at], width);
            if columns[at].number { format!("{shown:>width$}") } else { format!("{shown:width$}") }
        };
        let cells: Vec<_> = (0..columns.len()).map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A field that a sandbox or a caller chose, on one line.
pub(super) fn field(value: &Value, key: &str) -> String {
    super::printable(value[key].as_str().unwrap_or_default()).replace(['\n', '\t'], " ")
}

/// `42s`, `5m`, `3h`, `2d`.
pub(super) fn ago(then: &str, now: Timestamp) -> String {
    let Ok(then) = then.parse::<Timestamp>() else { return "?".to_owned() };
    let rounding = SpanRound::new().largest(Unit::Second).smallest(Unit::Second);
    let seconds = (now - then).round(rounding).map_or(0, |span| span.get_seconds()).max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

pub(super) fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{} kB", count / 1000),
        1_000_000..1_000_000_000 => format!("{} MB", count / 1_000_000),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_or_shows_everything() {
        let columns = [text("ID", 8), text("NAME", 6), number("MEMORY")];
        let rows = [
            vec!["ctx-0123456789".to_owned(), "a name that is long".to_owned(), "12 MB".to_owned()],
            vec!["ctx-1".to_owned(), "é".to_owned(), "1.2 GB".to_owned()],
        ];
        let all = [usize::MAX, 34, 10].map(|width| table(&columns, &rows, width));
        assert!(all[1].lines().all(|line| line.chars().count() <= 34));
        insta::assert_snapshot!(all.join("\n"));
    }
}
