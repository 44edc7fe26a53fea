//! What sandboxes are made of.

use super::*;

fn image(name: &str, id: &str, languages: &[Language]) -> TemplateInfo {
    TemplateInfo {
        name: name.into(),
        image: Image::Docker(id.into()),
        env: Vec::new(),
        workdir: None,
        user: None,
        languages: languages.to_vec(),
    }
}

/// A catalogue that changes while the service runs.
#[derive(Debug, Default)]
struct Shelf(Mutex<Vec<TemplateInfo>>);

impl Catalogue for Shelf {
    fn all(&self) -> Vec<TemplateInfo> {
        self.0.lock().unwrap().clone()
    }
}

fn settings(shelf: &Arc<Shelf>) -> Settings {
    Settings { templates: Arc::clone(shelf) as Arc<dyn Catalogue>, ..Settings::default() }
}

async fn make(bench: &Bench, template: Option<&str>) -> Result<ContextInfo, Error> {
    let template = template.map(str::to_owned);
    bench.service.create_sandbox(&bench.caller, Language::Python, template, None, None).await
}

fn made(world: &World) -> Vec<Option<String>> {
    world.templates.lock().unwrap().clone()
}

#[tokio::test]
async fn a_context_stays_what_it_is_made_of() {
    let shelf = Arc::new(Shelf(Mutex::new(vec![image("tools", "1", &[Language::Python])])));
    let bench = Bench::new(settings(&shelf));
    let refused = make(&bench, Some("toolz")).await.unwrap_err();
    assert_eq!(refused.to_string(), r#"Unknown template: "toolz". There are: python, node, tools"#);
    assert_eq!(refused.code(), "INVALID_PARAMS");

    let info = make(&bench, Some("tools")).await.unwrap();
    assert_eq!(info.template.as_deref(), Some("tools"));
    bench.exec(&info.id, "die").await.unwrap();
    bench.exec(&info.id, "ls").await.unwrap();
    assert_eq!(made(&bench.world), [Some("tools".into()), Some("tools".into())]);

    let later = Bench::over(Arc::clone(&bench.world), settings(&shelf));
    later.service.adopt().await;
    let adopted = later.service.find_context(&later.caller, &info.id).unwrap();
    assert_eq!(adopted.template.as_deref(), Some("tools"), "the label says so");

    shelf.0.lock().unwrap().clear();
    let gone = bench.exec(&info.id, "die").await.unwrap_err();
    assert!(gone.to_string().starts_with("Unknown template"), "never of something else: {gone}");
}

#[tokio::test]
async fn an_image_without_interpreters_is_asked_for_none() {
    let shelf = Arc::new(Shelf(Mutex::new(vec![image("bare", "1", &[])])));
    let bench = Bench::new(settings(&shelf));
    let info = make(&bench, Some("bare")).await.unwrap();
    bench.exec(&info.id, "ls").await.unwrap();
    assert_eq!(*bench.world.started.lock().unwrap(), []);
}

#[tokio::test]
async fn templates_are_kept_ready_from_their_first_use_on() {
    let shelf = Arc::new(Shelf(Mutex::new(vec![image("tools", "1", &[Language::Python])])));
    let pool = Settings { pool_size: 1, pool_languages: vec![Language::Python], ..settings(&shelf) };
    let bench = Bench::with_pool(Arc::default(), pool);
    bench.service.start();
    until(|| bench.service.health().all_sessions_healthy).await;
    assert_eq!(made(&bench.world), [None], "nobody has asked for the other one");

    make(&bench, Some("tools")).await.unwrap();
    // The one that was asked for, and one that waits.
    until(|| made(&bench.world).len() == 3).await;
    make(&bench, Some("tools")).await.unwrap();
    until(|| made(&bench.world).len() == 4).await;
    assert_eq!(made(&bench.world)[1..], vec![Some("tools".to_owned()); 3]);
    assert_eq!(bench.service.health().session_pool_size, 1, "health is told by the built-in one");

    // What waits is of the old one.
    shelf.0.lock().unwrap()[0] = image("tools", "2", &[Language::Python]);
    make(&bench, Some("tools")).await.unwrap();
    until(|| made(&bench.world).len() == 6).await;
    bench.service.shutdown().await;
}
