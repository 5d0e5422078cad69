//! Trains a tiny DLRM in static memory, scores it, and exits 0 if it learnt something.
//!
//! The data: three fields of eight ids and four dense features; every id and feature has a hidden
//! effect, and the label is drawn with the probability that the sum of the effects gives. Who knows
//! only the share of ones pays the entropy of that share per example; the trained model must pay
//! clearly less on fresh examples.
#![no_std]
#![no_main]

mod machine;

use core::fmt::Write;
use core::panic::PanicInfo;

use machine::{Output, exit};
use umbra_core::batch::{Batch, Jagged};
use umbra_core::dense::loss;
use umbra_core::float;
use umbra_core::kernel::shared;
use umbra_core::model::{
    Cross, Gradients, Input, Model, ModelConfig, ModelKind, Pooling, StepKey, Workspace,
};
use umbra_core::rng::{Purpose, Stream};

const N: usize = 64;
const D: usize = 4;
const S: usize = 3;
const IDS: usize = 8;
const WIDTH: usize = 4;
const STEPS: u64 = 600;
const RATE: f32 = 0.2;
const SEED: u64 = 1;

const CONFIG: ModelConfig = ModelConfig {
    kind: ModelKind::Dlrm,
    dense_features: D,
    fields: S,
    embedding_dim: WIDTH,
    pooling: Pooling::Sum,
    bottom: &[8, WIDTH],
    top: &[8],
    cross: Cross::NONE,
    batch_norm: false,
    batch_norm_momentum: 0.1,
    dropout: 0.0,
};

/// Every byte the program owns. Lengths that only the model knows have room to spare.
struct Memory {
    replica: [f32; 512],
    gradient: [f32; 512],
    table: [f32; S * IDS * WIDTH],
    row_gradient: [f32; S * IDS * WIDTH],
    workspace: [f32; 1 << 16],
    examples: Examples,
    logits: [f32; N],
}

/// One batch, drawn anew for every step.
struct Examples {
    label: [f32; N],
    dense: [f32; N * D],
    values: [u32; N * S],
    offsets: [u32; N * S + 1],
    row: [u64; N],
}

static mut MEMORY: Memory = Memory {
    replica: [0.0; 512],
    gradient: [0.0; 512],
    table: [0.0; S * IDS * WIDTH],
    row_gradient: [0.0; S * IDS * WIDTH],
    workspace: [0.0; 1 << 16],
    examples: Examples {
        label: [0.0; N],
        dense: [0.0; N * D],
        values: [0; N * S],
        offsets: [0; N * S + 1],
        row: [0; N],
    },
    logits: [0.0; N],
};

impl Examples {
    /// Draws batch number `step`. One id per bag; ids are slots, field by field.
    fn draw(&mut self, step: u64) {
        let numbers = Stream::new(SEED, Purpose::Synthetic(0));
        let effects = Stream::new(SEED, Purpose::Synthetic(1));
        for i in 0..N {
            let row = step * N as u64 + i as u64;
            let mut number = (row * 16..).map(|index| numbers.uniform(index));
            let mut next = || number.next().unwrap_or(0.0);
            let mut logit = 0.0;
            for j in 0..D {
                let x = 2.0 * next() - 1.0;
                self.dense[i * D + j] = x;
                logit += 2.0 * effects.normal(j as u64) * x;
            }
            for s in 0..S {
                let id = ((next() * IDS as f32) as usize).min(IDS - 1);
                let slot = s * IDS + id;
                self.values[i * S + s] = slot as u32;
                self.offsets[i * S + s + 1] = (i * S + s + 1) as u32;
                logit += 1.5 * effects.normal(100 + slot as u64);
            }
            self.label[i] = if next() < float::sigmoid(logit) { 1.0 } else { 0.0 };
            self.row[i] = row;
        }
    }

    fn batch(&self) -> Batch<'_> {
        let bags = Jagged { values: &self.values, offsets: &self.offsets, weights: &[] };
        let (label, dense, row) = (&self.label, &self.dense, &self.row);
        Batch { label, weight: &[], dense, bags, row }
    }
}

/// p := p - rate · g
fn descend(parameters: &mut [f32], gradient: &[f32]) {
    parameters.iter_mut().zip(gradient).for_each(|(p, g)| *p -= RATE * g);
}

/// Mean losses on fresh examples: of the model, and of knowing the share of ones alone.
fn train_and_score(memory: &mut Memory) -> Option<(f64, f64)> {
    let model = Model::new(&CONFIG).ok()?;
    let replica = memory.replica.get_mut(..model.replica_len())?;
    let gradient = memory.gradient.get_mut(..model.parameters_len())?;
    model.initialize(SEED, replica);
    for (row, out) in (0..).zip(memory.table.chunks_exact_mut(WIDTH)) {
        let (field, id) = (row / IDS as u32, row % IDS as u32);
        model.initialize_row(SEED, field, IDS as u64, u64::from(id), out);
    }
    let workspace = &mut Workspace { single: &mut memory.workspace, double: &mut [] };
    for step in 0..STEPS {
        memory.examples.draw(step);
        let slot = &memory.examples.values;
        let batch = memory.examples.batch();
        let input = Input { batch, rows: &memory.table, slot, strips: &[], named_once: false };
        let mut out = Gradients {
            parameters: gradient,
            update: None,
            rows: &mut memory.row_gradient,
            statistics: &mut [],
            logits: &mut [],
        };
        let key = StepKey { seed: SEED, step };
        model.train_step(shared(replica), &input, key, &mut |_| {}, workspace, &mut out);
        descend(replica, gradient);
        descend(&mut memory.table, &memory.row_gradient);
    }
    let (mut sum, mut ones) = (0.0, 0.0);
    let batches = 20;
    for step in STEPS..STEPS + batches {
        memory.examples.draw(step);
        let slot = &memory.examples.values;
        let batch = memory.examples.batch();
        let input = Input { batch, rows: &memory.table, slot, strips: &[], named_once: false };
        model.forward(shared(replica), &input, workspace, &mut memory.logits);
        for (logit, label) in memory.logits.iter().zip(&memory.examples.label) {
            sum += loss::cross_entropy(*logit, *label);
            ones += f64::from(*label);
        }
    }
    let count = batches as f64 * N as f64;
    let share = ones / count;
    let entropy = -share * float::ln_f64(share) - (1.0 - share) * float::ln_f64(1.0 - share);
    Some((sum / count, entropy))
}

extern "C" fn main() -> ! {
    let memory = &raw mut MEMORY;
    // SAFETY: the only reference ever made to it, by the only thread, from code that runs once.
    let memory = unsafe { &mut *memory };
    let Some((loss, entropy)) = train_and_score(memory) else { exit(1) };
    let learnt = loss < 0.85 * entropy;
    let written = writeln!(Output, "log loss {loss:.4}, of the base rate alone {entropy:.4}");
    exit(if learnt && written.is_ok() { 0 } else { 1 })
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    // The exit code tells all there is to tell if writing fails.
    let _ = writeln!(Output, "{info}");
    exit(2)
}
