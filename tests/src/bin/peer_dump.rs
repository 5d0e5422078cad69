//! Writes what `tests/peers/compare.py` repeats in PyTorch: models, batches, logits, gradients,
//! losses.
//!
//! `peer_dump FOLDER` makes one folder of arrays per case (`tests/src/arrays.rs`). The core alone
//! is at work, so that what is compared is the mathematics and not the runtime.
//!
//! Every parameter is moved off its first value, zeros and ones included: a term that one side has
//! forgotten then shows in the first logits.

use core::error::Error;
use std::env;
use std::path::PathBuf;

use umbra_core::batch::{Batch, Jagged};
use umbra_core::kernel::shared;
use umbra_core::model::{
    Cross, Gradients, Input, Model, ModelConfig, ModelKind, Pooling, StepKey, Structure, Workspace,
};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::{Numbering, Numbers, coalesce, heads_len};
use umbra_tests::Arrays;

/// Steps of plain gradient descent.
const STEPS: usize = 20;
const LEARNING_RATE: f32 = 0.1;
/// Examples per batch.
const EXAMPLES: usize = 64;
/// Rows of every table: small enough that batches share rows, so that the coalescing counts.
const CARDINALITY: [u64; 4] = [3, 50, 17, 400];
/// Most ids of a bag; the least is 0.
const BAG_MAX: u64 = 4;
const SEED: u64 = 20_260_101;

struct Case {
    name: &'static str,
    config: ModelConfig<'static>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).map(PathBuf::from).ok_or("usage: peer_dump FOLDER")?;
    for case in cases() {
        let mut dump = Arrays::create(&folder.join(case.name));
        run(&case.config, &mut dump)?;
        dump.finish();
    }
    Ok(())
}

fn cases() -> [Case; 7] {
    let plain = ModelConfig {
        kind: ModelKind::Lr,
        dense_features: 5,
        fields: CARDINALITY.len(),
        embedding_dim: 8,
        pooling: Pooling::Sum,
        bottom: &[],
        top: &[],
        cross: Cross::NONE,
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
    };
    let dlrm = ModelConfig { kind: ModelKind::Dlrm, bottom: &[16, 8], top: &[24, 12], ..plain };
    let deepfm = ModelConfig {
        kind: ModelKind::DeepFm,
        top: &[24, 12],
        batch_norm: true,
        pooling: Pooling::Mean,
        ..plain
    };
    let wide_deep = ModelConfig {
        kind: ModelKind::WideDeep,
        top: &[24, 12],
        batch_norm: true,
        pooling: Pooling::Mean,
        ..plain
    };
    let dcn = ModelConfig {
        kind: ModelKind::DcnV2,
        top: &[24, 12],
        cross: Cross { layers: 3, rank: 0, structure: Structure::Parallel },
        ..plain
    };
    let low_rank = ModelConfig {
        cross: Cross { layers: 2, rank: 6, structure: Structure::Stacked },
        batch_norm: true,
        ..dcn
    };
    [
        Case { name: "lr", config: plain },
        Case { name: "fm", config: ModelConfig { kind: ModelKind::Fm, ..plain } },
        Case { name: "dlrm", config: dlrm },
        Case { name: "deepfm", config: deepfm },
        Case { name: "wide_deep", config: wide_deep },
        Case { name: "dcn_v2", config: dcn },
        Case { name: "dcn_v2_low_rank", config: low_rank },
    ]
}

/// Columns of one batch, owned.
struct Examples {
    label: Vec<f32>,
    weight: Vec<f32>,
    dense: Vec<f32>,
    values: Vec<u32>,
    offsets: Vec<u32>,
    row: Vec<u64>,
}

impl Examples {
    /// Batch number `step`: random features, random labels.
    fn random(step: usize, dense_features: usize) -> Self {
        let stream = Stream::new(SEED, Purpose::Test(narrow(step as u64)));
        let (mut values, mut offsets) = (Vec::new(), vec![0]);
        let mut at = 1 << 32;
        for _ in 0..EXAMPLES {
            for rows in CARDINALITY {
                let ids = stream.below(at, BAG_MAX + 1);
                values.extend((1..=ids).map(|i| narrow(stream.below(at + i, rows))));
                offsets.push(narrow(values.len() as u64));
                at += BAG_MAX + 1;
            }
        }
        let n = EXAMPLES as u64;
        Self {
            label: (0..n).map(|i| stream.uniform(i).round()).collect(),
            weight: (n..2 * n).map(|i| 0.5 + stream.uniform(i)).collect(),
            dense: (2 * n..).take(EXAMPLES * dense_features).map(|i| stream.normal(i)).collect(),
            values,
            offsets,
            row: (0..n).collect(),
        }
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            label: &self.label,
            weight: &self.weight,
            dense: &self.dense,
            bags: Jagged { values: &self.values, offsets: &self.offsets, weights: &[] },
            row: &self.row,
        }
    }
}

/// The distinct rows of a batch: their numbers, and the slot of every id among them.
struct Distinct {
    unique: Vec<u32>,
    slot: Vec<u32>,
}

impl Distinct {
    fn of(batch: &Batch<'_>, numbering: Numbering<'_>) -> Self {
        let ids = batch.bags.values.len();
        let mut heads = vec![0; heads_len(ids)];
        let (mut unique, mut slot) = (vec![0; ids], vec![0; ids]);
        let count = coalesce(batch.bags, numbering, &mut heads, &mut unique, &mut slot);
        unique.truncate(count);
        Self { unique, slot }
    }

    /// `[U, width]` out of `table` `[all rows, width]`.
    fn gather(&self, table: &[f32], width: usize) -> Vec<f32> {
        self.unique
            .iter()
            .flat_map(|&row| &table[row as usize * width..(row as usize + 1) * width])
            .copied()
            .collect()
    }
}

/// Everything of one case, in the order of the comparison.
fn run(config: &ModelConfig<'_>, dump: &mut Arrays) -> Result<(), Box<dyn Error>> {
    dump.f64("learning_rate", &[1], &[f64::from(LEARNING_RATE)]);
    dump.cardinality(&CARDINALITY);
    let model = Model::new(config)?;
    let mut tables = [Numbers::default(); CARDINALITY.len()];
    Numbering::deal(&CARDINALITY, &[], &mut tables)?;
    let numbering = Numbering::new(&tables);
    let (mut replica, mut table) = initial(&model);
    let width = model.row_width();
    let mut single = vec![0.0; model.workspace_len(EXAMPLES, EXAMPLES * 4 * CARDINALITY.len())];
    let mut double = vec![0.0; model.workspace_f64_len()];
    let mut workspace = Workspace { single: &mut single, double: &mut double };

    let first_batch = Examples::random(0, config.dense_features);
    let score = |replica: &[f32], table: &[f32], workspace: &mut Workspace<'_>| {
        let batch = first_batch.batch();
        let distinct = Distinct::of(&batch, numbering);
        let rows = distinct.gather(table, width);
        let mut logits = vec![0.0; EXAMPLES];
        let input =
            Input { batch, rows: &rows, slot: &distinct.slot, strips: &[], named_once: false };
        model.forward(shared(&mut replica.to_vec()), &input, workspace, &mut logits);
        logits
    };
    replica_as(dump, &model, "initial", &replica);
    dump.f32("initial.table", &[table.len() / width, width], &table);
    dump.f32("initial.logits", &[EXAMPLES], &score(&replica, &table, &mut workspace));

    let mut losses = Vec::new();
    for step in 0..STEPS {
        let examples = Examples::random(step, config.dense_features);
        let batch = examples.batch();
        dump.batch(step, &batch);
        let distinct = Distinct::of(&batch, numbering);
        let rows = distinct.gather(&table, width);
        let mut d_parameters = vec![0.0; model.parameters_len()];
        let mut d_rows = vec![0.0; rows.len()];
        let mut statistics = vec![0.0; model.replica_len() - model.parameters_len()];
        let loss = model.train_step(
            shared(&mut replica),
            &Input { batch, rows: &rows, slot: &distinct.slot, strips: &[], named_once: false },
            StepKey { seed: SEED, step: step as u64 },
            &mut |_| {},
            &mut workspace,
            &mut Gradients {
                parameters: &mut d_parameters,
                update: None,
                rows: &mut d_rows,
                statistics: &mut statistics,
                logits: &mut [],
            },
        );
        losses.push(loss.loss_sum / loss.weight_sum);
        let mut d_table = vec![0.0; table.len()];
        for (&row, gradient) in distinct.unique.iter().zip(d_rows.chunks_exact(width)) {
            d_table[row as usize * width..][..width].copy_from_slice(gradient);
        }
        if step == 0 {
            let mut gradient = d_parameters.clone();
            gradient.resize(model.replica_len(), 0.0);
            replica_as(dump, &model, "gradient", &gradient);
            dump.f32("gradient.table", &[table.len() / width, width], &d_table);
        }
        let (parameters, running) = replica.split_at_mut(model.parameters_len());
        descend(parameters, &d_parameters);
        descend(&mut table, &d_table);
        for (r, s) in running.iter_mut().zip(&statistics) {
            *r += model.batch_norm_momentum() * (s - *r);
        }
    }
    dump.f64("losses", &[STEPS], &losses);
    replica_as(dump, &model, "final", &replica);
    dump.f32("final.table", &[table.len() / width, width], &table);
    dump.f32("final.logits", &[EXAMPLES], &score(&replica, &table, &mut workspace));
    Ok(())
}

/// Every tensor of the replica as `PREFIX.NAME`.
fn replica_as(dump: &mut Arrays, model: &Model, prefix: &str, values: &[f32]) {
    for tensor in model.tensors() {
        let part: Vec<f32> = tensor.places().map(|place| values[place]).collect();
        dump.f32(&format!("{prefix}.{}", tensor.name), &[tensor.rows, tensor.columns], &part);
    }
}

/// Replica and table `[all rows, row_width]`, every value off its first one.
fn initial(model: &Model) -> (Vec<f32>, Vec<f32>) {
    let mut replica = vec![0.0; model.replica_len()];
    model.initialize(SEED, &mut replica);
    let stream = Stream::new(SEED, Purpose::Test(u32::MAX));
    for (i, value) in (0u64..).zip(&mut replica) {
        // Upwards, because variances must stay positive.
        *value += 0.2 * stream.uniform(i);
    }
    let width = model.row_width();
    let mut table = Vec::new();
    for (field, rows) in (0u32..).zip(CARDINALITY) {
        for row in 0..rows {
            let mut values = vec![0.0; width];
            model.initialize_row(SEED, field, rows, row, &mut values);
            table.extend(values);
        }
    }
    for (i, value) in (1 << 32..).zip(&mut table) {
        *value += 0.2 * stream.normal(i);
    }
    (replica, table)
}

fn descend(parameters: &mut [f32], gradient: &[f32]) {
    for (p, g) in parameters.iter_mut().zip(gradient) {
        *p -= LEARNING_RATE * g;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an id or an offset: small by the sizes above")]
const fn narrow(x: u64) -> u32 {
    x as u32
}
