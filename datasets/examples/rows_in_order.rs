//! Whether training without shuffling takes the rows of files in their order.
//!
//!     cargo run --release -p umbra-datasets --example rows_in_order -- FILE.h5...
//!
//! Reads one pass with 1, 2, 4 and 8 workers, and prints how many rows were not where they belong.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use umbra_datasets::{Dataset, Pipeline, TrainOrder};

/// Examples of all workers in a step.
const GLOBAL_BATCH: usize = 512;

fn main() {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let dataset = Dataset::open(&paths).unwrap();
    let mut wrong = 0;
    for workers in [1, 2, 4, 8] {
        let order = TrainOrder {
            seed: 1,
            workers_total: workers,
            lanes: 8,
            batch_size: GLOBAL_BATCH / workers,
            shuffle: false,
        };
        let (reader, mut batches) = Pipeline::train(&dataset, &order, 0..workers, 0..1, 4).unwrap();
        let mut next = 0;
        'pass: loop {
            for worker in &mut batches {
                let Some(batch) = worker.next(&mut || ()).unwrap() else { break 'pass };
                for row in &batch.row {
                    wrong += u64::from(*row != next);
                    next += 1;
                }
                worker.recycle(batch);
            }
        }
        reader.join();
        wrong += dataset.rows().abs_diff(next);
    }
    println!("{wrong}");
}
