use super::*;

fn chunk(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        call_id: id.into(),
        fn_name: name.into(),
        fn_arguments: Value::String(arguments.into()),
        thought_signatures: None,
    }
}

fn together(provider: Provider, chunks: &[(&str, &str, &str)]) -> Vec<(String, String)> {
    let mut calls = Vec::new();
    for (id, name, arguments) in chunks {
        put_together(&mut calls, provider, chunk(id, name, arguments));
    }
    calls.into_iter().map(|call| (call.name, call.arguments)).collect()
}

#[test]
fn calls_are_put_together_as_each_provider_sends_them() {
    let parallel = [
        ("x1", "read", ""),
        ("call_0", "", "{\"a\""),
        ("x2", "write", ""),
        ("call_1", "", "{}"),
        ("call_0", "", ":1}"),
    ];
    let expected = [("read".to_owned(), "{\"a\":1}".to_owned()), ("write".to_owned(), "{}".to_owned())];
    assert_eq!(together(Provider::OpenAi, &parallel), expected);
    let repeated = [("x1", "read", "{"), ("x1", "", "}")];
    assert_eq!(together(Provider::OpenAi, &repeated), [("read".to_owned(), "{}".to_owned())]);
    let cumulative = [("t1", "read", ""), ("t1", "read", "{\"a\""), ("t1", "read", "{\"a\":1}")];
    assert_eq!(together(Provider::Anthropic, &cumulative), [("read".to_owned(), "{\"a\":1}".to_owned())]);
    // Nonsense makes no room for itself.
    assert_eq!(together(Provider::OpenAi, &[("call_4294967295", "", "x")]), []);
    assert_eq!(
        together(Provider::OpenAi, &[("a", "f", ""), ("call_4294967295", "", "{}")]),
        [("f".to_owned(), "{}".to_owned())]
    );
}

#[test]
fn addresses_are_as_the_library_wants_them() {
    for (given, meant) in [
        ("", ""),
        ("http://localhost:4010", "http://localhost:4010/v1/"),
        ("http://localhost:4010/v1", "http://localhost:4010/v1/"),
        ("https://example.com/openai/v1/", "https://example.com/openai/v1/"),
    ] {
        assert_eq!(base_url(given).unwrap(), meant);
    }
    for wrong in ["localhost:4010", "ftp://x", "nonsense"] {
        assert!(base_url(wrong).unwrap_err().to_string().contains("llm.base_url"));
    }
}

fn settings() -> config::Acp {
    config::Acp {
        provider: None,
        base_url: String::new(),
        model: String::new(),
        models: vec!["other".into()],
        key_file: None,
        context: 1000,
        max_tokens: 0,
        mode: "ask",
        max_requests: 10,
    }
}

#[test]
fn the_key_in_the_environment_decides_unless_told_otherwise() {
    let with = |settings: &config::Acp, variables: &[(&str, &str)]| {
        let find =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Models::new(settings, &find).unwrap()
    };
    let none = with(&settings(), &[]);
    insta::assert_snapshot!(none.missing().unwrap());
    let anthropic = with(&settings(), &[("ANTHROPIC_API_KEY", "k")]);
    assert_eq!((anthropic.provider, anthropic.missing()), (Provider::Anthropic, None));
    assert_eq!(anthropic.names(), ["claude-sonnet-4-5", "other"]);
    let both = [("ANTHROPIC_API_KEY", "k"), ("OPENAI_API_KEY", "k")];
    assert_eq!(with(&settings(), &both).provider, Provider::OpenAi);
    let told = config::Acp { provider: Some("anthropic"), model: "mine".into(), ..settings() };
    assert_eq!(with(&told, &both).names(), ["mine", "other"]);
    let local = config::Acp { base_url: "http://localhost:1/v1".into(), ..settings() };
    assert_eq!(with(&local, &[]).missing(), None);
}

#[test]
fn a_refusal_is_told_in_one_bounded_line() {
    let error = genai::Error::HttpError {
        status: reqwest::StatusCode::UNAUTHORIZED,
        canonical_reason: "Unauthorized".into(),
        body: format!("no\nsuch\u{1b}[31m key {}", "x".repeat(10_000)),
        headers: Box::default(),
    };
    let told = describe(&error);
    assert!(told.auth && told.message.len() < 700 && !told.message.contains(['\n', '\u{1b}']), "{told}");
    assert!(told.message.contains("401") && told.message.contains("OPENAI_API_KEY"));
}
