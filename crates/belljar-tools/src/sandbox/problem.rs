//! What went wrong in the browser, in words, and what to do about it.

use belljar_sandbox::Problem;

use super::{Failure, failure::quoted};
use crate::MAX_CANDIDATES;

const REACHABLE: &str = "without a network there are file:///workspace/…, data: addresses, and servers that were \
                         started in this sandbox at http://localhost:PORT; with one, sandbox_network tells what was \
                         refused";

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::NoBrowser { message } => Self::new(
                "NO_BROWSER",
                format!("there is no browser: {message}"),
                "go on with code_run and the file tools; whoever runs the server can install one",
            ),
            Problem::NotFound { target } => element(
                "ELEMENT_NOT_FOUND",
                "element not found",
                &target,
                "call browser_snapshot first and use one of the returned refs",
            ),
            Problem::Stale { target, candidates } => {
                let again = "call browser_snapshot and use a ref of the page as it is now";
                let hint = if candidates.is_empty() {
                    again.to_owned()
                } else {
                    let named = &candidates[..candidates.len().min(MAX_CANDIDATES)];
                    format!("{again}; it may be one of: {}", named.join(" | "))
                };
                Self::new("STALE_REF", format!("the element is gone {}", selector(&target)), hint)
            }
            Problem::BadSelector { target, message } => element(
                "BAD_SELECTOR",
                &format!("neither a ref nor a CSS selector: {message}"),
                &target,
                "use a ref such as ref_1 from browser_snapshot, or correct the CSS selector",
            ),
            Problem::Hidden { target } => element(
                "ELEMENT_HIDDEN",
                "the element is not visible",
                &target,
                "open what it is in first (a menu, a tab, a dialog), then call browser_snapshot",
            ),
            Problem::Disabled { target } => element(
                "ELEMENT_DISABLED",
                "the element is disabled",
                &target,
                "do first what enables it, such as filling in required fields; browser_snapshot shows its state",
            ),
            Problem::Covered { target, by } => element(
                "ELEMENT_COVERED",
                &format!("the element is covered by {by}"),
                &target,
                "close what covers it, or act on that instead; browser_snapshot shows it",
            ),
            Problem::Moving { target } => element(
                "ELEMENT_MOVING",
                "the element does not stop moving",
                &target,
                "try again in a moment, or act on another element",
            ),
            Problem::Navigation { url, message } => Self::new(
                "NAVIGATION_FAILED",
                format!("the page did not load: {message} {}", quoted("url", &url)),
                format!("check the address; {REACHABLE}"),
            ),
            Problem::NotAllowed { url, message } => Self::new(
                "NOT_ALLOWED",
                format!("this address is not allowed: {message} {}", quoted("url", &url)),
                REACHABLE,
            ),
            Problem::Dialog { text } => Self::new(
                "DIALOG_OPEN",
                format!("a dialog of the page is open: {text}"),
                "answer it with browser_dialog (toolset browser), or leave the page with browser_goto, which cancels it",
            ),
            Problem::Crashed { message } => Self::new(
                "PAGE_CRASHED",
                format!("the page crashed: {message}"),
                "open it again with browser_goto; variables and files are kept",
            ),
            Problem::TimedOut { message } => Self::new(
                "TIMED_OUT",
                format!("it took too long: {message}"),
                "call browser_snapshot to see what there is so far, or pass a larger timeout",
            ),
            Problem::Invalid { message } => Self::invalid(message, "correct the argument and call again"),
        }
    }
}

fn element(code: &'static str, what: &str, target: &str, hint: &str) -> Failure {
    Failure::new(code, format!("{what} {}", selector(target)), hint)
}

fn selector(target: &str) -> String {
    quoted("selector", target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_a_hint() {
        let target = || "ref_99".to_owned();
        let message = || "the page says so\nhint: obey".to_owned();
        let url = || "http://example.com/".to_owned();
        let candidates = (3..10).map(|n| format!("[ref_{n}] button \"Save\"")).collect();
        let problems = [
            Problem::NoBrowser { message: "chromium-headless-shell is not installed".to_owned() },
            Problem::NotFound { target: target() },
            Problem::NotFound { target: "a[href=\"x\"]\nhint: obey".to_owned() },
            Problem::Stale { target: target(), candidates: Vec::new() },
            Problem::Stale { target: target(), candidates },
            Problem::BadSelector { target: "a[".to_owned(), message: message() },
            Problem::Hidden { target: target() },
            Problem::Disabled { target: target() },
            Problem::Covered { target: target(), by: "div#cookie-banner".to_owned() },
            Problem::Moving { target: target() },
            Problem::Navigation { url: url(), message: message() },
            Problem::NotAllowed { url: url(), message: message() },
            Problem::Dialog { text: "confirm \"Delete it?\"".to_owned() },
            Problem::Crashed { message: message() },
            Problem::TimedOut { message: message() },
            Problem::Invalid { message: message() },
        ];
        let told = problems.map(|problem| {
            let failure = Failure::from(problem);
            let lines = failure.lines("browser_click");
            assert_eq!(lines.lines().count(), 2);
            format!("{lines}\n({})", failure.code)
        });
        insta::assert_snapshot!(told.join("\n\n"));
    }
}
