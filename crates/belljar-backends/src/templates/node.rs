//! The JavaScript template: the host's Node, and our kernel.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Hold, Sources, TemplateError, build_atomically, capture, hex_digest, hold, remember};

const KERNEL: &str = include_str!("../../../belljar-guest/kernels/node/kernel.cjs");
/// Lets fetch use a proxy.
const PROXY: &str = include_str!("../../../belljar-guest/kernels/node/proxy.cjs");
const OLDEST: u32 = 18;
const NAMES: [&str; 2] = ["node", "nodejs"];

/// A template that can be mounted.
#[derive(Debug, Clone)]
pub struct Node {
    pub executable: PathBuf,
    pub version: String,
    /// Holds `kernel.cjs` and `proxy.cjs`.
    pub directory: PathBuf,
    pub hold: Hold,
}

impl Node {
    /// Executable and version of the first usable Node of the host.
    pub fn find(sources: &Sources) -> Result<(PathBuf, String), TemplateError> {
        let executable = |(path, _): &(PathBuf, String)| path.clone();
        remember(sources, "node", sources.node.as_deref(), executable, || Self::look_for(sources))
    }

    fn look_for(sources: &Sources) -> Result<(PathBuf, String), TemplateError> {
        let candidates: Vec<PathBuf> = match &sources.node {
            Some(path) => vec![path.clone()],
            None => NAMES.iter().map(PathBuf::from).collect(),
        };
        let mut seen = String::from("none was found");
        for candidate in candidates {
            let mut command = Command::new(&candidate);
            // The environment may name files that only slow the start down.
            command.env_remove("NODE_OPTIONS").env_remove("NODE_EXTRA_CA_CERTS");
            command
                .args(["-p", "process.versions.node + '\\n' + require('fs').realpathSync(process.execPath)"]);
            let answer = match capture(&mut command) {
                Ok(answer) => answer,
                Err(error) => {
                    if sources.node.is_some() {
                        seen = error.message;
                    }
                    continue;
                }
            };
            let Some((version, executable)) = answer.trim().split_once('\n') else { continue };
            let major = version.split('.').next().and_then(|m| m.parse::<u32>().ok()).unwrap_or(0);
            if major >= OLDEST {
                return Ok((executable.into(), version.into()));
            }
            seen = format!("{} is {version}", candidate.display());
        }
        Err(TemplateError::new(format!("Node {OLDEST} or newer is needed for JavaScript: {seen}"))
            .hint("apt-get install nodejs, or name one with the setting `node`"))
    }

    pub(super) fn prepare(sources: &Sources) -> Result<Self, TemplateError> {
        let (executable, version) = Self::find(sources)?;
        let directory = sources
            .directory()
            .join(format!("node-{}", &hex_digest(&[KERNEL.as_bytes(), PROXY.as_bytes()])[..16]));
        if !directory.is_dir() {
            build_atomically(&directory, |fresh: &Path| {
                let write = |name: &str, text: &str| fs::write(fresh.join(name), text);
                write("kernel.cjs", KERNEL)
                    .and_then(|()| write("proxy.cjs", PROXY))
                    .map_err(|e| TemplateError::io("write the kernel", &e))
            })?;
        }
        let hold = hold(&directory)?;
        Ok(Self { executable, version, directory, hold })
    }
}
