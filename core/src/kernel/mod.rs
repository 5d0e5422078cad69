//! The loops that decide how fast a step is, and the only `unsafe` of this crate.
//!
//! From the outside in:
//! - `linear.rs`: the products of a linear layer, forward and back; `weight.rs`: the gradients of
//!   its parameters
//! - `tile.rs`: the micro-kernel under them; `amx/`: those where registers are matrices of
//!   bf16s
//! - `dot.rs`: pairwise dot products, `dot_backward.rs`: their gradient; `second_order.rs`: those
//!   of a factorization machine
//! - `operand.rs`: what is multiplied, f32s or bf16s; `round.rs`: bf16s from f32s;
//!   `thirds/`: f32s as sums of three bf16s, and their products
//! - `transpose.rs`: panels of transposed matrices
//! - `update.rs`: optimizer updates, in a pass, of a row, or as the end of a weight gradient
//! - `pool.rs`: sums of rows; `row_values.rs`: rows of f32s or bf16s, and how these are rounded
//! - `isa/`: registers of an instruction set, the traits kernels are generic over, and where
//!   matrices are read from (`source.rs`)
//! - `layout.rs`: panels of parameters, blocks of activations; `words.rs`: memory shared by workers
//! - `prefetch.rs`: requests for what will be needed
//! - `peak.rs`: what the core could do at best
//!
//! [`Simd`] is the instruction set, chosen once for the process (`simd.rs`). The same source is
//! compiled once per set. Sets with a fused multiply-add round once where [`Simd::Plain`] rounds
//! twice, and [`Simd::Amx`] sums linear layers' products in another order, those of f32s by their
//! parts, so bits differ between sets, never within one: a row of a product depends on its row of
//! the left operand, the right operand and the set alone, not on its place among the rows or on
//! their number.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod dot;
mod dot_backward;
pub(crate) mod isa;
mod layout;
mod linear;
mod operand;
mod peak;
pub(crate) mod pool;
pub(crate) mod prefetch;
mod round;
pub(crate) mod row_values;
mod second_order;
mod simd;
mod thirds;
mod tile;
mod transpose;
pub(crate) mod update;
mod weight;
pub(crate) mod words;

pub use dot::{DotShape, dot};
pub use dot_backward::dot_backward;
pub use layout::{
    Activations, ActivationsMut, PANEL, Strides, blocked_len, padded_len, panel_index,
};
pub use linear::{Mask, Transposed, data_gradient, forward, forward_halves};
pub use operand::Precision;
pub use peak::peak_burst;
pub use round::{half_panels_len, round_activations, round_weight};
pub use second_order::{second_order, second_order_backward};
pub use simd::{
    NAMES, Simd, UnknownSimd, UnsupportedSimd, multiplies_halves, multiplies_thirds, select,
    selected,
};
pub use thirds::{Thirds, data_gradient_of_thirds, forward_of_thirds, split_examples, thirds_len};
pub use transpose::transpose;
pub(crate) use weight::{EXAMPLES, EXAMPLES_AT_MOST, examples_at_once, weight_update};
pub use weight::{Factors, bias_gradient, weight_gradient};
pub use words::shared;

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small test data")]
mod tests;
