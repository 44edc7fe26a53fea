//! Tables that fit the terminal, and what is shown in them.

use std::io::IsTerminal;

use jiff::{SpanRound, Timestamp, Unit};
use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const NARROWEST: usize = 20;

/// `COLUMNS` says how wide, else the terminal does. Where neither does, nothing is cut.
pub(super) fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse::<usize>().ok());
    if let Some(columns) = told.filter(|columns| *columns > 0) {
        return columns.max(NARROWEST);
    }
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    console::Term::stdout().size_checked().map_or(80, |(_, columns)| usize::from(columns).max(NARROWEST))
}

pub(super) fn height() -> usize {
    console::Term::stdout().size_checked().map_or(24, |(rows, _)| usize::from(rows))
}

/// One column: its heading, whether it holds numbers, and how narrow it may become.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) number: bool,
    pub(super) least: usize,
    /// Left out where there is no room for it, the last one first.
    pub(super) optional: bool,
}

impl Column {
    pub(super) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

pub(super) const fn text(name: &'static str, least: usize) -> Column {
    Column { name, number: false, least, optional: false }
}

pub(super) const fn number(name: &'static str) -> Column {
    Column { name, number: true, least: usize::MAX, optional: false }
}

/// Columns that may be left out are, and the widest of those that may become narrower do, until the table fits.
pub(super) fn table(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let longest =
        |at: usize| rows.iter().map(|row| row[at].width()).max().unwrap_or(0).max(columns[at].name.width());
    let mut widths: Vec<_> = (0..columns.len()).map(longest).collect();
    let least: Vec<_> = columns.iter().zip(&widths).map(|(column, width)| column.least.min(*width)).collect();
    let mut shown: Vec<_> = (0..columns.len()).collect();
    let taken = |shown: &[usize], widths: &[usize]| {
        shown.iter().map(|at| widths[*at]).sum::<usize>() + 2 * shown.len().saturating_sub(1)
    };
    while taken(&shown, &least) > width {
        let Some(left_out) = shown.iter().rposition(|at| columns[*at].optional) else { break };
        shown.remove(left_out);
    }
    while taken(&shown, &widths) > width {
        let shrinks = |at: &usize| widths[*at] > least[*at];
        let Some(widest) = shown.iter().copied().filter(shrinks).max_by_key(|at| widths[*at]) else { break };
        widths[widest] -= 1;
    }
    let names = columns.iter().map(|column| column.name.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&names).chain(rows) {
        let cell = |at: usize| {
            let shown = cut(&row[at], widths[at]);
            let room = " ".repeat(widths[at].saturating_sub(shown.width()));
            if columns[at].number { room + &shown } else { shown + &room }
        };
        let cells: Vec<_> = shown.iter().copied().map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// As many characters as fit: some are two columns wide, some none.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let wide = c.width().unwrap_or(0);
        let fits = wide <= room;
        room = room.saturating_sub(wide);
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Broken between words into lines that fit; a word that does not stays whole.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last =
            lines.last_mut().filter(|line| line.is_empty() || line.width() + 1 + word.width() <= width);
        match last {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// What a sandbox or another server wrote must not drive the terminal of whoever reads it.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// The same on one line.
pub(super) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// A field that a sandbox or a caller chose, on one line.
pub(super) fn field(value: &Value, key: &str) -> String {
    one_line(value[key].as_str().unwrap_or_default())
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
        assert!(all[1].lines().all(|line| line.width() <= 34));
        insta::assert_snapshot!(all.join("\n"));
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out() {
        let columns = [text("NAME", 6), text("LANGUAGE", 8).optional(), number("MEMORY")];
        let rows = [vec!["analysis".to_owned(), "python".to_owned(), "12 MB".to_owned()]];
        assert_eq!(table(&columns, &rows, 22), "NAME      MEMORY\nanalysis   12 MB\n");
        assert!(table(&columns, &rows, 26).contains("LANGUAGE"));
    }

    #[test]
    fn wide_characters_take_the_room_they_take() {
        let columns = [text("NAME", 6), number("N")];
        let rows = [
            vec!["表計算の結果".to_owned(), "1".to_owned()],
            vec!["e\u{301}te\u{301}".to_owned(), "22".to_owned()],
        ];
        let all = [usize::MAX, 12].map(|width| table(&columns, &rows, width));
        assert!(all[1].lines().all(|line| line.width() <= 12), "{}", all[1]);
        insta::assert_snapshot!(all.join("\n"));
    }

    #[test]
    fn long_texts_are_broken_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable", 3), ["unbreakable"]);
        assert_eq!(wrap("", 3), [""]);
    }
}
