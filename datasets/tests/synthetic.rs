//! Synthetic click logs: the same rows whatever made them, and a planted model that can be learned.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::path::Path;

use common::drain;
use umbra_core::metrics::{AucPart, Scored};
use umbra_datasets::{
    BatchBuffer, Dataset, Pipeline, Preset, SynthOptions, SynthSummary, synth, verify,
};

fn make(rows: u64, seed: u64, first_row: u64, path: &Path) -> SynthSummary {
    let options = SynthOptions { first_row, overwrite: true, ..SynthOptions::default() };
    synth(rows, Preset::Small, seed, path, options, &mut |_| {}).unwrap()
}

fn read(path: &Path) -> Vec<BatchBuffer> {
    let dataset = Dataset::open(&[path.to_owned()]).unwrap();
    let (_pipeline, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, 1000, 4).unwrap();
    drain(&mut batches).remove(0)
}

#[test]
fn a_row_is_a_function_of_the_seed_and_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let whole = make(150_000, 7, 0, &path("whole.h5"));
    // One thread makes what many make.
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_eq!(alone.install(|| make(150_000, 7, 0, &path("alone.h5"))), whole);
    assert_ne!(make(150_000, 8, 0, &path("seed.h5")).fingerprint, whole.fingerprint);
    // The tail of the file is the file of the tail.
    make(50_000, 7, 100_000, &path("tail.h5"));
    let (whole, tail) = (read(&path("whole.h5")), read(&path("tail.h5")));
    for (a, b) in whole[100..].iter().zip(&tail) {
        assert_eq!((&a.label, &a.dense, &a.values), (&b.label, &b.dense, &b.values));
    }
    let open = |name: &str| Dataset::open(&[path(name)]).unwrap();
    open("whole.h5").check_compatible(&open("tail.h5")).unwrap();
}

#[test]
fn the_summary_is_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    let mut told = Vec::new();
    let options = SynthOptions { overwrite: true, ..SynthOptions::default() };
    let summary =
        synth(200_001, Preset::Small, 3, &path, options, &mut |rows| told.push(rows)).unwrap();
    assert_eq!(summary.rows, 200_001);
    assert_eq!(verify(&path).unwrap().fingerprint, summary.fingerprint);
    assert!(told.is_sorted() && told.last() == Some(&200_001), "{told:?}");
    let batches = read(&path);
    let clicks: f64 = batches.iter().flat_map(|b| &b.label).map(|&l| f64::from(l)).sum();
    assert_eq!(summary.base_rate, Some(clicks / 200_001.0));
    // Ids by frequency: 0 is met most, and less often with every power of ten.
    let dataset = Dataset::open(&[path]).unwrap();
    for field in 0..dataset.fields() {
        let mut decades = [0u32; 4];
        for batch in &batches {
            for &id in batch.values.iter().skip(field).step_by(dataset.fields()) {
                if let Some(decade) = [0, 1, 10, 99].iter().position(|&first| first == id) {
                    decades[decade] += 1;
                }
            }
        }
        assert!(decades.is_sorted_by(|a, b| a > b), "field {field}: {decades:?}");
    }
}

#[test]
fn every_seed_plants_the_auc_and_the_base_rate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.h5");
    for preset in Preset::ALL {
        for seed in [1, 2, 99] {
            let options = SynthOptions { overwrite: true, ..SynthOptions::default() };
            let made = synth(50_000, preset, seed, &path, options, &mut |_| {}).unwrap();
            let (auc, rate) = (made.auc_planted.unwrap(), made.base_rate.unwrap());
            assert!((auc - 0.80).abs() < 0.015, "{preset} {seed}: AUC {auc}");
            assert!((rate - 0.27).abs() < 0.02, "{preset} {seed}: base rate {rate}");
            assert!(made.log_loss_planted.unwrap() < 0.52, "{preset} {seed}: {made:?}");
        }
    }
}

#[test]
fn no_rows_have_no_figures() {
    let folder = tempfile::tempdir().unwrap();
    let made = make(0, 1, 0, &folder.path().join("none.h5"));
    assert_eq!((made.auc_planted, made.log_loss_planted, made.base_rate), (None, None, None));
    assert_eq!(
        "large".parse::<Preset>().unwrap_err().to_string(),
        "no preset `large`: expected `criteo-kaggle` or `small`"
    );
    assert_eq!("criteo-kaggle".parse(), Ok(Preset::CriteoKaggle));
}

/// A factorization machine with Adagrad, as plain as can be: what any learner should reach.
struct Machine {
    /// First row of every field. `[S]`
    first: Vec<usize>,
    /// Weight, then K factors, of every id and dense feature; and their Adagrad sums.
    rows: Vec<[f32; 1 + K]>,
    sums: Vec<[f32; 1 + K]>,
    bias: f32,
}

const K: usize = 4;

impl Machine {
    fn new(dataset: &Dataset) -> Self {
        let mut first = Vec::new();
        let mut rows = Vec::new();
        let stream = umbra_core::rng::Stream::new(1, umbra_core::rng::Purpose::Test(2));
        for &n in dataset.cardinality().iter().chain(&vec![1; dataset.dense_features()]) {
            first.push(rows.len());
            for _ in 0..n {
                let number = rows.len() as u64 * K as u64;
                let normal = |k: usize| 0.05 * stream.normal(number + k as u64);
                rows.push(core::array::from_fn(|k| if k == 0 { 0.0 } else { normal(k - 1) }));
            }
        }
        Self { first, sums: vec![[1e-2; 1 + K]; rows.len()], rows, bias: 0.0 }
    }

    /// Scores example `i`, and steps down its gradient when `rate` is given.
    fn score(&mut self, batch: &BatchBuffer, i: usize, rate: Option<f32>) -> f32 {
        let dense = batch.dense.len() / batch.len();
        let fields = self.first.len() - dense;
        let ids = &batch.values[i * fields..(i + 1) * fields];
        let inputs: Vec<(usize, f32)> = ids
            .iter()
            .zip(&self.first)
            .map(|(&id, first)| (first + id as usize, 1.0))
            .chain((0..dense).map(|j| (self.first[fields + j], batch.dense[i * dense + j])))
            .collect();
        let mut logit = self.bias;
        let mut sum = [0.0; K];
        for &(row, x) in &inputs {
            logit += self.rows[row][0] * x;
            for (sum, factor) in sum.iter_mut().zip(&self.rows[row][1..]) {
                let v = factor * x;
                *sum += v;
                logit -= 0.5 * v * v;
            }
        }
        logit += sum.iter().map(|s| 0.5 * s * s).sum::<f32>();
        if let Some(rate) = rate {
            let error = 1.0 / (1.0 + (-logit).exp()) - batch.label[i];
            self.bias -= 0.01 * error;
            for &(row, x) in &inputs {
                for k in 0..=K {
                    let slope = if k == 0 { x } else { x * (sum[k - 1] - self.rows[row][k] * x) };
                    let gradient = error * slope;
                    self.sums[row][k] += gradient * gradient;
                    self.rows[row][k] -= rate * gradient / self.sums[row][k].sqrt();
                }
            }
        }
        logit
    }
}

#[test]
fn the_small_preset_can_be_learned() {
    let folder = tempfile::tempdir().unwrap();
    let (train, test) = (folder.path().join("train.h5"), folder.path().join("test.h5"));
    make(200_000, 1, 0, &train);
    let ceiling = make(50_000, 1, 1 << 40, &test).auc_planted.unwrap();
    let dataset = Dataset::open(core::slice::from_ref(&train)).unwrap();
    let mut machine = Machine::new(&dataset);
    let mut best = 0.0f64;
    for _ in 0..3 {
        for batch in read(&train) {
            for i in 0..batch.len() {
                machine.score(&batch, i, Some(0.03));
            }
        }
        let mut scored = Vec::new();
        for batch in read(&test) {
            scored.extend((0..batch.len()).map(|i| Scored {
                score: machine.score(&batch, i, None),
                label: batch.label[i],
                weight: 1.0,
            }));
        }
        let auc = AucPart::of(&mut scored).unwrap().auc().unwrap();
        println!("test AUC {auc:.4}, planted {ceiling:.4}");
        best = best.max(auc);
    }
    assert!(best > ceiling - 0.02, "AUC {best}, planted {ceiling}");
    assert!(best < ceiling, "a learner above the ceiling: AUC {best}, planted {ceiling}");
}
