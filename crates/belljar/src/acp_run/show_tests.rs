use std::sync::Arc;

use agent_client_protocol::v1::schema::{
    ContentChunk, PermissionOption, PermissionOptionKind, PlanEntry, PlanEntryPriority,
    SelectedPermissionOutcome, ToolCall, ToolCallUpdate, ToolCallUpdateFields,
};

use super::*;

#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn message(text: &str) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(ContentChunk::new(text.into()))
}

fn printed(json: bool) -> String {
    let paper = Paper::default();
    let printer = Printer::to(Box::new(paper.clone()), json, false);
    printer.begun(&NewSessionResponse::new("sess-1"));
    printer.prompt("fix the tests\nplease");
    printer.update(&SessionUpdate::AgentThoughtChunk(ContentChunk::new("let me ".into())));
    printer.update(&SessionUpdate::AgentThoughtChunk(ContentChunk::new("think".into())));
    printer.update(&message("I will \x1b[2Jread"));
    printer.update(&message(" it.\n"));
    let step = |text: &str, status| PlanEntry::new(text, PlanEntryPriority::High, status);
    let steps =
        vec![step("read", PlanEntryStatus::Completed), step("edit\n\u{202e}it", PlanEntryStatus::Pending)];
    printer.update(&SessionUpdate::Plan(Plan::new(steps)));
    printer.update(&SessionUpdate::ToolCall(ToolCall::new("c1", "Read a.py").kind(ToolKind::Read)));
    printer.served("read", "/home/ann/shop/a.py");
    let fields = ToolCallUpdateFields::new().status(ToolCallStatus::Completed);
    let text: String = (0..20).map(|n| format!("line {n}\n")).collect();
    let fields = fields.content(vec![text.into()]);
    printer.update(&SessionUpdate::ToolCallUpdate(ToolCallUpdate::new("c1", fields)));
    let edit = ToolCall::new("c2", "Edit a.py").kind(ToolKind::Edit).status(ToolCallStatus::InProgress);
    printer.update(&SessionUpdate::ToolCall(edit));
    let fields = ToolCallUpdateFields::new().title("Edit a.py".to_owned()).kind(ToolKind::Edit);
    let option = PermissionOption::new("o", "Sure", PermissionOptionKind::AllowOnce);
    let request = RequestPermissionRequest::new("sess-1", ToolCallUpdate::new("c2", fields), vec![option]);
    printer.permission(&request, &RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new("o")));
    let diff = Diff::new("/home/ann/shop/a.py", "a\nB\nc\n").old_text("a\nb\nc\n".to_owned());
    let fields = ToolCallUpdateFields::new().status(ToolCallStatus::Failed).content(vec![diff.into()]);
    printer.update(&SessionUpdate::ToolCallUpdate(ToolCallUpdate::new("c2", fields)));
    let run = ToolCall::new("c3", "`pytest`").kind(ToolKind::Execute).status(ToolCallStatus::InProgress);
    printer.update(&SessionUpdate::ToolCall(run));
    let output = Meta::from_iter([("terminal_output".to_owned(), json!({"data": "1 passed\x1b[0m\n"}))]);
    let update = ToolCallUpdate::new("c3", ToolCallUpdateFields::new()).meta(output);
    printer.update(&SessionUpdate::ToolCallUpdate(update));
    let fields = ToolCallUpdateFields::new().status(ToolCallStatus::Completed);
    printer.update(&SessionUpdate::ToolCallUpdate(ToolCallUpdate::new("c3", fields)));
    printer.update(&message("Done"));
    printer.ended(&Ending::Stopped(StopReason::EndTurn));
    let bytes = paper.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_session_is_pleasant_to_read() {
    insta::assert_snapshot!(printed(false));
}

#[test]
fn a_session_as_json_is_one_object_per_line() {
    let text = printed(true);
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..3], ["session", "prompt", "update"]);
    assert_eq!(events[2]["update"]["sessionUpdate"], "agent_thought_chunk");
    assert_eq!(events.last().unwrap(), &json!({"type": "end", "end": {"reason": "end_turn"}}));
    let permission = events.iter().find(|event| event["type"] == "permission").unwrap();
    assert_eq!(permission["permission"]["outcome"], json!({"outcome": "selected", "optionId": "o"}));
}

#[test]
fn nothing_from_an_agent_moves_the_cursor() {
    assert_eq!(
        plain("a\x1b[31m\x07\u{9b}b\r\nc\td\u{202e}", 100),
        "a\u{fffd}[31m\u{fffd}\u{fffd}b c d\u{fffd}"
    );
    assert_eq!(plain("ééé", 2), "éé…");
    assert_eq!(lines("a\r\nb\n", 100), "a\nb\n");
    assert_eq!(words("AllowAlways"), "allow always");
}
