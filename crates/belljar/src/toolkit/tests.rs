//! What is wrong with a file is told with its line; what is shipped is right.

use belljar_sandbox::Settings;
use serde_json::json;

use super::*;

fn options() -> Options {
    Options { settings: Settings::default(), default_context: false }
}

fn nothing(_: &str) -> Option<String> {
    None
}

fn refusal(text: &str) -> String {
    match check::toolkit("own.toml", text, &nothing, &options()) {
        Ok(toolkit) => panic!("{} was accepted", toolkit.name),
        Err(problems) => problems.to_string(),
    }
}

#[test]
fn the_shipped_toolkits_have_the_agreed_tools() {
    let toolkits = load(&["cicd".to_owned(), "database".to_owned()], &nothing, &options()).unwrap();
    let names = |toolkit: &Toolkit| {
        let tools: Vec<_> = toolkit.tools.iter().map(|tool| tool.spec().name.to_string()).collect();
        let resources: Vec<_> = toolkit.resources.iter().map(|resource| resource.uri.clone()).collect();
        (tools, resources)
    };
    let (tools, resources) = names(&toolkits[0]);
    assert_eq!(
        tools,
        [
            "create_github_issue",
            "get_repo_issues",
            "create_pr",
            "run_unit_tests",
            "lint_code",
            "deploy_to_environment"
        ]
    );
    assert_eq!(resources, ["env://deployment-config", "docs://cicd-guide", "tools://manifest"]);
    let (tools, resources) = names(&toolkits[1]);
    assert_eq!(tools, ["query_database", "insert_data", "update_data", "get_table_schema"]);
    assert_eq!(resources, ["db://stats", "db://tables"]);
    let specs: Vec<_> = toolkits
        .iter()
        .flat_map(|toolkit| &toolkit.tools)
        .map(|tool| json!({ "name": tool.spec().name, "inputSchema": tool.spec().input_schema }))
        .collect();
    insta::assert_json_snapshot!(specs);
}

#[test]
fn a_toolkit_is_a_toolset_of_its_own() {
    let toolkits = load(&["cicd".to_owned(), "database".to_owned()], &nothing, &options()).unwrap();
    let more: Vec<_> = toolkits.iter().map(Toolkit::toolset).collect();
    let registry = Registry::with(&["database"], &options(), &more).unwrap();
    assert_eq!(registry.tools().len(), 4);
    assert!(registry.instructions().contains("query_database only reads"));
    let all = Registry::with(&["all"], &options(), &more).unwrap();
    assert!(all.get("create_pr").is_some() && all.get("run_code").is_some());
    let unknown = Registry::with(&["databases"], &options(), &more).err().unwrap().to_string();
    assert!(
        unknown.ends_with("known: contexts, sessions, sandbox, browser, network, all, cicd, database"),
        "{unknown}"
    );
}

#[test]
fn nobody_takes_the_name_of_another_tool() {
    let text = "name = 'own'\n[[tool]]\nname = 'run_code'\ndescription = 'x'\ncommand = { argv = ['true'] }";
    let own = check::toolkit("own.toml", text, &nothing, &options()).unwrap().toolset();
    let error = Registry::with(&["contexts", "own"], &options(), &[own]).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the toolset \"own\" has a tool \"run_code\", but another one of this name is offered already"
    );
}

#[test]
fn a_toolkit_that_is_not_there_is_named() {
    let missing = |name: &str| load(&[name.to_owned()], &nothing, &options()).err().unwrap().to_string();
    assert_eq!(
        missing("databse"),
        "there is no toolkit \"databse\": shipped are cicd, database; a file of your own is named by its path"
    );
    assert_eq!(missing("./nowhere.toml"), "cannot read the toolkit ./nowhere.toml");
    let twice =
        load(&["cicd".to_owned(), "cicd".to_owned()], &nothing, &options()).err().unwrap().to_string();
    assert_eq!(twice, "toolkit cicd: there is another toolkit \"cicd\" already");
}

/// Everything that is wrong is told at once, each with its line.
#[test]
fn problems_have_lines() {
    insta::assert_snapshot!(refusal(include_str!("wrong.toml")));
}

#[test]
fn a_file_full_of_problems_does_not_fill_the_screen() {
    let many = "[[tool]]\nname = 'a b'\ndescription = ''\n".repeat(60);
    let told = refusal(&format!("name = '{}'\n{many}", " ".repeat(9000)));
    assert_eq!(told.lines().count(), 41);
    assert!(told.lines().all(|line| line.len() < 600), "{told}");
    assert_eq!(told.lines().last(), Some("own.toml:42: and 140 more"));
    let odd = "name = 'own'\n[[prompt]]\nname = 'p'\ntext = \"{a:\\nb}\"";
    assert_eq!(
        refusal(odd),
        r#"own.toml:4: {a:\nb}: the number of segments must be from 1 to 16, not "\nb""#
    );
}

#[test]
fn a_file_of_another_form_is_refused_at_its_line() {
    let refusals = [
        "name = 'own'\n[[tool]\nname = 'x'",
        "name = 'own'\n[[tool]]\nname = 'x'\ndescription = 'y'\nshell = 'rm -rf /'",
        "description = 'no name'",
        "name = 'own'\n\n[[tool]]\nname = 'x'",
        "name = 'own'\n[[tool]]\nname = 'x'\ndescription = 5",
    ]
    .map(refusal);
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn prompts_are_filled_in() {
    let toolkits = load(&["database".to_owned()], &nothing, &options()).unwrap();
    let prompt = &toolkits[0].prompts[0];
    assert_eq!(prompt.name, "explore_database");
    let given = json!({ "question": "Who pays {most}?" });
    assert!(prompt.fill(given.as_object().unwrap().clone()).unwrap().contains("database: Who pays {most}?"));
    assert_eq!(
        prompt.fill(serde_json::Map::new()).unwrap_err(),
        "The prompt explore_database needs the argument 'question'"
    );
}

#[tokio::test]
async fn resources_are_read() {
    let environment = |name: &str| (name == "STAGING_URL").then(|| "https://staging.example".to_owned());
    let toolkits = load(&["cicd".to_owned()], &environment, &options()).unwrap();
    let mut all = Vec::new();
    for resource in &toolkits[0].resources {
        all.push(format!("{} ({})\n{}", resource.uri, resource.mime, resource.read().await.unwrap()));
    }
    insta::assert_snapshot!(all.join("\n\n"));
}

#[tokio::test]
async fn a_date_is_a_text_in_json() {
    let text = "name = 'own'\n[[resource]]\nuri = 'x://y'\nname = 'z'\njson = { since = 2026-01-02, n = [1.5, nan, true] }";
    let toolkit = check::toolkit("own.toml", text, &nothing, &options()).unwrap_or_else(|e| panic!("{e}"));
    let read = toolkit.resources[0].read().await.unwrap();
    let value: serde_json::Value = serde_json::from_str(&read).unwrap();
    assert_eq!(value, json!({ "since": "2026-01-02", "n": [1.5, null, true] }));
}

/// What a person wrote, or a download left half: a toolkit that is the same each time, or a few lines on what is wrong.
#[test]
fn fuzz_toolkits() {
    const SECRET: &str = "s3cret-value-0123";
    let environment = |name: &str| match name {
        "TOKEN" => Some(SECRET.to_owned()),
        "URL" => Some(format!("https://me:{SECRET}@db.test:5432/x")),
        _ => None,
    };
    let seeds: Vec<&[u8]> = SHIPPED
        .iter()
        .map(|(_, text)| text.as_bytes())
        .chain([
            include_str!("wrong.toml").as_bytes(),
            b"name = 'own'\n[[tool]]\nname = 'x'\ndescription = 'y'\nparameters = { day = { type = 'string', default = 'now' }, at = { type = 'string', examples = [2026-01-02] } }\ncommand = { argv = ['date', '{day}'] }",
            b"name = 'own'\n[database]\nurl = 'env:URL'\n[[resource]]\nuri = 'x://y'\nname = 'z'\njson = { since = 2026-01-02, n = 1.5, url = 'env:URL' }",
            b"name = 'own'\n[service.s]\nbase = 'env:URL'\nheaders = { Authorization = 'Bearer env:TOKEN' }\n[[tool]]\nname = 'x'\ndescription = 'y'\nhttp = { service = 's', path = '/{a:2}' }\nparameters = { a = { type = 'string' } }\nrequired = ['a']",
        ])
        .collect();
    let specs = |toolkit: &Toolkit| {
        let spec = |tool: &Arc<dyn Tool>| {
            let spec = tool.spec();
            json!([spec.name, spec.title, spec.description, spec.input_schema])
        };
        let tools: Vec<_> = toolkit.tools.iter().map(spec).collect();
        let resources: Vec<_> =
            toolkit.resources.iter().map(|one| json!([one.uri, one.name, one.mime])).collect();
        let prompts: Vec<_> = toolkit.prompts.iter().map(|one| one.name.clone()).collect();
        json!([toolkit.name, toolkit.instructions, tools, resources, prompts]).to_string()
    };
    let options = options();
    belljar_fuzz::fuzz("toolkits", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let toolkit = match check::toolkit("own.toml", &text, &environment, &options) {
            Ok(toolkit) => toolkit,
            Err(problems) => {
                let told = problems.to_string();
                assert!(!told.contains(SECRET), "{told}");
                assert!(told.len() < 32 << 10, "{} bytes of problems", told.len());
                for line in told.lines() {
                    let at = line
                        .strip_prefix("own.toml:")
                        .and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
                    let at = at.unwrap_or_else(|| panic!("{line:?} does not say where"));
                    assert!((1..=text.lines().count() + 1).contains(&at) && line.len() < 1000, "{line}");
                }
                let first = told
                    .lines()
                    .next()
                    .map(|line| belljar_fuzz::kind(line.split('"').next().unwrap_or_default()));
                return belljar_fuzz::mark((first, told.lines().count().min(4)));
            }
        };
        let shown = specs(&toolkit);
        assert!(!shown.contains(SECRET) && !shown.contains("$__toml"), "{shown}");
        // Written in another way, it is the same.
        let again = toml::to_string(&toml::from_str::<toml::Table>(&text).unwrap()).unwrap();
        let again =
            check::toolkit("own.toml", &again, &environment, &options).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(specs(&again), shown);
        let registry = Registry::with(&[&toolkit.name], &options, &[toolkit.toolset()]);
        for prompt in &toolkit.prompts {
            let _ = prompt.fill(serde_json::Map::new());
        }
        let counts =
            (toolkit.tools.len().min(5), toolkit.resources.len().min(3), toolkit.prompts.len().min(3));
        belljar_fuzz::mark((counts, registry.is_ok(), shown.len().ilog2()))
    });
}
