//! `docs/settings.md`, made from the table. `UPDATE_DOCS=1 cargo test -p belljar` writes it.

use std::{fmt::Write, path::Path};

use super::{SETTINGS, file};

fn page() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         <!-- Made from crates/belljar/src/config/settings.rs by `UPDATE_DOCS=1 cargo test -p belljar`. -->\n\n\
         Flags beat environment variables beat the settings file beat defaults. `belljar config show` prints every\n\
         value and where it came from.\n\n",
    );
    let _ = writeln!(
        page,
        "The settings file is `$XDG_CONFIG_HOME/belljar/belljar.toml` (usually `~/.config/belljar/belljar.toml`), or the\n\
         one that `--config` or `{}` names; a key such as `run.timeout` is `timeout` in the table `[run]`. No file in\n\
         the working directory is ever read.\n",
        file::ENV
    );
    page.push_str("| key | flag | environment | default | accepts | |\n|---|---|---|---|---|---|\n");
    for setting in SETTINGS {
        let default = setting.default_text();
        let default = if setting.default.is_empty() && setting.key != "home" {
            default.to_owned()
        } else {
            format!("`{default}`")
        };
        let alias = setting.alias.map(|alias| format!(", `{alias}`")).unwrap_or_default();
        let _ = writeln!(
            page,
            "| `{}` | `--{}` | `{}`{alias} | {default} | {} | {} |",
            setting.key,
            setting.flag(),
            setting.env(),
            setting.accepts.describe(),
            setting.doc,
        );
    }
    page
}

#[test]
fn the_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/settings.md is stale: UPDATE_DOCS=1 cargo test -p belljar writes it");
}
