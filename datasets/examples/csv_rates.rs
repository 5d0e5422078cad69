//! Rates of `prepare` on the same rows as Criteo text, as csv, and as csv with a quoted value in
//! every line: megabytes (10^6) of text per second of processor time, in two passes and hashed (one
//! pass).
//!
//!     cargo run --release -p umbra-datasets --example csv_rates -- FILE.tsv
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::PathBuf;

use umbra_datasets::prepare::{Format, PrepareOptions, prepare};

fn main() {
    let tsv = PathBuf::from(std::env::args_os().nth(1).expect("expected FILE.tsv"));
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(&tsv).unwrap();
    let csv = text.replace('\t', ",");
    let quoted: String = csv
        .lines()
        .map(|line| {
            let (rest, last) = line.rsplit_once(',').unwrap();
            format!("{rest},\"{last}\"\n")
        })
        .collect();
    let schema = format!(
        "header = false\ncolumns = 40\nlabel = 1\ndense = {:?}\nsparse = {:?}\n\
         dense_transform = \"log\"\n",
        (2..=14).collect::<Vec<_>>(),
        (15..=40).collect::<Vec<_>>()
    );
    fs::write(folder.path().join("schema.toml"), schema).unwrap();
    fs::write(folder.path().join("plain.csv"), csv).unwrap();
    fs::write(folder.path().join("quoted.csv"), quoted).unwrap();
    for (name, format, input) in [
        ("criteo text", Format::Criteo, tsv),
        ("csv", Format::Csv, folder.path().join("plain.csv")),
        ("csv, a quoted value per line", Format::Csv, folder.path().join("quoted.csv")),
    ] {
        for (ids, hash_size) in [("two passes", None), ("hashed", Some(1 << 20))] {
            let output = folder.path().join("out.h5");
            let options = PrepareOptions {
                schema: (format == Format::Csv).then(|| folder.path().join("schema.toml")),
                hash_size,
                overwrite: true,
                threads: Some(1),
                ..PrepareOptions::new(format, vec![input.clone()], output)
            };
            let rate = || {
                let started = processor_seconds();
                let summary = prepare(&options, &mut |_| ()).unwrap();
                summary.input_bytes as f64 / 1e6 / (processor_seconds() - started)
            };
            let mut rates = [rate(), rate(), rate()];
            rates.sort_by(f64::total_cmp);
            println!("{name}, {ids}: {:.0} MB/s", rates[1]);
        }
    }
}

/// Of all threads of this process so far.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
