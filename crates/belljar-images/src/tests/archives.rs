//! The store, and the archives that images come in.

use std::{fs, os::unix::fs::symlink, path::Path};

use sha2::{Digest, Sha256};

use super::{entry, file, gzip, link, small, tar};
use crate::{ImageError, Store, Template, manifest::architecture, stream::digest_text};

struct Home {
    directory: tempfile::TempDir,
    store: Store,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::below(&directory.path().join("home"));
        Self { directory, store }
    }

    fn load(&self, name: &str, archive: &[u8]) -> Result<Template, ImageError> {
        let path = self.directory.path().join("archive");
        fs::write(&path, archive).unwrap();
        let change = self.store.change(&|_| ()).unwrap();
        crate::load(&change, name, &path, &small(), &|_| ())
    }

    fn remove(&self, name: &str) -> Result<u64, ImageError> {
        self.store.change(&|_| ()).unwrap().remove(name)
    }

    fn layers(&self) -> usize {
        fs::read_dir(self.directory.path().join("home/images/layers")).unwrap().count()
    }

    fn leftovers(&self) -> usize {
        fs::read_dir(self.directory.path().join("home/images/tmp")).unwrap().count()
    }
}

fn digest(bytes: &[u8]) -> String {
    digest_text(Sha256::new_with_prefix(bytes))
}

pub(crate) fn config(layers: &[&[u8]]) -> Vec<u8> {
    let ids: Vec<_> = layers.iter().map(|layer| digest(layer)).collect();
    serde_json::json!({
        "architecture": architecture(), "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids},
        "config": {"Env": ["PATH=/opt/bin:/usr/bin", "GREETING=hello=world"], "WorkingDir": "/srv/app", "User": "app:app"},
    })
    .to_string()
    .into_bytes()
}

/// As `docker save` writes it.
pub(crate) fn saved(layers: &[&[u8]], config: &[u8]) -> Vec<u8> {
    saved_as(layers, config, |at| format!("layer{at}/layer.tar"))
}

fn saved_as(layers: &[&[u8]], config: &[u8], named: impl Fn(usize) -> String) -> Vec<u8> {
    let name = format!("{}.json", &digest(config)[7..]);
    let paths: Vec<_> = (0..layers.len()).map(named).collect();
    let manifest = serde_json::json!([{"Config": name, "RepoTags": ["x:1"], "Layers": paths}]).to_string();
    let mut entries = vec![entry(&name, b'0', 0o644, "", config), file("manifest.json", &manifest)];
    entries.extend(paths.iter().zip(layers).map(|(path, layer)| entry(path, b'0', 0o644, "", layer)));
    tar(&entries)
}

/// As an OCI layout, its layers compressed.
pub(crate) fn layout(layers: &[&[u8]], config: &[u8], change: impl Fn(usize, &mut Vec<u8>)) -> Vec<u8> {
    let mut entries = vec![file("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)];
    let mut blob = |bytes: &[u8], stored: &[u8]| {
        let digest = digest(bytes);
        entries.push(
            [
                entry("name", b'L', 0, "", format!("blobs/sha256/{}", &digest[7..]).as_bytes()),
                entry("x", b'0', 0o644, "", stored),
            ]
            .concat(),
        );
        serde_json::json!({"digest": digest, "size": bytes.len()})
    };
    let config = blob(config, config);
    let layers: Vec<_> = layers
        .iter()
        .enumerate()
        .map(|(at, layer)| {
            let packed = gzip(layer);
            let mut stored = packed.clone();
            change(at, &mut stored);
            blob(&packed, &stored)
        })
        .collect();
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let manifest = blob(manifest.as_bytes(), manifest.as_bytes());
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
    entries.push(file("index.json", &index));
    tar(&entries)
}

pub(crate) fn base() -> Vec<u8> {
    tar(&[
        entry("usr/bin/python3", b'0', 0o755, "", b"x"),
        entry("opt/bin/node", b'0', 0o755, "", b"x"),
        file("etc/motd", "one"),
    ])
}

pub(crate) fn top() -> Vec<u8> {
    tar(&[file("opt/bin/.wh.node", ""), file("srv/app/main.py", "print()")])
}

#[test]
fn podman_names_layers_otherwise() {
    let home = Home::new();
    let (base, top) = (base(), top());
    let archive =
        saved_as(&[&base, &top], &config(&[&base, &top]), |at| format!("{}.tar", &digest(&[at as u8])[7..]));
    assert_eq!(home.load("saved", &archive).unwrap().layers, [digest(&base), digest(&top)]);
}

#[test]
fn all_kinds_of_archives_give_the_same_template() {
    let home = Home::new();
    let (base, top) = (base(), top());
    let config = config(&[&base, &top]);
    let saved = home.load("saved", &gzip(&saved(&[&base, &top], &config))).unwrap();
    let laid_out = home.load("laid-out", &layout(&[&base, &top], &config, |_, _| ())).unwrap();
    assert_eq!(saved.layers, laid_out.layers);
    assert_eq!(saved.env, laid_out.env);
    assert_eq!(saved.env["GREETING"], "hello=world");
    assert_eq!((saved.workdir.as_deref(), saved.user.as_deref()), (Some("/srv/app"), Some("app:app")));
    // Node is hidden by the layer above.
    assert_eq!(saved.languages, ["python"]);
    let plain = home.load("plain", &base).unwrap();
    assert_eq!((plain.languages, plain.workdir), (vec!["python".to_owned()], None));
    assert_eq!((home.layers(), home.leftovers()), (2, 0), "layers are shared");
    let names: Vec<_> = home.store.list().unwrap().into_iter().map(|template| template.name).collect();
    assert_eq!(names, ["laid-out", "plain", "saved"]);
    let above = home.store.layer(&saved.layers[1]).unwrap();
    assert!(above.join("srv/app/main.py").is_file());
}

#[test]
fn layers_go_with_the_last_template_that_has_them() {
    let home = Home::new();
    let (base, top) = (base(), top());
    home.load("one", &saved(&[&base, &top], &config(&[&base, &top]))).unwrap();
    home.load("two", &saved(&[&base], &config(&[&base]))).unwrap();
    assert_eq!(home.layers(), 2);
    assert!(home.remove("one").unwrap() > 0);
    assert_eq!(home.layers(), 1);
    let hold = home.store.hold("two").unwrap();
    let error = home.remove("two").unwrap_err();
    assert!(error.message.contains("in use"), "{error}");
    drop(hold);
    home.remove("two").unwrap();
    assert_eq!((home.layers(), home.store.disk_use().unwrap()), (0, 0));
    assert!(home.remove("two").unwrap_err().message.contains("no template \"two\""));
}

#[test]
fn a_layer_that_is_not_what_was_promised_is_refused_and_leaves_nothing() {
    let home = Home::new();
    let (base, top) = (base(), top());
    let lied = config(&[&base, b"another"]);
    let error = home.load("lied", &saved(&[&base, &top], &lied)).unwrap_err();
    assert!(error.message.contains("has the digest"), "{error}");
    let damage = |at: usize, bytes: &mut Vec<u8>| {
        if at == 1 {
            bytes[20] ^= 1;
        }
    };
    let error = home.load("damaged", &layout(&[&base, &top], &config(&[&base, &top]), damage)).unwrap_err();
    assert!(error.message.contains("a layer has the digest"), "{error}");
    assert_eq!(home.store.list().unwrap(), []);
    assert_eq!(home.leftovers(), 0);
    // What was fetched of them is no use to anybody.
    home.store.change(&|_| ()).unwrap().collect().unwrap();
    assert_eq!(home.layers(), 0);
}

#[test]
fn archives_that_name_what_they_do_not_hold_are_refused() {
    let home = Home::new();
    let base = base();
    let config = config(&[&base]);
    let name = format!("{}.json", &digest(&config)[7..]);
    for path in ["/etc/passwd", "../../etc/passwd", "missing/layer.tar"] {
        let manifest = serde_json::json!([{"Config": name, "Layers": [path]}]).to_string();
        let archive = tar(&[entry(&name, b'0', 0o644, "", &config), file("manifest.json", &manifest)]);
        let error = home.load("x", &archive).unwrap_err();
        assert!(error.message.contains("and does not hold it"), "{error}");
    }
    let outside = home.directory.path().join("layer.tar");
    fs::write(&outside, &base).unwrap();
    let way_out = link("a/layer.tar", &outside.to_string_lossy());
    let manifest = serde_json::json!([{"Config": name, "Layers": ["a/layer.tar"]}]).to_string();
    let archive = tar(&[entry(&name, b'0', 0o644, "", &config), file("manifest.json", &manifest), way_out]);
    assert!(home.load("x", &archive).unwrap_err().message.contains("and does not hold it"));
}

#[test]
fn an_image_for_another_machine_is_refused() {
    let home = Home::new();
    let base = base();
    let other = String::from_utf8(config(&[&base])).unwrap().replace(architecture(), "s390x");
    let error = home.load("other", &saved(&[&base], other.as_bytes())).unwrap_err();
    assert!(error.message.contains("linux/s390x"), "{error}");
}

#[test]
fn names_are_plain_and_taken_once() {
    let home = Home::new();
    home.load("mine", &base()).unwrap();
    assert!(home.load("mine", &base()).unwrap_err().message.contains("already"));
    for name in ["", "..", "../x", "Upper", "python", "-x", "a/b", ".hidden", &"x".repeat(65)] {
        assert!(home.load(name, &base()).is_err(), "{name:?}");
        assert!(home.store.get(name).is_err(), "{name:?}");
    }
    let error = home.store.get("other").unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("there are: mine"));
}

#[test]
fn what_a_crash_left_is_removed() {
    let home = Home::new();
    home.load("mine", &base()).unwrap();
    let temporary = home.directory.path().join("home/images/tmp");
    fs::create_dir_all(temporary.join("layer/fs/deep")).unwrap();
    fs::write(temporary.join("blob"), "half").unwrap();
    symlink(home.directory.path(), temporary.join("link")).unwrap();
    drop(home.store.change(&|_| ()).unwrap());
    assert_eq!(home.leftovers(), 0);
    assert!(Path::new(home.directory.path()).join("archive").is_file());
}
