//! Bytes that are almost right, for everything that reads files or messages of other ranks: it ends
//! with a value or a message, never in a panic, nor without an end, nor with memory beyond its
//! bound.
//!
//! - `targets.rs`: what is read, by name, and what it starts from · `settings.rs`: job files,
//!   `--set`, cluster files, schemas, lists of cores · `messages.rs`: what ranks send each other ·
//!   `rows.rs`: requests for rows, through to their answers · `tokens.rs`: conversations of
//!   parameter servers · `saved.rs`: manifests, checkpoints and flat models · `records.rs`: run
//!   folders
//! - `memory.rs`: an allocator that knows the most that was held
//! - `mutate.rs`, `run.rs`: changes of good bytes, and many cases of them: those of the formats
//!   of data, beside `datasets/tests/fuzz`
//!
//! Three drivers read the same targets: a test (`tests/fuzz.rs`, some seconds), the program
//! `fuzz` (millions of cases, from a seed), and libFuzzer (`tests/fuzz/`, which looks at the
//! branches that are taken).
#![allow(clippy::cast_possible_truncation, missing_docs)]

mod memory;
mod messages;
#[path = "../../../datasets/tests/fuzz/mutate.rs"]
mod mutate;
mod records;
mod rows;
#[path = "../../../datasets/tests/fuzz/run.rs"]
mod run;
mod saved;
mod settings;
mod targets;
mod tokens;

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

pub use memory::Counted;
pub use targets::NAMES;

/// What came of many cases.
pub struct Outcome {
    pub cases: u64,
    /// Were read to their end.
    pub accepted: u64,
    /// What went wrong, with the file that has the case.
    pub failures: Vec<String>,
}

/// Panics of this process are told with their cases alone, until the hook is taken away again.
pub fn quiet_panics() {
    run::quiet_panics();
}

/// Reads `cases` cases of the target `name` with `threads` threads; the same for the same `seed`.
/// Files go to `folder`, failures too.
#[must_use]
pub fn fuzz(name: &str, folder: &Path, seed: u64, cases: u64, threads: u32) -> Outcome {
    let run::Outcome { cases, accepted, failures } = run::fuzz(name, folder, seed, cases, threads);
    Outcome { cases, accepted, failures }
}

/// Reads one case of the target `name`, as libFuzzer gives it. Panics when it is read wrongly.
pub fn read_one(name: &'static str, case: &[u8]) {
    thread_local! {
        static OPEN: RefCell<BTreeMap<&'static str, targets::Fuzzed>> = RefCell::default();
    }
    OPEN.with_borrow_mut(|open| {
        let folder = std::env::temp_dir().join(format!("umbra-fuzz-{}-{name}", std::process::id()));
        let fuzzed = open.entry(name).or_insert_with(|| targets::named(name, &folder));
        // Choices beside the bytes are the same for the same bytes.
        let mut dice = mutate::Dice::new(case.len() as u64, u32::from(*case.first().unwrap_or(&0)));
        (fuzzed.read)(case, &mut dice).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    });
}

/// The good bytes that cases of `name` are made from.
#[must_use]
pub fn seeds(name: &str, folder: &Path) -> Vec<Vec<u8>> {
    targets::named(name, folder).good
}
