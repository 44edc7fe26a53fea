//! The conversation as the model sees it. Kept in the session's log, so its shape outlives this build.

use genai::chat::{ChatMessage, ContentPart, MessageContent, ToolCall, ToolResponse};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What stands in for the result of a call that was never finished.
const INTERRUPTED: &str =
    "The agent was stopped before this call was finished. It may have had an effect: look first.";
/// Bytes that make about one token.
const BYTES_PER_TOKEN: u64 = 4;
const TOKENS_PER_IMAGE: u64 = 1500;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(crate) enum Message {
    User {
        parts: Vec<Part>,
    },
    Agent {
        text: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Call>,
        /// What the provider wants to see again, as it was, from the model that said it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        thoughts: Vec<Value>,
        #[serde(default)]
        model: String,
    },
    Results {
        results: Vec<CallResult>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part {
    Text {
        text: String,
    },
    Image {
        mime: String,
        /// Base64.
        data: String,
    },
}

/// What the model asked for, made fit to be sent back to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallResult {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Message {
    pub(crate) fn user(text: impl Into<String>) -> Self {
        Self::User { parts: vec![Part::Text { text: text.into() }] }
    }

    pub(crate) fn tokens(&self) -> u64 {
        let bytes = |text: &str| text.len() as u64 / BYTES_PER_TOKEN + 4;
        match self {
            Self::User { parts } => parts
                .iter()
                .map(|part| match part {
                    Part::Text { text } => bytes(text),
                    Part::Image { .. } => TOKENS_PER_IMAGE,
                })
                .sum(),
            Self::Agent { text, calls, thoughts, .. } => {
                let json = |value: &dyn Fn() -> String| value().len() as u64 / BYTES_PER_TOKEN;
                let calls =
                    calls.iter().map(|call| 10 + json(&|| Value::Object(call.arguments.clone()).to_string()));
                let thoughts = thoughts.iter().map(|thought| json(&|| thought.to_string()));
                bytes(text) + calls.sum::<u64>() + thoughts.sum::<u64>()
            }
            Self::Results { results } => results.iter().map(|result| bytes(&result.text)).sum(),
        }
    }
}

pub(crate) fn tokens(history: &[Message]) -> u64 {
    history.iter().map(Message::tokens).sum()
}

/// A history that any provider takes: every call has its result, right after it, and results have their calls.
pub(crate) fn mend(history: Vec<Message>) -> Vec<Message> {
    let mut mended: Vec<Message> = Vec::with_capacity(history.len());
    let mut open: Vec<Call> = Vec::new();
    let close = |mended: &mut Vec<Message>, open: &mut Vec<Call>| {
        let missing: Vec<_> = open
            .drain(..)
            .map(|call| CallResult { id: call.id, name: call.name, text: INTERRUPTED.to_owned() })
            .collect();
        if missing.is_empty() {
            return;
        }
        match mended.last_mut() {
            Some(Message::Results { results }) => results.extend(missing),
            _ => mended.push(Message::Results { results: missing }),
        }
    };
    for message in history {
        match message {
            Message::Results { results } => {
                let mut known = Vec::new();
                for result in results {
                    if let Some(at) = open.iter().position(|call| call.id == result.id) {
                        open.remove(at);
                        known.push(result);
                    }
                }
                match mended.last_mut() {
                    _ if known.is_empty() => {}
                    // They are logged one by one, as they come in.
                    Some(Message::Results { results }) => results.extend(known),
                    _ => mended.push(Message::Results { results: known }),
                }
            }
            other => {
                close(&mut mended, &mut open);
                if let Message::Agent { calls, .. } = &other {
                    open.clone_from(calls);
                }
                mended.push(other);
            }
        }
    }
    close(&mut mended, &mut open);
    mended
}

/// As the model's library has it. Thoughts go back only to the model that had them.
pub(crate) fn for_model(history: &[Message], model: &str) -> Vec<ChatMessage> {
    let message = |message: &Message| match message {
        Message::User { parts } => {
            let parts: Vec<ContentPart> = parts.iter().map(content).collect();
            ChatMessage::user(MessageContent::from_parts(parts))
        }
        Message::Agent { text, calls, thoughts, model: by } => {
            let thoughts = thoughts.iter().filter(|_| by == model);
            let mut parts: Vec<ContentPart> =
                thoughts.filter_map(|thought| serde_json::from_value(thought.clone()).ok()).collect();
            if !text.is_empty() || calls.is_empty() {
                // Providers refuse a message that says nothing.
                let text = if text.is_empty() { "(no answer)" } else { text };
                parts.push(ContentPart::Text(text.to_owned()));
            }
            parts.extend(calls.iter().map(|call| {
                ContentPart::ToolCall(ToolCall {
                    call_id: call.id.clone(),
                    fn_name: call.name.clone(),
                    fn_arguments: Value::Object(call.arguments.clone()),
                    thought_signatures: None,
                })
            }));
            ChatMessage::assistant(MessageContent::from_parts(parts))
        }
        Message::Results { results } => {
            let response = |result: &CallResult| {
                ToolResponse::new(result.id.clone(), result.text.clone()).with_fn_name(result.name.clone())
            };
            ChatMessage::from(results.iter().map(response).collect::<Vec<_>>())
        }
    };
    history.iter().map(message).collect()
}

fn content(part: &Part) -> ContentPart {
    match part {
        Part::Text { text } => ContentPart::Text(text.clone()),
        Part::Image { mime, data } => ContentPart::from_binary_base64(mime.clone(), data.as_str(), None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn agent(ids: &[&str]) -> Message {
        let call = |id: &&str| Call { id: (*id).into(), name: "run_code".into(), arguments: Map::new() };
        let calls = ids.iter().map(call).collect();
        Message::Agent { text: "so".into(), calls, thoughts: Vec::new(), model: "m".into() }
    }

    fn results(ids: &[&str]) -> Message {
        let result =
            |id: &&str| CallResult { id: (*id).into(), name: "run_code".into(), text: "done".into() };
        Message::Results { results: ids.iter().map(result).collect() }
    }

    #[test]
    fn calls_that_were_cut_off_get_a_result() {
        let cut = vec![Message::user("go"), agent(&["a", "b"]), results(&["b"])];
        let mended = mend(cut);
        let Message::Results { results: told } = &mended[2] else { panic!("{mended:?}") };
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].text.as_str(), told[1].text.as_str()), ("done", INTERRUPTED));
        let single = vec![agent(&["a", "b"]), results(&["a"]), results(&["b"]), Message::user("next")];
        assert_eq!(mend(single).len(), 3);
        assert_eq!(mend(vec![results(&["x"]), Message::user("a")]), [Message::user("a")]);
    }

    #[test]
    fn thoughts_are_for_the_model_that_had_them() {
        let thought = serde_json::to_value(ContentPart::ThoughtSignature("sig".into())).unwrap();
        let said = Message::Agent {
            text: "a".into(),
            calls: Vec::new(),
            thoughts: vec![thought],
            model: "one".into(),
        };
        let parts = |model| for_model(std::slice::from_ref(&said), model)[0].content.parts().len();
        assert_eq!((parts("one"), parts("two")), (2, 1));
    }

    fn any_history() -> impl Strategy<Value = Vec<Message>> {
        let ids = || prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 0..3);
        let message = prop_oneof![
            "[a-z]{0,4}".prop_map(Message::user),
            ids().prop_map(|ids| {
                let mut unique = ids;
                unique.sort_unstable();
                unique.dedup();
                agent(&unique)
            }),
            ids().prop_map(|ids| results(&ids)),
        ];
        prop::collection::vec(message, 0..12)
    }

    proptest! {
        #[test]
        fn a_mended_history_is_whole(history in any_history()) {
            let mended = mend(history);
            for (at, message) in mended.iter().enumerate() {
                match message {
                    Message::Agent { calls, .. } if !calls.is_empty() => {
                        let Some(Message::Results { results }) = mended.get(at + 1) else { panic!("{mended:?}") };
                        let mut asked: Vec<_> = calls.iter().map(|call| &call.id).collect();
                        let mut told: Vec<_> = results.iter().map(|result| &result.id).collect();
                        asked.sort();
                        told.sort();
                        prop_assert_eq!(asked, told);
                    }
                    Message::Results { .. } => {
                        let before = at.checked_sub(1).map(|at| &mended[at]);
                        prop_assert!(matches!(before, Some(Message::Agent { .. })), "{:?}", mended);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(mend(mended.clone()), mended);
        }
    }
}
