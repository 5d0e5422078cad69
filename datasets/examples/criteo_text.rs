//! Criteo-format text of any size, to measure `umbra prepare` with.
//!
//!     cargo run --release -p umbra-datasets --example criteo_text -- ROWS FILE.tsv
//!
//! Row i is a function of i alone. Columns have the real file's numbers of distinct ids, shares of
//! missing values and ranges of integers; ids are Zipf-like (the rank is uniform in its logarithm)
//! and spelt by a hash of field and rank, so their order says nothing. Labels are noise: there is
//! nothing to learn.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::fs::File;
use std::io::{BufWriter, Write};

use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::Preset;

/// Integer columns: share missing, largest value, and how strongly small values prevail (value + 1
/// is the largest to the power of u^prevalence, u uniform). Read off the first 10,000 rows of the
/// real file.
const INTEGERS: [(f64, f64, f64); 13] = [
    (0.45, 214.0, 2.8),
    (0.0, 18_522.0, 2.8),
    (0.20, 65_535.0, 2.4),
    (0.20, 280.0, 1.8),
    (0.05, 1_618_112.0, 0.9),
    (0.25, 12_167.0, 1.3),
    (0.05, 1_658.0, 2.4),
    (0.0, 682.0, 1.6),
    (0.05, 7_335.0, 1.3),
    (0.45, 6.0, 4.0),
    (0.05, 79.0, 2.6),
    (0.77, 98.0, 4.0),
    (0.20, 770.0, 1.8),
];

/// Share of missing ids of every field.
const MISSING: [f64; 26] = [
    0.0, 0.0, 0.04, 0.04, 0.0, 0.13, 0.0, 0.0, 0.0, 0.0, 0.0, 0.04, 0.0, 0.0, 0.0, 0.04, 0.0, 0.0,
    0.45, 0.45, 0.04, 0.82, 0.0, 0.04, 0.45, 0.45,
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rows, path] = &arguments[..] else { panic!("expected ROWS FILE.tsv") };
    let rows: u64 = rows.parse().expect("ROWS: expected a whole number");
    let mut text = BufWriter::with_capacity(1 << 20, File::create(path).expect(path));
    let mut line = Vec::new();
    for row in 0..rows {
        line.clear();
        write_row(row, &mut line);
        text.write_all(&line).expect(path);
    }
    text.flush().expect(path);
}

fn write_row(row: u64, line: &mut Vec<u8>) {
    let drawn = |column: u32| {
        let [a, b, ..] = Stream::new(1, Purpose::Synthetic(FIRST_STREAM + column)).block(row);
        let uniform = |word: u32| f64::from(word) / 4_294_967_296.0;
        (uniform(a), uniform(b))
    };
    line.push(if drawn(0).0 < CLICKS { b'1' } else { b'0' });
    for ((missing, max, prevalence), column) in INTEGERS.into_iter().zip(1..) {
        line.push(b'\t');
        let (u, v) = drawn(column);
        if v >= missing {
            let value = ((max + 1.0).ln() * u.powf(prevalence)).exp() as u64 - 1;
            write!(line, "{value}").unwrap();
        }
    }
    let cardinality = Preset::CriteoKaggle.cardinality();
    for ((&ids, missing), field) in cardinality.iter().zip(MISSING).zip(14..) {
        line.push(b'\t');
        let (u, v) = drawn(field);
        if v >= missing {
            let rank = ((ids as f64).ln() * u).exp() as u64;
            write!(line, "{:08x}", spelling(field, rank)).unwrap();
        }
    }
    line.push(b'\n');
}

/// What stands in the text for an id.
fn spelling(field: u32, rank: u64) -> u32 {
    Stream::new(2, Purpose::Synthetic(FIRST_STREAM + field)).block(rank)[0]
}

/// Share of clicks.
const CLICKS: f64 = 0.256;

/// Streams that no preset of `umbra synth` draws from.
const FIRST_STREAM: u32 = 900_000;
