//! Speed of the matrix kernels and of whole training steps on one core.
//!
//!     cargo run --release -p umbra-core --example step_rate [plain|avx2|avx512]
//!
//! Prints GFLOP/s of single products in the three forms a linear layer needs, and examples per second of
//! training steps (without row lookup, coalescing and optimizer).
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

use std::time::{Duration, Instant};

use umbra_core::batch::{Batch, Jagged};
use umbra_core::kernel::{self, Matrix, MatrixMut, Simd};
use umbra_core::model::{
    Gradients, Input, Model, ModelConfig, ModelKind, Pooling, StepKey, Workspace,
};
use umbra_core::rng::{Purpose, Stream};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("plain") => kernel::select(Simd::Plain).unwrap(),
        Some("avx2") => kernel::select(Simd::Avx2).unwrap(),
        Some("avx512") => kernel::select(Simd::Avx512).unwrap(),
        _ => {}
    }
    println!("instruction set {:?}", kernel::selected());
    println!("\nproduct             forward   d_input  d_matrix   GFLOP/s");
    for (n, o, i) in [
        (128, 512, 256),
        (128, 512, 367),
        (128, 512, 13),
        (128, 256, 512),
        (128, 1, 256),
        (256, 400, 400),
        (4096, 400, 400),
        (2048, 512, 367),
    ] {
        products(n, o, i);
    }
    println!();
    let dlrm = ModelConfig {
        kind: ModelKind::Dlrm,
        dense_features: 13,
        fields: 26,
        embedding_dim: 16,
        pooling: Pooling::Sum,
        bottom: &[512, 256, 64, 16],
        top: &[512, 256],
        batch_norm: false,
        batch_norm_momentum: 0.1,
        dropout: 0.0,
    };
    let deepfm = ModelConfig {
        kind: ModelKind::DeepFm,
        dense_features: 0,
        fields: 10,
        embedding_dim: 10,
        bottom: &[],
        top: &[400, 400, 400],
        ..dlrm
    };
    step("dlrm kaggle", &dlrm, 128);
    step("dlrm kaggle", &dlrm, 2048);
    step("deepfm frappe", &deepfm, 4096);
    let regular = ModelConfig { batch_norm: true, dropout: 0.5, ..deepfm };
    step("deepfm frappe, norm and dropout", &regular, 4096);
}

/// Time of one call: the shortest on the clock, or the mean on the processor where that is less, because
/// others may be using it too.
fn best(mut f: impl FnMut()) -> Duration {
    f();
    let until = Instant::now() + Duration::from_millis(500);
    let (before, mut calls, mut shortest) = (processor_time(), 0, Duration::MAX);
    while Instant::now() < until || calls < 5 {
        let start = Instant::now();
        f();
        shortest = shortest.min(start.elapsed());
        calls += 1;
    }
    let spent = processor_time().zip(before).map(|(after, before)| (after - before) / calls);
    shortest.min(spent.unwrap_or(shortest))
}

/// Time this thread has had a processor, where the system tells (Linux).
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn products(n: usize, o: usize, i: usize) {
    let numbers = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 7) as f32 - 3.0).collect() };
    let (x, w, y) = (numbers(n * i), numbers(o * i), numbers(n * o));
    let (x, w, y) = (Matrix::new(&x, n, i), Matrix::new(&w, o, i), Matrix::new(&y, n, o));
    let flop = 2.0 * (n * o * i) as f64;
    let rate = |a: Matrix, b: Matrix, m: usize, k: usize, len: usize| {
        let mut c = vec![0.0; m * len];
        let mut workspace = vec![0.0; kernel::workspace_len(m, len, k)];
        let time = best(|| {
            kernel::gemm(a, b, false, &mut MatrixMut::new(&mut c, m, len), &mut workspace);
        });
        flop / time.as_secs_f64() / 1e9
    };
    let forward = rate(x, w.t(), n, i, o);
    let d_input = rate(y, w, n, o, i);
    let d_matrix = rate(y.t(), x, o, n, i);
    println!("{:17} {forward:9.1} {d_input:9.1} {d_matrix:9.1}", format!("{n} x {o} x {i}"));
}

fn step(name: &str, config: &ModelConfig, n: usize) {
    let model = Model::new(config).unwrap();
    let stream = Stream::new(1, Purpose::Test(0));
    let (s, rows_max) = (config.fields, 10_000u64.min((n * config.fields) as u64));
    let mut replica = vec![0.0; model.replica_len()];
    model.initialize(1, &mut replica);
    let mut rows = vec![0.0; rows_max as usize * model.row_width()];
    for (row, out) in (0..).zip(rows.chunks_exact_mut(model.row_width())) {
        model.initialize_row(1, 0, rows_max, row, out);
    }
    let dense: Vec<f32> =
        (0..(n * config.dense_features) as u64).map(|i| stream.uniform(i)).collect();
    let label: Vec<f32> = (0..n as u64).map(|i| stream.below(i, 2) as f32).collect();
    let slot: Vec<u32> = (0..(n * s) as u64).map(|i| stream.below(i, rows_max) as u32).collect();
    let offsets: Vec<u32> = (0..=(n * s) as u32).collect();
    let row: Vec<u64> = (0..n as u64).collect();
    let bags = Jagged { values: &slot, offsets: &offsets };
    let batch = Batch { label: &label, weight: &[], dense: &dense, bags, row: &row };
    let input = Input { batch, rows: &rows, slot: &slot };
    let mut single = vec![0.0; model.workspace_len(n, rows_max as usize)];
    let mut double = vec![0.0; model.workspace_f64_len()];
    let mut parameters = vec![0.0; model.parameters_len()];
    let mut d_rows = vec![0.0; rows.len()];
    let mut statistics = vec![0.0; model.replica_len() - model.parameters_len()];
    let mut number = 0;
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    let train = best(|| {
        let key = StepKey { seed: 1, step: number };
        number += 1;
        let mut out = Gradients {
            parameters: &mut parameters,
            rows: &mut d_rows,
            statistics: &mut statistics,
        };
        model.train_step(&replica, &input, key, &mut |_| {}, &mut workspace, &mut out);
    });
    let mut logits = vec![0.0; n];
    let score = best(|| model.forward(&replica, &input, &mut workspace, &mut logits));
    // Forward once, both gradients: three products per linear layer, two flop per element.
    let matrices = model.tensors().filter(|t| t.rows > 1 || t.name.to_string().ends_with("weight"));
    let elements: usize = matrices.map(|t| t.len()).sum();
    println!(
        "{name}, {n} examples: training {:.0} examples/s ({:.1} GFLOP/s in linear layers), scoring {:.0} examples/s",
        n as f64 / train.as_secs_f64(),
        (6 * elements * n) as f64 / train.as_secs_f64() / 1e9,
        n as f64 / score.as_secs_f64(),
    );
}
