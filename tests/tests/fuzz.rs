//! Files and messages that are almost right end with a value or a message: never in a panic, nor
//! without an end, nor with memory beyond a bound. The same, millions of times: `make fuzz`.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use umbra_tests::fuzz::{Counted, NAMES, fuzz, quiet_panics};

#[global_allocator]
static COUNTED: Counted = Counted;

/// Cases of a target that reads from memory, and of one that reads files.
const CASES: [u64; 2] = [2000, 300];

#[test]
fn nothing_that_is_read_ends_in_a_panic_or_never() {
    // Each case of a file is written, and brought to the disk where there is one.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(place).unwrap();
    quiet_panics();
    let outcomes = NAMES.map(|name| {
        let of_files = ["checkpoint", "records"].contains(&name);
        let cases = CASES[usize::from(of_files)];
        (name, cases, fuzz(name, folder.path(), 1, cases, 1))
    });
    let _ = std::panic::take_hook();
    for (name, cases, outcome) in outcomes {
        assert_eq!(outcome.failures, [""; 0], "{name}");
        assert_eq!(outcome.cases, cases, "{name}");
        assert!(outcome.accepted > 0, "{name}: some are read to their end");
    }
}
