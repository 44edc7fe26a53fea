//! What can be done in a tab.

use std::time::Duration;

use belljar_proto::{Browse, Browsed, MouseButton, Problem, ScrollTo};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Done,
    element::Found,
    keys::{Stroke, last_key},
    open_tab, outputs,
    page::{Page, refused},
    snapshot,
    text::{check_url, explain, line, line_of, said},
};
use crate::files;

/// A navigation that was asked of the browser itself begins at once.
const BEGIN_PATIENCE: Duration = Duration::from_secs(5);
/// Nothing asked of the network for this long: idle.
const IDLE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(50);
/// How often a click that would have hit something else is aimed anew.
const AIMS: u32 = 3;
const MAX_FIELDS: usize = 200;
const MAX_UPLOADS: usize = 50;

pub(super) async fn perform(page: &Page, browse: Browse) -> Done {
    let goes = matches!(
        browse,
        Browse::Goto { .. }
            | Browse::Dialog { .. }
            | Browse::Tabs { .. }
            | Browse::Console { .. }
            | Browse::Network { .. }
    );
    page.tab(|tab| tab.expected = None)?;
    if !goes {
        page.settle().await?;
    }
    // That has waited for the page already.
    let has_loaded = matches!(browse, Browse::Goto { .. });
    let browsed = match browse {
        Browse::Goto { url } => goto(page, &url).await?,
        Browse::Back => history(page, -1).await?,
        Browse::Forward => history(page, 1).await?,
        Browse::Reload => reload(page).await?,
        Browse::Snapshot { changes: true, .. } => return read(page, snapshot::changes(page).await?).await,
        Browse::Snapshot { max_text, find, .. } => {
            return Ok((snapshot::snapshot(page, max_text, find).await?, Vec::new()));
        }
        Browse::Click { target, double, button } => click(page, &target, double, button).await?,
        Browse::Type { target, text, submit, append } => {
            type_into(page, &target, &text, submit, append).await?
        }
        Browse::Press { key, target } => press(page, &key, target.as_deref()).await?,
        Browse::Select { target, values } => select(page, &target, &values).await?,
        Browse::Hover { target } => hover(page, &target).await?,
        Browse::Scroll { target, to, pages } => scroll(page, target.as_deref(), to, pages).await?,
        Browse::FillForm { fields } => fill_form(page, &fields).await?,
        Browse::Upload { target, paths } => upload(page, &target, &paths).await?,
        Browse::Tabs { select, close, open } => tabs(page, select, close, open).await?,
        Browse::WaitFor { text, target, url, idle } => wait_for(page, text, target, url, idle).await?,
        Browse::Dialog { accept, text } => dialog(page, accept, text).await?,
        Browse::Evaluate { code } => outputs::evaluate(page, &code).await?,
        Browse::Console { limit } => return outputs::console(page, limit),
        Browse::Network { limit } => return outputs::network(page, limit),
        Browse::Screenshot { target, full_page, marks } => {
            return outputs::screenshot(page, target.as_deref(), full_page, marks).await;
        }
        Browse::Pdf { path } => return outputs::pdf(page, &path).await,
        Browse::Extract => return read(page, outputs::extract(page).await?).await,
    };
    if page.tab(|_| ()).is_ok() && (!has_loaded || page.is_navigating()) {
        page.conclude().await?;
    }
    Ok((browsed, Vec::new()))
}

async fn read(page: &Page, browsed: Browsed) -> Done {
    page.describe().await?;
    Ok((browsed, Vec::new()))
}

async fn goto(page: &Page, url: &str) -> Result<Browsed, Problem> {
    let shown = line_of(url, 300);
    let not_allowed = |message| Problem::NotAllowed { url: shown.clone(), message };
    let url = check_url(url).map_err(not_allowed)?;
    page.tab(|tab| {
        tab.requests.clear();
        (tab.navigating, tab.acted) = (None, None);
    })?;
    let answer = page.call("Page.navigate", json!({ "url": url })).await?;
    match answer["errorText"].as_str() {
        None | Some("") => {}
        // It is a file to keep, not a page to show.
        Some("net::ERR_ABORTED") if answer["isDownload"] == true || has_download(page) => {
            return Ok(Browsed::default());
        }
        Some(error) => return Err(Problem::Navigation { url: shown, message: explain(error) }),
    }
    if let Some(loader) = answer["loaderId"].as_str() {
        // The answer comes when there is a document to show.
        page.tab(|tab| {
            tab.begin_document(loader);
            tab.navigating = None;
        })?;
        load(page).await?;
    } else {
        page.describe().await?;
    }
    Ok(Browsed::default())
}

fn has_download(page: &Page) -> bool {
    !page.shared.state.borrow().downloads.is_empty()
}

async fn load(page: &Page) -> Result<(), Problem> {
    if page.arrive(page.deadline.saturating_duration_since(Instant::now())).await? {
        page.shared.state.borrow_mut().note("the page is still loading");
    }
    if !page.tab(|tab| tab.told)? {
        page.describe().await?;
    }
    // That it went where it was sent needs no mention.
    let told = format!("navigated to {}", page.tab(|tab| tab.url.clone())?);
    page.shared.state.borrow_mut().forget(&told);
    Ok(())
}

/// Does what makes the tab go elsewhere, and waits until it is there.
async fn travel(page: &Page, method: &str, params: Value) -> Result<Browsed, Problem> {
    let before = page.tab(|tab| tab.arrivals)?;
    page.call(method, params).await?;
    let number = page.number;
    let arrived =
        page.shared.until(|state| state.tab(number).is_none_or(|tab| tab.arrivals != before).then_some(()));
    let _ = timeout(page.budget(BEGIN_PATIENCE), arrived).await;
    load(page).await?;
    Ok(Browsed::default())
}

async fn history(page: &Page, step: i64) -> Result<Browsed, Problem> {
    let history = page.call("Page.getNavigationHistory", json!({})).await?;
    let wanted = history["currentIndex"].as_i64().unwrap_or_default() + step;
    let entry = usize::try_from(wanted).ok().and_then(|index| history["entries"].get(index));
    let Some(entry) = entry else {
        let way = if step < 0 { "back" } else { "forward" };
        return Err(Problem::Invalid { message: format!("there is no page to go {way} to") });
    };
    travel(page, "Page.navigateToHistoryEntry", json!({ "entryId": entry["id"] })).await
}

async fn reload(page: &Page) -> Result<Browsed, Problem> {
    travel(page, "Page.reload", json!({})).await
}

/// Sends input and waits until the page has taken it, as the browser or the page itself says.
async fn input(page: &Page, events: Vec<(&str, Value)>) -> Result<(), Problem> {
    let session = page.session()?;
    page.acted()?;
    let sent: Vec<_> =
        events.into_iter().map(|(method, event)| page.cdp.send(&session, method, event)).collect();
    let taken = async {
        for event in sent {
            event.raw().await.map_err(refused)?;
        }
        Ok(())
    };
    tokio::select! {
        // What has closed its own tab has taken it.
        taken = taken => if page.session().is_ok() { taken } else { Ok(()) },
        _ = page.told_of_input() => Ok(()),
    }
}

/// What lies over a frame, at a point of the tab; the walker looks only at what is in a frame.
const OVER_FRAME: &str = "(e => !e || /^(iframe|frame|object|embed)$/.test(e.localName) || __bj.dom.shadow(e) ? '' : \
    e.localName + (e.id ? '#' + e.id : ''))(document.elementFromPoint(AT))";

async fn point_at(page: &Page, found: &Found) -> Result<(f64, f64), Problem> {
    let (x, y) = page.to_tab(&found.frame, found.x, found.y).await?;
    let main = page.main()?;
    if found.frame != main
        && let Value::String(by) = page.eval(&main, &OVER_FRAME.replace("AT", &format!("{x}, {y}"))).await?
        && !by.is_empty()
    {
        return Err(Problem::Covered { target: line_of(&found.target, 300), by: line_of(&by, 200) });
    }
    Ok((x, y))
}

async fn click(page: &Page, target: &str, double: bool, button: MouseButton) -> Result<Browsed, Problem> {
    let presses = if double { 2 } else { 1 };
    for _ in 0..AIMS {
        let found = page.aim(target, "click", false, ("pointerup", presses)).await?.into_problem()?;
        press_mouse(page, &found, double, button).await?;
        if !page.dealt().await {
            return Ok(Browsed { matched: found.matched, ..Browsed::default() });
        }
    }
    Err(Problem::Moving { target: line_of(target, 300) })
}

async fn press_mouse(page: &Page, found: &Found, double: bool, button: MouseButton) -> Result<(), Problem> {
    let (x, y) = point_at(page, found).await?;
    let (name, bit) = match button {
        MouseButton::Left => ("left", 1),
        MouseButton::Right => ("right", 2),
        MouseButton::Middle => ("middle", 4),
    };
    let method = "Input.dispatchMouseEvent";
    let mut events = vec![(method, json!({ "type": "mouseMoved", "x": x, "y": y }))];
    for count in 1..=if double { 2 } else { 1 } {
        for (kind, buttons) in [("mousePressed", bit), ("mouseReleased", 0)] {
            let event = json!({ "type": kind, "x": x, "y": y, "button": name, "buttons": buttons, "clickCount": count });
            events.push((method, event));
        }
    }
    input(page, events).await
}

async fn hover(page: &Page, target: &str) -> Result<Browsed, Problem> {
    let found = page.prepare(target, "hover").await?;
    let (x, y) = point_at(page, &found).await?;
    input(page, vec![("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y }))]).await?;
    Ok(Browsed { matched: found.matched, ..Browsed::default() })
}

fn strokes(stroke: &Stroke) -> impl Iterator<Item = (&'static str, Value)> + use<> {
    stroke.events().into_iter().map(|event| ("Input.dispatchKeyEvent", event))
}

async fn type_into(
    page: &Page,
    target: &str,
    text: &str,
    submit: bool,
    append: bool,
) -> Result<Browsed, Problem> {
    let last =
        if submit || last_key(text).is_some() || text.is_empty() && !append { "keyup" } else { "input" };
    let found = page.aim(target, "focus", append, (last, 1)).await?.into_problem()?;
    if found.edit.as_deref() == Some("set") && !submit || text.is_empty() && append {
        // Then there is no input to wait for.
        page.tab(|tab| tab.expected = None)?;
    }
    write(page, &found, text, submit, append).await?;
    page.dealt().await;
    Ok(Browsed { matched: found.matched, ..Browsed::default() })
}

/// Into the field that was found, which has the focus and, unless text is appended, all of it selected.
async fn write(page: &Page, found: &Found, text: &str, submit: bool, append: bool) -> Result<(), Problem> {
    let mut events = Vec::new();
    if found.edit.as_deref() == Some("set") {
        page.acted()?;
        let (_, value): (_, Value) = page.ask_about(&found.target, "fill", &[json!(text)]).await?;
        if value["value"].as_str().is_some_and(|value| value.is_empty() != text.is_empty()) {
            let (target, what) = (line_of(&found.target, 100), line_of(found.what(), 100));
            let message = format!(
                "{target} is {what}: it did not take {:?} (dates are written YYYY-MM-DD)",
                line_of(text, 60)
            );
            return Err(Problem::Invalid { message });
        }
    } else {
        let last = last_key(text).filter(|_| !submit);
        let rest = last.map_or(text, |last| &text[..text.len() - last.len_utf8()]);
        if !rest.is_empty() {
            events.push(("Input.insertText", json!({ "text": rest })));
        }
        match last {
            Some(last) => events.extend(strokes(&Stroke::character(last, 0))),
            None if text.is_empty() && !append => events.extend(strokes(&key("Backspace")?)),
            None => {}
        }
    }
    if submit {
        events.extend(strokes(&key("Enter")?));
    }
    input(page, events).await
}

fn key(name: &str) -> Result<Stroke, Problem> {
    Stroke::parse(name).map_err(|message| Problem::Invalid { message })
}

async fn press(page: &Page, name: &str, target: Option<&str>) -> Result<Browsed, Problem> {
    let stroke = key(name)?;
    let mut matched = None;
    if let Some(target) = target {
        let mut found = page.look_for(target, "focus", true).await?;
        if found.problem.as_deref() == Some("not_editable") {
            found = page.prepare(target, "hover").await?;
            let focus = format!(
                "document.elementFromPoint({}, {})?.closest('a[href],button,input,select,textarea,summary,[tabindex]')?.focus()",
                found.x, found.y
            );
            page.eval(&found.frame, &focus).await?;
        } else {
            found = found.into_problem()?;
        }
        matched = found.matched;
    }
    input(page, strokes(&stroke).collect()).await?;
    Ok(Browsed { matched, ..Browsed::default() })
}

async fn select(page: &Page, target: &str, values: &[String]) -> Result<Browsed, Problem> {
    let found = page.prepare(target, "select").await?;
    page.acted()?;
    let (_, chosen): (_, Found) = page.ask_about(target, "select", &[json!(values)]).await?;
    let chosen: Vec<_> = chosen.selected.iter().map(|label| format!("{:?}", line_of(label, 100))).collect();
    let note = format!("selected {}", chosen.join(", "));
    Ok(Browsed { matched: found.matched, changes: vec![line_of(&note, 500)], ..Browsed::default() })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Scrolled {
    moved: bool,
    top: f64,
    height: f64,
    view_height: f64,
    what: String,
}

async fn scroll(page: &Page, target: Option<&str>, to: ScrollTo, pages: f64) -> Result<Browsed, Problem> {
    if !(pages > 0.0 && pages <= 1000.0) {
        return Err(Problem::Invalid {
            message: format!("pages must be more than 0 and at most 1000, got {pages}"),
        });
    }
    let more = [json!(to), json!(pages)];
    page.acted()?;
    let scrolled: Scrolled = match target {
        Some(target) => page.ask_about(target, "scroll", &more).await?.1,
        None => page.ask(&page.main()?, &format!("__bj.scroll(null, {}, {})", more[0], more[1])).await?,
    };
    let what = line_of(&scrolled.what, 100);
    let note = match scrolled.moved {
        true => format!(
            "scrolled {what}: {:.0} to {:.0} of {:.0} pixels are in view",
            scrolled.top,
            scrolled.top + scrolled.view_height,
            scrolled.height
        ),
        false => format!("{what} is at its end and did not scroll"),
    };
    Ok(Browsed { changes: vec![note], ..Browsed::default() })
}

async fn fill_form(page: &Page, fields: &[(String, String)]) -> Result<Browsed, Problem> {
    if fields.len() > MAX_FIELDS {
        let message = format!("{} fields, at most {MAX_FIELDS} can be filled in one call", fields.len());
        return Err(Problem::Invalid { message });
    }
    for (target, value) in fields {
        let found = page.look_for(target, "focus", false).await?;
        if found.problem.as_deref() != Some("not_editable") {
            write(page, &found.into_problem()?, value, false, false).await?;
            continue;
        }
        let what = found.what().to_owned();
        let role = what.split(' ').next().unwrap_or_default();
        match role {
            "combobox" | "listbox" => drop(select(page, target, std::slice::from_ref(value)).await?),
            "checkbox" | "radio" | "switch" => {
                let wanted =
                    matches!(value.to_ascii_lowercase().as_str(), "true" | "on" | "yes" | "1" | "checked");
                let found = page.prepare(target, "click").await?;
                if found.checked != Some(wanted) {
                    press_mouse(page, &found, false, MouseButton::Left).await?;
                }
            }
            _ => drop(found.into_problem()?),
        }
    }
    Ok(Browsed::default())
}

async fn upload(page: &Page, target: &str, paths: &[String]) -> Result<Browsed, Problem> {
    if paths.len() > MAX_UPLOADS {
        let message = format!("{} files, at most {MAX_UPLOADS} can be uploaded in one call", paths.len());
        return Err(Problem::Invalid { message });
    }
    let mut files = Vec::new();
    for path in paths {
        let refused = |(_, why): crate::connection::Failure| Problem::Invalid {
            message: format!("{}: {why}", line(path)),
        };
        files.push(files::regular(path).map_err(refused)?);
    }
    let found = page.prepare(target, "upload").await?;
    let (session, object) = page.object(&found.frame, "__bj.uploadTarget").await?;
    page.acted()?;
    let params = json!({ "files": files, "objectId": object });
    page.cdp.call(&session, "DOM.setFileInputFiles", params).await.map_err(refused)?;
    Ok(Browsed { matched: found.matched, ..Browsed::default() })
}

async fn tabs(
    page: &Page,
    select: Option<u32>,
    close: Option<u32>,
    open: Option<String>,
) -> Result<Browsed, Problem> {
    let target_of = |number: u32| {
        let state = page.shared.state.borrow();
        let unknown = || Problem::Invalid { message: format!("there is no tab {number}") };
        state.tab(number).map(|tab| tab.target.clone()).ok_or_else(unknown)
    };
    if let Some(number) = close {
        let target = target_of(number)?;
        if page.shared.state.borrow().tabs.len() == 1 {
            // Without any tab there would be no browser.
            let blank = open_tab(&page.cdp, &page.shared, "about:blank").await?;
            page.shared.state.borrow_mut().active = blank;
        }
        page.cdp.call("", "Target.closeTarget", json!({ "targetId": target })).await.map_err(refused)?;
        let gone = page.shared.until(|state| state.tab(number).is_none().then_some(()));
        // A page may ask whether it may be left; then its dialog tells.
        let _ = timeout(page.budget(BEGIN_PATIENCE), gone).await;
    }
    if let Some(number) = select {
        let target = target_of(number)?;
        drop(page.cdp.send("", "Target.activateTarget", json!({ "targetId": target })));
        page.shared.state.borrow_mut().active = number;
    }
    if let Some(url) = open {
        let number = open_tab(&page.cdp, &page.shared, "about:blank").await?;
        page.shared.state.borrow_mut().active = number;
        let opened = Page { number, ..page.clone() };
        goto(&opened, &url).await?;
    }
    let active = page.shared.state.borrow().active;
    let active = Page { number: active, ..page.clone() };
    active.arrive(page.budget(BEGIN_PATIENCE)).await?;
    active.describe().await?;
    // A tab that is not in use tells of its title once, when it has none yet.
    let mut targets = page.cdp.call("", "Target.getTargets", json!({})).await.map_err(refused)?;
    let mut state = page.shared.state.borrow_mut();
    for target in targets["targetInfos"].as_array_mut().map(std::mem::take).unwrap_or_default() {
        if let (Some(id), Some(title)) = (target["targetId"].as_str(), target["title"].as_str())
            && let Some(tab) = state.of_target(id)
        {
            tab.title = said(title, 500);
        }
    }
    Ok(Browsed::default())
}

async fn wait_for(
    page: &Page,
    text: Option<String>,
    target: Option<String>,
    url: Option<String>,
    idle: bool,
) -> Result<Browsed, Problem> {
    let mut wanted = Vec::new();
    wanted.extend(text.as_ref().map(|text| format!("the text {:?}", line_of(text, 200))));
    wanted.extend(target.as_ref().map(|target| format!("the element {}", line_of(target, 200))));
    wanted.extend(url.as_ref().map(|url| format!("an address with {:?}", line_of(url, 200))));
    wanted.extend((idle || wanted.is_empty()).then(|| "a quiet page".to_owned()));
    let idle = idle || wanted.len() == 1 && text.is_none() && target.is_none() && url.is_none();
    let question = format!("__bj.present({})", json!({ "text": text, "target": target }));
    // A little earlier than the call's own limit, to say what was waited for.
    let end = page.deadline - (page.deadline.saturating_duration_since(Instant::now()) / 20);
    let mut quiet_since = None;
    loop {
        let now = Instant::now();
        let (address, busy) = page.tab(|tab| {
            (tab.url.clone(), !tab.loaded || tab.navigating.is_some() || !tab.requests.is_empty())
        })?;
        quiet_since = if busy { None } else { quiet_since.or(Some(now)) };
        let there = url.as_ref().is_none_or(|url| address.contains(url.as_str()))
            && (!idle || quiet_since.is_some_and(|since| now >= since + IDLE))
            && (text.is_none() && target.is_none() || present(page, &question).await?);
        if there {
            return Ok(Browsed::default());
        }
        if now >= end {
            let message = format!("waited in vain for {}", wanted.join(" and "));
            return Err(Problem::TimedOut { message });
        }
        sleep(POLL).await;
    }
}

/// In any frame.
async fn present(page: &Page, question: &str) -> Result<bool, Problem> {
    for (at, frame) in page.frames()?.iter().take(20).enumerate() {
        match timeout(page.budget(Duration::from_secs(1)), page.eval(frame, question)).await {
            Ok(Ok(Value::Bool(true))) => return Ok(true),
            Ok(Err(problem @ Problem::Crashed { .. })) if at == 0 => return Err(problem),
            _ => {}
        }
    }
    Ok(false)
}

async fn dialog(page: &Page, accept: bool, text: Option<String>) -> Result<Browsed, Problem> {
    let open = page.tab(|tab| tab.dialog.take())?;
    let Some(open) = open else { return Err(Problem::Invalid { message: "no dialog is open".into() }) };
    let mut params = json!({ "accept": accept });
    if let Some(text) = text {
        params["promptText"] = text.into();
    }
    page.acted()?;
    page.cdp.call(&open.session, "Page.handleJavaScriptDialog", params).await.map_err(refused)?;
    let how = if accept { "accepted" } else { "dismissed" };
    Ok(Browsed { changes: vec![format!("dialog {how}: {}", open.text)], ..Browsed::default() })
}
