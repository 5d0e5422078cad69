//! Nanoseconds that counting an update takes (arXiv 2011.02999): the same updates of rows with and
//! without it, in turn in one process. `hpc/show/cpr.py` reads the line.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use core::sync::atomic::AtomicU32;
use std::time::Instant;

use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer};
use umbra_core::recovery::usage::{EMPTY, Sample, Sampled, Usage};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::Table;

const ROWS: u32 = 4_000_000;
const WIDTH: usize = 16;
const BATCH: usize = 20_000;
const TURNS: usize = 31;

fn words(len: usize, value: u32) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(value)).collect()
}

/// Distinct rows, most of them of the few that are asked for often: u³ of the rows.
fn batch(stream: Stream, number: usize) -> Vec<usize> {
    let row = |draw| stream.uniform_f64((number * BATCH + draw) as u64).powi(3);
    let mut rows: Vec<usize> = (0..BATCH).map(|it| (row(it) * f64::from(ROWS)) as usize).collect();
    rows.sort_unstable();
    rows.dedup();
    // As a batch has them: in no order.
    stream.shuffle(0, &mut rows);
    rows
}

fn main() {
    let optimizer = SparseOptimizer::Elementwise(Optimizer {
        kind: OptimizerKind::Adagrad { eps: 1e-10, initial: 0.0 },
        weight_decay: 0.0,
    });
    let state = optimizer.state_len(WIDTH);
    let records = words(ROWS as usize * (WIDTH + state), 0);
    let counts = words(ROWS as usize, 0);
    let slots = words(ROWS as usize / 8, EMPTY);
    let accesses = AtomicU32::new(0);
    let tables = [Sampled { rows: 0..ROWS, slots: 0..slots.len() as u32 }];
    let sample = Sample { tables: &tables, slots: &slots, accesses: &accesses };
    let ways = [Usage::None, Usage::Counts(&counts), Usage::Sample(sample)];
    let gradients = vec![0.01; BATCH * WIDTH];
    let stream = Stream::new(1, Purpose::Test(0));
    let mut spent: [Vec<f64>; 3] = Default::default();
    let mut number = 0;
    for turn in 0..TURNS {
        for at in 0..ways.len() {
            // Eight batches: of a sample one counts.
            let way = (turn + at) % ways.len();
            let table = Table::new(&records, WIDTH, state).counted(ways[way]);
            let batches: [_; 8] = core::array::from_fn(|at| batch(stream, number + at));
            number += 8;
            let rows: usize = batches.iter().map(Vec::len).sum();
            let start = Instant::now();
            for rows in &batches {
                let gradients = &gradients[..rows.len() * WIDTH];
                let rows = rows.iter().copied();
                table.update(&optimizer, 0.01, rows, gradients);
            }
            spent[way].push(start.elapsed().as_secs_f64() * 1e9 / rows as f64);
        }
    }
    let medians = spent.map(|mut each| {
        each.sort_by(f64::total_cmp);
        each[each.len() / 2]
    });
    let [none, counts, sample] = medians;
    println!("{{\"none\": {none:.3}, \"mfu\": {counts:.3}, \"ssu\": {sample:.3}}}");
}
