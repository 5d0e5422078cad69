//! The dense part of a model: layers as functions over lent buffers.
//!
//! - `linear.rs`: a linear layer
//! - `mlp.rs`: chains of linear, batch norm, ReLU and dropout, forward and backward
//! - `tiles.rs`: how their examples are walked, and what waits between two layers
//! - `cross.rs`: the cross network of DCN v2
//! - `norm.rs`: batch normalisation over the global batch
//! - `dropout.rs`: masks that depend on the example, not on its place
//! - `interaction.rs`: the shape of interacting vectors; what they do is in `kernel/`
//! - `split.rs`: layers whose outputs are dealt to several ranks
//! - `loss.rs`: sigmoid and cross entropy in one
//! - `replica.rs`: the parameters that workers share
//!
//! A leading `d_` is a gradient with respect to what follows. Layers hold offsets, never numbers.

pub mod cross;
pub mod dropout;
pub mod interaction;
pub mod linear;
pub mod loss;
pub mod mlp;
pub mod norm;
pub mod replica;
pub mod split;
mod tiles;
