//! Texts that a toolkit offers to begin with.

use serde_json::{Map, Value};

use super::{
    file::{self, PromptArgument},
    problems::Check,
    template::Template,
};

pub(crate) struct Prompt {
    pub(crate) name: String,
    pub(crate) title: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) arguments: Vec<Argument>,
    text: Template,
}

pub(crate) struct Argument {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) required: bool,
}

impl Prompt {
    pub(super) fn check(prompt: &file::Prompt, check: &mut Check<'_>) -> Option<Self> {
        let text = check.keep(&prompt.text, Template::parse(prompt.text.get_ref()))?;
        for name in
            text.names().filter(|name| !prompt.arguments.iter().any(|argument| argument.name == *name))
        {
            check.at(&prompt.text, format!("there is no argument {name:?}"));
        }
        let argument = |argument: &PromptArgument| {
            let PromptArgument { name, description, required } = argument.clone();
            Argument { name, description, required }
        };
        Some(Self {
            name: prompt.name.get_ref().clone(),
            title: prompt.title.clone(),
            description: prompt.description.clone(),
            arguments: prompt.arguments.iter().map(argument).collect(),
            text,
        })
    }

    /// The text with these arguments; what may be left out and is, leaves a gap.
    pub(crate) fn fill(&self, mut given: Map<String, Value>) -> Result<String, String> {
        for argument in &self.arguments {
            if argument.required && !given.contains_key(&argument.name) {
                return Err(format!("The prompt {} needs the argument '{}'", self.name, argument.name));
            }
            given.entry(argument.name.as_str()).or_insert_with(|| Value::String(String::new()));
        }
        Ok(self.text.text(&given).unwrap_or_default())
    }
}
