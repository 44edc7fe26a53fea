//! What a tab shows: what the walker tells of each frame, put together in order.

use std::{collections::HashMap, fmt::Write, future::Future, ops::Range, pin::Pin, time::Duration};

use belljar_proto::{Browsed, MAX_BROWSED_TEXT, Problem};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    fold::{fold, not_ours},
    page::{MAX_NEW_REFS, Page, refused},
    text::{line_of, lines, said, without_refs},
};

const USUAL_TEXT: u32 = 4000;
const MAX_LINES: u32 = 400;
/// Frames that are looked into, and how deep they may lie in each other.
const MAX_FRAMES: usize = 30;
const MAX_DEPTH: usize = 6;
/// One frame that hangs must not keep the others from being seen.
const FRAME_PATIENCE: Duration = Duration::from_millis(1500);
const MAX_ELEMENT_LINE: usize = 1000;
/// Elements that are asked at a time whether they hide a closed shadow root.
const MAX_HOSTS: usize = 200;
/// Closed roots in closed roots.
const MAX_NESTED_ROOTS: usize = 4;

/// While no element may have a shadow root that scripts cannot see, what is asked for is answered at once.
const UNLESS_HOSTS: &str = "(found => found.length ? (__bj.found = found, null) : ANSWER)(__bj.hosts(LIMIT))";

#[derive(Deserialize)]
struct Walked {
    title: String,
    text: Vec<String>,
    lines: Vec<(u64, usize, String)>,
    frames: Vec<FrameAt>,
    /// Of the document, in the order of its frames.
    windows: usize,
    cut: Option<String>,
    /// New refs are from here to before there, and with those in frames that were looked into, to before `end`.
    first: u64,
    next: u64,
    end: u64,
}

#[derive(Deserialize)]
struct FrameAt {
    #[serde(rename = "ref")]
    number: u64,
    line: usize,
    text: usize,
    window: Option<usize>,
    /// What is in there, if it is of the same origin and could be had at once.
    inner: Option<Box<Walked>>,
}

#[derive(Deserialize)]
struct Changes {
    added: Vec<(u64, String)>,
    removed: Vec<(u64, String)>,
    changed: Vec<(u64, String, String)>,
    text: TextChanges,
    cut: Option<String>,
    next: u64,
}

#[derive(Deserialize)]
struct TextChanges {
    added: Vec<String>,
    removed: Vec<String>,
}

/// What has been put together so far.
struct Joined {
    text: String,
    elements: String,
    cut: Vec<String>,
    frames: usize,
    text_left: u32,
    lines_left: u32,
    find: Option<String>,
}

pub(super) async fn snapshot(
    page: &Page,
    max_text: Option<u32>,
    find: Option<String>,
) -> Result<Browsed, Problem> {
    let text_left = max_text.unwrap_or(USUAL_TEXT).min(MAX_BROWSED_TEXT as u32 / 2);
    let mut joined = Joined {
        text: String::new(),
        elements: String::new(),
        cut: Vec::new(),
        frames: 0,
        text_left,
        lines_left: MAX_LINES,
        find: find.map(|find| find.chars().take(200).collect()),
    };
    let main = page.main()?;
    joined.add(page, &main, 0).await?;
    let Joined { mut text, mut elements, cut, find, .. } = joined;
    if find.is_none() {
        (text, elements) = (fold(&text, ""), fold(&elements, ", refs too"));
    }
    text.truncate(text.floor_char_boundary(MAX_BROWSED_TEXT));
    elements.truncate(elements.floor_char_boundary(MAX_BROWSED_TEXT));
    Ok(Browsed {
        text: Some(text.trim_end().to_owned()),
        elements: Some(elements.trim_end().to_owned()),
        cut: (!cut.is_empty()).then(|| line_of(&cut.join("; "), 1000)),
        ..Browsed::default()
    })
}

impl Joined {
    /// Adds a frame, with the frames in it where they lie.
    fn add<'a>(
        &'a mut self,
        page: &'a Page,
        frame: &'a str,
        depth: usize,
    ) -> Pin<Box<dyn Future<Output = Result<(), Problem>> + 'a>> {
        Box::pin(async move {
            let (walked, numbers) = self.walk(page, frame, depth).await?;
            self.join(page, frame, walked, numbers, depth).await
        })
    }

    /// Asks one frame, and with it those of the same origin in it. Tells which numbers they may have given to elements.
    async fn walk(&self, page: &Page, frame: &str, depth: usize) -> Result<(Walked, Range<u64>), Problem> {
        let first = page.tab(|tab| tab.next_ref)?;
        let inside = json!({
            "depth": MAX_DEPTH - depth, "frames": MAX_FRAMES.saturating_sub(self.frames + 1), "hosts": MAX_HOSTS,
        });
        let options = json!({
            "first": first, "maxText": self.text_left, "maxLines": self.lines_left, "find": self.find, "inside": inside,
        });
        let walked: Walked = ask(page, frame, &format!("__bj.snapshot({options})")).await?;
        let end = walked.end.clamp(first, first + MAX_NEW_REFS);
        page.tab(|tab| tab.next_ref = end)?;
        Ok((walked, first..end))
    }

    fn join<'a>(
        &'a mut self,
        page: &'a Page,
        frame: &'a str,
        walked: Walked,
        numbers: Range<u64>,
        depth: usize,
    ) -> Pin<Box<dyn Future<Output = Result<(), Problem>> + 'a>> {
        Box::pin(async move {
            self.frames += 1;
            let first = walked.first.clamp(numbers.start, numbers.end);
            let next = walked.next.clamp(first, numbers.end);
            remember(page, frame, first, next)?;
            if depth == 0 {
                page.tab(|tab| tab.title = said(&walked.title, 500))?;
            }
            if let Some(cut) = &walked.cut {
                self.cut.push(cut.clone());
            }
            self.lines_left = self.lines_left.saturating_sub(walked.lines.len() as u32);
            let inner = match walked.frames.is_empty() || depth == MAX_DEPTH {
                true => HashMap::new(),
                false => inner_frames(page, frame, &walked).await?,
            };
            let mut frames = walked.frames.into_iter().peekable();
            let mut text = 0;
            for (at, (number, indent, line)) in walked.lines.iter().enumerate() {
                self.push_line(*number, *indent + depth, line);
                while let Some(place) = frames.next_if(|place| place.line <= at) {
                    let Some(inside) = inner.get(&place.number) else { continue };
                    while text < place.text.min(walked.text.len()) {
                        self.push_text(&walked.text[text]);
                        text += 1;
                    }
                    if self.frames == MAX_FRAMES {
                        self.cut.push("more frames".into());
                        break;
                    }
                    let added = async {
                        match place.inner {
                            Some(walked) => {
                                self.join(page, inside, *walked, next..numbers.end, depth + 1).await
                            }
                            None => self.add(page, inside, depth + 1).await,
                        }
                    };
                    if !matches!(timeout(page.budget(FRAME_PATIENCE), added).await, Ok(Ok(()))) {
                        self.cut
                            .push(format!("what is in the frame ref_{}: it does not answer", place.number));
                    }
                }
            }
            walked.text[text.min(walked.text.len())..].iter().for_each(|line| self.push_text(line));
            Ok(())
        })
    }

    fn push_line(&mut self, number: u64, indent: usize, line: &str) {
        // The walker gave the number; whatever else looks like a ref in the line is the page's doing.
        let prefix = format!("[ref_{number}] ");
        let (prefix, rest) = match line.strip_prefix(&prefix) {
            Some(rest) if number > 0 => (prefix.as_str(), rest),
            _ => ("", line),
        };
        let rest = not_ours(without_refs(&line_of(rest, MAX_ELEMENT_LINE)));
        // Writing to a string cannot fail.
        let _ = writeln!(self.elements, "{:indent$}{prefix}{rest}", "", indent = indent.min(20));
    }

    fn push_text(&mut self, line: &str) {
        let line = not_ours(without_refs(&line_of(line, 4 * MAX_ELEMENT_LINE)));
        self.text_left = self.text_left.saturating_sub(line.chars().count() as u32 + 1);
        self.text.push_str(&line);
        self.text.push('\n');
    }
}

/// Asks the walker something, after it was shown the frame's closed shadow roots.
async fn ask<T: DeserializeOwned>(page: &Page, frame: &str, question: &str) -> Result<T, Problem> {
    let unless = UNLESS_HOSTS.replace("LIMIT", &MAX_HOSTS.to_string()).replace("ANSWER", question);
    for _ in 0..MAX_NESTED_ROOTS {
        if let Some(answer) = page.ask::<Option<T>>(frame, &unless).await? {
            return Ok(answer);
        }
        if !show_closed_roots(page, frame).await? {
            break;
        }
    }
    page.ask(frame, question).await
}

fn remember(page: &Page, frame: &str, first: u64, next: u64) -> Result<(), Problem> {
    let context = page.tab(|tab| tab.frames.get(frame).and_then(|f| f.context))?;
    page.remember_refs(frame, context.unwrap_or_default(), first, next)
}

/// Says whether there were any.
async fn show_closed_roots(page: &Page, frame: &str) -> Result<bool, Problem> {
    let (session, found) = page.object(frame, "__bj.found").await?;
    let (_, context) = page.world(frame).await?;
    let call = |method, params| page.cdp.call(&session, method, params);
    let own = json!({ "objectId": found, "ownProperties": true });
    let Ok(properties) = call("Runtime.getProperties", own).await else { return Ok(false) };
    let objects = properties["result"].as_array().map(Vec::as_slice).unwrap_or_default();
    let hosts = objects.iter().filter(|p| p["name"].as_str().is_some_and(|n| n.parse::<u32>().is_ok()));
    let described: Vec<_> = hosts
        .map(|host| {
            let params = json!({ "objectId": host["value"]["objectId"], "depth": 1, "pierce": true });
            page.cdp.send(&session, "DOM.describeNode", params)
        })
        .collect();
    let mut shown = false;
    for host in described {
        let Ok(host) = host.value().await else { continue };
        let roots = host["node"]["shadowRoots"].as_array().map(Vec::as_slice).unwrap_or_default();
        for root in roots.iter().filter(|root| root["shadowRootType"] == "closed") {
            let node = json!({ "backendNodeId": root["backendNodeId"], "executionContextId": context });
            let Ok(resolved) = call("DOM.resolveNode", node).await else { continue };
            let function = "function() { __bj.addRoot(this) }";
            let object = &resolved["object"]["objectId"];
            let add = json!({ "objectId": object, "functionDeclaration": function });
            // A root that went away meanwhile shows nothing.
            shown |= call("Runtime.callFunctionOn", add).await.is_ok();
        }
    }
    drop(page.cdp.send(&session, "Runtime.releaseObject", json!({ "objectId": found })));
    Ok(shown)
}

/// Which frame an iframe with this ref holds.
async fn inner_frames(page: &Page, frame: &str, walked: &Walked) -> Result<HashMap<u64, String>, Problem> {
    let inside = page.tab(|tab| tab.frames_in(frame))?;
    let mut inner = HashMap::new();
    for place in walked.frames.iter().take(MAX_FRAMES) {
        // Frames in shadow roots have no place among the windows, and one may just be coming or going.
        if let Some(id) = place.window.and_then(|at| inside.get(at))
            && inside.len() == walked.windows
        {
            inner.insert(place.number, id.clone());
            continue;
        }
        let (session, object) = page.object(frame, &format!("__bj.element({})", place.number)).await?;
        if object.is_null() {
            continue;
        }
        let described = page.cdp.call(&session, "DOM.describeNode", json!({ "objectId": object })).await;
        if let Value::String(id) = described.map_err(refused)?["node"]["frameId"].take()
            && page.tab(|tab| tab.frames.contains_key(&id))?
        {
            inner.insert(place.number, id);
        }
    }
    Ok(inner)
}

/// What differs from the last snapshot, in all frames.
pub(super) async fn changes(page: &Page) -> Result<Browsed, Problem> {
    let (mut elements, mut text, mut cut) = (String::new(), String::new(), Vec::new());
    for frame in page.frames()?.into_iter().take(MAX_FRAMES) {
        let is_main = frame == page.main()?;
        let asked = async {
            let first = page.tab(|tab| tab.next_ref)?;
            let options = json!({ "first": first });
            let changes: Changes = ask(page, &frame, &format!("__bj.changes({options})")).await?;
            remember(page, &frame, first, changes.next)?;
            Ok(changes)
        };
        let changes = match timeout(page.budget(FRAME_PATIENCE), asked).await {
            Ok(Ok(changes)) => changes,
            Ok(Err(problem)) if is_main => return Err(problem),
            _ => continue,
        };
        let mut joined = Joined {
            text: String::new(),
            elements: String::new(),
            cut: Vec::new(),
            frames: 0,
            text_left: 0,
            lines_left: 0,
            find: None,
        };
        let mut push = |sign: &str, number: u64, line: &str| {
            joined.elements.clear();
            joined.push_line(number, 0, line);
            elements.push_str(sign);
            elements.push_str(&joined.elements);
        };
        changes.added.iter().for_each(|(number, line)| push("+ ", *number, line));
        changes.removed.iter().for_each(|(number, line)| push("- ", *number, line));
        changes.changed.iter().for_each(|(number, line, _)| push("~ ", *number, line));
        for (sign, list) in [("+ ", &changes.text.added), ("- ", &changes.text.removed)] {
            for line in list {
                let _ = writeln!(text, "{sign}{}", lines(line, MAX_ELEMENT_LINE).replace('\n', " "));
            }
        }
        cut.extend(changes.cut);
    }
    let bounded = |mut text: String| {
        text.truncate(text.floor_char_boundary(MAX_BROWSED_TEXT));
        Some(text.trim_end().to_owned())
    };
    Ok(Browsed {
        text: bounded(text),
        elements: bounded(elements),
        cut: (!cut.is_empty()).then(|| line_of(&cut.join("; "), 1000)),
        ..Browsed::default()
    })
}
