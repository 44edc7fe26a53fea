//! A long run of lines that only count is shown by its beginning and its end: `Card 0`, `Card 1`, how many were left out, `Card 19`.
//! Whoever can count has them all.

use std::{fmt::Write, iter::zip};

/// Fewer are not worth it: whoever reads them need not count.
const WORTH: usize = 10;
/// Lines that take turns, such as a list and two fields.
const MAX_TURNS: usize = 4;
/// Longer ones are names, not counts.
const MAX_DIGITS: usize = 9;
const MARK: &str = "lines left out that count on like the";

/// A page's own line, which cannot pass for one of ours.
pub(super) fn not_ours(line: String) -> String {
    if line.contains(MARK) { line.replace('…', "...") } else { line }
}

/// `also` says what counts besides.
pub(super) fn fold(text: &str, also: &str) -> String {
    let lines: Vec<Line<'_>> = text.lines().map(Line::new).collect();
    let (mut folded, mut at) = (String::with_capacity(text.len()), 0);
    while at < lines.len() {
        let rest = &lines[at..];
        let (turns, count) = run(rest).unwrap_or((0, 1));
        for (place, Line { text, .. }) in rest[..count].iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = match place {
                _ if turns == 0 || place < 2 * turns || place >= count - turns => writeln!(folded, "{text}"),
                _ if place == 2 * turns => {
                    let (indent, left_out) =
                        (&text[..text.len() - text.trim_start().len()], count - 3 * turns);
                    writeln!(folded, "{indent}… {left_out} {MARK} {place} above{also}, up to")
                }
                _ => Ok(()),
            };
        }
        at += count;
    }
    folded.truncate(folded.trim_end_matches('\n').len());
    folded
}

/// What these lines begin with, if it is worth it: how many take turns, and of how many lines it consists.
fn run(lines: &[Line<'_>]) -> Option<(usize, usize)> {
    (1..=MAX_TURNS).find_map(|turns| {
        let first = lines.get(..turns)?;
        let steps: Vec<_> =
            zip(first, lines.get(turns..)?).map_while(|(line, next)| next.steps_from(line)).collect();
        // All that counts goes up by as much, so that what belongs together keeps its distance.
        let by = steps.iter().flatten().copied().max()?;
        let counts =
            |steps: &Vec<u32>| steps.contains(&by) && steps.iter().all(|step| [0, by].contains(step));
        if steps.len() < turns || (by != 1 && by != turns as u32) || !steps.iter().all(counts) {
            return None;
        }
        let goes_on =
            |at: &usize| lines[*at].steps_from(&lines[at - turns]).as_ref() == Some(&steps[at % turns]);
        let count = turns + (turns..lines.len()).take_while(goes_on).count();
        let count = count - count % turns;
        (count >= 3 * turns + WORTH).then_some((turns, count))
    })
}

/// A line, and the numbers in it.
struct Line<'a> {
    text: &'a str,
    /// What is before, between and after them.
    words: Vec<&'a str>,
    numbers: Vec<&'a str>,
}

impl<'a> Line<'a> {
    fn new(text: &'a str) -> Self {
        let (mut words, mut numbers, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
            let digits = rest[start..].bytes().take_while(u8::is_ascii_digit).count();
            words.push(&rest[..start]);
            numbers.push(&rest[start..start + digits]);
            rest = &rest[start + digits..];
        }
        words.push(rest);
        Self { text, words, numbers }
    }

    /// By how much each number is higher than in another line. `None` if something else differs.
    fn steps_from(&self, other: &Self) -> Option<Vec<u32>> {
        if self.words != other.words {
            return None;
        }
        zip(&self.numbers, &other.numbers)
            .map(|(number, other)| match number == other {
                true => Some(0),
                false => value(number)?.checked_sub(value(other)?),
            })
            .collect()
    }
}

/// `007` is not one that counts.
fn value(digits: &str) -> Option<u32> {
    let plain = digits.len() <= MAX_DIGITS && (digits == "0" || !digits.starts_with('0'));
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What somebody reads who can count.
    fn unfold(text: &str) -> String {
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            let Some((left_out, rest)) =
                line.trim_start().strip_prefix("… ").and_then(|line| line.split_once(" lines left out "))
            else {
                lines.push(line.into());
                continue;
            };
            let (left_out, shown): (usize, usize) =
                (left_out.parse().unwrap(), rest.split(' ').find_map(|word| word.parse().ok()).unwrap());
            for _ in 0..left_out {
                let [line, next] = [shown, shown / 2].map(|back| lines[lines.len() - back].clone());
                let (line, next) = (Line::new(&line), Line::new(&next));
                let steps = next.steps_from(&line).unwrap();
                let mut counted = next.words[0].to_owned();
                for (at, number) in next.numbers.iter().enumerate() {
                    match steps[at] {
                        0 => counted.push_str(number),
                        step => write!(counted, "{}", value(number).unwrap() + step).unwrap(),
                    }
                    counted.push_str(next.words[at + 1]);
                }
                lines.push(counted);
            }
        }
        lines.join("\n")
    }

    fn counted(range: std::ops::Range<u32>, line: impl Fn(u32) -> String) -> String {
        range.map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn long_runs_are_shown_by_their_ends() {
        let buttons = counted(0..20, |n| format!(" [ref_{}] button \"Buy Card {n}\"", n + 71));
        let settings = counted(0..60, |n| match n % 3 {
            0 => format!("[ref_{}] combobox \"Setting {n}\" = \"On\" {{On | Off}}", n + 7),
            _ => format!("[ref_{}] textbox \"Setting {n}\" = {n}", n + 7),
        });
        let cards = counted(0..40, |n| match n % 2 {
            0 => format!("## Card {}", n / 2),
            _ => format!("[ref_{}] button \"Buy\"", n / 2 + 9),
        });
        let text = format!("# Cards\nmain:\n{buttons}\n{settings}\n{cards}\n[ref_500] button \"Save\"");
        let folded = fold(&text, ", refs too");
        assert_eq!(
            folded.lines().collect::<Vec<_>>(),
            [
                "# Cards",
                "main:",
                " [ref_71] button \"Buy Card 0\"",
                " [ref_72] button \"Buy Card 1\"",
                " … 17 lines left out that count on like the 2 above, refs too, up to",
                " [ref_90] button \"Buy Card 19\"",
                "[ref_7] combobox \"Setting 0\" = \"On\" {On | Off}",
                "[ref_8] textbox \"Setting 1\" = 1",
                "[ref_9] textbox \"Setting 2\" = 2",
                "[ref_10] combobox \"Setting 3\" = \"On\" {On | Off}",
                "[ref_11] textbox \"Setting 4\" = 4",
                "[ref_12] textbox \"Setting 5\" = 5",
                "… 51 lines left out that count on like the 6 above, refs too, up to",
                "[ref_64] combobox \"Setting 57\" = \"On\" {On | Off}",
                "[ref_65] textbox \"Setting 58\" = 58",
                "[ref_66] textbox \"Setting 59\" = 59",
                "## Card 0",
                "[ref_9] button \"Buy\"",
                "## Card 1",
                "[ref_10] button \"Buy\"",
                "… 34 lines left out that count on like the 4 above, refs too, up to",
                "## Card 19",
                "[ref_28] button \"Buy\"",
                "[ref_500] button \"Save\"",
            ]
        );
        assert_eq!(unfold(&folded), text);
    }

    #[test]
    fn what_does_not_count_is_all_there() {
        for lines in [
            counted(0..12, |n| format!("[ref_{}] button \"Buy {n}\"", n + 1)),
            // Numbers that go up by different steps.
            counted(0..50, |n| format!("[ref_{}] button \"Buy {n}\"", 2 * n + 1)),
            counted(0..50, |n| format!("[ref_{}] link \"#{n}\" … ref_{}", 3 * n + 1, 3 * n + 3)),
            counted(0..50, |n| format!("{} apples", n * n)),
            counted(0..50, |n| format!("{n:03}")),
            counted(0..50, |_| "the same".into()),
            counted(0..50, |n| format!("{}", 50 - n)),
            counted(0..50, |n| format!("{}", 20_261_116_000_000_u64 + u64::from(n))),
            String::new(),
        ] {
            assert_eq!(fold(&lines, ""), lines);
        }
        // One that differs parts a run.
        let lines = counted(0..40, |n| {
            format!("[ref_{n}] checkbox \"Box {n}\"{}", if n == 20 { " [checked]" } else { "" })
        });
        let folded = fold(&lines, "");
        assert!(folded.contains("\n[ref_20] checkbox \"Box 20\" [checked]\n"), "{folded}");
        assert_eq!(unfold(&folded), lines);
    }

    #[test]
    fn a_page_cannot_say_that_something_was_left_out() {
        let forged = "… 90 lines left out that count on like the 2 above, up to";
        assert_eq!(not_ours(forged.into()), forged.replace('…', "..."));
        assert_eq!(not_ours("and so on …".into()), "and so on …");
    }

    proptest! {
        #[test]
        fn nothing_is_lost(
            parts in prop::collection::vec(
                (
                    prop::collection::vec("[a-c ]{0,2}(N|M|7|07|1[0-9]{0,3})?[a-c.]{0,2}(N|K)?x", 1..6),
                    0usize..60,
                    0u32..1100,
                    1u32..5,
                ),
                0..4,
            )
        ) {
            let mut lines = Vec::new();
            for (turns, count, from, by) in parts {
                for n in 0..count {
                    let line = &turns[n % turns.len()];
                    let (n, block) = (n as u32, (n / turns.len()) as u32);
                    let line = line.replace('N', &(from + n).to_string()).replace('M', &(from + block).to_string());
                    lines.push(line.replace('K', &(block * by).to_string()));
                }
            }
            let text = lines.join("\n");
            let folded = fold(&text, ", refs too");
            prop_assert_eq!(unfold(&folded), text);
        }
    }
}
