//! Steps that read rows and update them tile by tile against steps between a reading of all rows
//! and an update of them: the same bits.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use umbra_core::dense::replica::Update;
use umbra_core::kernel::{Precision, Simd, selected, shared};
use umbra_core::model::{Gradients, Model, ModelConfig, StepLoss, StripShape, Workspace};
use umbra_core::optim::{Adam, Optimizer, OptimizerKind, SparseOptimizer, StepSize};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::{Partitioning, Record, Rounding, Table, TilePlan, TiledRows, plan_tiles};

use crate::models::ALL;
use crate::twin::{Data, KEY};

const ROWS: u64 = 3000;
const SGD: Optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
const ADAM: Adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
const OPTIMIZERS: [SparseOptimizer; 3] = [
    SparseOptimizer::Elementwise(SGD),
    SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.1, weight_decay: 0.01 },
    SparseOptimizer::Elementwise(Optimizer { kind: OptimizerKind::Adam(ADAM), weight_decay: 0.0 }),
];
const RATE: f32 = 0.1;

/// What there is after a step.
#[derive(Debug, PartialEq)]
struct After {
    loss: StepLoss,
    replica: Vec<u32>,
    table: Vec<u32>,
    statistics: Vec<f32>,
    logits: Vec<f32>,
    /// A gradient of a row was not finite.
    spoilt: bool,
}

/// A model, a batch, and a table that has its rows.
struct Case {
    what: String,
    model: Model,
    data: Data,
    words: Vec<u32>,
    record: Record,
    optimizer: SparseOptimizer,
    /// The distinct rows, in the order of their first appearance.
    unique: Vec<u32>,
    /// Index among them of every value's row.
    slot: Vec<u32>,
}

impl Case {
    /// A tenth of the values name one of eight rows, three more one of 300, the others any.
    fn new(config: &ModelConfig<'_>, strips: Option<StripShape>, n: usize, seed: u64) -> Self {
        Self::edited(config, strips, (n, seed), |_, _| {})
    }

    /// The same with a batch and its rows as `edit` leaves them.
    fn edited(
        config: &ModelConfig<'_>,
        strips: Option<StripShape>,
        (n, seed): (usize, u64),
        edit: impl FnOnce(&mut Data, &mut [u32]),
    ) -> Self {
        let mut model = Model::new(config).unwrap();
        if let Some(shape) = strips {
            model = model.with_strips(shape).unwrap();
        }
        let mut data = Data::new(config, &model, seed, n);
        if strips.is_some() {
            // Two strips of every field.
            data.strips = (0..=config.fields as u32).map(|field| 2 * field).collect();
        }
        if seed % 3 == 1 {
            data.weigh_ids(seed);
        }
        let stream = Stream::new(seed, Purpose::Test(20));
        let count = data.values.len() as u64;
        let row = |i: u64| match stream.below(i, 10) {
            0 => stream.below(100_000 + i, 8),
            1..4 => stream.below(100_000 + i, 300),
            _ => stream.below(100_000 + i, ROWS),
        };
        let mut rows: Vec<u32> = (0..count).map(|i| row(i) as u32).collect();
        edit(&mut data, &mut rows);
        let (mut unique, mut place) = (vec![], vec![u32::MAX; ROWS as usize]);
        let slot = rows.iter().map(|row| {
            let place = &mut place[*row as usize];
            if *place == u32::MAX {
                *place = unique.len() as u32;
                unique.push(*row);
            }
            *place
        });
        let slot = slot.collect();
        let optimizer = OPTIMIZERS[seed as usize % 3];
        let width = model.row_width();
        let precision = if seed % 4 == 3 { Precision::Bf16 } else { Precision::F32 };
        let record = Record { width, state_len: optimizer.state_len(width), precision };
        let numbers = Stream::new(seed, Purpose::Test(21));
        // Its upper half twice: numbers as two bf16s, too.
        let word = |i| {
            let half = (numbers.uniform(i) - 0.25).abs().to_bits() >> 16;
            half << 16 | half
        };
        let words = (0..ROWS * record.words() as u64).map(word).collect();
        let what = format!("{config:?}, strips {strips:?}, {n} examples, seed {seed}");
        Self { what, model, data, words, record, optimizer, unique, slot }
    }

    fn step(&self, on_table: bool) -> After {
        let Self { model, data, record, optimizer, unique, .. } = self;
        let (n, width) = (data.label.len(), model.row_width());
        let words: Vec<AtomicU32> = self.words.iter().map(|word| AtomicU32::new(*word)).collect();
        let rounding = Rounding::new(3, Partitioning { partitions: 1 }, 0);
        let table = Table::of(&words, *record, rounding).at(7, 0);
        let mut single = vec![f32::NAN; model.workspace_len(n, 0)];
        let mut double = vec![f64::NAN; model.workspace_f64_len()];
        let mut workspace = Workspace { single: &mut single, double: &mut double };
        let mut replica = data.replica.clone();
        let replica = shared(&mut replica);
        let parameters = &replica[..model.parameters_len()];
        let mut statistics = vec![f32::NAN; model.replica_len() - model.parameters_len()];
        let mut logits = vec![f32::NAN; n];
        let mut slot = self.slot.clone();
        let mut place = vec![0; unique.len()];
        let mut ends = vec![0; n.div_ceil(model.tile_len(n, false).max(1))];
        let bags_of_tile = model.tile_len(n, false) * model.bags();
        let places = plan_tiles((&data.offsets, bags_of_tile), &mut slot, &mut place, &mut ends);
        let rows_len = if on_table { places.len } else { unique.len() };
        let mut d_rows = vec![f32::NAN; rows_len * width];
        let mut copies = vec![f32::NAN; rows_len * width];
        let size = StepSize { rate: 0.1, count: 1 };
        let mut out = Gradients {
            parameters: &mut vec![f32::NAN; model.parameters_len()],
            update: Some(Update::new(&SGD, size, parameters, &[])),
            rows: &mut d_rows,
            statistics: &mut statistics,
            logits: &mut logits,
        };
        let mut input = data.input();
        let mut alone = |_: &mut [f64]| {};
        let (loss, spoilt);
        if on_table {
            let plan = TilePlan { rows: unique, place: &place, ends: &ends, places };
            let copies = &mut copies;
            let mut rows = TiledRows { table, optimizer, rate: RATE, plan, copies, spoilt: false };
            (input.rows, input.slot) = (&[], &slot);
            let by = (&mut alone as &mut dyn FnMut(&mut [f64]), &mut rows);
            loss = model.train_on_table(replica, &input, KEY, by, &mut workspace, &mut out);
            spoilt = rows.spoilt;
        } else {
            let indices = || unique.iter().map(|row| *row as usize);
            table.read(indices(), &mut copies);
            (input.rows, input.slot) = (&copies, &self.slot);
            loss = model.train_step(replica, &input, KEY, &mut alone, &mut workspace, &mut out);
            let moves = loss.loss_sum.is_finite() && loss.weight_sum > 0.0;
            let update = || table.update(optimizer, RATE, indices(), &d_rows);
            spoilt = moves && update() > 0;
        }
        let bits = |words: &[AtomicU32]| words.iter().map(|word| word.load(Relaxed)).collect();
        After { loss, replica: bits(replica), table: bits(&words), statistics, logits, spoilt }
    }
}

/// Every kind of model, with norms and without, with weighted ids and without, with rows of f32s
/// and of bf16s, in one tile and in several.
#[test]
fn bits_are_those_of_reading_before_and_updating_behind() {
    let mut carried = 0;
    for seed in 0..72 {
        let (mut config, n) = (ALL[seed as usize % 6], [1, 40, 128, 300, 517][seed as usize % 5]);
        config.batch_norm = seed % 8 == 7;
        config.dropout = if seed % 5 == 2 { 0.25 } else { 0.0 };
        let case = Case::new(&config, None, n, seed);
        let after = case.step(true);
        assert_eq!(after, case.step(false), "{}", case.what);
        assert!(!after.spoilt, "{}", case.what);
        if !case.unique.is_empty() {
            assert_ne!(after.table, case.words, "nothing was updated: {}", case.what);
        }
        carried += usize::from(n > 128);
    }
    assert!(carried > 20, "hardly a batch had several tiles");
}

#[test]
fn strips_are_rows_like_any() {
    for seed in 0..6 {
        let config = ModelConfig { embedding_dim: 6, bottom: &[7, 6], ..ALL[0] };
        let shape = StripShape { strips: 2 * config.fields, width: 3, projected: 0 };
        let case = Case::new(&config, Some(shape), 300, seed);
        assert_eq!(case.step(true), case.step(false), "{}", case.what);
    }
}

/// Where an example's rows have many numbers and there are few parameters, tiles are shorter.
#[test]
fn tiles_of_many_numbers_are_short() {
    for (width, length) in [(8, 128), (48, 16), (96, 10)] {
        let config =
            ModelConfig { fields: 26, embedding_dim: width, bottom: &[width], top: &[], ..ALL[0] };
        let case = Case::new(&config, None, 300, 0);
        assert_eq!(case.model.tile_len(300, false), length, "rows of {width}");
        assert_eq!(case.step(true), case.step(false), "{}", case.what);
    }
}

/// But not where matrices take the time, and least where their gradients are far away.
#[test]
fn tiles_of_large_matrices_are_long() {
    let by_matrices = selected() == Simd::Amx;
    for (top, length) in [(&[256][..], 64), (&[1024, 512], 128)] {
        let config = ModelConfig { fields: 26, embedding_dim: 48, bottom: &[48], top, ..ALL[0] };
        let model = Model::new(&config).unwrap();
        let length = if by_matrices { 256 } else { length };
        assert_eq!(model.tile_len(300, false), length, "{top:?}");
    }
}

/// Examples without a weight leave rows and their state as they were.
#[test]
fn without_weights_nothing_is_updated() {
    for seed in [2, 5] {
        let mut case = Case::new(&ALL[0], None, 300, seed);
        case.data.weight.fill(0.0);
        let after = case.step(true);
        assert_eq!((&after.table, after.spoilt), (&case.words, false), "{}", case.what);
        assert_eq!(after, case.step(false), "{}", case.what);
    }
}

/// Of a loss that is not finite: rows that its tile names, or a later one, stay as they were, and
/// so does the replica.
#[test]
fn a_loss_that_is_not_finite_stops_the_step() {
    let mut case = Case::new(&ALL[0], None, 500, 0);
    let (width, words) = (case.model.row_width(), case.record.words());
    case.data.dense[300 * 3] = f32::NAN;
    let after = case.step(true);
    assert!(!after.loss.loss_sum.is_finite());
    let bits: Vec<u32> = case.data.replica.iter().map(|x| x.to_bits()).collect();
    assert_eq!(after.replica, bits);
    let tile = case.model.tile_len(500, false);
    let bad = case.data.offsets[300 / tile * tile * case.model.bags()] as usize;
    let mut moved = 0;
    for (row, (before, after)) in
        case.words.chunks(words).zip(after.table.chunks(words)).enumerate()
    {
        let of =
            |slots: &[u32]| slots.iter().any(|slot| case.unique[*slot as usize] as usize == row);
        if of(&case.slot[bad..]) || !of(&case.slot[..bad]) {
            assert_eq!(before, after, "row {row} of width {width}");
        } else {
            moved += usize::from(before != after);
        }
    }
    assert!(moved > 100, "{moved} rows of tiles before it have moved");
}

/// Of a gradient that is not finite, of a row that one tile names or several: rows of tiles before
/// it have moved, no other has.
#[test]
fn a_gradient_that_is_not_finite_stops_updates_of_rows() {
    let config = ModelConfig { dense_features: 0, bottom: &[], top: &[], ..ALL[3] };
    for others in [0, 40] {
        let row = ROWS as u32 - 1;
        let edit = |data: &mut Data, rows: &mut [u32]| {
            rows.iter_mut().filter(|it| **it == row).for_each(|it| *it -= 1);
            let offsets = &data.offsets;
            let bag = (300 * config.fields..).find(|bag| offsets[bag + 1] - offsets[*bag] == 3);
            let bag = bag.unwrap();
            // Three times the largest number and more than a third, of an example that is all
            // there is, nearly: no number of the table is below 0.
            data.label[bag / config.fields] = 0.0;
            let own = offsets[bag] as usize..offsets[bag + 1] as usize;
            data.value_weights = vec![1.0; rows.len()];
            data.value_weights[own.clone()].fill(f32::MAX);
            data.weight[bag / config.fields] = 1e5;
            rows[own].fill(row);
            rows[..others].fill(row);
        };
        let mut case = Case::edited(&config, None, (600, 0), edit);
        let words = case.record.words();
        let of = row as usize * words..(row as usize + 1) * words;
        // Not a number that grows with its weight.
        case.words[of.clone()].fill(0);
        let (after, plain) = (case.step(true), case.step(false));
        assert!(after.loss.loss_sum.is_finite() && after.spoilt && plain.spoilt);
        assert_eq!((&after.table[of], after.replica), (&vec![0; words][..], plain.replica));
        let tile = case.model.tile_len(600, false) * case.model.bags();
        let end = |tile_number: usize| {
            case.data.offsets[(tile_number * tile).min(600 * case.model.bags())] as usize
        };
        let tiles = (0..600 * case.model.bags()).step_by(tile).len();
        // The tiles that name a row.
        let named_by = |row: u32| -> Vec<usize> {
            let names = |it: &usize| {
                let slots = &case.slot[end(*it)..end(it + 1)];
                slots.iter().any(|slot| case.unique[*slot as usize] == row)
            };
            (0..tiles).filter(names).collect()
        };
        let bad = named_by(row);
        assert_eq!((bad.len() > 1, tiles > 2), (others > 0, true));
        let mut moved = 0;
        for row in 0..ROWS as u32 {
            let of = row as usize * words..(row as usize + 1) * words;
            // Of a carried row it is found out in the end.
            let before = others > 0 || named_by(row).iter().all(|tile| *tile < bad[0]);
            let moves = named_by(row).len() == 1 && before;
            let expected = if moves { &plain.table } else { &case.words };
            assert_eq!(after.table[of.clone()], expected[of.clone()], "row {row}");
            moved += usize::from(after.table[of.clone()] != case.words[of]);
        }
        assert!(moved > 20, "{moved} rows moved");
    }
}
