//! Compiles a system call filter into the kernel's small machine language.
//!
//! Listed calls are found by a binary search over ranges of their numbers. The kernel walks the filter once for every
//! call it knows when it is installed, and every sandbox installs it twice: a search takes it a tenth of the time that
//! a list does.

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// Offsets in what the filter is shown of a call.
const NUMBER: u32 = 0;
const ABI: u32 = 4;
const ARGUMENTS: u32 = 16;

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: u32 = 0xc000_00b7;

/// A test of the lower 32 bits of an argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Test {
    argument: u32,
    /// Bits that are looked at.
    mask: u32,
    kind: u16,
    value: u32,
    /// Whether the test passes when the comparison is true.
    passes: bool,
}

impl Test {
    pub(crate) fn equal(argument: u32, value: u32) -> Self {
        Self::equal_in(argument, u32::MAX, value)
    }

    /// Equal as far as the bits in `mask` go.
    pub(crate) fn equal_in(argument: u32, mask: u32, value: u32) -> Self {
        Self { argument, mask, kind: IF_EQUAL, value, passes: true }
    }

    pub(crate) fn differs(argument: u32, value: u32) -> Self {
        Self { argument, mask: u32::MAX, kind: IF_EQUAL, value, passes: false }
    }

    /// None of these bits is set.
    pub(crate) fn lacks(argument: u32, bits: u32) -> Self {
        Self { argument, mask: u32::MAX, kind: IF_ANY_BIT, value: bits, passes: false }
    }

    /// The argument that is looked at, and the test as an engine's profile has it.
    pub(crate) fn as_profile(&self) -> (u32, &'static str, u32, u32) {
        match (self.kind, self.passes) {
            (IF_EQUAL, true) => (self.argument, "SCMP_CMP_MASKED_EQ", self.mask, self.value & self.mask),
            (IF_ANY_BIT, false) => (self.argument, "SCMP_CMP_MASKED_EQ", self.value, 0),
            _ => (self.argument, "SCMP_CMP_NE", self.value, 0),
        }
    }

    fn instructions(&self) -> usize {
        if self.mask == u32::MAX { 2 } else { 3 }
    }
}

pub(crate) struct Filter {
    /// Calls that are always allowed.
    pub(crate) allowed: Vec<u32>,
    /// Calls that are allowed when all tests of one of the alternatives pass.
    pub(crate) when: Vec<(u32, Vec<Vec<Test>>)>,
    /// Calls that are not made, but answered with this error.
    pub(crate) answered: Vec<(u32, i32)>,
    /// The answer to all others.
    pub(crate) refused_with: i32,
}

fn step(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, if_true: u8, if_false: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: if_true, jf: if_false, k }
}

impl Filter {
    pub(crate) fn compile(&self) -> Vec<libc::sock_filter> {
        let allow = step(RETURN, libc::SECCOMP_RET_ALLOW);
        let refuse = step(RETURN, libc::SECCOMP_RET_ERRNO | self.refused_with as u32);
        let mut code = vec![
            step(LOAD, ABI),
            branch(IF_EQUAL, ARCH, 1, 0),
            step(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
            step(LOAD, NUMBER),
        ];
        for (nr, errno) in &self.answered {
            code.push(branch(IF_EQUAL, *nr, 0, 1));
            code.push(step(RETURN, libc::SECCOMP_RET_ERRNO | *errno as u32));
        }
        for (nr, alternatives) in &self.when {
            let mut block = Vec::new();
            for tests in alternatives {
                for (at, test) in tests.iter().enumerate() {
                    // A test that fails goes on with the next alternative: behind the other tests and the return.
                    let behind: usize = tests[at + 1..].iter().map(Test::instructions).sum();
                    let next = (behind + 1) as u8;
                    let (if_true, if_false) = if test.passes { (0, next) } else { (next, 0) };
                    block.push(step(LOAD, ARGUMENTS + 8 * test.argument));
                    if test.mask != u32::MAX {
                        block.push(step(AND, test.mask));
                    }
                    block.push(branch(test.kind, test.value, if_true, if_false));
                }
                block.push(allow);
            }
            block.push(refuse);
            // The jump takes a wide distance, the branch only a byte.
            code.push(branch(IF_EQUAL, *nr, 1, 0));
            code.push(step(JUMP, block.len() as u32));
            code.extend(block);
        }
        code.extend(search(&self.ranges(), allow, refuse));
        code
    }

    /// The allowed numbers as ranges, in order.
    fn ranges(&self) -> Vec<(u32, u32)> {
        let mut numbers = self.allowed.clone();
        numbers.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for nr in numbers {
            match ranges.last_mut() {
                Some((_, last)) if nr <= *last + 1 => *last = nr,
                _ => ranges.push((nr, nr)),
            }
        }
        ranges
    }
}

fn search(
    ranges: &[(u32, u32)],
    allow: libc::sock_filter,
    refuse: libc::sock_filter,
) -> Vec<libc::sock_filter> {
    match ranges {
        [] => vec![refuse],
        [(first, last)] => {
            vec![branch(IF_AT_LEAST, *first, 0, 2), branch(IF_GREATER, *last, 1, 0), allow, refuse]
        }
        _ => {
            let (left, right) = ranges.split_at(ranges.len() / 2);
            let (start, left) = (right[0].0, search(left, allow, refuse));
            let mut code = vec![branch(IF_AT_LEAST, start, 0, 1), step(JUMP, left.len() as u32)];
            code.extend(left);
            code.extend(search(right, allow, refuse));
            code
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the kernel does with a filter.
    pub(crate) fn run(code: &[libc::sock_filter], abi: u32, nr: u32, args: [u64; 6]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let i = code[at];
            at += 1;
            let mut jump = |condition: bool| at += usize::from(if condition { i.jt } else { i.jf });
            match i.code {
                LOAD if i.k == NUMBER => value = nr,
                LOAD if i.k == ABI => value = abi,
                LOAD => value = args[((i.k - ARGUMENTS) / 8) as usize] as u32,
                AND => value &= i.k,
                JUMP => at += i.k as usize,
                IF_EQUAL => jump(value == i.k),
                IF_GREATER => jump(value > i.k),
                IF_AT_LEAST => jump(value >= i.k),
                IF_ANY_BIT => jump(value & i.k != 0),
                RETURN => return i.k,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn ranges_join_neighbours() {
        let allowed = vec![7, 3, 4, 5, 9, 10, 1];
        let filter = Filter { allowed, when: Vec::new(), answered: Vec::new(), refused_with: 1 };
        assert_eq!(filter.ranges(), [(1, 1), (3, 5), (7, 7), (9, 10)]);
        for nr in 0..20 {
            let allowed = run(&filter.compile(), ARCH, nr, [0; 6]) == libc::SECCOMP_RET_ALLOW;
            assert_eq!(allowed, filter.allowed.contains(&nr), "{nr}");
        }
    }

    #[test]
    fn one_alternative_is_enough_and_all_its_tests_are_needed() {
        let alternatives =
            vec![vec![Test::equal(0, 1), Test::equal(1, 2)], vec![Test::equal(0, 7), Test::lacks(1, 6)]];
        let filter =
            Filter { allowed: vec![], when: vec![(5, alternatives)], answered: vec![], refused_with: 1 };
        let passes = |a, b| run(&filter.compile(), ARCH, 5, [a, b, 0, 0, 0, 0]) == libc::SECCOMP_RET_ALLOW;
        assert!(passes(1, 2) && passes(7, 1) && passes(7, 8));
        assert!(!passes(1, 3) && !passes(2, 2) && !passes(7, 2) && !passes(7, 4));
    }

    #[test]
    fn a_masked_test_looks_at_its_bits_only() {
        let alternatives = vec![
            vec![Test::equal(1, 1), Test::equal_in(0, 0xf, 2), Test::equal(2, 0)],
            vec![Test::equal(1, 9)],
        ];
        let filter =
            Filter { allowed: vec![], when: vec![(5, alternatives)], answered: vec![], refused_with: 1 };
        let passes = |a, b, c| run(&filter.compile(), ARCH, 5, [a, b, c, 0, 0, 0]) == libc::SECCOMP_RET_ALLOW;
        assert!(passes(2, 1, 0) && passes(0xff2, 1, 0) && passes(7, 9, 7));
        assert!(!passes(3, 1, 0) && !passes(2, 1, 1) && !passes(2, 2, 0) && !passes(0xff1, 1, 0));
    }
}
