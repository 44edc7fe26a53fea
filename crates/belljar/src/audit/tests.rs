use std::fs;

use proptest::prelude::*;

use super::{chain::Link, verify::Report, *};
use crate::cmd::audit::{as_text, one_line};

fn action(number: usize) -> Fields {
    let fields =
        json!({ "event": "call", "tool": "run_code", "caller": format!("c{number}\n\"é"), "ms": number });
    fields.as_object().unwrap().clone()
}

fn path() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("below/audit.jsonl");
    (directory, path)
}

fn append(path: &Path, rotate: u64, count: usize) -> LogFile {
    let mut file = LogFile::open(path, rotate).unwrap();
    for number in 0..count {
        file.append(&mut vec![action(number)]).unwrap();
    }
    file
}

fn verified(path: &Path) -> Report {
    verify::log(path, &[]).unwrap()
}

#[test]
fn what_was_written_is_intact() {
    let (_directory, path) = path();
    append(&path, 1 << 30, 5);
    append(&path, 1 << 30, 3);
    let report = verified(&path);
    assert!(report.intact, "{report:?}");
    assert_eq!((report.records, report.first, report.last, report.torn), (8, 1, 8, 0));
    assert_eq!(verify::log(&path, std::slice::from_ref(&report.head)).unwrap().problems, [""; 0]);
    assert!(!verify::log(&path, &["a".repeat(64)]).unwrap().intact);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn it_goes_on_in_a_new_file_when_one_is_full_or_moved_away() {
    let (_directory, path) = path();
    let mut file = append(&path, 400, 7);
    assert!(file::parts(&path).unwrap().len() >= 4);
    assert_eq!((verified(&path).intact, verified(&path).last), (true, 7));
    // As a tool that rotates logs would do it.
    fs::rename(&path, path.with_file_name("audit.jsonl-20260101")).unwrap();
    file.append(&mut vec![action(8)]).unwrap();
    let report = verified(&path);
    assert!(report.intact && report.last == 8, "{report:?}");
    // The oldest part may be in an archive: what is left is still one chain. One from the middle is missed.
    let aside = |seq: u64| path.with_file_name(format!("audit.jsonl.{seq:012}"));
    fs::remove_file(aside(2)).unwrap();
    assert!(verified(&path).intact);
    fs::remove_file(aside(4 + 2)).unwrap();
    let report = verified(&path);
    assert_eq!(report.problems.len(), 1, "{report:?}");
}

/// Also when the part that is read is put aside meanwhile.
#[test]
fn a_check_keeps_nobody_from_writing() {
    let (_directory, path) = path();
    let mut file = append(&path, 400, 3);
    let taken = verify::Snapshot::take(&path).unwrap();
    let parts = file::parts(&path).unwrap().len();
    for number in 4..8 {
        file.append(&mut vec![action(number)]).unwrap();
    }
    assert!(file::parts(&path).unwrap().len() > parts);
    let report = taken.check(&[]).unwrap();
    assert!(report.intact && report.last == 3, "{report:?}");
    assert_eq!((verified(&path).intact, verified(&path).last), (true, 7));
}

#[test]
fn without_its_head_a_log_is_not_intact_nor_made_so_by_the_next_server() {
    let removed = |head: &Path| fs::remove_file(head).unwrap();
    let emptied = |head: &Path| fs::write(head, "").unwrap();
    // With every record in the active file, and with all of them put aside.
    for (damage, rotate) in [(removed as fn(&Path), 1 << 30), (emptied, 1 << 30), (removed, 1)] {
        let (_directory, path) = path();
        let head = file::head_path(&path);
        append(&path, rotate, 3);
        let last = file::parts(&path)
            .unwrap()
            .into_iter()
            .filter(|part| fs::metadata(part).unwrap().len() > 0)
            .max()
            .unwrap();
        let text = fs::read_to_string(&last).unwrap();
        let whole = text.trim_end().rfind('\n').map_or(0, |at| at + 1);
        fs::write(&last, &text[..whole]).unwrap();
        assert!(verified(&path).problems[0].contains("the end of the log is missing"));
        damage(&head);
        let report = verified(&path);
        assert!(!report.intact && report.problems[0].contains("audit.jsonl.head is gone"), "{report:?}");
        append(&path, rotate, 2);
        let report = verified(&path);
        assert!(!report.intact, "{report:?}");
        assert!(report.problems.iter().any(|what| what.contains("the head was gone")), "{report:?}");
    }
}

#[test]
fn a_link_to_a_log_is_read() {
    let (directory, path) = path();
    append(&path, 1 << 30, 2);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(verified(&link).records, 2);
}

#[test]
fn nothing_at_all_is_no_intact_log() {
    let (_directory, path) = path();
    append(&path, 1 << 30, 1);
    for file in [path.clone(), file::head_path(&path)] {
        fs::remove_file(file).unwrap();
    }
    assert!(verified(&path).problems[0].contains("is not there"), "{:?}", verified(&path));
}

#[test]
fn there_is_no_record_before_there_is_a_head() {
    let (_directory, path) = path();
    let mut file = LogFile::open(&path, 1 << 30).unwrap();
    let obstacle = path.with_file_name("audit.jsonl.head.new");
    fs::create_dir(&obstacle).unwrap();
    let mut waiting = vec![action(1)];
    assert!(file.append(&mut waiting).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"");
    fs::remove_dir(&obstacle).unwrap();
    file.append(&mut waiting).unwrap();
    assert!(verified(&path).intact);
}

#[test]
fn a_head_beside_a_file_that_is_named_counts() {
    let (_directory, path) = path();
    append(&path, 1 << 30, 2);
    let named = || verify::files(std::slice::from_ref(&path), &[]).unwrap();
    assert!(named().intact);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..=text.find('\n').unwrap()]).unwrap();
    assert!(!named().intact);
}

#[test]
fn several_writers_make_one_chain() {
    let (_directory, path) = path();
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || drop(append(&path, 3_000, 25)))
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let report = verified(&path);
    assert!(report.intact && report.records == 100, "{report:?}");
}

/// Wherever a writer is killed, the next one goes on, and says what it found.
#[test]
fn a_line_that_was_cut_off_is_accounted_for() {
    let (_directory, path) = path();
    append(&path, 1 << 30, 2);
    let whole = fs::read(&path).unwrap();
    let (third, _) =
        chain::seal(&Link::parse(&fs::read_to_string(file::head_path(&path)).unwrap()).unwrap(), &action(3));
    let cuts = (1..third.len()).step_by(37).chain([third.len() - 1, third.len()]);
    for cut in cuts {
        let mut bytes = whole.clone();
        bytes.extend_from_slice(&third.as_bytes()[..cut]);
        fs::write(&path, &bytes).unwrap();
        let head = Link::parse(&fs::read_to_string(file::head_path(&path)).unwrap()).unwrap();
        assert!(!verified(&path).intact, "an unfinished line is no intact log");
        append(&path, 1 << 30, 1);
        let report = verified(&path);
        assert!(report.intact, "{cut}: {report:?}");
        let complete = cut == third.len();
        assert_eq!((report.torn, report.records), (u64::from(!complete), 4));
        fs::write(file::head_path(&path), head.text()).unwrap();
    }
}

#[test]
fn records_that_could_not_be_written_are_written_later_and_once() {
    let (_directory, path) = path();
    let mut file = append(&path, 1 << 30, 1);
    // The head cannot be replaced: the records are on disk, but that is not known yet.
    let obstacle = path.with_file_name("audit.jsonl.head.new");
    fs::create_dir(&obstacle).unwrap();
    let mut waiting = vec![action(2), action(3)];
    assert!(file.append(&mut waiting).is_err());
    waiting.push(action(4));
    assert!(file.append(&mut waiting).is_err());
    fs::remove_dir(&obstacle).unwrap();
    file.append(&mut waiting).unwrap();
    let report = verified(&path);
    assert!(report.intact && report.records == 4, "{report:?}");
}

#[test]
fn calls_are_refused_while_nothing_can_be_written() {
    let (_directory, path) = path();
    let audit = Audit::open(&path, 1 << 30, "mcp").unwrap();
    assert_eq!(audit.refusal(), None);
    let obstacle = path.with_file_name("audit.jsonl.head.new");
    fs::create_dir(&obstacle).unwrap();
    audit.write(json!({ "event": "call" }));
    let until = |wanted: bool| {
        let limit = Instant::now() + Duration::from_secs(60);
        while audit.refusal().is_some() != wanted {
            assert!(Instant::now() < limit);
            thread::sleep(Duration::from_millis(5));
        }
    };
    until(true);
    assert!(audit.refusal().unwrap().contains("audit.jsonl cannot be written"), "{:?}", audit.refusal());
    assert!(audit.close().is_err());
    fs::remove_dir(&obstacle).unwrap();
    until(false);
    audit.close().unwrap();
    let report = verified(&path);
    assert!(report.intact, "{report:?}");
    let lines = fs::read_to_string(&path).unwrap();
    assert_eq!(lines.matches("\"event\":\"call\"").count(), 1);
}

#[test]
fn anybody_can_cause_refusals_so_they_do_not_fill_the_disk() {
    let (_directory, path) = path();
    let audit = Audit::open(&path, 1 << 30, "serve").unwrap();
    for _ in 0..10_000 {
        audit.refused("192.0.2.1:5", "POST", "auth", 401);
    }
    audit.refusals.lock().unwrap().since -= Duration::from_secs(2);
    audit.refused("192.0.2.1:5", "POST", "auth", 401);
    audit.close().unwrap();
    let lines = fs::read_to_string(&path).unwrap();
    let count = lines.matches("\"event\":\"refused\"").count();
    assert!(count < 5_000, "{count}");
    let omitted: u64 = lines
        .lines()
        .filter_map(|line| chain::open(line.as_bytes()).unwrap().fields.get("omitted_before")?.as_u64())
        .sum();
    assert_eq!(omitted + count as u64, 10_001);
}

#[test]
fn a_directory_that_cannot_be_written_is_told_at_the_start() {
    let error = Audit::open(Path::new("/proc/audit.jsonl"), 1 << 30, "mcp").err().unwrap();
    assert!(error.raw_os_error().is_some(), "{error}");
}

#[test]
fn a_person_reads_what_happened_and_what_is_wrong() {
    let mut last = Link::genesis();
    let mut text = String::new();
    for fields in [
        json!({ "event": "start", "time": "2026-01-02T03:04:05.678Z", "command": "mcp" }),
        json!({ "event": "call", "time": "2026-01-02T03:04:06Z", "caller": "alice\u{202e}", "tool": "run_code", "outcome": "ok" }),
    ] {
        let (line, link) = chain::seal(&last, fields.as_object().unwrap());
        text.push_str(&format!("{line}\n{}\n", one_line(&chain::open(line.as_bytes()).unwrap())));
        last = link;
    }
    let report = Report { files: 2, records: 10, first: 1, last: 12, torn: 1, ..Report::default() };
    let problems = vec!["audit.jsonl:7 is record 9: 7 to 8 are missing".to_owned()];
    text.push_str(&as_text(&Report { problems, ..report }));
    insta::assert_snapshot!(text);
}

fn chain_of(count: usize) -> (Vec<u8>, Link) {
    let (mut text, mut last) = (String::new(), Link::genesis());
    for number in 0..count {
        let (line, link) = chain::seal(&last, &action(number));
        text.push_str(&line);
        text.push('\n');
        last = link;
    }
    (text.into_bytes(), last)
}

fn is_intact(bytes: &[u8], head: &Link) -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    verify::files(&[file.path().to_owned()], std::slice::from_ref(&head.hash)).unwrap().intact
}

#[test]
fn no_number_is_the_last_one() {
    let hash = "0".repeat(64);
    assert_eq!(Link::parse(&format!("{} {hash}", u64::MAX)), None);
    let (line, link) = chain::seal(&Link { seq: u64::MAX - 2, hash }, &action(1));
    assert_eq!((chain::open(line.as_bytes()).unwrap().link.seq, link.seq), (u64::MAX - 1, u64::MAX - 1));
    let (line, _) = chain::seal(&link, &action(2));
    assert_eq!(chain::open(line.as_bytes()).unwrap_err(), "has no number, or no predecessor");
}

#[test]
fn a_forged_record_does_not_move_the_cursor() {
    let fields = json!({ "event": "call", "time": "2026-01-02\u{1b}[2J45678901", "a\u{1b}[1A": [1, "\u{9b}2J\u{202e}"] });
    let (line, _) = chain::seal(&Link::genesis(), fields.as_object().unwrap());
    let shown = one_line(&chain::open(line.as_bytes()).unwrap());
    assert!(shown.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{shown:?}");
}

/// Any change shows; records that somebody made up, with hashes that are right, are at least read.
#[test]
fn fuzz_audit() {
    let (original, head) = chain_of(3);
    let file = tempfile::NamedTempFile::new().unwrap();
    let verified = |bytes: &[u8], known: &[String]| {
        // To write over one makes some file systems wait for the disk.
        fs::remove_file(file.path()).unwrap();
        fs::write(file.path(), bytes).unwrap();
        let report = verify::files(&[file.path().to_owned()], known).unwrap();
        assert_eq!(report.intact, report.problems.is_empty());
        assert!(report.problems.len() <= 20 && report.problems.iter().all(|problem| problem.len() < 1000));
        report
    };
    // With a line break where each line has its hash: `PREV` is the hash of the line before.
    let made_up = |text: &[u8]| {
        let (mut bytes, mut last) = (Vec::new(), Link::genesis().hash);
        for line in text.split(|byte| *byte == b'\n') {
            let contents = String::from_utf8_lossy(line).replace("PREV", &last);
            last = chain::digest(contents.as_bytes());
            bytes.extend_from_slice(format!("{contents},\"hash\":\"{last}\"}}\n").as_bytes());
        }
        bytes
    };
    let seeds: [&[u8]; 5] = [
        &[b"c", &original[..]].concat(),
        b"m{\"seq\":1,\"event\":\"start\",\"time\":\"2026-01-02T03:04:05Z\",\"prev\":\"PREV\"\n{\"seq\":2,\"prev\":\"PREV\"",
        b"m{\"seq\":18446744073709551614,\"prev\":\"PREV\"\n{\"seq\":18446744073709551615,\"prev\":\"PREV\"",
        b"m{\"seq\":7,\"prev\":\"x\"\n{\"seq\":8,\"event\":\"torn\",\"torn_bytes\":3,\"torn_sha256\":\"ba7816bf\",\"prev\":\"PREV\"",
        b"m{\"seq\":1,\"seq\":2,\"\x1b[2J\":{\"a\":[null]},\"prev\":\"PREV\"",
    ];
    belljar_fuzz::fuzz("audit", &seeds, |input| {
        let Some((&how, rest)) = input.split_first() else { return 0 };
        if how != b'm' {
            let report = verified(rest, std::slice::from_ref(&head.hash));
            // Older records may be in an archive; nothing else may be missing or different.
            let archived =
                original.strip_suffix(rest).is_some_and(|rest| rest.is_empty() || rest.ends_with(b"\n"));
            assert_eq!(report.intact, archived && !rest.is_empty(), "{report:?}");
            return belljar_fuzz::mark((
                report.records,
                report.problems.first().map(|p| belljar_fuzz::kind(p)),
            ));
        }
        let bytes = made_up(rest);
        let report = verified(&bytes, &[]);
        let records: Vec<_> =
            bytes.split(|byte| *byte == b'\n').filter_map(|line| chain::open(line).ok()).collect();
        assert_eq!(report.records, records.len() as u64);
        for record in &records {
            let shown = one_line(record);
            assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'), "{shown:?}");
        }
        let in_order = records
            .windows(2)
            .all(|pair| pair[0].link.seq + 1 == pair[1].link.seq && pair[0].link.hash == pair[1].prev);
        assert!(!report.intact || in_order, "{report:?}");
        belljar_fuzz::mark((report.records.min(5), report.torn, report.problems.len().min(3), in_order))
    });
}

proptest! {
    #[test]
    fn a_flipped_bit_is_found(count in 1usize..6, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (mut bytes, head) = chain_of(count);
        prop_assert!(is_intact(&bytes, &head));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(!is_intact(&bytes, &head));
    }

    #[test]
    fn a_removed_repeated_or_moved_line_is_found(
        count in 2usize..8, one in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(), how in 0..3,
    ) {
        let (bytes, head) = chain_of(count);
        let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
        let (one, other) = (one.index(count), other.index(count));
        match how {
            // What was archived is missing in front; that alone is allowed.
            0 if one > 0 => drop(lines.remove(one)),
            1 => lines.insert(other, lines[one]),
            _ if one != other => lines.swap(one, other),
            _ => return Ok(()),
        }
        prop_assert!(!is_intact(&lines.concat(), &head));
    }

    #[test]
    fn a_cut_is_found(count in 1usize..6, at in any::<prop::sample::Index>()) {
        let (bytes, head) = chain_of(count);
        prop_assert!(!is_intact(&bytes[..at.index(bytes.len())], &head));
    }

    #[test]
    fn no_line_is_too_strange_to_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(chain::open(&bytes).is_err());
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &bytes).unwrap();
        prop_assert_eq!(verify::files(&[file.path().to_owned()], &[]).unwrap().intact, bytes.is_empty());
    }
}
