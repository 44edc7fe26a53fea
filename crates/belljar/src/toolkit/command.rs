//! Tools that run a command in a sandbox. A parameter is a whole argument, an environment variable or the standard
//! input; there is no shell that could read it as anything else.

use std::{collections::BTreeMap, sync::Arc};

use belljar_sandbox::{
    Caller, Ending, ExecOutcome, ExecRequest, Language, NewContext, Output, SandboxService,
};
use belljar_tools::{CallContext, ToolError, ToolOutput, clipped};
use serde_json::{Map, Value, json};
use toml::Spanned;

use super::{
    arguments::Parameters,
    environment::Resolved,
    file,
    problems::Check,
    template::{Template, plain},
    tool::{MAX_RESULT, invalid, output, seconds, tell},
};
use crate::config::Environment;

#[derive(Debug)]
pub(super) struct Command {
    /// Of the tool: names the sandbox.
    name: String,
    argv: Vec<Word>,
    cwd: Option<Resolved>,
    env: BTreeMap<String, Template>,
    stdin: Option<Template>,
}

#[derive(Debug)]
enum Word {
    Literal(String),
    Parameter(String),
    If { parameter: String, is: Option<Value>, argv: Vec<Word> },
}

/// A sandbox for one call. It ends with it.
struct Own {
    service: Arc<SandboxService>,
    caller: Caller,
    id: String,
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (service, caller, id) =
                (self.service.clone(), self.caller.clone(), std::mem::take(&mut self.id));
            runtime.spawn(async move {
                // It may have been stopped by other means.
                let _ = service.stop_context(&caller, &id).await;
            });
        }
    }
}

impl Command {
    pub(super) fn check(
        name: &str,
        command: &file::Command,
        parameters: &Parameters,
        environment: &Environment,
        check: &mut Check<'_>,
    ) -> Self {
        let mut argv = Vec::new();
        for word in &command.argv {
            match word.get_ref() {
                toml::Value::String(text) => {
                    argv.extend(check.keep(word, one(text, parameters)));
                }
                toml::Value::Table(table) => {
                    argv.extend(check.keep(word, conditional(table.clone(), parameters)));
                }
                _ => check.at(word, "an argument is a text, or a table with if and argv"),
            }
        }
        if let Some(first) = command.argv.first()
            && !matches!(argv.first(), Some(Word::Literal(program)) if !program.is_empty())
        {
            check.at(first, "the program must be a fixed text");
        }
        Self {
            name: name.to_owned(),
            argv,
            cwd: command.cwd.as_ref().map(|cwd| Resolved::new(cwd.get_ref(), environment)),
            env: command
                .env
                .iter()
                .filter_map(|(name, value)| {
                    Some((name.clone(), environment_value(value, parameters, check)?))
                })
                .collect(),
            stdin: command.stdin.as_ref().and_then(|text| parameters.template(text, check)),
        }
    }

    pub(super) async fn run(
        &self,
        cx: &CallContext,
        given: &Map<String, Value>,
    ) -> Result<ToolOutput, ToolError> {
        let argv = self.argv(given)?;
        let cwd = self.cwd.as_ref().map(Resolved::get).transpose();
        let cwd = cwd.map_err(|missing| tell("NOT_CONFIGURED", missing.to_string()))?.map(str::to_owned);
        let env =
            self.env.iter().filter_map(|(name, value)| Some((name.clone(), value.text(given)?))).collect();
        let stdin = self.stdin.as_ref().and_then(|text| text.text(given)).unwrap_or_default().into_bytes();
        let shown = argv.join(" ");
        let (id, _own) = self.sandbox(cx, given).await?;
        let timeout = seconds(given, "timeout");
        let outcome = cx
            .watched(|live| {
                let trace = cx.trace.clone();
                let request =
                    ExecRequest { argv, cwd, env, stdin, timeout, live, trace, ..ExecRequest::default() };
                cx.service.exec(&cx.caller, &id, request, cx.cancel.clone())
            })
            .await?;
        Ok(render(&outcome, &shown, given.get("session_id").map(|_| id.as_str())))
    }

    fn argv(&self, given: &Map<String, Value>) -> Result<Vec<String>, ToolError> {
        let mut argv = Vec::new();
        extend(&mut argv, &self.argv, given)?;
        Ok(argv)
    }

    /// The caller's own session if one was named, else one for this call alone.
    async fn sandbox(
        &self,
        cx: &CallContext,
        given: &Map<String, Value>,
    ) -> Result<(String, Option<Own>), ToolError> {
        if let Some(session) = given.get("session_id").and_then(Value::as_str) {
            return Ok((cx.service.find_context(&cx.caller, session)?.id, None));
        }
        let new = NewContext {
            name: format!("tool-{}-{}", self.name, uuid::Uuid::new_v4().simple()),
            language: Language::Python,
            template: None,
            description: "made for one call of a tool".to_owned(),
            flavor: None,
            network: None,
        };
        let id = cx.service.create_context(&cx.caller, new).await?.id;
        let own = Own { service: cx.service.clone(), caller: cx.caller.clone(), id: id.clone() };
        Ok((id, Some(own)))
    }
}

fn one(text: &str, parameters: &Parameters) -> Result<Word, String> {
    let template = Template::parse(text)?;
    if let Some(literal) = template.literal() {
        return Ok(Word::Literal(literal.to_owned()));
    }
    let Some(name) = template.whole() else {
        return Err(format!("{text:?}: a parameter is a whole argument, such as \"--name\", \"{{value}}\""));
    };
    if !parameters.has(name) {
        return Err(parameters.unknown(name));
    }
    Ok(Word::Parameter(name.to_owned()))
}

fn conditional(table: toml::Table, parameters: &Parameters) -> Result<Word, String> {
    let entry: file::Conditional =
        table.try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
    if !parameters.has(&entry.parameter) {
        return Err(parameters.unknown(&entry.parameter));
    }
    let is = entry.is.as_ref().map(file::json);
    let argv = entry.argv.iter().map(|text| one(text, parameters)).collect::<Result<_, _>>()?;
    Ok(Word::If { parameter: entry.parameter, is, argv })
}

/// A text with parameters, but nothing from the host's environment: that is for the host alone.
fn environment_value(
    value: &Spanned<String>,
    parameters: &Parameters,
    check: &mut Check<'_>,
) -> Option<Template> {
    if super::environment::refers(value.get_ref()) {
        check.at(value, "what comes from the host's environment never goes into a sandbox");
        return None;
    }
    parameters.template(value, check)
}

fn extend(argv: &mut Vec<String>, words: &[Word], given: &Map<String, Value>) -> Result<(), ToolError> {
    for word in words {
        match word {
            Word::Literal(text) => argv.push(text.clone()),
            Word::Parameter(name) => match given.get(name) {
                None => {}
                Some(Value::Array(values)) => {
                    for value in values {
                        push(argv, name, value)?;
                    }
                }
                Some(value) => push(argv, name, value)?,
            },
            Word::If { parameter, is, argv: words } => {
                let value = given.get(parameter);
                let holds = match is {
                    Some(is) => value == Some(is),
                    None => value.is_some_and(|value| *value != Value::Bool(false)),
                };
                if holds {
                    extend(argv, words, given)?;
                }
            }
        }
    }
    Ok(())
}

/// A text that looks like an option would be taken for one, unless `--` came before.
fn push(argv: &mut Vec<String>, name: &str, value: &Value) -> Result<(), ToolError> {
    let text = plain(value);
    if value.is_string() && text.starts_with('-') && !argv.iter().any(|word| word == "--") {
        return Err(invalid(format!("Argument '{name}' must not begin with a dash, got {text:?}")));
    }
    argv.push(text);
    Ok(())
}

fn render(outcome: &ExecOutcome, command: &str, session: Option<&str>) -> ToolOutput {
    let finished = outcome.ending == Ending::Finished;
    let exit_code = outcome.code.filter(|_| finished);
    let mut notes = outcome.notes.clone();
    notes.extend(match &outcome.ending {
        Ending::Finished => outcome.signal.map(|signal| format!("Ended by signal {signal}.")),
        Ending::TimedOut => {
            Some(format!("Stopped after {} s (the time limit).", outcome.timeout.as_secs_f64()))
        }
        Ending::Cancelled => Some("Stopped because the call was cancelled.".to_owned()),
        Ending::Stopped { why } | Ending::KernelDied { why } | Ending::SandboxEnded { why } => {
            Some(format!("Stopped: {}.", why.trim_end_matches('.')))
        }
    });
    let mut result = json!({
        "success": exit_code == Some(0),
        "exit_code": exit_code,
        "stdout": shown(&outcome.stdout),
        "stderr": shown(&outcome.stderr),
        "command": clipped(command, 1_000).0,
        "execution_time_ms": outcome.duration.as_millis() as u64,
    });
    if !notes.is_empty() {
        result["notes"] = json!(notes);
    }
    if let Some(session) = session {
        result["session_id"] = json!(session);
    }
    output(result, None)
}

fn shown(stream: &Output) -> String {
    let (head, _) = clipped(&stream.head, MAX_RESULT / 4);
    let left_out = stream.cut + (stream.head.len() - head.len()) as u64;
    if left_out == 0 && stream.tail.is_empty() {
        return head;
    }
    let from = stream.tail.len().saturating_sub(MAX_RESULT / 4);
    let tail = &stream.tail[stream.tail.ceil_char_boundary(from)..];
    format!("{head}\n[… {} bytes are left out …]\n{tail}", left_out + (stream.tail.len() - tail.len()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(given: Value) -> Result<Vec<String>, String> {
        let word = |text: &str| Word::Literal(text.to_owned());
        let argv = vec![
            word("lint"),
            Word::If { parameter: "strict".to_owned(), is: None, argv: vec![word("--strict")] },
            Word::If {
                parameter: "style".to_owned(),
                is: Some(json!("long")),
                argv: vec![word("--width"), Word::Parameter("width".to_owned())],
            },
            Word::Parameter("files".to_owned()),
        ];
        let mut all = Vec::new();
        match extend(&mut all, &argv, given.as_object().unwrap()) {
            Ok(()) => Ok(all),
            Err(ToolError::Tell { message, .. } | ToolError::Fatal(message)) => Err(message),
        }
    }

    #[test]
    fn arguments_follow_parameters() {
        assert_eq!(words(json!({})).unwrap(), ["lint"]);
        let given =
            json!({ "strict": true, "style": "long", "width": 100, "files": ["a; rm -rf /", "$(b)"] });
        assert_eq!(words(given).unwrap(), ["lint", "--strict", "--width", "100", "a; rm -rf /", "$(b)"]);
        let given = json!({ "strict": false, "style": "short", "width": -3, "files": "one" });
        assert_eq!(words(given).unwrap(), ["lint", "one"]);
    }

    #[test]
    fn a_text_cannot_become_an_option() {
        assert!(words(json!({ "files": ["ok", "--config=/etc"] })).unwrap_err().contains("'files'"));
    }

    #[test]
    fn long_output_keeps_its_ends() {
        let stream =
            Output { head: "a".repeat(60_000), tail: "z".repeat(60_000), cut: 5, ..Output::default() };
        let text = shown(&stream);
        assert!(text.len() < MAX_RESULT && text.starts_with("aa") && text.ends_with("zz"));
        assert!(text.contains("70005 bytes are left out"), "{}", &text[24_990..25_100]);
    }
}
