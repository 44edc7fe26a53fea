use super::*;

fn load(
    flags: &[(&'static str, &str)],
    environment: &[(&str, &str)],
    file: Option<&str>,
) -> anyhow::Result<Config> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("belljar.toml");
    if let Some(text) = file {
        std::fs::write(&path, text)?;
    }
    let flags = flags.iter().map(|(key, text)| (*key, text.to_string())).collect();
    let variables: BTreeMap<String, String> = environment
        .iter()
        .chain(&[("HOME", "/home/ann")])
        .map(|(name, text)| (name.to_string(), text.to_string()))
        .collect();
    Config::load(&flags, &move |name| variables.get(name).cloned(), file.map(|_| path.as_path()))
}

fn refusal(flags: &[(&'static str, &str)], environment: &[(&str, &str)], file: Option<&str>) -> String {
    let message = load(flags, environment, file).unwrap_err().to_string();
    match message.find("belljar.toml") {
        // The directory differs from run to run.
        Some(at) => format!("{}{}", if message.contains("file ") { "…file " } else { "" }, &message[at..]),
        None => message,
    }
}

#[test]
fn the_defaults_are_those_of_the_crates() {
    let config = load(&[], &[], None).unwrap();
    assert_eq!(config.home, Path::new("/home/ann/.local/share/belljar"));
    assert_eq!(config.toolsets, ["contexts", "sessions", "sandbox"]);
    assert_eq!(config.service.volumes.names(), ["shared"]);
    // What is on disk is nobody's default.
    let (volumes, templates) = (VolumeStore::default(), Settings::default().templates);
    let service = Settings { volumes, templates, ..config.service };
    assert_eq!(format!("{service:?}"), format!("{:?}", Settings::default()));
    assert_eq!((config.cgroups, config.landlock), (Demand::Auto, Demand::Auto));
    assert_eq!((config.python, config.node, config.browser), (None, None, None));
    assert!(config.resolved.iter().all(|value| value.origin == Origin::Default));
}

#[test]
fn flags_beat_environment_beats_file() {
    let file =
        "toolsets = [\"contexts\", \"all\"]\n[run]\ntimeout = 10\n[limits]\nmemory = \"1GiB\"\ncpus = 1.5\n";
    let environment = [("BELLJAR_RUN_TIMEOUT", "20s"), ("BELLJAR_LIMITS_MEMORY", "512"), ("BELLJAR_LOG", "")];
    let config = load(&[("run.timeout", "1m")], &environment, Some(file)).unwrap();
    assert_eq!(config.service.run_timeout, Duration::from_secs(60));
    assert_eq!(config.service.limits.memory_bytes, 512 << 20);
    assert_eq!(config.service.limits.cpus, 1.5);
    assert_eq!(config.toolsets, ["contexts", "all"]);
    assert_eq!(config.origin("run.timeout"), &Origin::Flag("run-timeout".to_owned()));
    assert_eq!(config.origin("limits.memory"), &Origin::Environment("BELLJAR_LIMITS_MEMORY".to_owned()));
    assert!(matches!(config.origin("limits.cpus"), Origin::File(_)));
    assert_eq!(config.origin("log"), &Origin::Default);
}

#[test]
fn refusals_name_the_source_the_value_and_what_is_accepted() {
    let refusals = [
        refusal(&[("run.timeout", "soon")], &[], None),
        refusal(&[], &[("BELLJAR_POOL_SIZE", "-1")], None),
        refusal(&[], &[], Some("[isolation]\ncgroups = \"off\"")),
        refusal(&[], &[], Some("[run]\ntimout = 5")),
        refusal(&[], &[], Some("default_context = \"perhaps\"")),
        refusal(&[("run.timeout", "2h")], &[], None),
        refusal(&[("log", "belljar=loud")], &[], None),
    ];
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn a_file_that_was_named_must_be_there_and_be_toml() {
    let missing =
        Config::load(&BTreeMap::new(), &|_| None, Some(Path::new("/nowhere/belljar.toml"))).unwrap_err();
    assert_eq!(missing.to_string(), "cannot read the settings file /nowhere/belljar.toml");
    assert!(refusal(&[], &[], Some("a = ")).contains("belljar.toml: TOML parse error at line 1"));
}

#[test]
fn the_usual_file_is_read_and_none_in_the_working_directory() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("belljar")).unwrap();
    std::fs::write(directory.path().join("belljar/belljar.toml"), "[pool]\nsize = 7").unwrap();
    let base = directory.path().to_string_lossy().into_owned();
    let environment = move |name: &str| match name {
        "HOME" => Some("/home/ann".to_owned()),
        "XDG_CONFIG_HOME" => Some(base.clone()),
        // Relative, so it does not count.
        "XDG_DATA_HOME" => Some("data".to_owned()),
        _ => None,
    };
    let config = Config::load(&BTreeMap::new(), &environment, None).unwrap();
    assert_eq!(config.service.pool_size, 7);
    assert_eq!(config.home, Path::new("/home/ann/.local/share/belljar"));
}

#[test]
fn without_a_home_directory_the_state_needs_a_place() {
    let error = Config::load(&BTreeMap::new(), &|_| None, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no home directory to keep state in: set BELLJAR_HOME to a directory"
    );
    let environment = |name: &str| (name == "BELLJAR_HOME").then(|| "/srv/belljar".to_owned());
    assert_eq!(Config::load(&BTreeMap::new(), &environment, None).unwrap().home, Path::new("/srv/belljar"));
}
