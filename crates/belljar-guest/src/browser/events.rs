//! What the browser tells, put into [`State`].

use belljar_proto::MAX_TABS;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    WALKER, WORLD,
    cdp::{Cdp, Event},
    state::{Dealt, Dialog, MAX_LOG_LINE, Navigating, Shared, State, Tab},
    text::{address, line_of, said},
    watch,
};

/// What the walker tells by itself, when a page has loaded or dealt with input. Only our world has it.
const TOLD: &str = "belljarTold";

/// Address, title, and of input its number and whether it missed.
#[derive(Deserialize)]
struct Told(String, String, #[serde(default)] Option<u64>, #[serde(default)] bool);

/// After so many alerts in a row the script is ended that makes them.
const MAX_ALERTS: u32 = 20;
/// As large as most screens that pages are made for.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 800;
/// Where the mouse is said to be when it wakes the browser.
pub(super) const WAKING: (u32, u32) = (3, 5);

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(super) fn handle(shared: &Shared, cdp: &Cdp, event: &Event) {
    // Most of what is told is of no interest; it is not even parsed.
    let Some((domain, name)) = event.method.split_once('.') else { return };
    let handler = match domain {
        "Target" => target,
        "Page" => page,
        "Runtime" => runtime,
        "Network" => network,
        "Browser" => browser,
        _ => return,
    };
    if let Some(params) = event.params::<Value>() {
        handler(&mut shared.state.borrow_mut(), cdp, event.session, name, &params);
        shared.touch();
    }
}

/// Asks a new session to tell what we want to know, and puts the walker into its documents.
fn set_up(cdp: &Cdp, session: &str, is_page: bool) {
    let walker = json!({ "source": WALKER, "worldName": WORLD, "runImmediately": true });
    let attach = json!({ "autoAttach": true, "waitForDebuggerOnStart": true, "flatten": true });
    let nothing = || json!({});
    let mut calls = vec![
        ("Page.enable", nothing()),
        ("Page.setLifecycleEventsEnabled", json!({ "enabled": true })),
        ("Runtime.enable", nothing()),
        ("Runtime.addBinding", json!({ "name": TOLD, "executionContextName": WORLD })),
        ("Page.addScriptToEvaluateOnNewDocument", walker),
        ("Network.enable", nothing()),
        ("Target.setAutoAttach", attach),
        ("Emulation.setFocusEmulationEnabled", json!({ "enabled": true })),
    ];
    if is_page {
        let metrics = json!({ "width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false });
        calls.push(("Emulation.setDeviceMetricsOverride", metrics));
    }
    calls.push(("Runtime.runIfWaitingForDebugger", nothing()));
    for (method, params) in calls {
        // What fails shows when a document does not answer.
        drop(cdp.send(session, method, params));
    }
}

fn target(state: &mut State, cdp: &Cdp, parent: &str, name: &str, params: &Value) {
    let info = &params["targetInfo"];
    match name {
        "attachedToTarget" => {
            let (session, target) = (text(params, "sessionId"), text(info, "targetId"));
            match text(info, "type") {
                "page" => {
                    if let Some(oldest) = state.add_tab(target, session, text(info, "url")) {
                        drop(cdp.send("", "Target.closeTarget", json!({ "targetId": oldest })));
                    }
                    set_up(cdp, session, true);
                }
                "iframe" => {
                    let Some(&number) = state.sessions.get(parent) else { return };
                    if let Some(tab) = state.tab_mut(number)
                        && let Some(frame) = tab.frame(target)
                    {
                        frame.session = session.into();
                        frame.context = None;
                        state.sessions.insert(session.into(), number);
                    }
                    set_up(cdp, session, false);
                }
                // Workers and the like go on without us.
                _ => {
                    drop(cdp.send(session, "Runtime.runIfWaitingForDebugger", json!({})));
                    drop(cdp.send(parent, "Target.detachFromTarget", json!({ "sessionId": session })));
                }
            }
        }
        "detachedFromTarget" => {
            let session = text(params, "sessionId");
            state.doomed.remove(session);
            let Some(number) = state.sessions.remove(session) else { return };
            if state.tab(number).is_some_and(|tab| tab.session == session) {
                state.note(&format!("tab {number} was closed"));
                state.remove_tab(number);
            }
        }
        "targetInfoChanged" => {
            if let Some(tab) = state.of_target(text(info, "targetId")) {
                (tab.url, tab.title) = (address(text(info, "url")), said(text(info, "title"), 500));
            }
        }
        "targetCrashed" => {
            if let Some(tab) = state.of_target(text(params, "targetId")) {
                tab.crashed = true;
            }
        }
        _ => {}
    }
}

fn page(state: &mut State, cdp: &Cdp, session: &str, name: &str, params: &Value) {
    if name == "screencastFrame" {
        return watch::frame(&mut state.screen, cdp, session, params);
    }
    if name == "windowOpen" {
        state.due = state.due.saturating_add(1);
    }
    if name == "windowOpen" && state.opening.len() < MAX_TABS {
        state.opening.push_back(address(text(params, "url")));
    }
    let mut note = None;
    let active = state.active;
    let Some(tab) = state.of_session(session) else { return };
    let frame = text(params, "frameId");
    let is_main = frame == tab.target;
    match name {
        "frameAttached" => tab.attach_frame(frame, text(params, "parentFrameId"), session),
        // In a swap it goes on in another process.
        "frameDetached" if text(params, "reason") != "swap" => tab.remove_frame(frame),
        "frameNavigated" => {
            note = navigated(tab, session, &params["frame"]);
            if note.is_some() {
                wake_input(cdp, session);
            }
            // Nothing is loaded again, so nothing will be told of it.
            if note.is_some() && text(params, "type") == "BackForwardCacheRestore" {
                (tab.ready, tab.loaded) = (true, true);
            }
            // Where the others go is in the list of tabs.
            note = note.filter(|_| tab.number == active);
        }
        "navigatedWithinDocument" if is_main => {
            tab.url = address(text(params, "url"));
            tab.navigating = None;
            tab.arrivals += 1;
        }
        "frameRequestedNavigation" if is_main && text(params, "disposition") == "currentTab" => {
            tab.navigating.get_or_insert(Navigating { since: Instant::now(), started: false });
        }
        "frameStartedNavigating" if is_main && !text(params, "navigationType").contains("ameDocument") => {
            tab.navigating = Some(Navigating { since: Instant::now(), started: true });
        }
        "frameStoppedLoading" if is_main => tab.navigating = None,
        "lifecycleEvent" if is_main => {
            let name = text(params, "name");
            if matches!(name, "init" | "commit" | "DOMContentLoaded" | "load") {
                // A tab that is new may have gone on before it told of anything.
                tab.begin_document(text(params, "loaderId"));
                tab.ready |= matches!(name, "DOMContentLoaded" | "load");
                tab.loaded |= name == "load";
            }
        }
        "javascriptDialogOpening" => note = dialog(tab, cdp, session, params),
        "javascriptDialogClosed" => tab.dialog = None,
        _ => {}
    }
    if let Some(note) = note {
        state.note(&note);
    }
}

/// The first input to a document makes the browser draw its window anew, which on a large page takes longer than the input
/// itself. This one is kept from the page, so that it is over before something is done.
fn wake_input(cdp: &Cdp, session: &str) {
    let ignore = |ignore: bool| json!({ "ignore": ignore });
    let (x, y) = WAKING;
    drop(cdp.send(session, "Input.setIgnoreInputEvents", ignore(true)));
    drop(cdp.send(session, "Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y })));
    drop(cdp.send(session, "Input.setIgnoreInputEvents", ignore(false)));
}

fn navigated(tab: &mut Tab, session: &str, frame: &Value) -> Option<String> {
    let id = text(frame, "id");
    if let Some(parent) = frame["parentId"].as_str()
        && tab.frames.get(id).is_none_or(|known| known.parent.is_none())
    {
        tab.attach_frame(id, parent, session);
    }
    let known = tab.frame(id)?;
    if known.session != session {
        known.context = None;
        known.session = session.into();
    }
    known.loader = text(frame, "loaderId").into();
    if id != tab.target {
        return None;
    }
    tab.url = address(text(frame, "url"));
    tab.navigating = None;
    tab.alerts = 0;
    tab.arrivals += 1;
    tab.requests.clear();
    tab.begin_document(text(frame, "loaderId"));
    Some(format!("navigated to {}", tab.url))
}

fn dialog(tab: &mut Tab, cdp: &Cdp, session: &str, params: &Value) -> Option<String> {
    let (kind, message) = (text(params, "type"), said(text(params, "message"), 300));
    let told = match kind {
        "beforeunload" => "beforeunload \"the page asks whether to leave it\"".into(),
        "prompt" => {
            format!("prompt {message:?} (suggests {:?})", said(text(params, "defaultPrompt"), 100))
        }
        _ => format!("{kind} {message:?}"),
    };
    if kind != "alert" {
        tab.dialog = Some(Dialog { text: told.clone(), session: session.into() });
        return Some(format!("dialog opened: {told}"));
    }
    tab.alerts += 1;
    drop(cdp.send(session, "Page.handleJavaScriptDialog", json!({ "accept": true })));
    if tab.alerts > 0 && tab.alerts.is_multiple_of(MAX_ALERTS) {
        drop(cdp.send(session, "Runtime.terminateExecution", json!({})));
        return Some("the page showed alerts in a loop; its script was ended".into());
    }
    Some(format!("dialog opened and accepted: {told}"))
}

fn runtime(state: &mut State, cdp: &Cdp, session: &str, name: &str, params: &Value) {
    if name == "executionContextCreated"
        && text(&params["context"], "name") == WORLD
        && let Some(target) = state.doomed.remove(session)
    {
        drop(cdp.send("", "Target.closeTarget", json!({ "targetId": target })));
        return;
    }
    let Some(tab) = state.of_session(session) else { return };
    match name {
        "executionContextCreated" => {
            let context = &params["context"];
            if text(context, "name") == WORLD
                && let Some(frame) = tab.frames.get_mut(text(&context["auxData"], "frameId"))
            {
                frame.context = context["id"].as_i64();
                frame.session = session.into();
            }
        }
        "executionContextDestroyed" => {
            let gone = params["executionContextId"].as_i64();
            for frame in tab.frames.values_mut().filter(|f| f.session == session && f.context == gone) {
                frame.context = None;
            }
        }
        "executionContextsCleared" => {
            for frame in tab.frames.values_mut().filter(|frame| frame.session == session) {
                frame.context = None;
            }
        }
        "bindingCalled" if text(params, "name") == TOLD => {
            let context = params["executionContextId"].as_i64();
            if let Ok(Told(url, title, input, missed)) = serde_json::from_str(text(params, "payload"))
                && context.is_some()
                && tab.frames.get(&tab.target).is_some_and(|main| main.context == context)
            {
                (tab.url, tab.title) = (address(&url), said(&title, 500));
                match input {
                    None => tab.told = true,
                    Some(id) => tab.dealt = Some(Dealt { id, missed }),
                }
            }
        }
        "consoleAPICalled" => {
            let shown = |value: &Value| match &value["value"] {
                Value::String(text) => line_of(text, MAX_LOG_LINE),
                Value::Null => line_of(
                    value["description"].as_str().or(value["type"].as_str()).unwrap_or_default(),
                    MAX_LOG_LINE,
                ),
                other => line_of(&other.to_string(), MAX_LOG_LINE),
            };
            let arguments = params["args"].as_array().map(Vec::as_slice).unwrap_or_default();
            let shown: Vec<String> = arguments.iter().take(20).map(shown).collect();
            tab.log(&format!("{}: {}", text(params, "type"), shown.join(" ")));
        }
        "exceptionThrown" => {
            let details = &params["exceptionDetails"];
            let description = details["exception"]["description"].as_str();
            tab.log(&format!("uncaught: {}", description.unwrap_or(text(details, "text"))));
        }
        _ => {}
    }
}

/// What a page shows may depend on these. Documents are not among them: where they end up, another process may tell.
fn is_waited_for(kind: &str) -> bool {
    matches!(kind, "XHR" | "Fetch" | "Script" | "Stylesheet")
}

fn network(state: &mut State, _: &Cdp, session: &str, name: &str, params: &Value) {
    let Some(tab) = state.of_session(session) else { return };
    let id = text(params, "requestId");
    match name {
        "requestWillBeSent" => {
            let request = &params["request"];
            let url = text(request, "url");
            if !url.starts_with("data:") {
                let what = format!("{} {url}", text(request, "method"));
                tab.begin_request(id, &what, is_waited_for(text(params, "type")));
            }
        }
        "responseReceived" => {
            let response = &params["response"];
            tab.request_result(id, &format!("{} {}", response["status"], text(response, "mimeType")));
        }
        "loadingFinished" => tab.end_request(id),
        "loadingFailed" => {
            tab.end_request(id);
            tab.request_result(id, &format!("failed: {}", text(params, "errorText")));
        }
        _ => {}
    }
}

fn browser(state: &mut State, _: &Cdp, _: &str, name: &str, params: &Value) {
    const MAX_DOWNLOADS: usize = 100;
    let guid = text(params, "guid");
    match name {
        "downloadWillBegin" if state.downloads.len() < MAX_DOWNLOADS => {
            let file = said(text(params, "suggestedFilename"), 200);
            state.note(&format!("download started: {file}"));
            state.downloads.insert(guid.into(), file);
        }
        "downloadProgress" => {
            let (now, bytes) = (text(params, "state"), params["receivedBytes"].as_f64().unwrap_or_default());
            let Some(file) = (now != "inProgress").then(|| state.downloads.remove(guid)).flatten() else {
                return;
            };
            let path =
                params["filePath"].as_str().map(|path| said(path, 2000)).filter(|path| !path.is_empty());
            let path = path.unwrap_or_else(|| format!("{}/{file}", super::DOWNLOADS));
            state.note(&match now {
                "completed" => format!("download: {path} ({bytes} bytes)"),
                _ => format!("download of {file} was cancelled after {bytes} bytes"),
            });
        }
        _ => {}
    }
}
