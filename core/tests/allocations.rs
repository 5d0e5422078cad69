//! A training step allocates nothing: every buffer is lent and none grows.
//!
//! The whole path of a worker is run: distinct rows, gathering, forward
//! and backward, row updates, dense update, then scoring. Allocations are counted by thread: the
//! test harness has threads of its own.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::AtomicU32;

use umbra_core::batch::{Batch, Jagged};
use umbra_core::compress::{Coding, Keep, Threshold, Values, len_max, mask_len};
use umbra_core::dense::replica;
use umbra_core::kernel::{ActivationsMut, blocked_len, selected};
use umbra_core::model::{
    Boundary, Carrier, Cross, Gradients, Input, Model, ModelConfig, ModelKind, PartOf, Pooling,
    Precision, StepKey, Structure, Workspace,
};
use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer, StepSize};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::{
    Numbering, Numbers, Table, TilePlan, TiledRows, coalesce, heads_len, plan_tiles,
};

/// The system's allocator, counting.
struct Counting;

std::thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// One more of this thread; a thread that is ending does not count.
fn count() {
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

fn counted() -> usize {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const N: usize = 300;
const ROWS_PER_FIELD: u64 = 50;
const SGD: Optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
const ADAGRAD: SparseOptimizer =
    SparseOptimizer::RowwiseAdagrad { eps: 1e-8, initial: 0.0, weight_decay: 0.0 };

/// Allocations of three times a training step, a scoring, and a step that reads rows itself, after
/// everything has been built.
fn allocations(config: &ModelConfig, precision: Precision) -> usize {
    let model = Model::new(config).unwrap().with_precision(precision);
    let (s, width) = (config.fields, model.row_width());
    let stream = Stream::new(9, Purpose::Test(0));
    let dense: Vec<f32> =
        (0..(N * config.dense_features) as u64).map(|i| stream.uniform(i)).collect();
    let label: Vec<f32> = (0..N as u64).map(|i| stream.below(i, 2) as f32).collect();
    // Bags of 0, 1 and 2 ids.
    let offsets = (0..=(N * s) as u32).map(|bag| bag / 3 * 3 + [0, 0, 1][bag as usize % 3]);
    let offsets = offsets.collect::<Vec<_>>();
    let count = offsets[N * s] as usize;
    let values: Vec<u32> =
        (0..count as u64).map(|i| stream.below(i, ROWS_PER_FIELD) as u32).collect();
    let row: Vec<u64> = (0..N as u64).collect();
    let bags = Jagged { values: &values, offsets: &offsets, weights: &[] };
    let batch = Batch { label: &label, weight: &[], dense: &dense, bags, row: &row };

    let mut tables = vec![Numbers::default(); s];
    Numbering::deal(&vec![ROWS_PER_FIELD; s], &[], &mut tables).unwrap();
    let numbering = Numbering::new(&tables);
    let state_len = ADAGRAD.state_len(width);
    let record_len = width + state_len;
    let zeros = |len: usize| (0..len).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
    let words = zeros(numbering.rows() as usize * record_len);
    let table = Table::new(&words, width, state_len);
    let shared = zeros(model.replica_len());
    let mut numbers = vec![0.0; model.replica_len()];
    model.initialize(4, &mut numbers);
    replica::store(&shared, &numbers);

    let mut heads = vec![0; heads_len(count)];
    let (mut unique, mut slot) = (vec![0; count], vec![0; count]);
    let (mut place, mut ends) = (vec![0; count], vec![0; N]);
    let (mut rows, mut d_rows) = (vec![0.0; count * width], vec![0.0; count * width]);
    let mut parameters = vec![0.0; model.parameters_len()];
    let mut statistics = vec![0.0; model.replica_len() - model.parameters_len()];
    let mut single = vec![0.0; model.workspace_len(N, count)];
    let mut double = vec![0.0; model.workspace_f64_len()];
    let mut logits = vec![0.0; N];

    let parameters_len = model.parameters_len();
    let before = counted();
    for step in 0..3 {
        let found = coalesce(bags, numbering, &mut heads, &mut unique, &mut slot);
        table.read(unique[..found].iter().map(|index| *index as usize), &mut rows);
        let input = Input {
            batch,
            rows: &rows[..found * width],
            slot: &slot,
            strips: &[],
            named_once: false,
        };
        let mut workspace = Workspace { single: &mut single, double: &mut double };
        let size = StepSize { rate: 0.1, count: step + 1 };
        let mut out = Gradients {
            parameters: &mut parameters,
            update: Some(replica::Update::new(&SGD, size, &shared[..parameters_len], &[])),
            rows: &mut d_rows[..found * width],
            statistics: &mut statistics,
            logits: &mut [],
        };
        let key = StepKey { seed: 4, step };
        let loss = model.train_step(&shared, &input, key, &mut |_| {}, &mut workspace, &mut out);
        assert!(loss.loss_sum.is_finite());
        let indices = unique[..found].iter().map(|index| *index as usize);
        table.update(&ADAGRAD, 0.1, indices, &d_rows);
        replica::update(&SGD, size, &shared[..parameters_len], &[], &parameters);
        model.forward(&shared, &input, &mut workspace, &mut logits);

        let found = coalesce(bags, numbering, &mut heads, &mut unique, &mut slot);
        let length = model.tile_len(N, false);
        let (place, ends) = (&mut place[..found], &mut ends[..N.div_ceil(length)]);
        let places = plan_tiles((&offsets, length * s), &mut slot, place, ends);
        let plan = TilePlan { rows: &unique[..found], place, ends, places };
        let copies = &mut rows[..places.len * width];
        let mut tiled =
            TiledRows { table, optimizer: &ADAGRAD, rate: 0.1, plan, copies, spoilt: false };
        let input = Input { batch, rows: &[], slot: &slot, strips: &[], named_once: false };
        let mut out = Gradients {
            parameters: &mut parameters,
            update: Some(replica::Update::new(&SGD, size, &shared[..parameters_len], &[])),
            rows: &mut d_rows[..places.len * width],
            statistics: &mut statistics,
            logits: &mut [],
        };
        let by = (&mut (|_: &mut [f64]| {}) as &mut dyn FnMut(&mut [f64]), &mut tiled);
        let loss = model.train_on_table(&shared, &input, key, by, &mut workspace, &mut out);
        assert!(loss.loss_sum.is_finite() && !tiled.spoilt);
    }
    counted() - before
}

/// With layers that are wide enough for products of bf16s.
fn wide(config: ModelConfig<'static>) -> ModelConfig<'static> {
    ModelConfig { bottom: &[40, 33, 8], top: &[36, 33], ..config }
}

#[test]
fn a_step_allocates_nothing() {
    let dlrm = ModelConfig {
        kind: ModelKind::Dlrm,
        dense_features: 13,
        fields: 6,
        embedding_dim: 8,
        pooling: Pooling::Mean,
        bottom: &[32, 8],
        top: &[32, 16],
        cross: Cross::NONE,
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
    };
    let before = counted();
    drop(std::hint::black_box(vec![1u8]));
    assert!(counted() > before, "the count does not count");
    let full = Cross { layers: 2, rank: 0, structure: Structure::Parallel };
    let low = Cross { rank: 3, structure: Structure::Stacked, ..full };
    for (kind, cross) in [
        (ModelKind::Dlrm, Cross::NONE),
        (ModelKind::DeepFm, Cross::NONE),
        (ModelKind::Fm, Cross::NONE),
        (ModelKind::Lr, Cross::NONE),
        (ModelKind::DcnV2, full),
        (ModelKind::DcnV2, low),
        (ModelKind::WideDeep, Cross::NONE),
    ] {
        for (batch_norm, dropout) in [(false, 0.0), (true, 0.2)] {
            let config = ModelConfig { kind, cross, batch_norm, dropout, ..dlrm };
            assert_eq!(allocations(&config, Precision::F32), 0, "{config:?}");
            assert_eq!(allocations(&wide(config), Precision::Bf16), 0, "{config:?}");
        }
    }
}

#[test]
fn what_crosses_allocates_nothing() {
    let of = PartOf { part: 0, parts: 2 };
    let at = Boundary { number: 0, width: 128, of, split: true };
    let mut rows: Vec<f32> = (0..blocked_len(N, at.width)).map(|i| i as f32 % 7.0).collect();
    let mut gradient = rows.clone();
    let elements = N * at.width;
    let (mut thresholds, mut output) = ([Threshold::default()], vec![0.0; elements]);
    let (mut other, mut mask) = (vec![0.0; elements], vec![0; mask_len(elements)]);
    let mut counts = Box::new([0; 1 << 15]);
    let coding = Coding { keep: Keep { share: 0.1, refresh_every: 2 }, values: Values::Bf16 };
    let mut out = vec![0; len_max(elements, Values::F32)];
    let mut y = ActivationsMut::blocked(&mut rows, N, at.width);
    let mut d = ActivationsMut::blocked(&mut gradient, N, at.width);
    // Whoever asks for the instruction set first reads what the environment says of it.
    let _ = selected();
    let before = counted();
    for turn in 0..3 {
        let mut carrier = Carrier {
            coding,
            turn,
            thresholds: &mut thresholds,
            output: &mut output,
            gradient: &mut other,
            mask: &mut mask,
            counts: &mut counts,
        };
        let sent = carrier.send_output(&at, &mut y, &mut out).bytes;
        carrier.take_output(&at, 1, &out[..sent], &mut y).unwrap();
        let sent = carrier.send_gradient(&at, 0, y.view(), d.view(), &mut out).bytes;
        let messages = [&out[..sent], &out[..sent]];
        carrier.take_gradient(&at, messages.into_iter(), y.view(), &mut d).unwrap();
        for all in [false, true] {
            let sent = carrier.send_scored(&at, all, &mut y, &mut out).bytes;
            carrier.take_output(&at, 1, &out[..sent], &mut y).unwrap();
        }
    }
    assert_eq!(counted() - before, 0);
}
