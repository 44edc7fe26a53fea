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
