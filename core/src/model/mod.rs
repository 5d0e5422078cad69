//! The models: what connects the layers, one training step, evaluation.
//!
//! - `plan.rs`: configuration → shapes and offsets, and what may be wrong with it
//! - `tensor.rs`: the replica's tensors by name, and first values
//! - `buffers.rs`: the lent workspace, cut up
//! - `dlrm.rs`: DLRM; `factorization.rs`: DeepFM, FM and LR
//! - `step.rs`: a training step and an evaluation, tile by tile
//!
//! A model holds no numbers. The *replica* is one flat buffer: trainable parameters, then the running
//! statistics of batch norms. Embedding rows come in gathered: every distinct row of the batch once.
//!
//! Letters: n examples, D dense features, S sparse fields, d elements of an embedding vector,
//! U distinct rows, F interacting vectors.

mod buffers;
mod dlrm;
mod factorization;
mod plan;
mod step;
mod tensor;

pub use crate::dense::dropout::StepKey;
pub use crate::dense::mlp::MAX_LAYERS;
pub use crate::sparse::bag::Pooling;
pub use buffers::Workspace;
pub use plan::ModelError;
pub use step::{Gradients, Input, StepLoss};
pub use tensor::{Initial, Tensor, TensorName};

use crate::dense::interaction::Vectors;
use crate::dense::mlp::Mlp;
use crate::kernel::DotShape;

/// The architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Naumov et al., arXiv 1906.00091.
    Dlrm,
    /// Guo et al., "DeepFM", IJCAI 2017.
    DeepFm,
    /// Rendle, "Factorization Machines", ICDM 2010.
    Fm,
    /// Logistic regression.
    Lr,
}

/// What a model is made from.
#[derive(Clone, Copy, Debug)]
pub struct ModelConfig<'a> {
    /// The architecture.
    pub kind: ModelKind,
    /// D
    pub dense_features: usize,
    /// S
    pub fields: usize,
    /// d
    pub embedding_dim: usize,
    /// How a bag becomes a vector.
    pub pooling: Pooling,
    /// DLRM: widths of the bottom MLP, the last equal to `embedding_dim`.
    pub bottom: &'a [usize],
    /// DLRM, DeepFM: hidden widths of the top or deep MLP; a last layer of width 1 is added.
    pub top: &'a [usize],
    /// Batch norm on hidden layers.
    pub batch_norm: bool,
    /// Share of the batch's statistics in the running ones: 0.1 as a rule.
    pub batch_norm_momentum: f32,
    /// Probability of dropping a hidden unit.
    pub dropout: f32,
}

/// A planned model: shapes and offsets only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    kind: ModelKind,
    dense_features: usize,
    fields: usize,
    pooling: Pooling,
    batch_norm_momentum: f32,
    vectors: Vectors,
    bottom: Mlp,
    top: Mlp,
    direct: Option<Direct>,
    parameters_len: usize,
    statistics_len: usize,
}

/// Offsets of the parameters that stand outside the MLPs, in factorization models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Direct {
    /// Of the whole sum. `[1]`
    bias: usize,
    /// First order of the dense features. `[D]`
    weight: usize,
    /// Factor vectors of the dense features. `[D, d]`
    vectors: usize,
}

impl Model {
    /// The architecture.
    #[must_use]
    pub const fn kind(&self) -> ModelKind {
        self.kind
    }

    /// f32s of one embedding row: d for DLRM; the first-order parameter and d for DeepFM and FM; 1
    /// for LR.
    #[must_use]
    pub const fn row_width(&self) -> usize {
        match self.kind {
            ModelKind::Dlrm => self.vectors.width,
            _ => 1 + self.vectors.width,
        }
    }

    /// Trainable f32s: the first part of the replica.
    #[must_use]
    pub const fn parameters_len(&self) -> usize {
        self.parameters_len
    }

    /// f32s of the replica: parameters, then running statistics.
    #[must_use]
    pub const fn replica_len(&self) -> usize {
        self.parameters_len + self.statistics_len
    }

    /// Share of a batch's statistics in the running ones.
    #[must_use]
    pub const fn batch_norm_momentum(&self) -> f32 {
        self.batch_norm_momentum
    }

    /// f32s of workspace for batches of up to `batch_max` examples and `rows_max` distinct rows.
    /// Rows need none today: they are read and their gradient is written where the caller keeps them.
    #[must_use]
    pub fn workspace_len(&self, batch_max: usize, rows_max: usize) -> usize {
        let _ = rows_max;
        buffers::Buffers::len(self, self.tile_len(batch_max, false))
    }

    /// f64s of workspace.
    #[must_use]
    pub fn workspace_f64_len(&self) -> usize {
        buffers::Buffers::len_f64(self)
    }

    /// Width of the input of DLRM's top MLP; the other models need no buffer for it.
    fn joined_width(&self) -> usize {
        match self.kind {
            ModelKind::Dlrm => self.top.layers()[0].inputs,
            _ => 0,
        }
    }

    /// DLRM's dot interaction: x, if there is a bottom MLP, stands in front of the pairs.
    const fn dot(&self) -> DotShape {
        self.vectors.dot(!self.bottom.is_empty())
    }

    /// f32s of the vectors that interact, for `n` examples.
    fn vectors_len(&self, n: usize) -> usize {
        match self.kind {
            ModelKind::Dlrm => self.dot().vectors_len(n),
            _ => n * self.vectors.len(),
        }
    }

    fn interaction_scratch_len(&self) -> usize {
        match self.kind {
            ModelKind::Dlrm => self.dot().scratch_len(),
            _ => self.vectors.width,
        }
    }
}
