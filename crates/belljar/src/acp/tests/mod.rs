//! The agent from its door to its model: real connections on both sides, no sandbox.

mod editor;
mod model;

use std::{fs, path::Path};

use serde_json::{Value, json};

use editor::Editor;
use model::{Model, Said, Style};

/// The kinds of updates about tool calls, with their status.
fn statuses(updates: &[Value]) -> Vec<String> {
    let status = |update: &Value| Some(update["status"].as_str()?.to_owned());
    updates.iter().filter_map(status).collect()
}

fn texts(updates: &[Value], kind: &str) -> String {
    let of = |update: &&Value| update["sessionUpdate"] == kind;
    updates.iter().filter(of).filter_map(|update| update["content"]["text"].as_str()).collect()
}

fn project() -> tempfile::TempDir {
    let project = tempfile::tempdir().unwrap();
    fs::write(project.path().join("a.py"), "def add(a, b):\n    return a - b\n").unwrap();
    project
}

fn read(path: &Path) -> String {
    fs::read_to_string(path.join("a.py")).unwrap()
}

fn edit() -> Said {
    Said::call("edit_file", json!({"path": "a.py", "old_text": "a - b", "new_text": "a + b"}))
}

#[tokio::test]
async fn a_task_is_worked_on_with_either_provider() {
    for style in [Style::OpenAi, Style::Anthropic] {
        let model = Model::start(
            style,
            vec![
                Said::thinks("Hm.").then_text("Let me look.").and_call("read_file", json!({"path": "a.py"})),
                edit(),
                Said::text("Mended."),
            ],
        )
        .await;
        let project = project();
        let mut editor = Editor::start(&model).await;
        let session = editor.new_session(project.path()).await;
        let answer = editor.prompt(&session, "mend add").await;
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        assert!(read(project.path()).contains("a + b"));
        let updates = &editor.updates;
        assert_eq!(statuses(updates), ["in_progress", "completed", "in_progress", "completed"]);
        assert_eq!(texts(updates, "agent_message_chunk"), "Let me look.Mended.");
        assert_eq!(texts(updates, "agent_thought_chunk"), "Hm.");
        let asked = &editor.asked[0]["params"];
        assert_eq!(asked["toolCall"]["content"][0]["type"], "diff");
        let kinds: Vec<_> =
            asked["options"].as_array().unwrap().iter().map(|option| &option["kind"]).collect();
        assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
        // What the tools returned went back to the model.
        assert!(model.asked()[1].to_string().contains("return a - b"));
    }
}

#[tokio::test]
async fn answers_for_good_hold_and_are_taken_back() {
    let model = Model::start(
        Style::OpenAi,
        vec![
            Said::call("write_file", json!({"path": "one", "content": "1"})),
            Said::call("write_file", json!({"path": "two", "content": "2"})),
            Said::text("Done."),
            Said::call("write_file", json!({"path": "three", "content": "3"})),
            Said::text("Not done."),
        ],
    )
    .await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    editor.answer = "allow_always";
    let session = editor.new_session(project.path()).await;
    editor.prompt(&session, "write").await;
    assert!(project.path().join("two").exists());
    assert_eq!(editor.asked.len(), 1);
    editor.updates.clear();
    editor.prompt(&session, "/permissions").await;
    assert!(texts(&editor.updates, "agent_message_chunk").contains("1. allowed: `write_file`"));
    editor.prompt(&session, "/permissions revoke all").await;
    editor.answer = "reject_once";
    editor.prompt(&session, "write more").await;
    assert!(!project.path().join("three").exists());
    assert!(model.asked()[4].to_string().contains("rejected"));
}

#[tokio::test]
async fn a_cancel_is_answered_at_every_stage() {
    let model = Model::start(
        Style::OpenAi,
        vec![
            Said::text("I begin").and_hang(),
            edit(),
            Said::call("edit_file", json!({"path": "a.py", "old_text": "x"})).and_hang(),
            Said::text("Here again."),
        ],
    )
    .await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    editor.answer = "";
    let session = editor.new_session(project.path()).await;
    for stage in ["agent_message_chunk", "session/request_permission", "tool_call"] {
        let id = editor.send_prompt(&session, "work").await;
        editor.until(stage).await;
        let second = editor.prompt(&session, "and this").await;
        assert_eq!(second["error"]["code"], -32600, "{second}");
        editor.notify("session/cancel", json!({"sessionId": session})).await;
        let answer = editor.answer_to(id).await;
        assert_eq!(answer["result"]["stopReason"], "cancelled", "{stage}: {answer}");
        // Nothing is left as if it went on.
        let open = editor.updates.iter().filter(|update| update["sessionUpdate"] == "tool_call").count();
        let ended = statuses(&editor.updates).iter().filter(|status| *status == "failed").count();
        assert_eq!(open, ended, "{stage}");
    }
    assert_eq!(editor.prompt(&session, "still there?").await["result"]["stopReason"], "end_turn");
    assert!(read(project.path()).contains("a - b"));
}

#[tokio::test]
async fn nonsense_is_told_to_the_model_and_bounded() {
    let model = Model::start(
        Style::OpenAi,
        vec![
            Said::call("no_such_tool", json!({})),
            Said::written("read_file", "{\"path\": "),
            Said::call("read_file", json!({"path": "../../etc/passwd"})),
            Said::call("search_files", json!({"pattern": "("})),
            Said::text("Sorry."),
            Said::raw("data: this is not JSON\n\n"),
            Said::status(401, "no such key"),
        ],
    )
    .await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    let session = editor.new_session(project.path()).await;
    let answer = editor.prompt(&session, "go").await;
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let asked = model.asked();
    let told = |at: usize, text: &str| assert!(asked[at].to_string().contains(text), "{at}: {}", asked[at]);
    told(1, "There is no tool");
    told(2, "not valid JSON");
    told(3, "outside of the project");
    told(4, "Invalid pattern");
    let broken = editor.prompt(&session, "again").await;
    assert_eq!(broken["error"]["code"], -32603, "{broken}");
    let refused = editor.prompt(&session, "again").await;
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("401"));
}

#[tokio::test]
async fn a_model_that_never_stops_is_stopped() {
    let again = || Said::call("search_files", json!({}));
    let model = Model::start(Style::OpenAi, (0..20).map(|_| again()).collect()).await;
    let project = project();
    let mut editor = Editor::with(&model, &[("acp.max_requests", "5")]).await;
    let session = editor.new_session(project.path()).await;
    let answer = editor.prompt(&session, "go").await;
    assert_eq!(answer["result"]["stopReason"], "max_turn_requests", "{answer}");
    assert_eq!(model.asked().len(), 5);
}

#[tokio::test]
async fn a_session_is_told_again_as_it_was() {
    let model = Model::start(
        Style::OpenAi,
        vec![
            Said::text("One ").then_text("two.").and_call("read_file", json!({"path": "a.py"})),
            Said::text("Done."),
            Said::text("I know."),
        ],
    )
    .await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    let session = editor.new_session(project.path()).await;
    editor.request("session/set_mode", json!({"sessionId": session, "modeId": "code"})).await;
    editor.prompt(&session, "look").await;
    let seen = std::mem::take(&mut editor.updates);
    let about_calls = |updates: &[Value]| -> Vec<Value> {
        updates.iter().filter(|update| update["toolCallId"].is_string()).cloned().collect()
    };
    let load = json!({"sessionId": session, "cwd": project.path(), "mcpServers": []});
    let loaded = editor.request("session/load", load).await;
    assert_eq!(loaded["result"]["modes"]["currentModeId"], "code", "{loaded}");
    let replayed = &editor.updates;
    assert_eq!(about_calls(replayed), about_calls(&seen));
    assert_eq!(texts(replayed, "agent_message_chunk"), texts(&seen, "agent_message_chunk"));
    assert_eq!(texts(replayed, "user_message_chunk"), "look");
    editor.prompt(&session, "what did I say?").await;
    // The model knows too.
    assert!(model.asked()[2].to_string().contains("One two."));
    let listed = editor.request("session/list", json!({"cwd": project.path()})).await;
    assert_eq!(listed["result"]["sessions"][0]["title"], "look", "{listed}");
    editor.request("session/delete", json!({"sessionId": session})).await;
    let gone = editor.request("session/resume", json!({"sessionId": session, "cwd": project.path()})).await;
    assert_eq!(gone["error"]["code"], -32002, "{gone}");
}

#[tokio::test]
async fn planning_changes_nothing_until_the_user_agrees() {
    let model = Model::start(
        Style::OpenAi,
        vec![
            Said::call("update_plan", json!({"entries": [{"content": "Mend add", "status": "pending"}]})),
            edit(),
            Said::call("switch_to_code", json!({"plan": "1. Mend add"})),
            edit(),
            Said::text("Done."),
        ],
    )
    .await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    editor.answer = "code";
    let session = editor.new_session(project.path()).await;
    let answer = editor.prompt(&session, "/plan mend add").await;
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert!(model.asked()[2].to_string().contains("in architect mode"));
    assert!(read(project.path()).contains("a + b"));
    assert_eq!(editor.asked.len(), 1, "{:?}", editor.asked);
    let plan = editor.updates.iter().find(|update| update["sessionUpdate"] == "plan").unwrap();
    assert_eq!(plan["entries"][0]["content"], "Mend add");
    let modes: Vec<_> = editor.updates.iter().filter_map(|update| update["currentModeId"].as_str()).collect();
    assert_eq!(modes, ["architect", "code"]);
}

#[tokio::test]
async fn a_long_conversation_is_summarized() {
    let long = "x".repeat(40_000);
    let model = Model::start(
        Style::OpenAi,
        vec![Said::text(&long), Said::text("We talked about x."), Said::text("Yes.")],
    )
    .await;
    let project = project();
    let mut editor = Editor::with(&model, &[("llm.context", "8000")]).await;
    let session = editor.new_session(project.path()).await;
    editor.prompt(&session, "say x").await;
    editor.updates.clear();
    editor.prompt(&session, "do you remember?").await;
    let asked = model.asked();
    assert!(asked[1].to_string().contains("Summarize our work"), "{}", asked[1]);
    assert!(asked[2].to_string().contains("We talked about x."));
    assert!(asked[2].to_string().len() < long.len());
    assert!(texts(&editor.updates, "agent_thought_chunk").contains("summarized"));
}

#[tokio::test]
async fn the_editors_buffers_count() {
    let model = Model::start(
        Style::OpenAi,
        vec![
            Said::call("edit_file", json!({"path": "a.py", "old_text": "unsaved", "new_text": "saved"})),
            Said::text("Done."),
        ],
    )
    .await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    editor.files.insert(project.path().join("a.py"), "it is unsaved\n".to_owned());
    editor.can(json!({"fs": {"readTextFile": true, "writeTextFile": true}})).await;
    let session = editor.new_session(project.path()).await;
    editor.prompt(&session, "save").await;
    assert_eq!(editor.files[&project.path().join("a.py")], "it is saved\n");
    assert!(read(project.path()).contains("a - b"));
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_told_precisely() {
    let model = Model::start(Style::OpenAi, Vec::new()).await;
    let project = project();
    let mut editor = Editor::start(&model).await;
    let session = editor.new_session(project.path()).await;
    let mut told = Vec::new();
    let servers =
        json!([{"name": "x", "command": "y", "args": 5, "env": [{"name": "KEY", "value": "hunter2"}]}]);
    for (method, params) in [
        ("session/new", json!({"cwd": "relative", "mcpServers": []})),
        ("session/new", json!({"cwd": "/does/not/exist", "mcpServers": []})),
        ("session/new", json!({"cwd": "/", "mcpServers": servers})),
        ("session/prompt", json!({"sessionId": "sess-none", "prompt": [{"type": "text", "text": "x"}]})),
        ("session/prompt", json!({"sessionId": session, "prompt": []})),
        (
            "session/prompt",
            json!({"sessionId": session, "prompt": [{"type": "audio", "data": "", "mimeType": "a/b"}]}),
        ),
        ("session/set_mode", json!({"sessionId": session, "modeId": "yolo"})),
        ("session/set_config_option", json!({"sessionId": session, "configId": "x", "value": "y"})),
        ("session/load", json!({"sessionId": "../../etc/passwd", "cwd": "/tmp", "mcpServers": []})),
        ("_belljar/unknown", json!({})),
    ] {
        let answer = editor.request(method, params).await;
        told.push(format!("{method}: {}", answer["error"]));
    }
    editor.notify("_belljar/unknown", json!({})).await;
    let told = told.join("\n");
    assert!(!told.contains("hunter2"), "{told}");
    insta::assert_snapshot!(told);
}

#[tokio::test]
async fn without_a_model_the_session_says_so() {
    let project = project();
    let mut editor = Editor::without_model().await;
    let session = editor.new_session(project.path()).await;
    let answer = editor.prompt(&session, "hello").await;
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert!(texts(&editor.updates, "agent_message_chunk").contains("OPENAI_API_KEY"));
    let refused = editor.request("authenticate", json!({"methodId": "api-key"})).await;
    assert_eq!(refused["error"]["code"], -32000);
}
