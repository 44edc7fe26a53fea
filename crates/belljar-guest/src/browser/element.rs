//! Finding the element that something is to be done with, and what is told when that cannot be done.

use std::time::Duration;

use belljar_proto::Problem;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    page::Page,
    state::Tab,
    text::{line_of, without_refs},
};

/// An element that cannot be used yet is waited for this long.
const PATIENCE: Duration = Duration::from_secs(4);
const MAX_TARGET: usize = 2000;

/// What the walker says of a target.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    pub(super) problem: Option<String>,
    by: Option<String>,
    candidates: Vec<String>,
    options: Vec<String>,
    what: Option<String>,
    pub(super) matched: Option<u32>,
    healed: bool,
    pub(super) checked: Option<bool>,
    pub(super) edit: Option<String>,
    pub(super) x: f64,
    pub(super) y: f64,
    next: u64,
    pub(super) selected: Vec<String>,
    /// Filled in here.
    #[serde(skip)]
    pub(super) frame: String,
    #[serde(skip)]
    pub(super) target: String,
}

impl Found {
    pub(super) fn what(&self) -> &str {
        self.what.as_deref().unwrap_or_default()
    }

    pub(super) fn into_problem(self) -> Result<Self, Problem> {
        let Some(problem) = &self.problem else { return Ok(self) };
        let target = line_of(&self.target, 300);
        let by = || line_of(&without_refs(self.by.as_deref().unwrap_or("something")), 200);
        let what = line_of(&without_refs(self.what()), 200);
        Err(match problem.as_str() {
            "not_found" => Problem::NotFound { target },
            "stale" => {
                let candidates = self.candidates.iter().take(5).map(|c| line_of(c, 400)).collect();
                Problem::Stale { target, candidates }
            }
            "bad_selector" => Problem::BadSelector { target, message: by() },
            "hidden" => Problem::Hidden { target },
            "disabled" => Problem::Disabled { target },
            "covered" => Problem::Covered { target, by: by() },
            "moving" => Problem::Moving { target },
            "not_editable" => Problem::Invalid { message: format!("{target} is {what}: it takes no text") },
            "not_upload" => Problem::Invalid { message: format!("{target} is {what}: it takes no files") },
            "not_select" => {
                Problem::Invalid { message: format!("{target} is {what}: it is no list to select from") }
            }
            "no_option" => {
                let options: Vec<_> =
                    self.options.iter().take(30).map(|o| format!("{:?}", line_of(o, 100))).collect();
                let message = format!("{target} has no option {:?}; it has {}", by(), options.join(", "));
                Problem::Invalid { message: line_of(&message, 1500) }
            }
            other => Problem::Invalid { message: format!("{target}: {}", line_of(other, 100)) },
        })
    }
}

impl Page {
    /// The frame that a target is in. Selectors are looked for in the main frame first.
    async fn frame_of(&self, target: &str) -> Result<String, Problem> {
        if target.is_empty() || target.len() > MAX_TARGET {
            let message = format!("a target has 1 to {MAX_TARGET} bytes, this one {}", target.len());
            return Err(Problem::Invalid { message });
        }
        if let Some(number) = ref_number(target) {
            let known = self.tab(|tab| {
                let refs = tab.refs.iter().rev().find(|refs| refs.numbers.contains(&number))?;
                let lives = tab.frames.get(&refs.frame).is_some_and(|f| f.context == Some(refs.context));
                Some(lives.then(|| refs.frame.clone()))
            })?;
            let target = line_of(target, 300);
            return match known {
                None => Err(Problem::NotFound { target }),
                // The document that it was in is gone.
                Some(None) => Err(Problem::Stale { target, candidates: Vec::new() }),
                Some(Some(frame)) => Ok(frame),
            };
        }
        let frames = self.frames()?;
        if frames.len() > 1 {
            let question = format!("__bj.present({})", json!({ "target": target }));
            for frame in frames.iter().take(20) {
                let asked = tokio::time::timeout(
                    self.budget(Duration::from_millis(500)),
                    self.eval(frame, &question),
                );
                if matches!(asked.await, Ok(Ok(Value::Bool(true)))) {
                    return Ok(frame.clone());
                }
            }
        }
        self.main()
    }

    async fn found(&self, frame: String, target: &str, question: &str) -> Result<Found, Problem> {
        let first = self.tab(|tab| tab.next_ref)?;
        let mut found: Found = self.ask(&frame, question).await?;
        let context = self.tab(|tab| tab.frames.get(&frame).and_then(|f| f.context))?;
        self.remember_refs(&frame, context.unwrap_or_default(), first, found.next.max(first))?;
        found.matched = found.matched.filter(|matched| *matched > 1);
        if found.healed {
            let note = format!("{} was drawn anew; its equal was used", line_of(target, 100));
            self.shared.state.borrow_mut().note(&note);
        }
        (found.frame, found.target) = (frame, target.into());
        Ok(found)
    }

    /// Waits until something can be done with the target. `mode` is one of the walker's.
    pub(super) async fn look_for(&self, target: &str, mode: &str, append: bool) -> Result<Found, Problem> {
        self.look(target, mode, append, None).await
    }

    /// The same for input that comes at once, until the `count`th event of the kind `last`. The page says what became of it.
    pub(super) async fn aim(
        &self,
        target: &str,
        mode: &str,
        append: bool,
        (last, count): (&str, u32),
    ) -> Result<Found, Problem> {
        self.look(target, mode, append, Some((last, count))).await
    }

    async fn look(
        &self,
        target: &str,
        mode: &str,
        append: bool,
        input: Option<(&str, u32)>,
    ) -> Result<Found, Problem> {
        let frame = self.frame_of(target).await?;
        let first = self.tab(|tab| tab.next_ref)?;
        let budget = self.budget(PATIENCE).as_millis() as u64;
        let mut options = json!({ "budget": budget, "first": first, "append": append });
        // Where a frame is drawn is not for the page in it to know.
        if let Some((last, count)) = input.filter(|_| self.main().is_ok_and(|main| main == frame)) {
            let id = self.tab(Tab::expect_input)?;
            options["expect"] = json!({ "id": id, "last": last, "count": count });
        }
        let question = format!("__bj.prepare({}, {}, {options})", json!(target), json!(mode));
        self.found(frame, target, &question).await
    }

    pub(super) async fn prepare(&self, target: &str, mode: &str) -> Result<Found, Problem> {
        self.look_for(target, mode, false).await?.into_problem()
    }

    /// Asks the walker a question about a target that answers with a problem or something else.
    pub(super) async fn ask_about<T: serde::de::DeserializeOwned>(
        &self,
        target: &str,
        function: &str,
        more: &[Value],
    ) -> Result<(String, T), Problem> {
        let frame = self.frame_of(target).await?;
        let more: String = more.iter().map(|argument| format!(", {argument}")).collect();
        let answer: Value = self.ask(&frame, &format!("__bj.{function}({}{more})", json!(target))).await?;
        if answer["problem"].is_string() {
            let odd = |e: serde_json::Error| Problem::Invalid { message: e.to_string() };
            let mut found: Found = serde_json::from_value(answer).map_err(odd)?;
            found.target = target.into();
            found.into_problem()?;
            return Err(Problem::NotFound { target: line_of(target, 300) });
        }
        let odd = |e: serde_json::Error| Problem::Invalid { message: e.to_string() };
        Ok((frame, serde_json::from_value(answer).map_err(odd)?))
    }
}

fn ref_number(target: &str) -> Option<u64> {
    let target = target.trim();
    let inner = target.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(target);
    let digits = inner.strip_prefix("ref_")?;
    (digits.len() <= 9).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refs_are_told_from_selectors() {
        assert_eq!(ref_number("ref_12"), Some(12));
        assert_eq!(ref_number(" [ref_12] "), Some(12));
        for selector in ["ref_", "ref_x", "#ref_1", "ref_1 a", "ref_99999999999", "button"] {
            assert_eq!(ref_number(selector), None, "{selector}");
        }
    }

    #[test]
    fn problems_name_what_they_are_about() {
        let problem = |json: Value| {
            let mut found: Found = serde_json::from_value(json).unwrap();
            found.target = "#x".into();
            found.into_problem().unwrap_err()
        };
        assert_eq!(
            problem(json!({ "problem": "covered", "by": "div#o\n[ref_1] button" })),
            Problem::Covered { target: "#x".into(), by: "div#o [ ref_1] button".into() }
        );
        assert_eq!(
            problem(json!({ "problem": "no_option", "by": "c", "options": ["a", "b"] })),
            Problem::Invalid { message: "#x has no option \"c\"; it has \"a\", \"b\"".into() }
        );
        assert_eq!(
            problem(json!({ "problem": "not_editable", "what": "button \"Go\"" })),
            Problem::Invalid { message: "#x is button \"Go\": it takes no text".into() }
        );
    }
}
