//! Rows per second of making and reading data in Criteo's shape (13 dense, 26 one-hot fields).
//!
//! Ignored in ordinary runs: figures are for people. Run with
//! `cargo test --release -p umbra-datasets --test throughput -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::time::Instant;

use umbra_datasets::{
    Dataset, Pipeline, Preset, SynthOptions, TrainOrder, WorkerBatches, steps_per_epoch, synth,
    verify,
};

fn drain(batches: &mut [WorkerBatches]) -> usize {
    let mut rows = 0;
    loop {
        let mut ended = true;
        for worker in &mut *batches {
            if let Some(batch) = worker.next(&mut || ()).unwrap() {
                ended = false;
                rows += batch.len();
                worker.recycle(batch);
            }
        }
        if ended {
            return rows;
        }
    }
}

#[test]
#[ignore = "prints figures; takes a minute"]
fn rows_per_second() {
    let folder = tempfile::tempdir().unwrap();
    for (preset, rows) in [(Preset::Small, 2_000_000), (Preset::CriteoKaggle, 1_000_000)] {
        let path = folder.path().join(format!("{preset}.h5"));
        let time = Instant::now();
        let made = synth(rows, preset, 1, &path, SynthOptions::default(), &mut |_| {}).unwrap();
        let rate =
            |time: Instant| format!("{:.0} rows/s", rows as f64 / time.elapsed().as_secs_f64());
        println!("{preset}: synth {} {made:?}", rate(time));
        println!("  {:.1} bytes a row", path.metadata().unwrap().len() as f64 / rows as f64);
        let time = Instant::now();
        verify(&path).unwrap();
        println!("  verify {}", rate(time));
        let dataset = Dataset::open(&[path]).unwrap();
        for (workers, lanes, shuffle) in
            [(1, 8, true), (2, 8, true), (2, 8, false), (1, 1, true), (1, 64, true)]
        {
            let order =
                TrainOrder { seed: 1, workers_total: workers, lanes, batch_size: 512, shuffle };
            let time = Instant::now();
            let (pipeline, mut batches) =
                Pipeline::train(&dataset, &order, 0..workers, 0..1, 4).unwrap();
            assert_eq!(drain(&mut batches) as u64, rows);
            pipeline.join();
            println!(
                "  train, {workers} workers, {lanes} lanes, shuffle {shuffle}: {} in {} steps",
                rate(time),
                steps_per_epoch(rows, &order)
            );
        }
        let time = Instant::now();
        let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 2, 4096, 4).unwrap();
        assert_eq!(drain(&mut batches) as u64, rows);
        println!("  evaluate {}", rate(time));
    }
}
