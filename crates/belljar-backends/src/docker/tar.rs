//! A small archive in the oldest of formats: directories, links and short files are all that the sandboxes' image has.

use std::collections::BTreeSet;

use belljar_jail::protocol::RootSpec;

const BLOCK: usize = 512;
const FILE: u8 = b'0';
const LINK: u8 = b'2';
const DIRECTORY: u8 = b'5';
/// Mount points that every sandbox has.
const PLACES: [&str; 12] = [
    "/dev",
    "/etc",
    "/opt/belljar",
    "/outputs",
    "/proc",
    "/run/belljar",
    "/sys",
    "/tmp",
    "/usr",
    "/var/tmp",
    "/volumes",
    "/workspace",
];

/// What `root` says, with an empty place for everything that is mounted. `owned` when the engine can say whose the sandbox's
/// own directories are; otherwise anybody's, as what is mounted there takes their mode.
pub(super) fn of(root: &RootSpec, owned: bool) -> Vec<u8> {
    let mut directories = BTreeSet::new();
    let mut files: Vec<(&str, &[u8])> =
        root.files.iter().map(|(path, text)| (path.as_str(), text.as_bytes())).collect();
    for path in PLACES.iter().copied().chain(root.directories.iter().map(String::as_str)) {
        with_parents(path, &mut directories);
    }
    for bind in &root.binds {
        if bind.source.is_dir() {
            with_parents(&bind.target, &mut directories);
        } else {
            files.push((&bind.target, b""));
        }
    }
    // An engine makes it otherwise, and would have to write to the image.
    files.push(("/opt/belljar/guest", b""));
    for path in files.iter().map(|(path, _)| *path).chain(root.symlinks.iter().map(|(path, _)| path.as_str()))
    {
        if let Some((parent, _)) = path.rsplit_once('/') {
            with_parents(parent, &mut directories);
        }
    }
    let mut archive = Vec::new();
    for path in &directories {
        let open = path.ends_with("/tmp") || !owned && ["/workspace", "/outputs"].contains(&path.as_str());
        let mode = if open { 0o1777 } else { 0o755 };
        archive.extend(header(path, DIRECTORY, mode, 0, ""));
    }
    for (path, target) in &root.symlinks {
        archive.extend(header(path, LINK, 0o777, 0, target));
    }
    for (path, content) in files {
        archive.extend(header(path, FILE, 0o644, content.len(), ""));
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn with_parents(path: &str, into: &mut BTreeSet<String>) {
    for (at, _) in path.match_indices('/').skip(1) {
        into.insert(path[..at].to_owned());
    }
    if path.len() > 1 {
        into.insert(path.to_owned());
    }
}

fn header(path: &str, kind: u8, mode: u32, size: usize, target: &str) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let path = path.trim_start_matches('/');
    // Paths of ours are short; one that is not is found missing when it is mounted.
    put(0, &path.as_bytes()[..path.len().min(100)]);
    put(100, format!("{mode:07o}\0").as_bytes());
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, &target.as_bytes()[..target.len().min(100)]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use belljar_jail::protocol::Bind;

    use super::*;

    #[test]
    fn other_programs_can_read_it() {
        let root = RootSpec {
            binds: vec![
                Bind { source: "/usr".into(), target: "/usr".into(), small: None },
                Bind { source: "/etc/passwd".into(), target: "/opt/one/file".into(), small: None },
            ],
            directories: vec!["/volumes/shared".into()],
            files: vec![("/etc/hosts".into(), "127.0.0.1 localhost\n".into())],
            symlinks: vec![("/bin".into(), "usr/bin".into())],
            ..RootSpec::default()
        };
        let place = tempfile::tempdir().unwrap();
        let mut child =
            Command::new("tar").args(["-x", "-C"]).arg(place.path()).stdin(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &of(&root, true)).unwrap();
        assert!(child.wait().unwrap().success());
        let at = |path: &str| place.path().join(path);
        assert_eq!(std::fs::read_to_string(at("etc/hosts")).unwrap(), "127.0.0.1 localhost\n");
        assert_eq!(std::fs::read_link(at("bin")).unwrap().to_str(), Some("usr/bin"));
        assert!(at("volumes/shared").is_dir() && at("usr").is_dir() && at("workspace").is_dir());
        assert_eq!(std::fs::read(at("opt/one/file")).unwrap(), b"");
    }
}
