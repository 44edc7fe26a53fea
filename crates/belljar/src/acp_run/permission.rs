//! Answers to `session/request_permission`, by policy.

use std::io::{BufRead, IsTerminal, Write};

use agent_client_protocol::v1::schema::{
    PermissionOption, PermissionOptionKind, RequestPermissionOutcome, RequestPermissionRequest,
    SelectedPermissionOutcome, ToolKind,
};
use clap::ValueEnum;

use super::show::plain;

const MAX_OPTIONS: usize = 20;

/// What is allowed when the agent asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allow {
    /// Everything
    All,
    /// What the agent calls reading, searching or thinking
    Reads,
    /// Nothing
    None,
    /// What the person at the terminal allows
    Ask,
}

/// `None`: a person has to decide.
pub(super) fn decide(allow: Allow, request: &RequestPermissionRequest) -> Option<RequestPermissionOutcome> {
    let kind = request.tool_call.fields.kind.unwrap_or_default();
    let harmless = matches!(kind, ToolKind::Read | ToolKind::Search | ToolKind::Think);
    match allow {
        Allow::All => Some(pick(&request.options, true)),
        Allow::Reads => Some(pick(&request.options, harmless)),
        Allow::None => Some(pick(&request.options, false)),
        Allow::Ask => None,
    }
}

/// By the option's kind, never by its place or its name. For once only, if that is offered: the policy is ours to
/// remember, not the agent's. Without an option of the kind the request is cancelled.
fn pick(options: &[PermissionOption], allow: bool) -> RequestPermissionOutcome {
    use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let kinds = if allow { [AllowOnce, AllowAlways] } else { [RejectOnce, RejectAlways] };
    let found = kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind));
    found.map_or(RequestPermissionOutcome::Cancelled, selected)
}

fn selected(option: &PermissionOption) -> RequestPermissionOutcome {
    RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(option.option_id.clone()))
}

/// Blocks until the person has answered. Nobody there means no.
pub(super) fn ask(request: &RequestPermissionRequest) -> RequestPermissionOutcome {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return pick(&request.options, false);
    }
    let mut err = std::io::stderr().lock();
    let title = request.tool_call.fields.title.as_deref().unwrap_or("something without a title");
    let _ = writeln!(err, "\nThe agent asks: {}", plain(title, 300));
    let options: Vec<_> = request.options.iter().take(MAX_OPTIONS).collect();
    for (number, option) in options.iter().enumerate() {
        let _ = writeln!(err, "  {} {}", number + 1, plain(&option.name, 100));
    }
    let _ = write!(err, "Number, or nothing to refuse: ");
    let _ = err.flush();
    let mut answer = String::new();
    let read = stdin.lock().read_line(&mut answer);
    let chosen = answer.trim().parse::<usize>().ok().and_then(|number| options.get(number.checked_sub(1)?));
    match (read, chosen) {
        (Ok(1..), Some(option)) => selected(option),
        _ => pick(&request.options, false),
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol::v1::schema::{ToolCallUpdate, ToolCallUpdateFields};

    use super::*;

    fn request(kind: ToolKind, offered: &[PermissionOptionKind]) -> RequestPermissionRequest {
        let fields = ToolCallUpdateFields::new().kind(kind);
        let option =
            |kind: &PermissionOptionKind| PermissionOption::new(format!("{kind:?}"), "Yes, surely", *kind);
        RequestPermissionRequest::new(
            "s",
            ToolCallUpdate::new("t", fields),
            offered.iter().map(option).collect(),
        )
    }

    fn chosen(allow: Allow, kind: ToolKind, offered: &[PermissionOptionKind]) -> String {
        match decide(allow, &request(kind, offered)) {
            Some(RequestPermissionOutcome::Selected(selected)) => selected.option_id.to_string(),
            Some(_) => "cancelled".into(),
            None => "a person".into(),
        }
    }

    #[test]
    fn the_policy_decides_by_kind_and_for_once_where_it_can() {
        use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
        let all = [AllowAlways, RejectAlways, AllowOnce, RejectOnce];
        assert_eq!(chosen(Allow::All, ToolKind::Delete, &all), "AllowOnce");
        assert_eq!(chosen(Allow::All, ToolKind::Delete, &[RejectOnce, AllowAlways]), "AllowAlways");
        assert_eq!(chosen(Allow::All, ToolKind::Delete, &[RejectOnce]), "cancelled");
        assert_eq!(chosen(Allow::Reads, ToolKind::Read, &all), "AllowOnce");
        assert_eq!(chosen(Allow::Reads, ToolKind::Fetch, &all), "RejectOnce");
        assert_eq!(chosen(Allow::Reads, ToolKind::Other, &all), "RejectOnce");
        assert_eq!(chosen(Allow::None, ToolKind::Read, &all), "RejectOnce");
        assert_eq!(chosen(Allow::None, ToolKind::Read, &[AllowOnce]), "cancelled");
        assert_eq!(chosen(Allow::Ask, ToolKind::Read, &all), "a person");
    }
}
