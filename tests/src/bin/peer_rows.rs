//! Writes what `tests/peers/documented.py` repeats with the Python lines of docs/formats.md: rows
//! of a dataset, and their logits.
//!
//! `peer_rows FOLDER MODEL DATA.h5` scores all rows of the dataset with a model that `umbra export
//! --format flat` has written, and makes a folder of arrays (`tests/src/arrays.rs`).
#![allow(clippy::unwrap_used)]

use std::env;
use std::path::PathBuf;

use umbra_core::flat::{Flat, Memory};
use umbra_datasets::{Dataset, Pipeline};
use umbra_tests::Arrays;

fn main() {
    let paths: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder, model, data] = &paths[..] else { panic!("usage: peer_rows FOLDER MODEL DATA.h5") };
    let bytes = std::fs::read(model).unwrap();
    let flat = Flat::parse(&bytes).unwrap();
    let dataset = Dataset::open(core::slice::from_ref(data)).unwrap();
    let n = usize::try_from(dataset.rows()).unwrap();
    let (_reader, mut batches) = Pipeline::evaluate(&dataset, 0, 1, 1, n, 2).unwrap();
    let rows = batches[0].next(&mut || ()).unwrap().unwrap();
    let mut single = vec![0.0; flat.single_len(n, rows.values.len())];
    let mut double = vec![0.0; flat.model().workspace_f64_len()];
    let mut slot = vec![0; rows.values.len()];
    let memory = Memory { single: &mut single, double: &mut double, slot: &mut slot };
    let mut logits = vec![0.0; n];
    flat.scorer(memory).unwrap().score(&rows.batch(), &mut logits).unwrap();
    let mut arrays = Arrays::create(folder);
    arrays.cardinality(dataset.cardinality());
    arrays.batch(0, &rows.batch());
    arrays.f32("logits", &[n], &logits);
    arrays.finish();
}
