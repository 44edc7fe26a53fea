//! Archives that a hostile hand made, byte by byte, and what must not come of them.

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};

use crate::{
    Budget, ImageError, Limits, Store, Template,
    manifest::architecture,
    stream::digest_text,
    unpack::{Unpacked, unpack},
};

/// One header and its content, as tar has them.
pub(crate) fn entry(path: &str, kind: u8, mode: u32, target: &str, content: &[u8]) -> Vec<u8> {
    let mut header = header(path.as_bytes(), kind, mode, target.as_bytes(), content.len() as u64);
    header.extend_from_slice(content);
    header.resize(header.len().next_multiple_of(512), 0);
    header
}

pub(crate) fn header(path: &[u8], kind: u8, mode: u32, target: &[u8], size: u64) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, path);
    put(100, format!("{mode:07o}\0").as_bytes());
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000001750\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn file(path: &str, content: &str) -> Vec<u8> {
    entry(path, b'0', 0o644, "", content.as_bytes())
}

fn link(path: &str, target: &str) -> Vec<u8> {
    entry(path, b'2', 0o777, target, b"")
}

fn directory(path: &str) -> Vec<u8> {
    entry(path, b'5', 0o755, "", b"")
}

pub(crate) fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    [&entries.concat()[..], &[0; 1024]].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

fn small() -> Limits {
    Limits { entries: 1000, bytes: 8 << 20, ratio_after: 1 << 20, ..Limits::default() }
}

/// A directory with something beside it that must stay as it is.
struct Place {
    home: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("layer")).unwrap();
        fs::write(home.path().join("precious"), "untouched").unwrap();
        Self { home }
    }

    fn layer(&self) -> PathBuf {
        self.home.path().join("layer")
    }

    fn unpack(&self, bytes: impl Read) -> Result<Unpacked, ImageError> {
        let unpacked = unpack(bytes, &self.layer(), &mut Budget::new(small()), &|_| ());
        // Whatever the archive was: nothing beside the layer changed.
        assert_eq!(fs::read_to_string(self.home.path().join("precious")).unwrap(), "untouched");
        let beside: Vec<_> = fs::read_dir(self.home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(beside.len(), 2, "{beside:?}");
        unpacked
    }

    fn refused(&self, entries: &[Vec<u8>]) -> String {
        self.unpack(&tar(entries)[..]).expect_err("it was taken").to_string()
    }

    fn taken(&self, entries: &[Vec<u8>]) -> Unpacked {
        self.unpack(&tar(entries)[..]).unwrap()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.layer().join(path)).unwrap()
    }

    fn mode(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.layer().join(path)).unwrap().permissions().mode() & 0o7777
    }
}

#[test]
fn an_ordinary_layer_becomes_files() {
    let place = Place::new();
    let script = entry("usr/bin/run", b'0', 0o755, "", b"#!/bin/sh\n");
    let hard = entry("usr/bin/same", b'1', 0o755, "usr/bin/run", b"");
    let unpacked = place.taken(&[directory("./usr/"), script, link("bin", "usr/bin"), hard, file("etc/motd", "hello")]);
    assert_eq!((unpacked.entries, unpacked.bytes), (5, 15));
    assert_eq!(place.read("bin/same"), "#!/bin/sh\n");
    assert_eq!((place.mode("usr/bin/run"), place.mode("etc/motd")), (0o755, 0o644));
    let [run, same] = ["run", "same"].map(|name| fs::metadata(place.layer().join("usr/bin").join(name)).unwrap());
    assert_eq!((run.ino(), run.mtime()), (same.ino(), 1000));
}

#[test]
fn an_absolute_path_is_one_in_the_layer() {
    let place = Place::new();
    let outside = place.home.path().join("precious");
    let long = format!("{}\0", outside.display());
    let named = [entry("././@LongLink", b'L', 0, "", long.as_bytes()), file("x", "overwritten")].concat();
    place.taken(&[named, file("/etc/passwd", "ours")]);
    assert_eq!(place.read("etc/passwd"), "ours");
    assert!(place.layer().join(outside.strip_prefix("/").unwrap()).is_file());
}

#[test]
fn a_path_that_leads_out_is_refused() {
    for path in ["../precious", "a/../../precious", "/../precious", "a/b/../../../precious"] {
        let error = Place::new().refused(&[directory("a"), file(path, "overwritten")]);
        assert!(error.contains("leads out of the image"), "{error}");
    }
}

#[test]
fn a_file_through_a_link_is_refused() {
    for target in ["..", "/", "/etc", "../../../../../../../../etc"] {
        let error = Place::new().refused(&[link("way", target), file("way/precious", "overwritten")]);
        assert!(error.contains("a link or a file instead of a directory"), "{error}");
        let error = Place::new().refused(&[link("way", target), file("way/deeper/precious", "overwritten")]);
        assert!(error.contains("a link or a file instead of a directory"), "{error}");
    }
}

#[test]
fn a_file_takes_the_place_of_a_link_and_does_not_go_through_it() {
    let place = Place::new();
    place.taken(&[link("way", "../precious"), file("way", "mine")]);
    assert_eq!(place.read("way"), "mine");
    let place = Place::new();
    place.taken(&[link("way", ".."), directory("way"), file("way/precious", "mine")]);
    assert_eq!(place.read("way/precious"), "mine");
}

#[test]
fn a_hard_link_stays_in_the_layer() {
    for target in ["../precious", "/../precious", "missing", "directory", "way/precious"] {
        let hard = entry("hard", b'1', 0o644, target, b"");
        let error = Place::new().refused(&[directory("directory"), link("way", ".."), hard]);
        assert!(error.contains("leads out") || error.contains("does not hold"), "{target}: {error}");
    }
    let place = Place::new();
    let outside = format!("{}\0", place.home.path().join("precious").display());
    let named = [entry("././@LongLink", b'K', 0, "", outside.as_bytes()), entry("hard", b'1', 0, "x", b"")].concat();
    assert!(place.refused(&[named]).contains("does not hold"));
}

#[test]
fn devices_and_pipes_are_refused() {
    for (kind, name) in [(b'3', "character device"), (b'4', "block device"), (b'6', "named pipe")] {
        let error = Place::new().refused(&[entry("etc/trap", kind, 0o666, "", b"")]);
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn what_is_below_dev_does_not_come_to_be() {
    let place = Place::new();
    place.taken(&[directory("dev"), entry("dev/sda", b'4', 0o666, "", b""), link("dev/fd", "/proc/self/fd"), file("dev/null", "x")]);
    assert_eq!(fs::read_dir(place.layer().join("dev")).unwrap().count(), 0);
    let place = Place::new();
    place.taken(&[link("dev", "/")]);
    assert!(!place.layer().join("dev").exists());
}

#[test]
fn nothing_gives_a_program_another_users_rights() {
    let place = Place::new();
    let secret = entry("etc/shadow", b'0', 0o600, "", b"x");
    let open = entry("tmp/open", b'0', 0o666, "", b"x");
    place.taken(&[entry("su", b'0', 0o6755, "", b"x"), secret, open, entry("locked", b'5', 0o3000, "", b"")]);
    assert_eq!(place.mode("su"), 0o755);
    assert_eq!(place.mode("etc/shadow"), 0o644);
    assert_eq!(place.mode("tmp/open"), 0o644);
    assert_eq!(place.mode("locked"), 0o700);
}

#[test]
fn attributes_are_left_out() {
    let place = Place::new();
    let records: Vec<u8> = ["SCHILY.xattr.user.overlay.opaque=y", "SCHILY.xattr.security.capability=x"]
        .iter()
        .flat_map(|record| format!("{} {record}\n", record.len() + 4).into_bytes())
        .collect();
    place.taken(&[[entry("pax", b'x', 0, "", &records), directory("plain")].concat()]);
    let mut list = [0; 256];
    assert_eq!(rustix::fs::listxattr(place.layer().join("plain"), &mut list).unwrap(), 0);
}

/// Makes as many headers of empty files as anybody likes, from nothing.
struct EmptyFiles {
    left: u64,
    block: io::Cursor<Vec<u8>>,
}

impl Read for EmptyFiles {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.block.position() == 512 {
            let Some(left) = self.left.checked_sub(1) else { return Ok(0) };
            self.left = left;
            let path = format!("d{}/f{}", left % 7, left);
            self.block = io::Cursor::new(header(path.as_bytes(), b'0', 0o644, b"", 0));
        }
        self.block.read(buffer)
    }
}

#[test]
fn ten_million_empty_files_are_too_many() {
    let place = Place::new();
    let files = EmptyFiles { left: 10_000_000, block: io::Cursor::new(header(b"first", b'0', 0o644, b"", 0)) };
    let error = place.unpack(files).unwrap_err().to_string();
    assert!(error.contains("more than 1000 entries"), "{error}");
    // The real limit is a tenth of what came, and refuses just the same.
    assert!(Limits::default().entries < 10_000_000);
}

#[test]
fn a_bomb_is_noticed_before_it_is_large() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::default());
    io::Write::write_all(&mut bomb, &header(b"zeros", b'0', 0o644, b"", 1 << 30)).unwrap();
    io::copy(&mut io::repeat(0).take(32 << 20), &mut bomb).unwrap();
    let bomb = bomb.finish().unwrap();
    let place = Place::new();
    let limits = Limits { bytes: 1 << 30, ..small() };
    let error = unpack(&bomb[..], &place.layer(), &mut Budget::new(limits), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("that is a bomb"), "{error}");
    assert!(fs::metadata(place.layer().join("zeros")).unwrap().len() < 16 << 20);
}

#[test]
fn more_bytes_than_allowed_are_refused() {
    let place = Place::new();
    let large = header(b"large", b'0', 0o644, b"", 1 << 40);
    let error = place.unpack((&large[..]).chain(io::repeat(7))).unwrap_err();
    assert!(error.message.contains("more than 8 MB unpacked"), "{error}");
    assert!(error.hint.unwrap().contains("--max-size"));
}

#[test]
fn headers_are_small() {
    for kind in [b'x', b'L', b'K'] {
        let head = header(b"more", kind, 0, b"", 1 << 32);
        let error = Place::new().unpack((&head[..]).chain(io::repeat(b'a'))).unwrap_err().to_string();
        assert!(error.contains("a header of 4294967296 bytes"), "{error}");
    }
    let many = entry("pax", b'x', 0, "", b"12 path=abc\n").repeat(100);
    assert!(Place::new().refused(&[many, file("x", "")]).contains("more headers than anybody needs"));
}

#[test]
fn paths_are_of_a_length_that_exists() {
    let named = |path: String| [entry("long", b'L', 0, "", path.as_bytes()), file("x", "")].concat();
    assert!(Place::new().refused(&[named("a/".repeat(5000))]).contains("is too long"));
    assert!(Place::new().refused(&[named("a/".repeat(500))]).contains("is too deep"));
    assert!(Place::new().refused(&[named("a".repeat(300))]).contains("a part that is too long"));
}

#[test]
fn what_is_no_archive_or_ends_early_is_refused() {
    let whole = tar(&[file("etc/motd", &"hello".repeat(400))]);
    for length in [100, 600, 1000, 2000] {
        let error = Place::new().unpack(&whole[..length]).unwrap_err().to_string();
        assert!(error.contains("truncated"), "{length}: {error}");
    }
    let error = Place::new().unpack(&b"GIF89a".repeat(200)[..]).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
    let cut = &gzip(&whole)[..40];
    assert!(Place::new().unpack(cut).is_err());
    let sparse = entry("holes", b'S', 0o644, "", b"");
    assert!(Place::new().refused(&[sparse]).contains("sparse"));
}

#[test]
fn whiteouts_hide_what_is_below_and_nothing_of_their_own_layer() {
    let place = Place::new();
    place.taken(&[
        file("etc/.wh.gone", ""),
        file("kept", "mine"),
        file(".wh.kept", ""),
        file("later/.wh.replaced", ""),
        file("later/replaced/new", "new"),
        file("fresh/.wh..wh..opq", ""),
        file("fresh/file", "x"),
        file(".wh..wh.plnk/1", ""),
    ]);
    let gone = fs::symlink_metadata(place.layer().join("etc/gone")).unwrap();
    assert_eq!((gone.mode() & 0o170000, gone.rdev()), (0o020000, 0));
    assert_eq!(place.read("kept"), "mine");
    let opaque = |path: &str| {
        let mut value = [0; 8];
        rustix::fs::getxattr(place.layer().join(path), "user.overlay.opaque", &mut value).is_ok()
    };
    assert!(opaque("later/replaced") && opaque("fresh") && !opaque("later") && !opaque("etc"));
    for name in [".wh.", ".wh..", ".wh...", ".wh..wh..opq"] {
        let error = Place::new().refused(&[file(name, "")]);
        assert!(error.contains("whiteout of nothing") || error.contains("hides all"), "{name}: {error}");
    }
}

// The store, and the archives that images come in.

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

fn config(layers: &[&[u8]]) -> Vec<u8> {
    let ids: Vec<_> = layers.iter().map(|layer| digest(layer)).collect();
    serde_json::json!({
        "architecture": architecture(), "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids},
        "config": {"Env": ["PATH=/opt/bin:/usr/bin", "GREETING=hello=world"], "WorkingDir": "/srv/app", "User": "app:app"},
    })
    .to_string()
    .into_bytes()
}

/// As `docker save` writes it.
fn saved(layers: &[&[u8]], config: &[u8]) -> Vec<u8> {
    let name = format!("{}.json", &digest(config)[7..]);
    let paths: Vec<_> = (0..layers.len()).map(|at| format!("layer{at}/layer.tar")).collect();
    let manifest = serde_json::json!([{"Config": name, "RepoTags": ["x:1"], "Layers": paths}]).to_string();
    let mut entries = vec![entry(&name, b'0', 0o644, "", config), file("manifest.json", &manifest)];
    entries.extend(paths.iter().zip(layers).map(|(path, layer)| entry(path, b'0', 0o644, "", layer)));
    tar(&entries)
}

/// As an OCI layout, its layers compressed.
fn layout(layers: &[&[u8]], config: &[u8], change: impl Fn(usize, &mut Vec<u8>)) -> Vec<u8> {
    let mut entries = vec![file("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)];
    let mut blob = |bytes: &[u8], stored: &[u8]| {
        let digest = digest(bytes);
        entries.push([entry("name", b'L', 0, "", format!("blobs/sha256/{}", &digest[7..]).as_bytes()), entry("x", b'0', 0o644, "", stored)].concat());
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

fn base() -> Vec<u8> {
    tar(&[entry("usr/bin/python3", b'0', 0o755, "", b"x"), entry("opt/bin/node", b'0', 0o755, "", b"x"), file("etc/motd", "one")])
}

fn top() -> Vec<u8> {
    tar(&[file("opt/bin/.wh.node", ""), file("srv/app/main.py", "print()")])
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
