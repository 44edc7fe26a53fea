use proptest::prelude::*;

use super::*;

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

fn ceiling(max: Mode, allow: &[&str]) -> Ceiling {
    Ceiling { max, allow: allow.iter().map(|text| rule(text)).collect(), private: Vec::new() }
}

fn listed(allow: &[&str]) -> Policy {
    Policy { mode: Mode::Allowlist, allow: Some(allow.iter().map(|text| rule(text)).collect()) }
}

fn allowed(ceiling: &Ceiling, policy: &Policy, place: &str) -> bool {
    let (host, port) = Host::parse_with_port(place, Some(443)).unwrap();
    ceiling.judge(policy, &host, port).is_ok()
}

#[test]
fn a_wildcard_stands_for_what_is_below_it() {
    let (open, policy) = (ceiling(Mode::Open, &[]), listed(&["*.example.com"]));
    for good in ["a.example.com", "a.b.example.com", "A.EXAMPLE.COM:80"] {
        assert!(allowed(&open, &policy, good), "{good}");
    }
    for bad in ["example.com", "notexample.com", "example.com.evil.test", "evil.test", "a.example.com:22"] {
        assert!(!allowed(&open, &policy, bad), "{bad}");
    }
}

#[test]
fn an_exact_name_is_no_other() {
    let (open, policy) = (ceiling(Mode::Open, &[]), listed(&["example.org:443"]));
    assert!(allowed(&open, &policy, "Example.org"));
    for bad in [
        "www.example.org",
        "example.org:80",
        "example.org.evil.test",
        "xn--exmple-4nf.org",
        "93.184.216.34",
        "[2606::1]",
    ] {
        assert!(!allowed(&open, &policy, bad), "{bad}");
    }
}

#[test]
fn nobody_gets_more_than_the_operator_allows() {
    let ceiling = ceiling(Mode::Allowlist, &["*.example.com", "example.org"]);
    assert!(allowed(&ceiling, &Policy { mode: Mode::Allowlist, allow: None }, "example.org"));
    assert!(!allowed(&ceiling, &Policy { mode: Mode::Allowlist, allow: None }, "evil.test"));
    // A list of one's own only ever takes away.
    let own = listed(&["example.org", "evil.test"]);
    assert!(allowed(&ceiling, &own, "example.org"));
    assert!(!allowed(&ceiling, &own, "evil.test") && !allowed(&ceiling, &own, "a.example.com"));
    // Not even with a policy that should never have been set.
    let open = Policy { mode: Mode::Open, allow: None };
    assert!(!allowed(&ceiling, &open, "evil.test") && allowed(&ceiling, &open, "example.org"));
    assert!(!allowed(&Ceiling::default(), &open, "example.org"));
}

#[test]
fn what_a_sandbox_may_have_is_said() {
    let refused = |ceiling: &Ceiling, policy: &Policy| ceiling.check(policy).unwrap_err();
    let open = Policy { mode: Mode::Open, allow: None };
    let with_list = Policy { allow: Some(Vec::new()), ..open.clone() };
    insta::assert_debug_snapshot!([
        refused(&Ceiling::default(), &open),
        refused(&ceiling(Mode::Allowlist, &[]), &open),
        refused(&ceiling(Mode::Open, &[]), &with_list),
    ]);
    assert_eq!(Ceiling::default().check(&Policy::default()), Ok(()));
}

#[test]
fn a_private_host_is_one_that_the_operator_named() {
    let mut ceiling = ceiling(Mode::Open, &[]);
    ceiling.private.push((host("registry.internal"), 8080));
    let open = Policy { mode: Mode::Open, allow: None };
    let grant = |port| ceiling.judge(&open, &host("registry.internal"), port).unwrap();
    assert!(grant(8080).private && !grant(8080).made_up);
    assert!(!grant(80).private && grant(80).made_up);
    // A list of the sandbox's own has to name it too.
    assert!(!allowed(&ceiling, &listed(&["example.org"]), "registry.internal:8080"));
    assert!(allowed(&ceiling, &listed(&["registry.internal:8080"]), "registry.internal:8080"));
    assert!(allowed(&ceiling, &Policy { mode: Mode::Allowlist, allow: None }, "registry.internal:8080"));
}

#[test]
fn methods_are_those_of_every_list() {
    let ceiling = ceiling(Mode::Allowlist, &["a.test GET POST", "b.test"]);
    let grant = |policy: &Policy, name: &str| ceiling.judge(policy, &host(name), 443).unwrap();
    let own = listed(&["a.test get head", "b.test"]);
    assert!(grant(&own, "a.test").is_limited() && !grant(&own, "b.test").is_limited());
    for (method, fine) in
        [("GET", true), ("POST", false), ("HEAD", false), ("get", false), ("CONNECT", false)]
    {
        assert_eq!(grant(&own, "a.test").check_method(method).is_ok(), fine, "{method}");
    }
    assert!(grant(&own, "b.test").check_method("BREW").is_ok());
    // Two rules for one host add up.
    let both = listed(&["a.test GET", "a.test POST"]);
    assert!(grant(&both, "a.test").check_method("POST").is_ok());
}

#[test]
fn rules_that_cannot_be_meant_are_refused_with_the_reason() {
    let bad = [
        "",
        "*",
        "*.1.2.3.4",
        "a.test:0",
        "a.test:80+",
        "a.test BREW",
        "a..test",
        "https://a.test",
        "a.test.",
        "ä.test",
    ];
    insta::assert_debug_snapshot!(bad.map(|text| text.parse::<Rule>().unwrap_err()));
}

proptest! {
    #[test]
    fn a_rule_reads_back_as_itself(text in "\\PC{0,60}|(\\*\\.)?[a-z0-9.\\-]{1,20}(:[0-9+]{1,8})?( (GET|post))?") {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }
}
