//! Which context a word stands for.

use super::*;

#[tokio::test]
async fn a_name_stands_for_the_only_one_of_the_caller_that_has_it() {
    let bench = Bench::new(Settings::default());
    let first = bench.context("work", None).await.unwrap().id;
    let find = |word: &str| bench.service.find_context(&bench.caller, word).map(|info| info.id);
    assert_eq!(find("work").unwrap(), first);
    assert_eq!(find(&first).unwrap(), first);

    let second = bench.context("work", None).await.unwrap().id;
    let Err(Error::AmbiguousName { ids, .. }) = find("work") else { panic!("one of two was chosen") };
    let mut both = vec![first.clone(), second.clone()];
    both.sort();
    assert_eq!(ids, both);

    bench.service.stop_context(&bench.caller, &first).await.unwrap();
    assert_eq!(find("work").unwrap(), second);
    bench.service.stop_context(&bench.caller, "work").await.unwrap();
    assert!(matches!(find("work"), Err(Error::NotFound(_))));
    assert!(matches!(find(&second), Err(Error::NotFound(_))));
}

#[tokio::test]
async fn what_others_have_is_not_there() {
    let mine = Bench::new(Settings::default());
    let theirs = Bench {
        service: Arc::clone(&mine.service),
        world: Arc::clone(&mine.world),
        caller: Caller::new("bob"),
    };
    let context = mine.context("work", None).await.unwrap();
    for word in ["work", &context.id] {
        assert!(matches!(theirs.service.find_context(&theirs.caller, word), Err(Error::NotFound(_))));
    }
    let other = theirs.context("work", None).await.unwrap();
    assert_eq!(mine.service.find_context(&mine.caller, "work").unwrap().id, context.id);
    assert_eq!(theirs.service.find_context(&theirs.caller, "work").unwrap().id, other.id);
    assert_eq!(mine.service.list_contexts(&mine.caller).len(), 1);
}

#[tokio::test]
async fn the_list_is_newest_first_and_the_limit_counts_the_living() {
    let bench = Bench::new(Settings { contexts_per_caller: 3, ..Settings::default() });
    for name in ["a", "b", "c"] {
        bench.context(name, None).await.unwrap();
    }
    let refused = bench.context("d", None).await;
    assert!(matches!(refused, Err(Error::TooManyContexts { live: 3, limit: 3 })));
    bench.service.stop_context(&bench.caller, "b").await.unwrap();
    bench.context("d", None).await.unwrap();
    let names: Vec<_> =
        bench.service.list_contexts(&bench.caller).into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["d", "c", "a"]);
}
