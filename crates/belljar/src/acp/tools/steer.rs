//! What concerns the conversation itself: the plan, and the change from planning to doing.

use agent_client_protocol::v1::schema::{
    PermissionOption, PermissionOptionKind, Plan as AcpPlan, PlanEntry, PlanEntryPriority, PlanEntryStatus,
    RequestPermissionOutcome, RequestPermissionRequest, SessionUpdate, ToolCallContent, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind,
};
use serde::Deserialize;
use serde_json::json;

use super::{Done, Effect, Mode, Prepared, Scope, Spec, Work, Working};
use crate::acp::text;

pub(super) const PLAN: &str = "update_plan";
pub(crate) const SWITCH: &str = "switch_to_code";
const MAX_ENTRIES: usize = 100;
const MAX_ENTRY: usize = 1000;

pub(super) struct Plan(Vec<PlanEntry>);

pub(super) struct Switch {
    plan: String,
}

#[derive(Deserialize)]
pub(super) struct PlanArguments {
    entries: Vec<EntryArguments>,
}

#[derive(Deserialize)]
struct EntryArguments {
    content: String,
    #[serde(default)]
    status: Status,
    #[serde(default)]
    priority: Priority,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Status {
    #[default]
    Pending,
    InProgress,
    Completed,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Priority {
    High,
    #[default]
    Medium,
    Low,
}

#[derive(Deserialize)]
pub(super) struct SwitchArguments {
    plan: String,
}

pub(super) fn specs(mode: Mode) -> Vec<Spec> {
    let plan = Spec::own(
        PLAN,
        ToolKind::Think,
        Effect::None,
        "Show the developer the plan: all of its steps, each with how far it is. Call it again whenever a step begins \
         or ends.",
        json!({"type": "object", "properties": {
            "entries": {"type": "array", "items": {"type": "object", "properties": {
                "content": {"type": "string", "description": "What is to be done."},
                "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
                "priority": {"type": "string", "enum": ["high", "medium", "low"]},
            }, "required": ["content", "status"]}},
        }, "required": ["entries"]}),
    );
    let switch = Spec::own(
        SWITCH,
        ToolKind::SwitchMode,
        Effect::None,
        "The plan is complete: show it to the developer and ask to begin with the work.",
        json!({"type": "object", "properties": {
            "plan": {"type": "string", "description": "The whole plan, in Markdown."},
        }, "required": ["plan"]}),
    );
    let switch = (mode == Mode::Architect).then_some(switch);
    [plan].into_iter().chain(switch).collect()
}

pub(super) fn prepare_plan(arguments: PlanArguments) -> Result<Prepared, String> {
    if arguments.entries.len() > MAX_ENTRIES {
        return Err(format!("A plan has at most {MAX_ENTRIES} entries"));
    }
    let entry = |entry: EntryArguments| {
        let status = match entry.status {
            Status::Pending => PlanEntryStatus::Pending,
            Status::InProgress => PlanEntryStatus::InProgress,
            Status::Completed => PlanEntryStatus::Completed,
        };
        let priority = match entry.priority {
            Priority::High => PlanEntryPriority::High,
            Priority::Medium => PlanEntryPriority::Medium,
            Priority::Low => PlanEntryPriority::Low,
        };
        PlanEntry::new(text::bounded(&entry.content, MAX_ENTRY), priority, status)
    };
    let entries = arguments.entries.into_iter().map(entry).collect();
    Ok(prepared("Update the plan", PLAN, ToolKind::Think, Work::Plan(Plan(entries))))
}

pub(super) fn prepare_switch(arguments: SwitchArguments) -> Prepared {
    let preview = vec![ToolCallContent::from(text::bounded(&arguments.plan, text::MAX_SHOWN))];
    let work = Work::Switch(Switch { plan: arguments.plan });
    Prepared { preview, ..prepared("Begin with the work", SWITCH, ToolKind::SwitchMode, work) }
}

fn prepared(title: &str, tool: &str, kind: ToolKind, work: Work) -> Prepared {
    Prepared {
        title: title.to_owned(),
        kind,
        effect: Effect::None,
        scope: Scope { tool: tool.to_owned(), part: String::new() },
        locations: Vec::new(),
        preview: Vec::new(),
        work,
    }
}

pub(super) fn plan(cx: &Working<'_>, plan: Plan) -> Done {
    cx.session.tell(SessionUpdate::Plan(AcpPlan::new(plan.0)));
    Done { text: "The developer sees the plan.".into(), ..Done::default() }
}

pub(super) async fn switch(cx: &Working<'_>, switch: Switch) -> Done {
    let option = |id: &'static str, name: &str, kind| PermissionOption::new(id, name, kind);
    let options = vec![
        option("code", "Yes, work by yourself", PermissionOptionKind::AllowAlways),
        option("ask", "Yes, but ask before each change", PermissionOptionKind::AllowOnce),
        option("architect", "No, go on planning", PermissionOptionKind::RejectOnce),
    ];
    let fields = ToolCallUpdateFields::new()
        .title("Begin with the work?".to_owned())
        .kind(ToolKind::SwitchMode)
        .content(vec![ToolCallContent::from(text::bounded(&switch.plan, text::MAX_SHOWN))]);
    let call = ToolCallUpdate::new(cx.call.clone(), fields);
    let request = RequestPermissionRequest::new(cx.session.id.clone(), call, options);
    let chosen = match cx.session.client.ask(request).await {
        Ok(answer) => match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => Mode::from_id(&selected.option_id.0),
            _ => None,
        },
        Err(error) => return Done::failed(format!("The developer could not be asked: {}", error.message)),
    };
    match chosen {
        Some(mode) if mode != Mode::Architect => {
            cx.session.set_mode(mode, true);
            Done::said(format!(
                "The developer approves. You are in {} mode now: carry out the plan.",
                mode.id()
            ))
        }
        _ => Done::failed("The developer wants to go on planning: ask what is missing."),
    }
}
