//! What the user can say with a slash.

use agent_client_protocol::v1::schema::{AvailableCommand, AvailableCommandInput, UnstructuredCommandInput};

use super::{
    permission::Mode,
    session::{Session, new_message},
};

/// What becomes of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done, and the user was told.
    Done,
    /// The model is to be told this.
    Ask(String),
    /// It was none.
    None,
}

/// Name, what it does, and what may follow it.
const COMMANDS: [(&str, &str, &str); 6] = [
    ("plan", "Plan first, change nothing", "what is to be done"),
    ("test", "Run the project's tests and mend what fails", "which tests"),
    ("web", "Look at a page in the sandbox's browser", "an address, and what to do there"),
    (
        "permissions",
        "Show what is allowed for good in this project, or take it back",
        "revoke NUMBER, or revoke all",
    ),
    ("reset", "Forget the conversation", ""),
    ("model", "Show or change the model", "a model's name"),
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, ..)| *name)
}

pub(crate) fn available(session: &Session) -> Vec<AvailableCommand> {
    let command = |name: &str, about: &str, hint: &str| {
        let command = AvailableCommand::new(name, about);
        let input = AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(hint));
        if hint.is_empty() { command } else { command.input(input) }
    };
    let own = COMMANDS.iter().map(|(name, about, hint)| command(name, about, hint));
    let prompts = session.servers.prompts();
    let prompts =
        prompts.iter().map(|prompt| command(&prompt.name, &prompt.about, &prompt.arguments.join(", ")));
    own.chain(prompts).collect()
}

fn parse(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix('/')?;
    let (name, said) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    (!name.is_empty()).then(|| (name, said.trim()))
}

pub(crate) async fn run(session: &Session, text: &str) -> Outcome {
    let Some((name, said)) = parse(text) else { return Outcome::None };
    let tell = |text: String| {
        session.say(text, &new_message());
        Outcome::Done
    };
    match name {
        "plan" => {
            session.set_mode(Mode::Architect, true);
            match said {
                "" => tell("I plan from now on, and change nothing. What is to be done?".to_owned()),
                said => Outcome::Ask(format!("Make a plan for this, and change nothing yet: {said}")),
            }
        }
        "test" => Outcome::Ask(format!(
            "Find out how this project is tested, run {} in the sandbox, and tell what fails and why. Mend what is \
             broken if it is clear how.",
            if said.is_empty() { "its tests" } else { said }
        )),
        "web" if said.is_empty() => tell("Say what to look at: `/web http://localhost:8000`.".to_owned()),
        "web" => Outcome::Ask(format!("Use the browser of the sandbox for this: {said}")),
        "permissions" => tell(permissions(session, said)),
        "reset" => {
            session.begin_anew(Vec::new());
            tell(
                "I have forgotten our conversation. The project and the sandbox are as they were.".to_owned(),
            )
        }
        "model" => tell(model(session, said)),
        name => {
            let prompts = session.servers.prompts();
            let Some(prompt) = prompts.iter().find(|prompt| prompt.name == name) else {
                return Outcome::None;
            };
            match session.servers.prompt(&session.computer, prompt, said).await {
                Ok(text) => Outcome::Ask(text),
                Err(why) => tell(format!("The prompt /{name} cannot be had: {why}")),
            }
        }
    }
}

fn model(session: &Session, said: &str) -> String {
    if said.is_empty() {
        let names = session.agent.models.names().join("`, `");
        return format!(
            "The model is `{}`. To choose: `{names}`, or any other that your provider has.",
            session.model()
        );
    }
    match session.set_model(said) {
        Ok(()) => {
            session.show_options();
            format!("The model is `{said}` from now on.")
        }
        Err(why) => why,
    }
}

fn permissions(session: &Session, said: &str) -> String {
    let revoked = match said.split_whitespace().collect::<Vec<_>>()[..] {
        [] => None,
        ["revoke", "all"] => Some(session.answers.revoke(None)),
        ["revoke", number] => match number.parse() {
            Ok(number) => Some(session.answers.revoke(Some(number))),
            Err(_) => return format!("{number:?} is no number of the list: `/permissions` shows it."),
        },
        _ => {
            return "Say `/permissions`, `/permissions revoke NUMBER` or `/permissions revoke all`."
                .to_owned();
        }
    };
    let did = match revoked {
        None => String::new(),
        Some(Ok(0)) => "There was nothing to take back.\n\n".to_owned(),
        Some(Ok(count)) => format!("Taken back: {count}.\n\n"),
        Some(Err(error)) => return format!("It could not be taken back: {error}"),
    };
    let answers = session.answers.all();
    if answers.is_empty() {
        return format!("{did}Nothing is allowed or forbidden for good in this project.");
    }
    let line = |(index, answer): (usize, &super::permission::Answer)| {
        let verdict = if answer.allow { "allowed" } else { "forbidden" };
        format!("{}. {verdict}: `{}`", index + 1, answer.scope)
    };
    let lines: Vec<_> = answers.iter().enumerate().map(line).collect();
    format!(
        "{did}For good in this project:\n\n{}\n\nTake one back with `/permissions revoke NUMBER`.",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_a_slash() {
        assert_eq!(parse("/plan  mend it "), Some(("plan", "mend it")));
        assert_eq!(parse("  /reset"), Some(("reset", "")));
        assert_eq!(parse("/\n"), None);
        assert_eq!(parse("see /etc"), None);
        assert_eq!(parse("/usr/bin is a path"), Some(("usr/bin", "is a path")));
    }
}
