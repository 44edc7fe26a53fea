//! Keeping the conversation within what the model can read: what is older is summarized, by the model itself.

use agent_client_protocol::v1::schema::{
    CompactionId, CompactionStatus, CompactionUpdate, ContentBlock, SessionUpdate,
};

use super::{
    history::{self, Message},
    session::{Session, Turn},
    text,
};

/// Of the window, in percent: from here on there is no room for another answer.
const FULL: u64 = 80;
/// What is kept as it is, of the window, in percent.
const KEPT: u64 = 25;
const MAX_SUMMARY: usize = 24_000;
const ORDER: &str = "Summarize our work so far for yourself, so that you can go on without the conversation: what the \
    developer wants, in their own words where they matter; what was found out; which files were changed and how; what \
    is still to be done. Do not call tools.";

/// Makes room if there is need of it; tells the user.
pub(crate) async fn make_room(turn: &Turn) {
    let session = &turn.session;
    let window = session.agent.models.window;
    if session.used() * 100 < window * FULL {
        return;
    }
    let history = session.history();
    let at = cut(&history, window * KEPT / 100);
    if at == 0 {
        return;
    }
    let id = CompactionId::new(uuid::Uuid::new_v4().to_string());
    show(session, &id, CompactionStatus::InProgress, None);
    let summary = tokio::select! {
        summary = summarize(session, &history[..at]) => summary,
        () = turn.cancel.cancelled() => {
            show(session, &id, CompactionStatus::Cancelled, None);
            return;
        }
    };
    let told = match &summary {
        Some(summary) => format!("[Summary of the conversation so far]\n{summary}"),
        // Better to forget than to be unable to go on.
        None => "[The beginning of the conversation was left out to make room.]".to_owned(),
    };
    // What came last may be too much by itself.
    let kept = shortened(&history[at..], window * 2 * KEPT / 100);
    session.begin_anew([Message::user(told)].into_iter().chain(kept).collect());
    let status = if summary.is_some() { CompactionStatus::Completed } else { CompactionStatus::Failed };
    show(session, &id, status, summary);
}

fn show(session: &Session, id: &CompactionId, status: CompactionStatus, summary: Option<String>) {
    if session.client.shows_compaction() {
        let mut update = CompactionUpdate::new(id.clone(), status);
        if let Some(summary) = summary {
            update = update.summary(vec![ContentBlock::from(summary)]);
        }
        session.show(SessionUpdate::CompactionUpdate(update));
    } else if matches!(status, CompactionStatus::Completed | CompactionStatus::Failed) {
        session.notice("The conversation became long, so its beginning is summarized from here on.");
    }
}

/// Where to cut, so that what follows fits and begins with something a user said. 0: nothing can be left out.
fn cut(history: &[Message], keep: u64) -> usize {
    let mut kept = 0;
    let mut at = history.len();
    for (index, message) in history.iter().enumerate().rev() {
        kept += message.tokens();
        if kept > keep && at < history.len() {
            break;
        }
        // A result must follow its call, and a call its result.
        if !matches!(message, Message::Results { .. }) {
            at = index;
        }
    }
    at
}

async fn summarize(session: &Session, history: &[Message]) -> Option<String> {
    let mut messages = shortened(history, session.agent.models.window * (FULL - 10) / 100);
    messages.push(Message::user(ORDER));
    let models = &session.agent.models;
    let mut answering = models.ask(&session.model(), "You summarize.", &messages, Vec::new()).await.ok()?;
    while answering.next().await.ok()?.is_some() {}
    let answer = answering.finish();
    let summary = text::bounded(answer.text.trim(), MAX_SUMMARY);
    (!summary.is_empty()).then_some(summary)
}

/// Long results are what fills a conversation; their ends tell enough.
fn shortened(history: &[Message], limit: u64) -> Vec<Message> {
    let mut messages = history.to_vec();
    for bytes in [4000, 1000, 200] {
        if history::tokens(&messages) <= limit {
            break;
        }
        for message in &mut messages {
            match message {
                Message::Results { results } => {
                    results.iter_mut().for_each(|result| result.text = text::bounded(&result.text, bytes));
                }
                Message::User { parts } => parts.retain(|part| !matches!(part, history::Part::Image { .. })),
                Message::Agent { thoughts, .. } => thoughts.clear(),
            }
        }
    }
    while history::tokens(&messages) > limit && messages.len() > 1 {
        messages.remove(0);
    }
    history::mend(messages)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::acp::history::{Call, CallResult};

    fn talk(rounds: usize, size: usize) -> Vec<Message> {
        (0..rounds)
            .flat_map(|round| {
                let id = format!("c{round}");
                let call = Call { id: id.clone(), name: "read_file".into(), arguments: Map::new() };
                let result = CallResult { id, name: "read_file".into(), text: "x".repeat(size) };
                [
                    Message::user(format!("round {round}")),
                    Message::Agent {
                        text: "so".into(),
                        calls: vec![call],
                        thoughts: vec![],
                        model: "m".into(),
                    },
                    Message::Results { results: vec![result] },
                ]
            })
            .collect()
    }

    #[test]
    fn what_is_kept_fits_and_is_whole() {
        let history = talk(10, 4000);
        let at = cut(&history, 3200);
        assert!(at > 0 && !matches!(history[at], Message::Results { .. }), "{at}");
        assert_eq!(history::mend(history[at..].to_vec()), history[at..]);
        assert_eq!(cut(&history, 1_000_000), 0);
        // The newest is kept whatever its size.
        let huge = talk(2, 1_000_000);
        assert!(cut(&huge, 10) < huge.len());
        assert_eq!(cut(&[], 10), 0);
    }

    #[test]
    fn what_is_summarized_fits_too() {
        let messages = shortened(&talk(50, 40_000), 5_000);
        assert!(history::tokens(&messages) <= 5_000);
        assert_eq!(history::mend(messages.clone()), messages);
    }
}
