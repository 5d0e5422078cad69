//! Tables of bf16s: what is stored is a bf16 near the update, in the mean it is the update, and
//! which it is depends on seed, row, step and worker alone.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)]

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use umbra_core::kernel::Precision;
use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::{Partitioning, Record, Rounding, Table};

const WIDTH: usize = 21;
const ROWS: usize = 12;
const ONE: Partitioning = Partitioning { partitions: 1 };
const ADAGRAD: SparseOptimizer =
    SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.1, weight_decay: 0.0 };
const SGD: SparseOptimizer =
    SparseOptimizer::Elementwise(Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 });

const fn record(optimizer: &SparseOptimizer, precision: Precision) -> Record {
    Record { width: WIDTH, state_len: optimizer.state_len(WIDTH), precision }
}

fn words(record: Record, rows: usize) -> Vec<AtomicU32> {
    (0..rows * record.words()).map(|_| AtomicU32::new(0)).collect()
}

fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let stream = Stream::new(seed, Purpose::Test(3));
    (0..len as u64).map(|i| stream.uniform(i) - 0.5).collect()
}

/// All rows of a table.
fn values(table: &Table<'_>) -> Vec<f32> {
    let mut out = vec![9.0; table.rows() * WIDTH];
    table.read(0..table.rows(), &mut out);
    out
}

/// Every row takes these values, and then an update of each of `gradients` in a step of its own.
fn train(
    table: Table<'_>,
    optimizer: &SparseOptimizer,
    start: &[f32],
    gradients: &[Vec<f32>],
) -> usize {
    let mut state = vec![0.0; optimizer.state_len(WIDTH)];
    optimizer.initialize(&mut state);
    for (row, values) in start.chunks(WIDTH).enumerate() {
        table.write(row, values, &state);
    }
    let steps = (0..).zip(gradients);
    steps.map(|(step, it)| table.at(step, 0).update(optimizer, 0.05, 0..ROWS, it)).sum()
}

fn trained(seed: u64, optimizer: &SparseOptimizer, start: &[f32], steps: usize) -> Vec<f32> {
    let record = record(optimizer, Precision::Bf16);
    let words = words(record, ROWS);
    let table = Table::of(&words, record, Rounding::new(seed, ONE, 0));
    let gradients: Vec<_> = (0..steps as u64).map(|step| numbers(9 + step, ROWS * WIDTH)).collect();
    assert_eq!(train(table, optimizer, start, &gradients), 0);
    values(&table)
}

#[test]
fn every_value_is_a_bf16_and_a_neighbour_of_the_update() {
    let start: Vec<f32> = trained(1, &SGD, &numbers(5, ROWS * WIDTH), 0);
    let gradient = numbers(9, ROWS * WIDTH);
    let rounded = trained(2, &SGD, &start, 1);
    let mut moved = 0;
    for ((x, g), rounded) in start.iter().zip(&gradient).zip(&rounded) {
        let exact = x - 0.05 * g;
        let towards_zero = exact.to_bits() & 0xffff_0000;
        let neighbours = [towards_zero, towards_zero + 0x1_0000];
        assert!(neighbours.contains(&rounded.to_bits()), "{rounded} of {exact}");
        moved += usize::from(rounded != x);
    }
    assert!(moved > ROWS * WIDTH / 2, "{moved} values moved");
}

/// The mean over seeds is the update of f32s, for one step and for many: within 5 standard
/// deviations of what rounding to one of two neighbours permits at most.
#[test]
fn the_mean_over_seeds_is_the_update() {
    const SEEDS: u64 = 4000;
    for (optimizer, steps) in [(&SGD, 1), (&SGD, 20), (&ADAGRAD, 1)] {
        let start = trained(1, optimizer, &numbers(5, ROWS * WIDTH), 0);
        let mut sums = vec![0.0f64; start.len()];
        for seed in 0..SEEDS {
            let row = trained(seed, optimizer, &start, steps);
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(x));
        }
        let record = record(optimizer, Precision::F32);
        let words = words(record, ROWS);
        let table = Table::of(&words, record, Rounding::new(0, ONE, 0));
        let gradients: Vec<_> =
            (0..steps as u64).map(|step| numbers(9 + step, ROWS * WIDTH)).collect();
        train(table, optimizer, &start, &gradients);
        let exact = values(&table);
        let mut off = 0;
        for ((sum, exact), start) in sums.iter().zip(&exact).zip(&start) {
            let mean = sum / SEEDS as f64;
            // A bf16 has 8 bits; what a value is between is at most its own size.
            let size = f64::from(exact.abs().max(start.abs())) + 0.05 * steps as f64;
            let gap = (size.log2().floor() - 7.0).exp2();
            let deviation = gap / 2.0 * (steps as f64).sqrt() / (SEEDS as f64).sqrt();
            let difference = (mean - f64::from(*exact)).abs();
            assert!(difference < 5.0 * deviation, "{mean} for {exact}, {steps} steps");
            off += usize::from(exact.to_bits() & 0xffff != 0);
        }
        // They would be, if nothing had been rounded.
        assert!(off > exact.len() / 2, "{off} values are between two bf16s");
    }
}

/// Rounded to the nearest, such steps would never move a value.
#[test]
fn steps_below_half_a_gap_add_up() {
    let record = record(&SGD, Precision::Bf16);
    let words = words(record, ROWS);
    let table = Table::of(&words, record, Rounding::new(7, ONE, 0));
    let gradients = vec![vec![-0.01; ROWS * WIDTH]; 2000];
    train(table, &SGD, &[1.0; ROWS * WIDTH], &gradients);
    let mean = values(&table).iter().map(|x| f64::from(*x)).sum::<f64>() / (ROWS * WIDTH) as f64;
    // 2000 steps of 0.0005, each a sixteenth of the gap above 1; 252 values.
    assert!((mean - 2.0).abs() < 0.02, "{mean}");
}

#[test]
fn rounding_repeats_and_differs_between_seeds_rows_steps_and_workers() {
    let start: Vec<f32> = numbers(5, WIDTH).repeat(ROWS);
    let once = trained(3, &ADAGRAD, &start, 3);
    assert_eq!(once, trained(3, &ADAGRAD, &start, 3));
    assert_ne!(once, trained(4, &ADAGRAD, &start, 3));
    let first = trained(3, &ADAGRAD, &start, 0);
    let rows: Vec<&[f32]> = first.chunks(WIDTH).collect();
    assert!(rows[1..].iter().all(|row| *row != rows[0]), "rows");

    let record = record(&SGD, Precision::Bf16);
    let moved = |clock, worker| {
        let words = words(record, 1);
        let table = Table::of(&words, record, Rounding::new(3, ONE, 0));
        table.at(clock, worker).update(&SGD, 1.0, [0].into_iter(), &numbers(5, WIDTH));
        values(&table)
    };
    assert_eq!(moved(1, 0), moved(1, 0));
    assert_ne!(moved(1, 0), moved(2, 0), "steps");
    assert_ne!(moved(1, 0), moved(1, 1), "workers");
}

/// A row is rounded by its number, wherever it is.
#[test]
fn partitions_do_not_change_what_a_row_becomes() {
    let start = numbers(5, ROWS * WIDTH);
    let whole = trained(3, &ADAGRAD, &start, 2);
    let record = record(&ADAGRAD, Precision::Bf16);
    let dealt = Partitioning { partitions: 5 };
    for partition in 0..5 {
        let rows: Vec<usize> = (0..dealt.rows_of(partition, ROWS as u32))
            .map(|index| dealt.row(partition, index) as usize)
            .collect();
        let of = |all: &[f32]| -> Vec<f32> {
            rows.iter().flat_map(|row| &all[row * WIDTH..][..WIDTH]).copied().collect()
        };
        let words = words(record, rows.len());
        let table = Table::of(&words, record, Rounding::new(3, dealt, partition));
        for (index, values) in of(&start).chunks(WIDTH).enumerate() {
            table.write(index, values, &[0.1]);
        }
        for step in 0..2 {
            let gradients = of(&numbers(9 + step, ROWS * WIDTH));
            table.at(step as u32, 0).update(&ADAGRAD, 0.05, 0..rows.len(), &gradients);
        }
        assert_eq!(values(&table), of(&whole), "partition {partition}");
    }
}

#[test]
fn a_record_takes_half_the_words_and_is_unpacked_exactly() {
    let record = record(&ADAGRAD, Precision::Bf16);
    assert_eq!((record.words(), record.len_f32()), (12, 22));
    let words = words(record, ROWS);
    let table = Table::of(&words, record, Rounding::new(3, ONE, 0));
    train(table, &ADAGRAD, &numbers(5, ROWS * WIDTH), &[numbers(6, ROWS * WIDTH)]);
    let bits: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    assert!(bits.chunks(12).all(|record| record[10] >> 16 == 0), "behind an odd number");
    let mut out = vec![1; ROWS * 22];
    record.unpack(&bits, &mut out);
    for ((index, out), values) in out.chunks(22).enumerate().zip(values(&table).chunks(WIDTH)) {
        assert!(out.iter().zip(values).all(|(bits, x)| *bits == x.to_bits()));
        assert_eq!(out[21], bits[index * 12 + 11]);
        // Written again, before any step or in another one, it is itself.
        let floats: Vec<f32> = out.iter().map(|bits| f32::from_bits(*bits)).collect();
        table.at(index as u32, 1).write(index, &floats[..WIDTH], &floats[WIDTH..]);
    }
    let after: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
    assert_eq!(after, bits);
}

#[test]
fn a_row_whose_gradient_is_not_finite_stays_as_it_is() {
    let record = record(&ADAGRAD, Precision::Bf16);
    let words = words(record, 2);
    let table = Table::of(&words, record, Rounding::new(3, ONE, 0));
    for at in 0..WIDTH {
        let before: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
        let mut gradients = vec![0.5; 2 * WIDTH];
        gradients[at] = f32::NAN;
        assert_eq!(table.at(at as u32, 0).update(&ADAGRAD, 0.1, 0..2, &gradients), 1);
        let after: Vec<u32> = words.iter().map(|word| word.load(Relaxed)).collect();
        let (first, second) = after.split_at(record.words());
        assert_eq!(first, &before[..record.words()]);
        assert_ne!(second, &before[record.words()..]);
    }
}
