//! The reader thread delivers exactly the batches that the order asks for, to the workers that are
//! there, and ends when nobody is left.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use core::time::Duration;
use std::collections::HashSet;
use std::time::Instant;

use common::{PLAIN, RICH, Shape, drain, written};
use rustix::fs::{CWD, Mode, mkfifoat};
use umbra_datasets::order::{Grid, LaneKey, LanePlan, cut, lane_rows, window_order};
use umbra_datasets::pipeline::LOOK;
use umbra_datasets::{BatchBuffer, Dataset, Pipeline, TrainOrder, WorkerBatches, steps_per_epoch};

const ORDER: TrainOrder =
    TrainOrder { seed: 3, workers_total: 4, lanes: 8, batch_size: 96, shuffle: true };

fn open(path: &std::path::Path) -> Dataset {
    Dataset::open(&[path.to_owned()]).unwrap()
}

/// Batches of the local workers `workers`. `[workers][epochs * steps]`
fn train(
    dataset: &Dataset,
    order: &TrainOrder,
    workers: core::ops::Range<usize>,
    epochs: core::ops::Range<u32>,
) -> Vec<Vec<BatchBuffer>> {
    let (pipeline, mut batches) = Pipeline::train(dataset, order, workers, epochs, 3).unwrap();
    let all = drain(&mut batches);
    pipeline.join();
    all
}

fn rows(batches: &[BatchBuffer]) -> Vec<u64> {
    batches.iter().flat_map(|b| b.row.iter().copied()).collect()
}

#[test]
fn every_worker_gets_its_rows_whichever_rank_it_is_on() {
    for shape in [PLAIN, RICH, Shape { rows: 70_001, ..RICH }] {
        let (_folder, path, table) = written(shape);
        let dataset = open(&path);
        let together = train(&dataset, &ORDER, 0..4, 0..2);
        let steps = steps_per_epoch(dataset.rows(), &ORDER);
        for worker in &together {
            assert_eq!(worker.len() as u64, 2 * steps);
            for (number, batch) in worker.iter().enumerate() {
                table.check(shape, batch);
                let number = number as u64;
                assert_eq!((u64::from(batch.epoch), batch.step), (number / steps, number % steps));
                assert!(batch.len() == 96 || batch.step + 1 == steps);
            }
        }
        for epoch in [0, 1] {
            let of_epoch = together.iter().flatten().filter(|b| b.epoch == epoch);
            let mut all: Vec<u64> = of_epoch.flat_map(|b| b.row.iter().copied()).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..shape.rows as u64), "epoch {epoch}");
        }
        let (first, second) = together[0].split_at(steps as usize);
        assert_ne!(rows(first), rows(second), "epochs differ");

        // Two ranks of two workers, and one rank with the last worker alone.
        let ranks = [train(&dataset, &ORDER, 0..2, 0..2), train(&dataset, &ORDER, 2..4, 0..2)];
        assert_eq!(ranks.concat(), together);
        assert_eq!(train(&dataset, &ORDER, 3..4, 0..2), together[3..]);

        // The same global batches for any number of workers that divides the lanes.
        let global = |workers: &[Vec<BatchBuffer>]| -> Vec<Vec<u64>> {
            let steps = workers[0].len();
            let of = |step: usize| workers.iter().flat_map(move |w| w[step].row.iter().copied());
            (0..steps).map(|step| of(step).collect()).collect()
        };
        for workers_total in [1, 2, 8] {
            let batch_size = 4 * ORDER.batch_size / workers_total;
            let order = TrainOrder { workers_total, batch_size, ..ORDER };
            let batches = train(&dataset, &order, 0..workers_total, 0..2);
            assert_eq!(global(&batches), global(&together), "{workers_total} workers");
        }
    }
}

#[test]
fn batches_follow_the_order_of_their_lanes() {
    let shape = Shape { rows: 50_000, ..PLAIN };
    let (_folder, path, _) = written(shape);
    let order = TrainOrder { workers_total: 1, lanes: 2, batch_size: 1000, ..ORDER };
    let got = train(&open(&path), &order, 0..1, 5..7);
    let files = [Grid { first: 0, rows: 50_000, chunk_rows: 1024 }];
    let mut expected = Vec::new();
    for epoch in 5..7 {
        let lanes = [0, 1].map(|lane| {
            let key = LaneKey { seed: order.seed, epoch, lane };
            let plan = LanePlan::new(&cut(lane_rows(50_000, 2, lane), &files), key, true);
            assert_eq!(plan.windows.len(), 2);
            let (mut rows, mut order) = (Vec::new(), Vec::new());
            for (number, pieces) in plan.windows.iter().enumerate() {
                let pieces = &plan.pieces[pieces.clone()];
                let window: Vec<u64> =
                    pieces.iter().flat_map(|p| p.first..p.first + p.rows).collect();
                let count = plan.window_rows(number) as u32;
                window_order(key, rows.len() as u64, count, true, &mut order);
                rows.extend(order.iter().map(|&i| window[i as usize]));
            }
            rows
        });
        for step in 0..50 {
            lanes.iter().for_each(|lane| expected.extend(&lane[500 * step..500 * (step + 1)]));
        }
    }
    assert_eq!(rows(&got[0]), expected);
}

#[test]
fn a_run_resumes_at_any_step() {
    let shape = Shape { rows: 70_001, ..PLAIN };
    let (_folder, path, _) = written(shape);
    let dataset = open(&path);
    for shuffle in [true, false] {
        resumes_at_any_step(&dataset, &TrainOrder { batch_size: 1000, shuffle, ..ORDER });
    }
}

fn resumes_at_any_step(dataset: &Dataset, order: &TrainOrder) {
    let whole = train(dataset, order, 1..3, 2..4);
    let steps = steps_per_epoch(dataset.rows(), order);
    let alike = [0, 1, 7, steps - 1, steps, steps + 3, 2 * steps].map(|first| [first, first]);
    // Workers that stopped at different places, in different epochs too.
    for first in alike.into_iter().chain([[3, 9], [steps + 2, 5], [2 * steps, 0]]) {
        let (_pipeline, mut batches) =
            Pipeline::resume(dataset, order, 1..3, 2..4, first.to_vec(), 2).unwrap();
        let rest = drain(&mut batches);
        for ((rest, whole), first) in rest.iter().zip(&whole).zip(first) {
            assert_eq!(rest[..], whole[first as usize..], "from step {first}");
        }
    }
}

#[test]
fn more_workers_than_rows_still_step_together() {
    let shape = Shape { rows: 5, ..RICH };
    let (_folder, path, table) = written(shape);
    let dataset = open(&path);
    let order = TrainOrder { workers_total: 8, ..ORDER };
    let all = train(&dataset, &order, 0..8, 0..3);
    assert!(all.iter().all(|worker| worker.len() == 3), "one step in each of three epochs");
    assert!(all.iter().any(|worker| worker[0].is_empty()));
    all.iter().flatten().for_each(|batch| table.check(shape, batch));
    assert_eq!(all.iter().flatten().map(BatchBuffer::len).sum::<usize>(), 15);
}

#[test]
fn without_shuffle_a_pass_is_the_files_in_order_whatever_lanes_and_workers() {
    let shape = Shape { rows: 20_011, ..RICH };
    let (_folder, path, table) = written(shape);
    let (_other, second, _) = written(Shape { rows: 3_000, ..shape });
    let dataset = Dataset::open(&[path, second]).unwrap();
    let global = 384;
    for (workers_total, lanes) in [(1, 8), (2, 8), (4, 3), (8, 8)] {
        let batch_size = global / workers_total;
        let order = TrainOrder { workers_total, lanes, batch_size, shuffle: false, ..ORDER };
        // On as many ranks as there are pairs of workers, or alone.
        let ranks = (0..workers_total)
            .step_by(2)
            .map(|first| train(&dataset, &order, first..workers_total.min(first + 2), 0..2));
        let workers: Vec<Vec<BatchBuffer>> = ranks.flatten().collect();
        assert_eq!(workers, train(&dataset, &order, 0..workers_total, 0..2));
        let steps = 23_011_u64.div_ceil(global as u64);
        assert_eq!(steps_per_epoch(dataset.rows(), &order), steps);
        for step in 0..2 * steps {
            let batches = workers.iter().map(|worker| &worker[step as usize]);
            let rows: Vec<u64> = batches.clone().flat_map(|b| b.row.iter().copied()).collect();
            let first = step % steps * global as u64;
            assert!(rows.into_iter().eq(first..23_011.min(first + global as u64)), "step {step}");
            let place = ((step / steps) as u32, step % steps);
            assert!(batches.clone().all(|batch| (batch.epoch, batch.step) == place));
        }
        let own = |batch: &&BatchBuffer| batch.row.iter().all(|row| *row < 20_011);
        workers.iter().flatten().filter(own).for_each(|batch| table.check(shape, batch));
    }
}

#[test]
fn evaluation_deals_every_row_once_in_order() {
    let (_folder, path, table) = written(RICH);
    let dataset = open(&path);
    let mut all = Vec::new();
    for shard in 0..3 {
        let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, shard, 3, 2, 100, 2).unwrap();
        let workers = drain(&mut batches);
        // Worker after worker, batch by batch, the rows of a shard are in order.
        let turns = workers[0].len();
        let shard: Vec<u64> = (0..turns)
            .flat_map(|turn| workers.iter().filter_map(move |w| w.get(turn)))
            .flat_map(|batch| batch.row.iter().copied())
            .collect();
        workers.iter().flatten().for_each(|batch| table.check(RICH, batch));
        all.extend(shard);
    }
    assert!(all.into_iter().eq(0..RICH.rows as u64));
    // More shards than rows: some are empty.
    let (_folder, path, _) = written(Shape { rows: 2, ..RICH });
    let dataset = open(&path);
    let counts: Vec<usize> = (0..5)
        .map(|shard| {
            let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, shard, 5, 1, 1, 1).unwrap();
            drain(&mut batches)[0].len()
        })
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), 2);
}

#[test]
fn buffers_are_used_again() {
    let (_folder, path, _) = written(Shape { rows: 20_000, ..PLAIN });
    let order = TrainOrder { workers_total: 2, batch_size: 64, ..ORDER };
    let (_pipeline, mut batches) = Pipeline::train(&open(&path), &order, 0..2, 0..2, 3).unwrap();
    let mut seen = HashSet::new();
    let mut count = 0;
    let mut in_hand = [BatchBuffer::default(), BatchBuffer::default()];
    'all: loop {
        for (worker, in_hand) in batches.iter_mut().zip(&mut in_hand) {
            let Some(next) = worker.next(&mut || ()).unwrap() else { break 'all };
            seen.insert(next.label.as_ptr());
            count += 1;
            worker.recycle(core::mem::replace(in_hand, next));
        }
    }
    assert!(count > 600, "{count}");
    // Per worker: three in the ring, one in hand, one on its way back; one in the reader.
    assert!(seen.len() <= 2 * 5 + 1, "{} buffers for {count} batches", seen.len());
}

/// The thread ends within ten seconds.
fn ends(pipeline: &Pipeline) -> bool {
    let start = Instant::now();
    while !pipeline.is_finished() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
    pipeline.is_finished()
}

#[test]
fn the_reader_ends_when_all_workers_are_gone() {
    let (_folder, path, _) = written(PLAIN);
    let dataset = open(&path);
    // Before anything is taken, with full rings; and in the middle.
    for taken in [0, 5] {
        let (pipeline, mut batches) =
            Pipeline::train(&dataset, &ORDER, 0..4, 0..1_000_000, 2).unwrap();
        for _ in 0..taken {
            batches.iter_mut().for_each(|worker| drop(worker.next(&mut || ()).unwrap().unwrap()));
        }
        drop(batches);
        assert!(ends(&pipeline));
        pipeline.join();
    }
    // Without joining, too.
    let (pipeline, batches) = Pipeline::train(&dataset, &ORDER, 0..4, 0..1_000_000, 2).unwrap();
    drop(pipeline);
    drop(batches);
}

#[test]
fn a_worker_that_leaves_does_not_hold_the_others() {
    let (_folder, path, _) = written(PLAIN);
    let dataset = open(&path);
    let expected = train(&dataset, &ORDER, 0..4, 0..3);
    let (_pipeline, mut batches) = Pipeline::train(&dataset, &ORDER, 0..4, 0..3, 2).unwrap();
    drop(batches.remove(1));
    let rest = drain(&mut batches);
    assert_eq!(rest[0], expected[0]);
    assert_eq!(rest[1..], expected[2..]);
}

#[test]
fn workers_on_threads_of_their_own_get_the_same() {
    let (_folder, path, _) = written(Shape { rows: 30_000, ..RICH });
    let dataset = open(&path);
    let expected = train(&dataset, &ORDER, 0..4, 0..2);
    let (_pipeline, batches) = Pipeline::train(&dataset, &ORDER, 0..4, 0..2, 1).unwrap();
    let take = |number: usize, mut worker: WorkerBatches| {
        let mut all = Vec::new();
        while let Some(batch) = worker.next(&mut || ()).unwrap() {
            // Uneven speeds.
            if batch.step % 7 == number as u64 {
                std::thread::sleep(Duration::from_micros(300));
            }
            all.push(batch.clone());
            worker.recycle(batch);
        }
        all
    };
    let got: Vec<Vec<BatchBuffer>> = std::thread::scope(|scope| {
        let threads: Vec<_> = batches
            .into_iter()
            .enumerate()
            .map(|(number, worker)| scope.spawn(move || take(number, worker)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(got, expected);
}

#[test]
fn an_error_reaches_every_worker_once_after_the_batches_before_it() {
    let shape = Shape { rows: 50_000, ..PLAIN };
    let (_folder, path, table) = written(shape);
    {
        // A label that no check at opening sees, in the second half of the file.
        let file = hdf5::File::open_rw(&path).unwrap();
        let mut label = table.label.clone();
        label[30_000] = 7.0;
        file.dataset("label").unwrap().write_raw(&label).unwrap();
    }
    let dataset = open(&path);
    let order = TrainOrder { lanes: 2, workers_total: 2, shuffle: false, ..ORDER };
    let (pipeline, mut batches) = Pipeline::train(&dataset, &order, 0..2, 0..1, 2).unwrap();
    let mut good = [0, 0];
    let mut errors = [String::new(), String::new()];
    while errors.iter().any(String::is_empty) {
        for (worker, batches) in batches.iter_mut().enumerate() {
            if !errors[worker].is_empty() {
                continue;
            }
            match batches.next(&mut || ()) {
                Ok(Some(batch)) => {
                    table.check(shape, &batch);
                    good[worker] += 1;
                }
                Ok(None) => panic!("ended without an error"),
                Err(error) => errors[worker] = error.to_string(),
            }
        }
    }
    assert_eq!(errors[0], errors[1]);
    assert!(errors[0].ends_with(
        "data.h5: dataset `label`: row 30000, column 0: expected a number from 0 to 1, got 7"
    ));
    assert!(good[0] > 10, "{good:?}");
    for worker in &mut batches {
        assert_eq!(worker.next(&mut || ()).unwrap(), None, "told once");
    }
    assert!(ends(&pipeline));

    // The file vanishes, or is another, between the check and the start.
    std::fs::rename(&path, path.with_extension("moved")).unwrap();
    let (_pipeline, mut batches) = Pipeline::train(&dataset, &order, 0..2, 0..1, 2).unwrap();
    for worker in &mut batches {
        let message = worker.next(&mut || ()).unwrap_err().to_string();
        assert!(message.contains("data.h5: cannot open: No such file"), "{message}");
    }
    table.write(Shape { rows: 100, ..shape }, &path, 100);
    let (_pipeline, mut batches) = Pipeline::train(&dataset, &order, 0..2, 0..1, 2).unwrap();
    let message = batches[0].next(&mut || ()).unwrap_err().to_string();
    assert!(message.contains("data.h5: changed while it was used: it had "), "{message}");
}

/// The file has become a pipe that nobody writes to: the reader waits in its first call, for as
/// long as the test lets it.
#[test]
fn whoever_waits_for_the_reader_hears_of_it_again_and_again() {
    let (_folder, path, _) = written(PLAIN);
    let dataset = open(&path);
    std::fs::remove_file(&path).unwrap();
    // No program does this: it would inherit, and keep alive, the locks of other tests' files.
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    let (_pipeline, mut batches) = Pipeline::train(&dataset, &ORDER, 0..1, 0..1, 2).unwrap();
    let (mut calls, start) = (0, Instant::now());
    let error = batches[0].next(&mut || {
        calls += 1;
        assert!(start.elapsed() >= calls * LOOK, "call {calls} after {:?}", start.elapsed());
        if calls == 2 {
            // Whoever opens the other end lets the reader go on, to nothing.
            drop(std::fs::OpenOptions::new().write(true).open(&path).unwrap());
        }
    });
    assert!(calls >= 2, "{calls}");
    assert!(error.unwrap_err().to_string().contains("not an HDF5 file"));
}

#[test]
fn orders_that_cannot_be_are_refused() {
    let (_folder, path, _) = written(PLAIN);
    let dataset = open(&path);
    let refuse = |order: TrainOrder, workers: core::ops::Range<usize>| {
        Pipeline::train(&dataset, &order, workers, 0..1, 2).unwrap_err().to_string()
    };
    assert!(refuse(ORDER, 3..5).contains("expected a range within 0..4, got 5"));
    assert!(refuse(ORDER, 2..2).contains("workers of this rank"));
    assert!(refuse(TrainOrder { batch_size: 0, ..ORDER }, 0..1).contains("batch size"));
    assert!(refuse(TrainOrder { workers_total: 0, ..ORDER }, 0..1).contains("workers: expected 1"));
    let error = Pipeline::evaluate(&dataset, 2, 2, 1, 1, 1).unwrap_err().to_string();
    assert_eq!(error, "order of reading: shard: expected below the number of shards, 2, got 2");
}

#[test]
fn chunks_of_any_size_give_the_same_rows() {
    let (folder, path, table) = written(PLAIN);
    let source = hdf5::File::open(&path).unwrap();
    for chunk in [None, Some(1), Some(7), Some(300), Some(PLAIN.rows)] {
        let other = folder.path().join("other.h5");
        let file = hdf5::File::create(&other).unwrap();
        for name in ["umbra_version", "cardinality"] {
            let values = source.attr(name).unwrap().read_raw::<u64>().unwrap();
            file.new_attr_builder().with_data(&values).create(name).unwrap();
        }
        let shaped = |width: usize| {
            let chunk = chunk.map(|rows| if width == 0 { vec![rows] } else { vec![rows, width] });
            let shape = if width == 0 { vec![PLAIN.rows] } else { vec![PLAIN.rows, width] };
            (chunk, shape)
        };
        let (label_chunk, label_shape) = shaped(0);
        let (dense_chunk, dense_shape) = shaped(PLAIN.dense);
        let (sparse_chunk, sparse_shape) = shaped(2);
        macro_rules! put {
            ($name:literal, $type:ty, $values:expr, $chunk:expr, $shape:expr) => {
                let builder = file.new_dataset::<$type>();
                let builder = match $chunk {
                    Some(chunk) => builder.chunk(chunk).deflate(4),
                    None => builder,
                };
                builder.shape($shape).create($name).unwrap().write_raw($values).unwrap();
            };
        }
        put!("label", f32, &table.label, label_chunk, label_shape);
        put!("dense", f32, &table.dense, dense_chunk, dense_shape);
        put!("sparse", u32, &table.values, sparse_chunk, sparse_shape);
        drop(file);
        let dataset = open(&other);
        let all = train(&dataset, &ORDER, 0..4, 0..1);
        all.iter().flatten().for_each(|batch| table.check(PLAIN, batch));
        let mut rows: Vec<u64> = all.iter().flat_map(|worker| rows(worker)).collect();
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..PLAIN.rows as u64), "chunks of {chunk:?} rows");
    }
}
