//! When this was built, for `/health` and `/version`. `SOURCE_DATE_EPOCH` makes a build repeatable.

use jiff::Timestamp;

fn main() {
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let built = given.and_then(|second| Timestamp::from_second(second).ok()).unwrap_or_else(Timestamp::now);
    println!("cargo::rustc-env=BELLJAR_BUILD_TIME={built:.0}");
}
