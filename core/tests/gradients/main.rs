//! Analytic gradients in f32 against central differences of an f64 twin.
//!
//! Why the twin: differencing f32 leaves three digits at best. In f64 a step of 1e-6 has a
//! truncation error of order h² = 1e-12 and a rounding error of order 2^-53 / h = 1e-10, so the
//! differences are exact for our purpose and what is measured is the f32 arithmetic alone. Its
//! error is a few units of 2^-24 of the largest terms of a sum, hence bounds relative to the
//! largest element of each tensor: 2e-5, some 300 roundings, where a wrong formula is wrong by a
//! part of 1.
//!
//! - `twin.rs`: the models in f64 - `layers.rs`: one layer at a time - `models.rs`: whole models
//! - `split.rs`: a batch cut in two over two workers - `parts.rs`: layers dealt to several parts
//! - `masked.rs`: vectors of which a part was sent - `bf16.rs`: products of bf16s
//! - `thirds.rs`: products of f32s as sums of bf16s
//! - `strips.rs`: tables of several widths - `on_table.rs`: rows that a step reads and updates
//! - `named_once.rs`: vectors of bags, in any order
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::std_instead_of_core,
    clippy::alloc_instead_of_core
)]

mod bf16;
mod layers;
mod masked;
mod models;
mod named_once;
mod on_table;
mod parts;
mod split;
mod strips;
mod thirds;
mod twin;

/// Step of the differences.
const H: f64 = 1e-6;

/// Central differences of `f` at `x`.
fn differences(x: &[f64], mut f: impl FnMut(&[f64]) -> f64) -> Vec<f64> {
    let (n, mut x) = (x.len(), x.to_vec());
    let one = |i: usize| {
        let middle = x[i];
        x[i] = middle + H;
        let above = f(&x);
        x[i] = middle - H;
        let below = f(&x);
        x[i] = middle;
        (above - below) / (2.0 * H)
    };
    (0..n).map(one).collect()
}

/// Every element within `bound` of the largest expected one.
fn close(what: &str, got: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(
            error <= bound * largest + 1e-9,
            "{what}[{i}]: got {got}, expected {expected}, largest {largest}"
        );
    }
}

/// Bound of gradients, relative to the largest of a tensor. See above.
const BOUND: f64 = 2e-5;
