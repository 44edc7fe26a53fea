//! Layers and documents from somebody who means ill.

use std::{fs, path::Path};

use belljar_fuzz::{fuzz, kind, mark};

use crate::{
    Budget, Limits, Store,
    manifest::{Config, Manifest},
    tests::{archives, entry, gzip, tar},
    unpack::unpack,
};

/// How many files there are below, none of which may be anything but a file, a directory, a link or a whiteout.
fn count(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            use std::os::unix::fs::{FileTypeExt, MetadataExt};
            let (kind, stat) = (entry.file_type().unwrap(), entry.metadata().unwrap());
            assert!(kind.is_symlink() || stat.mode() & 0o7000 == 0, "{:?}", entry.path());
            assert!(!kind.is_char_device() || stat.rdev() == 0, "{:?}", entry.path());
            assert!(kind.is_dir() || kind.is_file() || kind.is_symlink() || kind.is_char_device());
            1 + if kind.is_dir() { count(&entry.path()) } else { 0 }
        })
        .sum()
}

#[test]
fn fuzz_layers() {
    let seed = tar(&[
        entry("usr/", b'5', 0o755, "", b""),
        entry("usr/run", b'0', 0o6755, "", b"#!"),
        entry("way", b'2', 0o777, "../..", b""),
        entry("usr/same", b'1', 0, "usr/run", b""),
        entry("etc/.wh.x", b'0', 0, "", b""),
        entry("etc/.wh..wh..opq", b'0', 0, "", b""),
    ]);
    let long = tar(&[
        entry("l", b'L', 0, "", b"../precious\0"),
        entry("x", b'0', 0o644, "", b"x"),
        entry("p", b'x', 0, "", b"19 path=../precious\n"),
        entry("x", b'0', 0o644, "", b"x"),
    ]);
    let home = tempfile::tempdir().unwrap();
    let layer = home.path().join("a/layer");
    fs::create_dir_all(&layer).unwrap();
    fs::write(home.path().join("precious"), "untouched").unwrap();
    fuzz("layers", &[&seed, &long], |input| {
        let limits = Limits { entries: 50, bytes: 256 << 10, ratio_after: 64 << 10, ..Limits::default() };
        let unpacked = unpack(input, &layer, &mut Budget::new(limits), &|_| ());
        assert_eq!(fs::read_to_string(home.path().join("precious")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 2);
        assert_eq!(fs::read_dir(home.path().join("a")).unwrap().count(), 1);
        let files = count(&layer);
        fs::remove_dir_all(&layer).unwrap();
        fs::create_dir(&layer).unwrap();
        mark((files.min(8), unpacked.map(drop).map_err(|error| kind(&error.message))))
    });
}

#[test]
fn fuzz_archives() {
    let (base, top) = (archives::base(), archives::top());
    let layers = [&base[..], &top];
    let config = archives::config(&layers);
    let (saved, laid_out) =
        (archives::saved(&layers, &config), archives::layout(&layers, &config, |_, _| ()));
    let linked = tar(&[
        entry("manifest.json", b'0', 0, "", br#"[{"Config":"a.json","Layers":["b.tar"]}]"#),
        entry("a.json", b'0', 0, "", &config),
        entry("b.tar", b'2', 0, "c.tar", b""),
        entry("c.tar", b'1', 0, "./../../precious", b""),
    ]);
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("archive");
    fs::write(home.path().join("precious"), "untouched").unwrap();
    let store = Store::below(&home.path().join("home"));
    let limits = Limits { entries: 50, bytes: 256 << 10, ratio_after: 64 << 10, ..Limits::default() };
    fuzz("archives", &[&saved, &laid_out, &gzip(&saved), &linked, &base], |input| {
        fs::write(&path, input).unwrap();
        let loaded = crate::load(&store.change(&|_| ()).unwrap(), "x", &path, &limits, &|_| ());
        assert_eq!(fs::read_to_string(home.path().join("precious")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 3);
        let images = home.path().join("home/images");
        assert_eq!(fs::read_dir(images.join("tmp")).unwrap().count(), 0);
        let change = store.change(&|_| ()).unwrap();
        let files = loaded.map(|template| {
            let layers = template.layers.iter();
            let files: usize = layers.map(|digest| count(&store.layer(digest).unwrap())).sum();
            change.remove("x").unwrap();
            (template.layers.len(), files.min(8))
        });
        // Whole, or not at all.
        change.collect().unwrap();
        for directory in ["templates", "layers"] {
            assert_eq!(fs::read_dir(images.join(directory)).unwrap().count(), 0, "{directory}");
        }
        mark(files.map_err(|error| kind(&error.message)))
    });
}

#[test]
fn fuzz_manifests() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!(
        r#"{{"schemaVersion":2,"config":{{"digest":"{digest}","size":7}},"layers":[{{"digest":"{digest}","size":9}}]}}"#
    );
    let list = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"digest":"{digest}","size":7,"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#
    );
    let config =
        br#"{"os":"linux","architecture":"amd64","config":{"Env":["A=b"],"WorkingDir":"/a/b","User":"x"}}"#;
    fuzz("manifests", &[image.as_bytes(), list.as_bytes(), config], |input| {
        let said = Manifest::parse(input).and_then(|manifest| {
            if manifest.config.is_some() {
                manifest.image().map(drop)
            } else {
                manifest.for_this_machine().map(drop)
            }
        });
        let config = serde_json::from_slice::<Config>(input).ok().map(|config| {
            if let Ok(Some(path)) = config.workdir() {
                assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path}");
            }
            let variables =
                config.environment().map(|env| env.len().min(4)).map_err(|error| kind(&error.message));
            (config.check(0).map_err(|error| kind(&error.message)), variables)
        });
        mark((said.map_err(|error| kind(&error.message)), config))
    });
}
