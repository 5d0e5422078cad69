//! Batches that are asked for are those of a run in order, in whatever order they are asked for.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use common::{PLAIN, RICH, Shape, drain, written};
use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{
    BatchBuffer, Dataset, DatasetError, Pipeline, Reading, RequestedBatches, TrainOrder,
    steps_per_epoch, train_on_request,
};

const ORDER: TrainOrder =
    TrainOrder { seed: 3, workers_total: 4, lanes: 8, batch_size: 500, shuffle: true };

fn next(batches: &mut RequestedBatches) -> BatchBuffer {
    batches.next(&mut || ()).unwrap().unwrap()
}

#[test]
fn batches_are_those_of_a_run_in_order() {
    for (shape, shuffle, threads) in
        [(PLAIN, true, 1), (RICH, true, 2), (Shape { rows: 70_001, ..RICH }, false, 1)]
    {
        let shape = Shape { rows: 70_001, ..shape };
        let (_folder, path, _) = written(shape);
        let dataset = Dataset::open(&[path]).unwrap();
        for lanes in [8, 4] {
            let order = TrainOrder { shuffle, lanes, ..ORDER };
            let (pipeline, mut all) = Pipeline::train(&dataset, &order, 0..4, 1..3, 2).unwrap();
            let expected = drain(&mut all);
            pipeline.join();
            let steps = 2 * steps_per_epoch(dataset.rows(), &order);
            let reading = Reading { threads, ..Reading::from(2) };
            // In their order: two workers, each with two of the streams.
            let (pipeline, mut ours) =
                train_on_request(&dataset, &order, 2, 1..3, 4, reading).unwrap();
            for step in 0..steps {
                for stream in 0..4 {
                    let worker = &mut ours[stream / 2];
                    worker.ask(stream, step);
                    let batch = next(worker);
                    assert_eq!(batch, expected[stream][step as usize], "{stream} {step}");
                    worker.recycle(batch);
                }
            }
            drop(ours);
            pipeline.join();
            // Anything, with fewer streams open than are asked for: mostly the next step or one a
            // little further, now and then one from anywhere.
            for open in [1, 3] {
                let random = Stream::new(open as u64, Purpose::Test(0));
                let (_pipeline, mut ours) =
                    train_on_request(&dataset, &order, 1, 1..3, open, reading).unwrap();
                let mut at = [0; 4];
                for turn in 0..200 {
                    let stream = random.below(turn * 4, 4) as usize;
                    let step = match random.below(turn * 4 + 1, 10) {
                        0 => random.below(turn * 4 + 2, steps),
                        // That of before, again, too.
                        _ => (at[stream] + random.below(turn * 4 + 3, 4)).saturating_sub(1),
                    };
                    at[stream] = (step + 1) % (steps - 3);
                    ours[0].ask(stream, step);
                    let batch = next(&mut ours[0]);
                    assert_eq!(batch, expected[stream][step as usize], "turn {turn}, {open} open");
                    ours[0].recycle(batch);
                }
            }
        }
    }
}

#[test]
fn what_is_not_there_is_refused_to_all_workers_once() {
    let (_folder, path, _) = written(PLAIN);
    let dataset = Dataset::open(&[path]).unwrap();
    for (stream, step) in [(4, 0), (0, u64::MAX)] {
        let (pipeline, mut ours) =
            train_on_request(&dataset, &ORDER, 2, 0..1, 4, Reading::from(2)).unwrap();
        ours[1].ask(3, 0);
        assert!(!next(&mut ours[1]).is_empty());
        ours[0].ask(stream, step);
        for worker in &mut ours {
            let refused = worker.next(&mut || ()).unwrap_err();
            assert!(matches!(refused, DatasetError::Order { .. }), "{refused}");
            assert!(worker.next(&mut || ()).unwrap().is_none());
        }
        pipeline.join();
    }
}

#[test]
fn the_reader_ends_when_nobody_can_ask_any_more() {
    let (_folder, path, _) = written(PLAIN);
    let dataset = Dataset::open(&[path]).unwrap();
    let (pipeline, mut ours) =
        train_on_request(&dataset, &ORDER, 2, 0..1, 4, Reading::from(2)).unwrap();
    ours[0].ask(0, 0);
    assert_eq!(next(&mut ours[0]).step, 0);
    drop(ours);
    pipeline.join();
}
