//! From a file to a toolkit that works, or to all that is wrong with it.

use std::{collections::BTreeMap, sync::Arc};

use belljar_tools::{Annotations, Options, Tool, ToolSpec};
use serde_json::json;
use toml::Spanned;

use super::{
    Toolkit,
    arguments::Parameters,
    command::Command,
    file::{self, File},
    http::{Http, Service},
    problems::{Check, Problems},
    prompts::Prompt,
    resources::{self, Resource},
    sql::{Database, Sql},
    tool::{Kind, ToolkitTool},
};
use crate::config::Environment;

/// `file` is what the user calls it.
pub(super) fn toolkit(
    file: &str,
    text: &str,
    environment: &Environment,
    options: &Options,
) -> Result<Toolkit, Problems> {
    let mut check = Check::new(file, text);
    let parsed: File = match toml::from_str(text) {
        Ok(parsed) => parsed,
        Err(error) => return Err(check.malformed(&error)),
    };
    check_name("toolkit", &parsed.name, &mut check);
    let services: BTreeMap<_, _> = parsed
        .service
        .iter()
        .map(|(name, service)| {
            (name.clone(), Arc::new(Service::check(name, service, environment, &mut check)))
        })
        .collect();
    let database = parsed.database.as_ref();
    let database = database.map(|database| Arc::new(Database::check(database, environment, &mut check)));
    let around = Around { services, database, environment, options };

    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    for (index, tool) in parsed.tool.iter().enumerate() {
        check_name("tool", &tool.name, &mut check);
        if parsed.tool[..index].iter().any(|other| other.name.get_ref() == tool.name.get_ref()) {
            check.at(&tool.name, format!("there is another tool {:?}", tool.name.get_ref()));
        }
        if let Some(tool) = around.tool(tool, &mut check) {
            tools.push(Arc::new(tool));
        }
    }
    let listed: Vec<_> = parsed
        .tool
        .iter()
        .map(|tool| (tool.name.get_ref().clone(), first_sentence(&tool.description)))
        .collect();
    let manifest = resources::manifest(parsed.name.get_ref(), &parsed.description, &listed);
    let mut resources = Vec::new();
    for (index, resource) in parsed.resource.iter().enumerate() {
        if parsed.resource[..index].iter().any(|other| other.uri.get_ref() == resource.uri.get_ref()) {
            check.at(&resource.uri, format!("there is another resource {:?}", resource.uri.get_ref()));
        }
        let made = Resource::check(resource, &manifest, around.database.as_ref(), environment, &mut check);
        resources.extend(made.map(Arc::new));
    }
    let mut prompts = Vec::new();
    for (index, prompt) in parsed.prompt.iter().enumerate() {
        check_name("prompt", &prompt.name, &mut check);
        if parsed.prompt[..index].iter().any(|other| other.name.get_ref() == prompt.name.get_ref()) {
            check.at(&prompt.name, format!("there is another prompt {:?}", prompt.name.get_ref()));
        }
        prompts.extend(Prompt::check(prompt, &mut check).map(Arc::new));
    }
    check.finish()?;
    let name = parsed.name.into_inner();
    Ok(Toolkit { name, instructions: parsed.instructions, tools, resources, prompts })
}

/// What tools refer to.
struct Around<'a> {
    services: BTreeMap<String, Arc<Service>>,
    database: Option<Arc<Database>>,
    environment: &'a Environment,
    options: &'a Options,
}

impl Around<'_> {
    fn tool(&self, tool: &file::Tool, check: &mut Check<'_>) -> Option<ToolkitTool> {
        let mut parameters = Parameters::check(&tool.parameters, &tool.required, check);
        let kind = match (&tool.command, &tool.http, &tool.sql) {
            (Some(command), None, None) => {
                let name = tool.name.get_ref();
                let command = Command::check(name, command, &parameters, self.environment, check);
                self.offer_sandbox(&mut parameters);
                Kind::Command(command)
            }
            (None, Some(http), None) => {
                Kind::Http(Box::new(Http::check(http, &self.services, &parameters, check)?))
            }
            (None, None, Some(sql)) => {
                let Some(database) = &self.database else {
                    check.at(&tool.name, "a tool with sql needs a [database] with a url");
                    return None;
                };
                Kind::Sql(Sql::check(&tool.name, sql, database, &parameters, check)?)
            }
            _ => {
                check.at(&tool.name, "a tool has exactly one of command, http and sql");
                return None;
            }
        };
        let annotations = Annotations {
            read_only: tool.read_only,
            destructive: tool.destructive.unwrap_or(!tool.read_only),
            idempotent: tool.idempotent || tool.read_only,
            open_world: matches!(kind, Kind::Http(_)),
        };
        let title = tool.title.clone().unwrap_or_else(|| tool.name.get_ref().replace(['_', '-'], " "));
        let spec = ToolSpec {
            name: tool.name.get_ref().clone().into(),
            title: title.into(),
            description: tool.description.trim().to_owned(),
            input_schema: parameters.schema(),
            output_schema: None,
            annotations,
        };
        Some(ToolkitTool { spec, parameters, kind })
    }

    /// What every tool has that runs something.
    fn offer_sandbox(&self, parameters: &mut Parameters) {
        let settings = &self.options.settings;
        parameters.offer(
            "timeout",
            json!({
                "type": "number",
                "description": format!("Time limit in seconds. Default: {}.", settings.run_timeout.as_secs_f64()),
                "exclusiveMinimum": 0,
                "maximum": settings.max_run_timeout.as_secs(),
            }),
        );
        parameters.offer(
            "session_id",
            json!({
                "type": "string",
                "description": "Id or name of the session or context to run in, with its files. Leave it out to \
                                run in a fresh sandbox, which ends with the call.",
            }),
        );
    }
}

fn check_name(what: &str, name: &Spanned<String>, check: &mut Check<'_>) {
    let text = name.get_ref();
    let valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(valid) {
        check.at(
            name,
            format!("{text:?} cannot be the name of a {what}: letters, digits, _ and -, at most 64"),
        );
    }
}

fn first_sentence(text: &str) -> String {
    let text = text.trim();
    let end = text.find(". ").or_else(|| text.find(".\n")).map_or(text.len(), |end| end + 1);
    text[..end].to_owned()
}
