//! The models: what connects the layers, one training step, evaluation.
//!
//! - `body.rs`: what every architecture must say of itself, and which there are
//! - `dlrm.rs`: DLRM; `factorization.rs`: DeepFM, FM and LR; `cross.rs`: DCN v2; `wide_deep.rs`:
//!   Wide & Deep
//! - `first_order.rs`, `concatenation.rs`, `tower.rs`: a term, an input and an MLP that several of
//!   them have
//! - `part.rs`: a model whose layers are dealt to several ranks; `carrier.rs`: what these say to
//!   each other
//! - `strips.rs`: vectors of tables that have widths of their own
//! - `plan.rs`: configuration → shapes and offsets, and what may be wrong with it
//! - `tensor.rs`: the replica's tensors by name, and first values
//! - `space.rs`: the lent workspace, handed out in pieces
//! - `step.rs`: a training step and an evaluation, tile by tile
//!
//! A model holds no numbers. The *replica* is one flat buffer: trainable parameters, then the
//! running statistics of batch norms. Embedding rows come in gathered, every distinct row of the
//! batch once, or a step reads them from their table and updates them.
//!
//! Letters: n examples, D dense features, S sparse fields, d elements of an embedding vector,
//! U distinct rows, F interacting vectors.

mod body;
mod carrier;
mod concatenation;
mod cross;
mod dlrm;
mod factorization;
mod first_order;
mod part;
mod plan;
mod space;
mod step;
mod strips;
mod tensor;
mod tower;
mod wide_deep;

pub use crate::dense::dropout::StepKey;
pub use crate::dense::mlp::MAX_LAYERS;
pub use crate::dense::split::{Boundary, Crossing, Exchange, PartOf};
pub use crate::kernel::Precision;
pub use crate::sparse::bag::Pooling;
pub use carrier::Carrier;
pub use part::NothingToSplit;
pub use plan::ModelError;
pub use space::Workspace;
pub use step::{Gradients, Input, StepLoss};
pub use strips::StripShape;
pub use tensor::{Initial, Tensor, TensorName};

use crate::dense::mlp::Mlp;
use body::Body;
use strips::Strips;

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
    /// Wang et al., "DCN V2", arXiv 2008.13535.
    DcnV2,
    /// Cheng et al., "Wide & Deep Learning", arXiv 1606.07792.
    WideDeep,
}

/// The cross network of DCN v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cross {
    /// Its layers.
    pub layers: usize,
    /// Rank of their matrices; 0 for full ones.
    pub rank: usize,
    /// Where the deep MLP stands.
    pub structure: Structure,
}

impl Cross {
    /// For the other models, which have none.
    pub const NONE: Self = Self { layers: 0, rank: 0, structure: Structure::Parallel };
}

/// How DCN v2 puts cross network and deep MLP together. (Section 3.4 of the paper)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Both on the input, side by side.
    Parallel,
    /// The deep MLP on the output of the cross network.
    Stacked,
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
    /// All but FM and LR: hidden widths of the top or deep MLP; a last layer of width 1 is added.
    pub top: &'a [usize],
    /// DCN v2: the cross network.
    pub cross: Cross,
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
    body: Body,
    precision: Precision,
    part: Option<PartOf>,
    strips: Option<Strips>,
    parameters_len: usize,
    statistics_len: usize,
}

impl Model {
    /// The same model, whose products are `precision` in training steps: those of its MLPs and of
    /// DLRM's interaction. Its numbers are f32 still, and so is all that evaluation computes. What
    /// is the fastest way to multiply them is asked now: of the instruction set that is selected.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.body.set_precision(precision);
        self.precision = precision;
        self
    }

    /// The same model, whose products of f32s are of f32s as they are on every processor, and not
    /// of thirds (`kernel/thirds`), which have other bits.
    #[must_use]
    pub fn without_thirds(mut self) -> Self {
        self.body.chains_mut().into_iter().flatten().for_each(Mlp::set_whole);
        self
    }

    /// The architecture.
    #[must_use]
    pub const fn kind(&self) -> ModelKind {
        self.kind
    }

    /// D
    #[must_use]
    pub const fn dense_features(&self) -> usize {
        self.dense_features
    }

    /// S
    #[must_use]
    pub const fn fields(&self) -> usize {
        self.fields
    }

    /// Bags of one example: S, or the strips of all fields.
    #[must_use]
    pub const fn bags(&self) -> usize {
        match self.strips {
            Some(strips) => strips.shape.strips,
            None => self.fields,
        }
    }

    /// f32s of one embedding row: d for DLRM and DCN v2; the first-order parameter and d for
    /// DeepFM, FM and Wide & Deep; 1 for LR. Of tables that are cut into strips, w in place of d.
    #[must_use]
    pub const fn row_width(&self) -> usize {
        match self.strips {
            Some(strips) => self.first_order_columns() + strips.shape.width,
            None => self.body.row_width(),
        }
    }

    /// Columns of a row, its first, that are first-order parameters.
    #[must_use]
    pub const fn first_order_columns(&self) -> usize {
        match self.body {
            Body::Factorization(_) | Body::WideDeep(_) => 1,
            Body::Dlrm(_) | Body::DcnV2(_) => 0,
        }
    }

    /// How a bag becomes a vector.
    #[must_use]
    pub const fn pooling(&self) -> Pooling {
        self.pooling
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
    /// Rows need none today: they are read and their gradient is written where the caller keeps
    /// them.
    #[must_use]
    pub fn workspace_len(&self, batch_max: usize, rows_max: usize) -> usize {
        let _ = rows_max;
        space::single_len(self, self.tile_len_most(batch_max))
    }

    /// f64s of workspace.
    #[must_use]
    pub fn workspace_f64_len(&self) -> usize {
        space::double_len(self)
    }
}
