//! Archives that a hostile hand made, byte by byte, and what must not come of them.

pub(crate) mod archives;

use std::{
    fs,
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
};

use flate2::{Compression, write::GzEncoder};

use crate::{
    Budget, ImageError, Limits,
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

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
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
        let beside: Vec<_> =
            fs::read_dir(self.home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
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
    let unpacked =
        place.taken(&[directory("./usr/"), script, link("bin", "usr/bin"), hard, file("etc/motd", "hello")]);
    assert_eq!((unpacked.entries, unpacked.bytes), (5, 15));
    assert_eq!(place.read("bin/same"), "#!/bin/sh\n");
    assert_eq!((place.mode("usr/bin/run"), place.mode("etc/motd")), (0o755, 0o644));
    let [run, same] =
        ["run", "same"].map(|name| fs::metadata(place.layer().join("usr/bin").join(name)).unwrap());
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
    let named =
        [entry("././@LongLink", b'K', 0, "", outside.as_bytes()), entry("hard", b'1', 0, "x", b"")].concat();
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
    place.taken(&[
        directory("dev"),
        entry("dev/sda", b'4', 0o666, "", b""),
        link("dev/fd", "/proc/self/fd"),
        file("dev/null", "x"),
    ]);
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
    let files =
        EmptyFiles { left: 10_000_000, block: io::Cursor::new(header(b"first", b'0', 0o644, b"", 0)) };
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
