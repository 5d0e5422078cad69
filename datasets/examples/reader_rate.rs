//! Rows that the reader of a rank makes ready in a second of one core's time, in Criteo's shape: 13
//! dense features and 26 ids, ranked by how often they come, in shuffled batches.
//!
//!     cargo run --release -p umbra-datasets --example reader_rate -- FILE.h5 [ROWS [THREADS]]
//!
//! Writes FILE.h5 with ROWS rows (2,000,000) unless it is there. A run is one epoch: one worker, 8
//! lanes, batches of 2048. Counted is the processor time of the reader's thread alone; printed is
//! the median of seven runs, for the reader and for its plain twin, which has the HDF5 library undo
//! the filters, in turn. THREADS threads in place of one are counted together, with the time that
//! passes.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    missing_docs
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{
    Dataset, DatasetInfo, Pipeline, Preset, Reading, RowBlock, TrainOrder, Writer,
};

const DENSE: usize = 13;
const RUNS: usize = 7;
const BLOCK: u64 = 8192;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(arguments.next().expect("expected FILE.h5 [ROWS]"));
    let rows = arguments.next().map_or(2_000_000, |rows| rows.to_str().unwrap().parse().unwrap());
    if !path.exists() {
        write(&path, rows);
    }
    let dataset = Dataset::open(core::slice::from_ref(&path)).unwrap();
    let bytes = fs::metadata(&path).unwrap().len() as f64 / dataset.rows() as f64;
    println!("{} rows, {bytes:.1} bytes a row in the file", dataset.rows());
    let threads = arguments.next().map_or(1, |n| n.to_str().unwrap().parse().unwrap());
    let reader = Reading { threads, ..Reading::from(4) };
    let twin = Reading { through_library: true, ..Reading::from(4) };
    let mut runs: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
    let rate = |seconds: f64| dataset.rows() as f64 / seconds / 1e6;
    for number in 1..=RUNS {
        for ((what, reading), runs) in
            [("reader", reader), ("HDF5's filters", twin)].into_iter().zip(&mut runs)
        {
            let run = epoch(&dataset, reading);
            println!("run {number}, {what}: {:.2} M rows/s, {:.2} s passed", rate(run.0), run.1);
            runs.push(run);
        }
    }
    for (what, mut runs) in ["reader", "HDF5's filters"].into_iter().zip(runs) {
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        println!(
            "{what}: {:.2} M rows/s of one core ({:.2} to {:.2}); {:.2} M rows/s in passing time",
            rate(runs[RUNS / 2].0),
            rate(runs[RUNS - 1].0),
            rate(runs[0].0),
            rate(runs.iter().map(|run| run.1).fold(f64::INFINITY, f64::min)),
        );
    }
}

/// Seconds of processor time of the reader's threads in one epoch, and those that passed.
fn epoch(dataset: &Dataset, reading: Reading) -> (f64, f64) {
    let order = TrainOrder { seed: 1, workers_total: 1, lanes: 8, batch_size: 2048, shuffle: true };
    let begun = Instant::now();
    let (pipeline, mut batches) = Pipeline::train(dataset, &order, 0..1, 0..1, reading).unwrap();
    let (mut rows, mut seconds) = (0, 0.0);
    while let Some(batch) = batches[0].next(&mut || ()).unwrap() {
        rows += batch.len() as u64;
        batches[0].recycle(batch);
        // Threads may end before the last batch is taken.
        seconds = reader_seconds().max(seconds);
    }
    assert_eq!(rows, dataset.rows());
    let passed = begun.elapsed().as_secs_f64();
    pipeline.join();
    (seconds, passed)
}

/// Processor time so far of the threads of the reader's names.
fn reader_seconds() -> f64 {
    let seconds = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
        let ns: f64 = times.split(' ').next()?.parse().ok()?;
        ["umbra-reader", "umbra-inflate"].contains(&name.trim()).then_some(ns / 1e9)
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| seconds(task.ok()?)).sum()
}

/// Ids are Zipf-like, rank r with a probability of about 1 / r; dense features are logarithms of
/// counts.
fn write(path: &Path, rows: u64) {
    let cardinality = Preset::CriteoKaggle.cardinality();
    let fields = cardinality.len();
    let name = |prefix: &str, n: usize| (0..n).map(|i| format!("{prefix}{i}")).collect();
    let info = DatasetInfo {
        has_label: true,
        dense_names: name("I", DENSE),
        sparse_names: name("C", fields),
        cardinality: cardinality.to_vec(),
        transform: String::new(),
        one_hot: true,
        has_weight: false,
        has_group: false,
        has_value_weights: false,
    };
    let mut writer = Writer::create(path, info).unwrap();
    let columns = 1 + DENSE + fields;
    let stream = Stream::new(1, Purpose::Test(7));
    for first in (0..rows).step_by(BLOCK as usize) {
        let (mut label, mut dense, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for row in first..rows.min(first + BLOCK) {
            let uniform = |column: usize| {
                f64::from(stream.block(row * columns as u64 + column as u64)[0]) / 4_294_967_296.0
            };
            label.push(if uniform(0) < 0.25 { 1.0f32 } else { 0.0 });
            dense.extend((1..=DENSE).map(|c| {
                let count = (uniform(c) * 1000f64.ln()).exp().floor() - 1.0;
                count.ln_1p() as f32
            }));
            values.extend(cardinality.iter().enumerate().map(|(field, &n)| {
                let rank = (uniform(1 + DENSE + field) * ((n + 1) as f64).ln()).exp() as u64;
                (rank - 1).min(n - 1) as u32
            }));
        }
        let block = RowBlock {
            rows: label.len(),
            label: &label,
            weight: &[],
            dense: &dense,
            values: &values,
            value_weights: &[],
            offsets: &[],
            group: &[],
        };
        writer.append(&block).unwrap();
    }
    println!("{:?}", writer.finish().unwrap());
}
