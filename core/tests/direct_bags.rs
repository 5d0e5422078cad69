//! Bags that are pooled from the table, and rows updated from their gradients, against copies of
//! rows and of their gradients: the same bits, at every width, pooling, precision and number of
//! ids; and what a batch makes of every row, against a map.
#![allow(clippy::cast_possible_truncation, clippy::unwrap_used)]

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::BTreeMap;

use umbra_core::batch::Jagged;
use umbra_core::kernel::Precision;
use umbra_core::model::Pooling;
use umbra_core::optim::{Adam, Optimizer, OptimizerKind, SparseOptimizer};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::bag::{Bags, Pooled, RowGradients};
use umbra_core::sparse::{
    ByTable, DirectBags, DirectUpdate, GroupScratch, Groups, NextOfTable, Numbering, Numbers,
    Partitioning, Record, Rounding, Spread, Table, Use, buckets, coalesce, heads_len,
};

const FIELDS: usize = 3;
const ROWS: u64 = 40;
const EXAMPLES: usize = 30;
const ADAM: Adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
const OPTIMIZERS: [SparseOptimizer; 4] = [
    SparseOptimizer::Elementwise(Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 }),
    SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.1, weight_decay: 0.01 },
    SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.1, weight_decay: 0.0 },
    SparseOptimizer::Elementwise(Optimizer { kind: OptimizerKind::Adam(ADAM), weight_decay: 0.0 }),
];

/// A table of numbers that depend on the seed, and their bits.
struct Words(Vec<AtomicU32>);

impl Words {
    fn new(stream: &Stream, len: usize) -> Self {
        // Its upper half twice: numbers as two bf16s, too.
        let word = |i| {
            let half = (stream.uniform(1_000_000 + i) - 0.25).abs().to_bits() >> 16;
            AtomicU32::new(half << 16 | half)
        };
        Self((0..len as u64).map(word).collect())
    }

    fn bits(&self) -> Vec<u32> {
        self.0.iter().map(|word| word.load(Relaxed)).collect()
    }
}

/// With the scratch it takes.
fn group(bags: &DirectBags<'_>, of: Spread<'_>, groups: Groups<'_>) -> usize {
    let count = bags.bags.values.len();
    let scratch = GroupScratch {
        dealt: &mut vec![(0, Use::default()); count],
        slot: &mut vec![0; count],
        heads: &mut vec![0; heads_len(count)],
        ends: &mut vec![0; buckets(count, of.end)],
    };
    bags.group_uses(of, scratch, groups)
}

/// Bags with values, table after table.
struct Sorted {
    rows: Vec<u32>,
    weights: Vec<f32>,
    offsets: Vec<u32>,
    place: Vec<u32>,
    tables: Vec<u32>,
}

impl Sorted {
    fn new(bags: Jagged<'_>, numbering: Numbering<'_>) -> Self {
        let with_values = bags.offsets.windows(2).filter(|ends| ends[0] < ends[1]).count();
        let mut sorted = Self {
            rows: vec![u32::MAX; bags.values.len()],
            weights: vec![f32::NAN; bags.weights.len()],
            offsets: vec![u32::MAX; with_values + 1],
            place: vec![u32::MAX; with_values],
            tables: vec![u32::MAX; numbering.fields()],
        };
        let Self { rows, weights, offsets, place, tables } = &mut sorted;
        let by_table = ByTable { rows, weights, offsets, place, tables };
        by_table.fill(bags, numbering, &mut vec![NextOfTable::default(); numbering.fields()]);
        sorted
    }

    fn bags(&self) -> Jagged<'_> {
        Jagged { values: &self.rows, offsets: &self.offsets, weights: &self.weights }
    }
}

/// Each bag with values once, all of a table before those of the next, and those of a table in
/// their order, as a stable sort does it; with their rows and weights.
#[test]
fn bags_go_table_after_table() {
    for seed in 0..40 {
        let stream = Stream::new(seed, Purpose::Test(2));
        let fields = seed as usize % 7;
        // Some use the table of an earlier one that has its own.
        let mut table_of: Vec<u32> = vec![];
        for field in 0..fields {
            let other = stream.below(100 + field as u64, field as u64 + 1) as usize;
            table_of.push(*table_of.get(other).unwrap_or(&(field as u32)));
        }
        let mut tables = vec![Numbers::default(); fields];
        Numbering::deal(&vec![ROWS; fields], &table_of, &mut tables).unwrap();
        let numbering = Numbering::new(&tables);
        let mut offsets = vec![0u32];
        for bag in 0..EXAMPLES * fields {
            offsets.push(offsets[bag] + stream.below(1000 + bag as u64, 4) as u32);
        }
        let count = *offsets.last().unwrap() as u64;
        let values: Vec<u32> = (0..count).map(|i| stream.below(5000 + i, ROWS) as u32).collect();
        let weights: Vec<f32> = (0..count).map(|i| stream.uniform(9000 + i)).collect();
        let weights = if seed % 2 == 0 { &[][..] } else { &weights };
        let bags = Jagged { values: &values, offsets: &offsets, weights };
        let sorted = Sorted::new(bags, numbering);

        let mut expected: Vec<usize> =
            (0..EXAMPLES * fields).filter(|bag| offsets[*bag] < offsets[bag + 1]).collect();
        let in_order = expected.clone();
        expected.sort_by_key(|bag| table_of[bag % fields]);
        let (mut rows, mut of_rows, mut ends) = (vec![], vec![], vec![0]);
        for bag in &expected {
            let own = offsets[*bag] as usize..offsets[bag + 1] as usize;
            let table = numbering.of(table_of[bag % fields] as usize);
            rows.extend(values[own.clone()].iter().map(|value| table.row(*value)));
            of_rows.extend(weights.get(own).unwrap_or(&[]));
            ends.push(rows.len() as u32);
        }
        let place: Vec<u32> = in_order
            .iter()
            .map(|bag| expected.iter().position(|other| other == bag).unwrap() as u32)
            .collect();
        let tables: Vec<u32> = (0..fields)
            .map(|field| {
                let before = |bag: &&usize| table_of[**bag % fields] as usize <= field;
                expected.iter().filter(before).count() as u32
            })
            .collect();
        assert_eq!(sorted.rows, rows, "rows, seed {seed}");
        assert_eq!(sorted.weights, of_rows, "weights, seed {seed}");
        assert_eq!(sorted.offsets, ends, "offsets, seed {seed}");
        assert_eq!(sorted.place, place, "places, seed {seed}");
        assert_eq!(sorted.tables, tables, "tables, seed {seed}");
    }
}

/// Against a map, from none to sixty thousand values and from one row to as many as there are
/// numbers, most of them in a few buckets or one.
#[test]
fn every_use_is_grouped_with_those_of_its_row_in_their_order() {
    for seed in 0..70 {
        let stream = Stream::new(seed, Purpose::Test(1));
        let end = [1, 2, 5, 1000, 1 << 20, 3_000_000, u64::from(u32::MAX)][seed as usize % 7];
        let mut offsets = vec![0u32];
        for bag in 0..[0, 1, 40, 900, 15_000][seed as usize % 5] {
            offsets.push(offsets[bag] + 1 + stream.below(bag as u64, 8) as u32);
        }
        let count = *offsets.last().unwrap() as usize;
        // The first third of the bags are of a table of their own, if there are rows for two.
        let bags = offsets.len() - 1;
        let tables = [if end > 1 { bags / 3 } else { 0 }, bags].map(|end| end as u32);
        let middle = offsets[tables[0] as usize] as usize;
        let rows: Vec<u32> = (0..count)
            .map(|i| {
                let half = (end / 2).max(1);
                let (first, rows) = if i < middle { (0, half) } else { (end / 2, end - end / 2) };
                let some = if i % 3 == 0 { rows } else { rows.div_ceil(900) };
                (first + stream.below(10_000 + i as u64, some)) as u32
            })
            .collect();
        let weights: Vec<f32> = (0..count as u64).map(|i| stream.uniform(100_000 + i)).collect();
        let weights = if seed % 2 == 0 { &[][..] } else { &weights };
        let pooling = [Pooling::Sum, Pooling::Mean][seed as usize / 2 % 2];
        let bags =
            DirectBags { bags: Jagged { values: &rows, offsets: &offsets, weights }, pooling };

        let mut expected: BTreeMap<u32, Vec<Use>> = BTreeMap::new();
        for (vector, ends) in (0u32..).zip(offsets.windows(2)) {
            let bag = ends[0] as usize..ends[1] as usize;
            let weights = weights.get(bag.clone()).unwrap_or(&[]);
            let scale = pooling.scale_of(bag.len(), weights);
            for (i, row) in rows[bag].iter().enumerate() {
                let scale = weights.get(i).map_or(scale, |weight| weight * scale);
                expected.entry(*row).or_default().push(Use { vector, scale });
            }
        }

        let (mut found, mut ends) = (vec![0; count], vec![0; count]);
        let mut uses = vec![Use::default(); count];
        let groups = Groups { rows: &mut found, ends: &mut ends, uses: &mut uses };
        // Dealt to buckets, and not.
        let page = [usize::MAX >> 32, 0][seed as usize / 4 % 2];
        let of = Spread { end: end as usize, tables: &tables, page };
        let distinct = group(&bags, of, groups);
        assert_eq!(distinct, expected.len(), "distinct rows, seed {seed}");
        let mut start = 0;
        for (row, end) in found[..distinct].iter().zip(&ends) {
            assert_eq!(uses[start..*end as usize], expected[row], "row {row}, seed {seed}");
            start = *end as usize;
        }
        assert_eq!(start, count, "uses, seed {seed}");
    }
}

#[test]
fn bits_are_those_of_copies() {
    for seed in 0..120 {
        let stream = Stream::new(seed, Purpose::Test(0));
        let width = [1, 3, 8, 16, 17, 33, 64, 100][seed as usize % 8];
        let pooling = [Pooling::Sum, Pooling::Mean][seed as usize % 2];
        let optimizer = OPTIMIZERS[seed as usize / 2 % 4];
        let mut offsets = vec![0u32];
        for bag in 0..EXAMPLES * FIELDS {
            offsets.push(offsets[bag] + stream.below(bag as u64, 6) as u32);
        }
        let count = offsets[EXAMPLES * FIELDS] as usize;
        let at = |i: usize| 10_000 + i as u64;
        let values: Vec<u32> = (0..count).map(|i| stream.below(at(i), ROWS) as u32).collect();
        // Some of them 0, and of whole bags.
        let weight = |i| (stream.below(at(i) * 3, 3) as f32) * 0.4;
        let weights: Vec<f32> = (0..count).map(weight).collect();
        let weights = if seed % 4 < 2 { &[][..] } else { &weights };
        let bags = Jagged { values: &values, offsets: &offsets, weights };

        let mut tables = vec![Numbers::default(); FIELDS];
        let table_of = [&[][..], &[0, 1, 0]][seed as usize / 3 % 2];
        Numbering::deal(&[ROWS; FIELDS], table_of, &mut tables).unwrap();
        let (mut heads, mut unique) = (vec![0; heads_len(count)], vec![0; count]);
        let mut slot = vec![0; count];
        let found = coalesce(bags, Numbering::new(&tables), &mut heads, &mut unique, &mut slot);
        let unique = &unique[..found];
        let state_len = optimizer.state_len(width);
        let precision = if seed < 60 { Precision::F32 } else { Precision::Bf16 };
        let record = Record { width, state_len, precision };
        let rounding = Rounding::new(seed, Partitioning { partitions: 1 }, 0);
        let words = || Words::new(&stream, FIELDS * ROWS as usize * record.words());
        let (copied, direct) = (words(), words());
        let with_values = offsets.windows(2).filter(|ends| ends[0] < ends[1]).count();
        let mut gradients: Vec<f32> =
            (0..with_values * width).map(|i| stream.uniform(5_000_000 + i as u64) - 0.5).collect();
        // Of a few bags not finite: their rows stay. A row with weight 0 has no part in its bag.
        let spoilt = seed % 3 == 1 && weights.is_empty();
        for bad in gradients.chunks_mut(width).step_by(9).filter(|_| spoilt) {
            bad[seed as usize % width] = [f32::NAN, f32::INFINITY][seed as usize / 3 % 2];
        }

        // By copies: vectors of all bags, the empty ones too.
        let table = Table::of(&copied.0, record, rounding).at(7, 0);
        let indices = || unique.iter().map(|row| *row as usize);
        let mut rows = vec![0.0; found * width];
        table.read(indices(), &mut rows);
        let shape = Pooled { columns: 0..width, stride: FIELDS * width, at: 0 };
        let by_copy =
            Bags { bags, slot: &slot, fields: FIELDS, firsts: &[], pooling, row_width: width };
        let mut all = vec![9.0; EXAMPLES * FIELDS * width];
        by_copy.pool(EXAMPLES, &rows, &shape, &mut all);
        let filled = |bag: usize| offsets[bag] < offsets[bag + 1];
        let of_all = |all: &[f32]| -> Vec<u32> {
            let vectors = all.chunks(width).enumerate().filter(|(bag, _)| filled(*bag));
            vectors.flat_map(|(_, vector)| vector.iter().map(|x| x.to_bits())).collect()
        };
        let mut next = gradients.chunks(width);
        let mut of_bags = vec![0.0; all.len()];
        for (bag, gradient) in of_bags.chunks_mut(width).enumerate() {
            if filled(bag) {
                gradient.copy_from_slice(next.next().unwrap());
            }
        }
        let (mut of_rows, mut set) = (vec![f32::NAN; rows.len()], 0);
        let mut sums = RowGradients::new(&mut of_rows, &mut set);
        by_copy.pool_backward(EXAMPLES, &of_bags, &shape, sums.again());
        sums.finish(width);
        let refused = table.update(&optimizer, 0.1, indices(), &of_rows);
        assert_eq!(refused > 0, spoilt, "seed {seed}");

        // Without.
        let table = Table::of(&direct.0, record, rounding).at(7, 0);
        let sorted = Sorted::new(bags, Numbering::new(&tables));
        let without = DirectBags { bags: sorted.bags(), pooling };
        let mut vectors = vec![9.0; with_values * width];
        without.pool(&table, &mut vectors);
        // Of the bags with values, in their order.
        let of = |place: &u32| *place as usize * width..(*place as usize + 1) * width;
        let bits: Vec<u32> = sorted
            .place
            .iter()
            .flat_map(|place| vectors[of(place)].iter().map(|x| x.to_bits()))
            .collect();
        assert_eq!(bits, of_all(&all), "vectors, seed {seed}");
        let mut sorted_gradients = vec![0.0; gradients.len()];
        for (place, gradient) in sorted.place.iter().zip(gradients.chunks(width)) {
            sorted_gradients[of(place)].copy_from_slice(gradient);
        }
        let (mut rows, mut ends) = (vec![0; count], vec![0; count]);
        let mut uses = vec![Use::default(); count];
        let groups = Groups { rows: &mut rows, ends: &mut ends, uses: &mut uses };
        let page = seed as usize % 2;
        let of = Spread { end: FIELDS * ROWS as usize, tables: &sorted.tables, page };
        let grouped = group(&without, of, groups);
        assert_eq!(grouped, found, "distinct rows, seed {seed}");
        let update = DirectUpdate {
            optimizer: &optimizer,
            rate: 0.1,
            rows: &rows[..grouped],
            ends: &ends[..grouped],
            uses: &uses,
            gradients: &sorted_gradients,
        };
        update.apply(&table, &mut vec![0.0; width]);
        assert_eq!(direct.bits(), copied.bits(), "rows, seed {seed}");
        assert_ne!(direct.bits(), words().bits(), "nothing was updated, seed {seed}");
    }
}
