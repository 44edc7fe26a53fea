//! What a sandbox of an image looks like from inside: the image's files, and over them the few that are ours.

use std::{collections::BTreeMap, path::Path};

use belljar_jail::protocol::{GuestConfig, RootSpec};
use belljar_sandbox::{Image, TemplateInfo};

use super::layout::{self, ALONE, Layout, NODE_KERNEL};
use crate::templates::{KERNEL, PRELOAD, Templates};

/// The kernel's own libraries, for the Python of the image.
const LIBRARIES: &str = "/opt/belljar/libraries";
/// Where programs are, if the image does not say.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that say where files go and who one is: in every sandbox the same, whatever an image says.
const OURS: [&str; 8] = [
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "npm_config_cache",
    "HOSTNAME",
];

pub(crate) fn layout(template: &TemplateInfo, templates: &Templates) -> Layout {
    let layers = match &template.image {
        Image::Layers(layers) => layers.clone(),
        Image::Docker(_) => Vec::new(),
    };
    let mut root = RootSpec { layers, files: layout::files(), ..RootSpec::default() };
    let mut bind = |source: &Path, target: &str| {
        root.binds.push(layout::show(source, target));
    };
    let mut guest = GuestConfig {
        digest: crate::guest_digest(),
        workdir: template.workdir.clone(),
        ..GuestConfig::default()
    };
    // Started whatever the template says it has: where there is none, the guest tells what it looked for.
    if let (Some(python), Some(libraries)) = (templates.python(), &templates.libraries) {
        bind(&python.kernel.join("code"), KERNEL);
        bind(&libraries.directory, LIBRARIES);
        let program = format!("{KERNEL}/{ALONE}");
        let argv = ["python3", "-B", &program, "--last", LIBRARIES].into_iter().chain(PRELOAD);
        guest.python = argv.map(String::from).collect();
    }
    if let Some(node) = templates.node() {
        bind(&node.directory, NODE_KERNEL);
        let program = format!("{NODE_KERNEL}/kernel.cjs");
        guest.javascript = ["node", "--expose-internals", &program].map(String::from).to_vec();
    }
    root.directories.extend(template.workdir.clone());
    Layout {
        root,
        env: environment(template),
        // The kernel is built on libraries that come with the Python template.
        zygote: Err(layout::why_no_python(templates)),
        alone: Vec::new(),
        browser: Err("there is no browser in sandboxes of images: use the built-in template for it".into()),
        guest,
    }
}

fn environment(template: &TemplateInfo) -> BTreeMap<String, String> {
    let mut env = layout::environment();
    env.extend(layout::python_defaults());
    env.extend([("PATH", SEARCH), ("SHELL", "/bin/sh")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    let theirs = template.env.iter().filter(|(name, _)| !OURS.contains(&name.as_str()));
    env.extend(theirs.cloned());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> TemplateInfo {
        let env = [("PATH", "/opt/bin"), ("HOME", "/root"), ("GREETING", "hello")];
        TemplateInfo {
            name: "mine".into(),
            image: Image::Layers(vec!["/below".into(), "/above".into()]),
            env: env.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
            workdir: Some("/srv/app".into()),
            user: None,
            languages: Vec::new(),
        }
    }

    #[test]
    fn an_image_brings_its_files_and_variables_and_not_whose_they_are() {
        let Layout { root, env, guest, .. } = layout(&template(), &Templates::default());
        assert_eq!(root.layers.len(), 2);
        assert!(root.binds.is_empty(), "nothing of the host's is in it");
        assert_eq!((env["PATH"].as_str(), env["HOME"].as_str()), ("/opt/bin", "/workspace"));
        assert_eq!(env["GREETING"], "hello");
        assert!(root.directories.contains(&"/srv/app".to_owned()));
        assert_eq!(guest.workdir.as_deref(), Some("/srv/app"));
    }
}
