//! Names of other servers' things. A name depends on nothing but the server's name and the thing's own, so it stays
//! the same whatever else there is.

use sha2::{Digest, Sha256};

/// What every client and every model accepts.
const MAX_NAME: usize = 64;
const BETWEEN: &str = "__";
const SCHEME: &str = "hub://";
/// Letters of a digest that tell two names apart.
const DIGEST: usize = 6;

/// `server__tool`, with a digest at its end where that is not a valid name, or could mean something else.
pub(super) fn exposed(server: &str, item: &str, taken: impl Fn(&str) -> bool) -> String {
    let (clean_server, clean_item) = (plain(server), plain(item));
    let name = format!("{clean_server}{BETWEEN}{clean_item}");
    let faithful = clean_server == server
        && clean_item == item
        && !item.is_empty()
        // The first two underscores are between the two names.
        && !server.contains(BETWEEN)
        && !server.ends_with('_')
        && name.len() <= MAX_NAME;
    if faithful && !taken(&name) {
        return name;
    }
    let mut digest = Sha256::new();
    digest.update(server.as_bytes());
    digest.update([0]);
    digest.update(item.as_bytes());
    let mark: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    // Long names of servers leave room for the tool's.
    let head = &clean_server[..clean_server.len().min(24)];
    let mut name = format!("{head}{BETWEEN}{clean_item}");
    name.truncate(MAX_NAME - DIGEST - 1);
    format!("{name}_{}", &mark[..DIGEST])
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect()
}

/// The server that a name may belong to.
pub(super) fn server_of<'a>(name: &str, servers: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let belongs = |server: &&str| {
        let clean = plain(server);
        let head = &clean[..clean.len().min(24)];
        name.strip_prefix(head).is_some_and(|rest| rest.contains(BETWEEN))
    };
    servers.filter(belongs).max_by_key(|server| server.len())
}

/// What the server calls it, where the name says so.
pub(super) fn item_of<'a>(name: &'a str, server: &str) -> Option<&'a str> {
    let item = name.strip_prefix(server)?.strip_prefix(BETWEEN)?;
    (exposed(server, item, |_| false) == name).then_some(item)
}

/// The address of a server's resource, or of a template of such.
pub(super) fn address(server: &str, uri: &str) -> String {
    format!("{SCHEME}{}/{uri}", server.replace('%', "%25").replace(' ', "%20"))
}

/// Server and address there.
pub(super) fn resolve(address: &str) -> Option<(String, &str)> {
    let (server, uri) = address.strip_prefix(SCHEME)?.split_once('/')?;
    Some((server.replace("%20", " ").replace("%25", "%"), uri))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(server: &str, item: &str) -> String {
        exposed(server, item, |_| false)
    }

    #[test]
    fn plain_names_stay_readable() {
        assert_eq!(name("github", "create_issue"), "github__create_issue");
        assert_eq!(name("every-thing", "get-sum"), "every-thing__get-sum");
        let names = [
            name("my server", "a.b/c"),
            name("a__b", "c"),
            name("a", "b__c"),
            name("a_", "b"),
            name("a", "_b"),
            name("s", &"long".repeat(30)),
            name(&"server".repeat(10), "tool"),
            name("s", ""),
            exposed("run", "code", |name| name == "run__code"),
        ];
        insta::assert_snapshot!(names.join("\n"));
    }

    #[test]
    fn addresses_lead_back() {
        for (server, uri) in [("a", "file:///x/y?z#q"), ("my server", "demo://1"), ("a%20b", "")] {
            assert_eq!(resolve(&address(server, uri)), Some((server.to_owned(), uri)));
        }
        assert_eq!(address("a", "test://{id}/x"), "hub://a/test://{id}/x");
        assert_eq!(resolve("file:///x"), None);
    }

    proptest! {
        #[test]
        fn names_are_valid_and_tell_things_apart(
            a in "[a-c_. ]{1,5}", b in "\\PC{0,70}", c in "[a-c_. ]{1,5}", d in "\\PC{0,70}",
        ) {
            let (one, other) = (name(&a, &b), name(&c, &d));
            for name in [&one, &other] {
                prop_assert!(name.len() <= MAX_NAME && name.contains(BETWEEN));
                prop_assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-'));
            }
            prop_assert_eq!((&a, &b) == (&c, &d), one == other);
        }

        #[test]
        fn short_names_tell_things_apart(a in "[ab_]{1,3}", b in "[ab_.]{1,3}", c in "[ab_]{1,3}", d in "[ab_.]{1,3}") {
            prop_assert_eq!((&a, &b) == (&c, &d), name(&a, &b) == name(&c, &d));
        }

        #[test]
        fn a_plain_name_says_what_it_is(item in "[a-z_]{1,20}") {
            let (plain, odd) = (name("server", &item), name("my server", &item));
            prop_assert_eq!(item_of(&plain, "server"), Some(item.as_str()));
            prop_assert_eq!(item_of(&odd, "my server"), None);
        }

        #[test]
        fn a_name_finds_its_server(server in "[a-c_. ]{1,30}", item in "[a-z]{1,50}") {
            prop_assert_eq!(server_of(&name(&server, &item), [server.as_str(), "other"].into_iter()), Some(server.as_str()));
        }
    }
}
