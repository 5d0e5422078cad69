//! Reads millions of texts that are almost right, and counts panics, hangs and what does not hold.
//!
//!     cargo run --release -p umbra-datasets --example fuzz_prepare -- FOLDER SEED NAME=CASES…
//!
//! NAME is one of `criteo`, `libfm`, `csv` (blocks in memory), `schema`, and `parquet` and
//! `prepare` (whole runs, from file to file). Two threads. Failures are kept in FOLDER. Prints
//! `id value` lines.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]

#[path = "../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../tests/fuzz/run.rs"]
mod run;
#[path = "../tests/fuzz/targets.rs"]
mod targets;

use std::path::Path;
use std::time::Instant;

const THREADS: u32 = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, seed, asked @ ..] = &arguments[..] else {
        panic!("expected FOLDER SEED NAME=CASES…, NAME one of {:?}", targets::NAMES);
    };
    let (folder, seed) = (Path::new(folder), seed.parse().expect("SEED"));
    std::fs::create_dir_all(folder).unwrap();
    run::quiet_panics();
    for asked in asked {
        let (name, cases) = asked.split_once('=').expect("NAME=CASES");
        assert!(targets::NAMES.contains(&name), "{name}: expected one of {:?}", targets::NAMES);
        let begun = Instant::now();
        let outcome = run::fuzz(name, folder, seed, cases.parse().expect("CASES"), THREADS);
        outcome.failures.iter().for_each(|failure| println!("{name}: {failure}"));
        println!("fuzz_{name}_cases {}", outcome.cases);
        println!("fuzz_{name}_accepted {}", outcome.accepted);
        println!("fuzz_{name}_failures {}", outcome.failures.len());
        println!("fuzz_{name}_seconds {:.1}", begun.elapsed().as_secs_f64());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: u64 = peak.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    println!("fuzz_peak_rss_mb {}", kilobytes / 1000);
}
