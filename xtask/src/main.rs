//! Chores: `cargo xtask guest` builds the static guest where the backends' build script looks for it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

fn main() -> ExitCode {
    let chore = env::args().nth(1).unwrap_or_default();
    let done = match chore.as_str() {
        "guest" => build_guest(),
        _ => Err(anyhow::anyhow!("chores: guest")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {chore}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The guest runs in root file systems of any kind, so it must not need a single shared library.
fn build_guest() -> Result<()> {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "belljar-guest", "--profile", "guest", "--target", &target])
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
        .current_dir(root())
        .status()
        .context("start cargo")?;
    if !status.success() {
        bail!("the guest did not build");
    }
    let built = root().join("target").join(&target).join("guest/belljar-guest");
    let staged = root().join("target/staged/belljar-guest");
    fs::create_dir_all(root().join("target/staged"))?;
    let fresh = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    // Left untouched when nothing changed, so that nothing is rebuilt for it.
    if fs::read(&staged).ok().as_ref() != Some(&fresh) {
        fs::write(&staged, &fresh)?;
    }
    Ok(())
}
