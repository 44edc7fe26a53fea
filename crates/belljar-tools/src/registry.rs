//! Which tools there are, by toolset.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{
    Options, Tool, browser, contexts,
    sandbox::{self, browse},
    sessions, text,
};

type Make = fn(&Options) -> Arc<dyn Tool>;

/// Tools that are offered together.
pub struct Toolset {
    pub name: &'static str,
    pub about: &'static str,
    /// What a model must know to begin.
    instructions: &'static str,
    tools: &'static [Make],
}

/// In the order in which they are listed to clients.
pub const TOOLSETS: &[Toolset] = &[
    Toolset {
        name: "contexts",
        about: "live Python and JavaScript interpreters, each in its own sandbox",
        instructions: "Call create_context once, then run_code with its context_id as often as needed: variables, \
                       imports and files in /workspace persist between calls, as in a notebook. Bring data in \
                       with upload_file and results out with download_file. Call stop_context when done.",
        tools: &[
            contexts::create_context::make,
            contexts::run_code::make,
            contexts::stop_context::make,
            contexts::list_contexts::make,
            contexts::upload_file::make,
            contexts::download_file::make,
            contexts::list_files::make,
        ],
    },
    Toolset {
        name: "sessions",
        about: "code and commands in sandboxes that are made as they are needed",
        instructions: "execute_code and execute_command start a session by themselves and return its session_id: \
                       pass it on to keep variables and files. Call stop_session when done.",
        tools: &[
            sessions::execute_code::make,
            sessions::execute_command::make,
            sessions::get_sessions::make,
            sessions::stop_session::make,
            sessions::get_volume_path::make,
        ],
    },
    Toolset {
        name: "sandbox",
        about: "code, files and a browser in one sandbox, which need not be named",
        instructions: "Call sandbox_create once; then code_run, file_read, file_write, file_list and the \
                       browser tools all act on that sandbox and share its files. To use a page, open it with \
                       browser_goto, read it with browser_snapshot, and pass the refs found there as selector \
                       to browser_click and browser_type. A failure has a hint with the next thing to do. Call \
                       sandbox_destroy when done.",
        tools: &[
            sandbox::sandbox_create::make,
            sandbox::sandbox_destroy::make,
            browse::make::<sandbox::browser_goto::Args>,
            browse::make::<sandbox::browser_click::Args>,
            browse::make::<sandbox::browser_type::Args>,
            browse::make::<sandbox::browser_snapshot::Args>,
            sandbox::code_run::make,
            sandbox::file_read::make,
            sandbox::file_write::make,
            sandbox::file_list::make,
        ],
    },
    Toolset {
        name: "browser",
        about: "more for the browser of a sandbox: screenshots, keys, forms, tabs, dialogs, console",
        instructions: "The other browser tools act on the same page: browser_find and browser_changes read \
                       parts of it, browser_extract its article, browser_screenshot shows it; \
                       browser_fill_form, browser_select, browser_press and browser_upload fill in forms; \
                       browser_dialog answers dialogs.",
        tools: &[
            browse::make::<browser::browser_screenshot::Args>,
            browse::make::<browser::browser_find::Args>,
            browse::make::<browser::browser_changes::Args>,
            browse::make::<browser::browser_extract::Args>,
            browse::make::<browser::browser_press::Args>,
            browse::make::<browser::browser_select::Args>,
            browse::make::<browser::browser_hover::Args>,
            browse::make::<browser::browser_scroll::Args>,
            browse::make::<browser::browser_fill_form::Args>,
            browse::make::<browser::browser_upload::Args>,
            browse::make::<browser::browser_back::Args>,
            browse::make::<browser::browser_forward::Args>,
            browse::make::<browser::browser_reload::Args>,
            browse::make::<browser::browser_tabs::Args>,
            browse::make::<browser::browser_wait_for::Args>,
            browse::make::<browser::browser_dialog::Args>,
            browse::make::<browser::browser_evaluate::Args>,
            browse::make::<browser::browser_console::Args>,
            browse::make::<browser::browser_network::Args>,
            browse::make::<browser::browser_pdf::Args>,
        ],
    },
    Toolset {
        name: "network",
        about: "what a sandbox can reach outside, and what it has tried to",
        instructions: "sandbox_network shows and changes what a sandbox can reach, up to what the operator allows, \
                       and tells why a connection was refused.",
        tools: &[sandbox::sandbox_network::make],
    },
];

const INTRODUCTION: &str = "Isolated sandboxes with live Python and JavaScript interpreters.";

/// The name that stands for every toolset.
pub const ALL: &str = "all";

/// Tools from elsewhere, offered together under a name of their own.
pub struct MoreTools {
    pub name: String,
    /// What a model must know to begin; may be empty.
    pub instructions: String,
    pub tools: Vec<Arc<dyn Tool>>,
}

/// Why there is no such registry.
#[derive(Debug, PartialEq, Eq)]
pub enum RegistryError {
    UnknownToolset {
        name: String,
        known: Vec<String>,
    },
    /// Two toolsets have one name.
    NameTaken(String),
    /// A tool from elsewhere has a name that is taken.
    ToolTaken {
        toolset: String,
        tool: String,
    },
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownToolset { name, known } => {
                write!(f, "unknown toolset {name:?}; known: {}", known.join(", "))
            }
            Self::NameTaken(name) => write!(f, "there is a toolset {name:?} already: choose another name"),
            Self::ToolTaken { toolset, tool } => {
                write!(
                    f,
                    "the toolset {toolset:?} has a tool {tool:?}, but another one of this name is offered already"
                )
            }
        }
    }
}

impl std::error::Error for RegistryError {}

pub fn known_names() -> Vec<&'static str> {
    TOOLSETS.iter().map(|set| set.name).chain([ALL]).collect()
}

/// The tools that one server offers.
pub struct Registry {
    instructions: String,
    tools: Vec<Arc<dyn Tool>>,
    by_name: HashMap<String, usize>,
}

impl Registry {
    /// The tools of the named toolsets. The order of the names does not matter, so that the same choice
    /// always gives the same list.
    pub fn new(toolsets: &[impl AsRef<str>], options: &Options) -> Result<Self, RegistryError> {
        Self::with(toolsets, options, &[])
    }

    /// The same, where toolsets from elsewhere can be named too. They come after ours, in the order given.
    pub fn with(
        toolsets: &[impl AsRef<str>],
        options: &Options,
        more: &[MoreTools],
    ) -> Result<Self, RegistryError> {
        let known: Vec<&str> = known_names().into_iter().chain(more.iter().map(|set| &*set.name)).collect();
        if let Some(twice) =
            more.iter().find(|set| known.iter().filter(|name| **name == set.name).count() > 1)
        {
            return Err(RegistryError::NameTaken(twice.name.clone()));
        }
        let named = |name: &str| toolsets.iter().any(|given| given.as_ref() == name || given.as_ref() == ALL);
        if let Some(unknown) = toolsets.iter().find(|name| !known.contains(&name.as_ref())) {
            let known = known.into_iter().map(str::to_owned).collect();
            return Err(RegistryError::UnknownToolset { name: unknown.as_ref().to_owned(), known });
        }
        let instructions = format!("{INTRODUCTION} {}", text::network(&options.settings.network));
        let mut registry = Self { instructions, tools: Vec::new(), by_name: HashMap::new() };
        for set in TOOLSETS.iter().filter(|set| named(set.name)) {
            registry.instruct(set.instructions);
            for make in set.tools {
                registry.add(make(options));
            }
        }
        for set in more.iter().filter(|set| named(&set.name)) {
            registry.instruct(&set.instructions);
            for tool in &set.tools {
                if !registry.add(Arc::clone(tool)) {
                    let (toolset, tool) = (set.name.clone(), tool.spec().name.to_string());
                    return Err(RegistryError::ToolTaken { toolset, tool });
                }
            }
        }
        Ok(registry)
    }

    fn instruct(&mut self, text: &str) {
        if !text.is_empty() {
            self.instructions.push(' ');
            self.instructions.push_str(text);
        }
    }

    /// False when there is one of this name.
    fn add(&mut self, tool: Arc<dyn Tool>) -> bool {
        let name = tool.spec().name.to_string();
        let new = !self.by_name.contains_key(&name);
        if new {
            self.by_name.insert(name, self.tools.len());
            self.tools.push(tool);
        }
        new
    }

    /// For a model that meets these tools for the first time.
    pub fn instructions(&self) -> &str {
        &self.instructions
    }

    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.by_name.get(name).map(|index| &self.tools[*index])
    }
}

#[cfg(test)]
mod tests {
    use belljar_sandbox::Settings;
    use serde_json::{Value, json};

    use super::*;

    fn options(default_context: bool) -> Options {
        Options { settings: Settings::default(), default_context }
    }

    fn listing(registry: &Registry) -> Vec<Value> {
        let spec = |tool: &Arc<dyn Tool>| {
            let spec = tool.spec();
            json!({
                "name": spec.name,
                "title": spec.title,
                "description": spec.description,
                "inputSchema": spec.input_schema,
                "outputSchema": spec.output_schema,
                "annotations": {
                    "readOnly": spec.annotations.read_only,
                    "destructive": spec.annotations.destructive,
                    "idempotent": spec.annotations.idempotent,
                    "openWorld": spec.annotations.open_world,
                },
            })
        };
        registry.tools().iter().map(spec).collect()
    }

    #[test]
    fn the_listing_is_as_agreed() {
        for toolset in TOOLSETS {
            let listing = listing(&Registry::new(&[toolset.name], &options(false)).unwrap());
            insta::assert_json_snapshot!(toolset.name, listing);
        }
    }

    #[test]
    fn instructions_speak_of_what_is_offered() {
        let of = |sets: &[&str]| Registry::new(sets, &options(false)).unwrap().instructions().to_owned();
        assert!(of(&["contexts"]).contains("create_context") && !of(&["contexts"]).contains("execute_code"));
        assert!(of(&["sessions"]).contains("execute_code") && !of(&["sessions"]).contains("create_context"));
        assert!(of(&["sandbox"]).contains("sandbox_create") && !of(&["sandbox"]).contains("browser_dialog"));
        insta::assert_snapshot!(of(&["all"]));
    }

    #[test]
    fn the_toolset_sandbox_is_its_ten_tools() {
        let registry = Registry::new(&["sandbox"], &options(false)).unwrap();
        let names: Vec<_> = registry.tools().iter().map(|tool| tool.spec().name.clone()).collect();
        assert_eq!(
            names,
            [
                "sandbox_create",
                "sandbox_destroy",
                "browser_goto",
                "browser_click",
                "browser_type",
                "browser_snapshot",
                "code_run",
                "file_read",
                "file_write",
                "file_list"
            ]
        );
    }

    /// Some clients know one type per property, and no more.
    #[test]
    fn schemas_are_plain() {
        fn plain(at: &str, schema: &Value) {
            let Some(map) = schema.as_object() else { return };
            assert!(map.get("type").is_none_or(Value::is_string), "{at}: {schema}");
            assert!(!map.contains_key("$ref") && !map.contains_key("$defs"), "{at}: {schema}");
            for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let at = format!("{at}.{name}");
                assert!(property["type"].is_string() || property["anyOf"].is_array(), "{at}: {property}");
                plain(&at, property);
            }
            for key in ["items", "additionalProperties"] {
                plain(&format!("{at}[]"), &schema[key]);
            }
        }
        for tool in Registry::new(&["all"], &options(false)).unwrap().tools() {
            let spec = tool.spec();
            plain(&spec.name, &Value::Object(spec.input_schema.clone()));
            plain(&spec.name, &Value::Object(spec.output_schema.clone().unwrap()));
        }
    }

    #[test]
    fn naming_a_toolset_twice_or_all_changes_nothing() {
        let once = listing(&Registry::new(&["contexts"], &options(false)).unwrap());
        assert_eq!(once, listing(&Registry::new(&["contexts", "contexts"], &options(false)).unwrap()));
        assert!(Registry::new(&["all"], &options(false)).unwrap().get("run_code").is_some());
    }

    #[test]
    fn a_default_context_makes_the_id_optional() {
        for (default_context, required) in [(false, true), (true, false)] {
            let registry = Registry::new(&["contexts"], &options(default_context)).unwrap();
            let schema = Value::Object(registry.get("run_code").unwrap().spec().input_schema.clone());
            let names = schema["required"].as_array().unwrap();
            assert_eq!(names.contains(&json!("context_id")), required);
            assert!(names.contains(&json!("code")));
        }
    }

    #[test]
    fn an_unknown_toolset_is_named_with_the_known_ones() {
        let error = Registry::new(&["contexts", "browsers"], &options(false)).err().unwrap();
        assert_eq!(
            error.to_string(),
            "unknown toolset \"browsers\"; known: contexts, sessions, sandbox, browser, network, all"
        );
    }

    /// Whatever a model sends: it is taken or refused, in few words.
    #[test]
    fn fuzz_arguments() {
        let registry = Registry::new(&["all".to_owned()], &options(false)).unwrap();
        let seeds: [&[u8]; 5] = [
            br#"{"context_id":"c","code":"1","timeout":1.5}"#,
            br#"{"name":"n","language":"python","path":"a","content":"","encoding":"base64"}"#,
            br#"{"command":"ls","args":["-l"],"env":{"A":"b"},"cwd":".","timeout":-1}"#,
            br#"{"selector":"ref_1","text":"t","url":"http://x","maxTextLen":10}"#,
            br#"[null, 1e308, "a"]"#,
        ];
        belljar_fuzz::fuzz("arguments", &seeds, |input| {
            let Ok(arguments) = serde_json::from_slice::<Value>(input) else { return 0 };
            let mut did = Vec::new();
            for tool in registry.tools() {
                let parsed = crate::args::parse::<Value>(&tool.spec().input_schema, arguments.clone());
                did.push(parsed.err().map(|error| {
                    let text = format!("{error:?}");
                    assert!(text.len() < 5000, "{text}");
                    belljar_fuzz::kind(&text)
                }));
            }
            belljar_fuzz::mark(did)
        });
    }
}
