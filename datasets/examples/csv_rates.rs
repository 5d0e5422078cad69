//! Rates of `prepare` on the same rows as Criteo text, as csv, and as csv with a quoted value in
//! every line: megabytes (10^6) of text per second of processor time, with a vocabulary and hashed.
//! All are run in turn, five times; printed are the medians, with the least and the most, and how
//! many times as long the quoted csv takes as Criteo text in the same round.
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
    let inputs = [
        ("criteo text", Format::Criteo, tsv),
        ("csv", Format::Csv, folder.path().join("plain.csv")),
        ("csv, a quoted value per line", Format::Csv, folder.path().join("quoted.csv")),
    ];
    let ways = [("with a vocabulary", None), ("hashed", Some(1 << 20))];
    let rate = |format: Format, input: &PathBuf, hash_size| {
        let options = PrepareOptions {
            schema: (format == Format::Csv).then(|| folder.path().join("schema.toml")),
            hash_size,
            overwrite: true,
            threads: Some(1),
            ..PrepareOptions::new(format, vec![input.clone()], folder.path().join("out.h5"))
        };
        let started = processor_seconds();
        let summary = prepare(&options, &mut |_| ()).unwrap();
        summary.input_bytes as f64 / 1e6 / (processor_seconds() - started)
    };
    for (way, hash_size) in ways {
        let rounds: Vec<[f64; 3]> = (0..ROUNDS)
            .map(|_| inputs.each_ref().map(|(_, format, input)| rate(*format, input, hash_size)))
            .collect();
        for (at, (name, ..)) in inputs.iter().enumerate() {
            let [least, median, most] = spread(rounds.iter().map(|rates| rates[at]));
            println!("{name}, {way}: {median:.0} MB/s ({least:.0} to {most:.0})");
        }
        let [least, median, most] = spread(rounds.iter().map(|rates| rates[0] / rates[2]));
        println!("criteo text over quoted csv, {way}: {median:.2} ({least:.2} to {most:.2})");
    }
}

/// Least, median and most.
fn spread(values: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    [values[0], values[values.len() / 2], values[values.len() - 1]]
}

const ROUNDS: usize = 5;

/// Of all threads of this process so far.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
