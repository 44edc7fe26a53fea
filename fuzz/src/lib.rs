//! Feeds hostile bytes to whatever reads bytes from others. A target is a unit test beside the code that it attacks, so
//! that it reaches private functions; `scripts/fuzz.sh` runs it for as long as one likes, `cargo test` for a moment.
//!
//! There is no instrumented coverage on the stable toolchain. What takes its place: every run of a target returns a
//! *mark* of what it did, an error's kind, how many frames came out; inputs with a mark that was not seen before join the
//! corpus of this run and are changed further.

mod mutate;

use std::{
    collections::HashSet,
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::PathBuf,
    time::Duration,
};

use mutate::Mutator;

/// What a target is given without being asked for more: enough to notice a corpus that does not pass.
const RUNS: u64 = 2000;
/// Inputs that are kept because they did something new.
const MAX_LIVE: usize = 4000;
/// Runs between two looks at the time.
const CHECKED: u64 = 16;
const MAX_INPUT: usize = 64 << 10;
/// Of what is added to the corpus in the repository.
const MAX_SAVED: usize = 600;

/// What an input did, in short.
pub fn mark(did: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    did.hash(&mut hasher);
    hasher.finish()
}

/// The kind of an error, without the values in it: digits and quoted parts are left out.
pub fn kind(message: &str) -> String {
    let mut quoted = false;
    let mut kind = String::new();
    for c in message.chars().take(200) {
        quoted ^= matches!(c, '"' | '`');
        if !quoted && !c.is_ascii_digit() && c.is_ascii() {
            kind.push(c);
        }
    }
    kind
}

/// Attacks `target`, which panics when something that must hold does not. `seeds` are inputs that it takes; more are in
/// `fuzz/corpus/NAME`.
pub fn fuzz(name: &str, seeds: &[&[u8]], target: impl Fn(&[u8]) -> u64) {
    let seed = number("FUZZ_SEED").unwrap_or(1);
    let limit = number("FUZZ_SECONDS").map(Duration::from_secs);
    let mut mutator = Mutator::new(seed ^ mark(name));
    let mut live: Vec<Vec<u8>> = Vec::new();
    let mut seen = HashSet::new();
    let given = seeds.iter().map(|seed| seed.to_vec()).chain(corpus(name));
    for input in given.chain([Vec::new()]) {
        seen.insert(attempt(name, &input, &target));
        live.push(input);
    }
    let known = live.len();
    let mut runs = 0;
    while limit.map_or(runs < RUNS, |limit| runs % CHECKED != 0 || worked() < limit) {
        runs += 1;
        let input = mutator.change(&live, MAX_INPUT);
        if seen.insert(attempt(name, &input, &target)) && live.len() < MAX_LIVE {
            live.push(input);
        }
    }
    if limit.is_some() {
        let new = live.len() - known;
        let worked = worked().as_secs();
        let line =
            format!("{name}: {runs} runs in {worked} s, {new} inputs did something new, seed {seed}\n");
        // Only for whoever looks on.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    if env::var_os("FUZZ_SAVE").is_some() {
        save(name, &live[known..]);
    }
}

/// Processor time of this thread, so that a busy machine takes nothing away from a target.
fn worked() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.expect("the kernel tells how long a thread ran"))
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

fn directory(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "corpus", name].iter().collect()
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(directory(name)) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    // The order decides what the same seed does.
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

fn attempt(name: &str, input: &[u8], target: &impl Fn(&[u8]) -> u64) -> u64 {
    match catch_unwind(AssertUnwindSafe(|| target(input))) {
        Ok(mark) => mark,
        Err(panic) => {
            let path = env::temp_dir().join(format!("fuzz-{name}-{:016x}", mark(input)));
            let written = fs::write(&path, input).is_ok();
            let place = if written { path.display().to_string() } else { "nowhere".into() };
            let shown = String::from_utf8_lossy(&input[..input.len().min(500)]).escape_debug().to_string();
            let line = format!(
                "\n{name} fails for {} bytes: {shown}\nthey are in {place}; once it is mended, put them into \
                 fuzz/corpus/{name}\n",
                input.len()
            );
            // Where it goes wrong, the panic still tells.
            let _ = io::stderr().write_all(line.as_bytes());
            resume_unwind(panic)
        }
    }
}

fn save(name: &str, found: &[Vec<u8>]) {
    let directory = directory(name);
    let small = found.iter().filter(|input| input.len() <= MAX_SAVED).take(8);
    for input in small {
        let path = directory.join(format!("{:016x}", mark(input)));
        // What is not saved is found again.
        let _ = fs::create_dir_all(&directory).and_then(|()| fs::write(path, input));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_same_seed_does_the_same() {
        let run = || {
            let tried = RefCell::new(Vec::new());
            fuzz("itself", &[b"one", b"two"], |input| {
                tried.borrow_mut().push(input.to_vec());
                mark(input.len())
            });
            tried.into_inner()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn what_is_new_leads_further() {
        let deepest = RefCell::new(0);
        fuzz("itself", &[b""], |input| {
            let depth = input.iter().zip(b"{{").take_while(|(a, b)| a == b).count();
            let best = (*deepest.borrow()).max(depth);
            *deepest.borrow_mut() = best;
            mark(depth)
        });
        assert_eq!(deepest.into_inner(), 2);
    }

    #[test]
    fn a_failure_is_not_swallowed() {
        let failed = catch_unwind(|| {
            fuzz("itself", &[b"fine"], |input| {
                assert!(!input.contains(&b'f') || input.len() > 3, "as expected in this test");
                0
            });
        });
        assert!(failed.is_err());
    }

    #[test]
    fn kinds_leave_values_out() {
        assert_eq!(kind("bad 17 `x` at line 3"), kind("bad 9 `yy` at line 12"));
    }
}
