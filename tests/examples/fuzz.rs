//! Reads millions of files and messages that are almost right, and counts what ends in a panic,
//! takes too long, takes too much memory, or is read wrongly.
//!
//!     cargo run --release -p umbra-tests --example fuzz -- FOLDER SEED NAME=CASES…
//!     cargo run --release -p umbra-tests --example fuzz -- FOLDER seeds
//!
//! NAME is a target of `umbra_tests::fuzz`, or `all`. Two threads; the same cases for the same
//! SEED. Failures are kept in FOLDER. Prints `id value` lines. `seeds` writes what each target
//! starts from to FOLDER/NAME, for libFuzzer (`tests/fuzz/`).
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use umbra_tests::fuzz::{Counted, NAMES, fuzz, quiet_panics, seeds};

#[global_allocator]
static COUNTED: Counted = Counted;

const THREADS: u32 = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, seed, asked @ ..] = &arguments[..] else {
        panic!("expected FOLDER SEED NAME=CASES…, or FOLDER seeds; NAME one of {NAMES:?}, or all");
    };
    let folder = Path::new(folder);
    fs::create_dir_all(folder).unwrap();
    if seed == "seeds" {
        return write_seeds(folder);
    }
    let seed = seed.parse().expect("SEED");
    quiet_panics();
    let (mut all_cases, mut crashes) = (0, 0);
    for asked in asked {
        let (asked, cases) = asked.split_once('=').expect("NAME=CASES");
        let cases = cases.parse().expect("CASES");
        assert!(asked == "all" || NAMES.contains(&asked), "{asked}: expected one of {NAMES:?}");
        for name in NAMES.into_iter().filter(|name| asked == "all" || *name == asked) {
            let begun = Instant::now();
            let outcome = fuzz(name, folder, seed, cases, THREADS);
            outcome.failures.iter().for_each(|failure| println!("{name}: {failure}"));
            println!("fuzz_{name}_cases {}", outcome.cases);
            println!("fuzz_{name}_accepted {}", outcome.accepted);
            println!("fuzz_{name}_crashes {}", outcome.failures.len());
            println!("fuzz_{name}_seconds {:.1}", begun.elapsed().as_secs_f64());
            (all_cases, crashes) = (all_cases + outcome.cases, crashes + outcome.failures.len());
        }
    }
    println!("fuzz_cases {all_cases}\nfuzz_crashes {crashes}");
    if crashes > 0 {
        std::process::exit(1);
    }
}

fn write_seeds(folder: &Path) {
    let scratch = tempfile::tempdir().unwrap();
    for name in NAMES {
        let of_name = folder.join(name);
        fs::create_dir_all(&of_name).unwrap();
        for (number, seed) in seeds(name, &scratch.path().join(name)).iter().enumerate() {
            fs::write(of_name.join(format!("seed-{number}")), seed).unwrap();
        }
    }
}
