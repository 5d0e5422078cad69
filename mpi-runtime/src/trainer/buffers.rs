//! The memory of a worker: allocated once, lent to every step.

use umbra_core::model::{Model, Workspace};

use crate::dense::bsp::Contribution;
use crate::memory::Lines;

/// Buffers of one worker.
pub struct StepBuffers {
    /// Gradient, batch statistics and sums of the step.
    pub contribution: Contribution,
    /// Where a part of a model writes its gradient, with gaps; else nothing. `[parameters]` or
    /// `[0]`
    pub gradient_of_part: Lines,
    /// Gradients of the batch's distinct rows. `[rows_max, width]`
    pub row_gradients: Lines,
    /// Copies of rows that a step reads itself. `[places, width]`
    pub row_copies: Lines,
    /// Logits of an evaluation. `[batch_max]`
    pub logits: Vec<f32>,
    /// Scratch of sums over the global batch.
    pub sums: Vec<f64>,
    /// The model's scratch.
    pub workspace: OwnedWorkspace,
}

/// Memory behind a [`Workspace`].
pub struct OwnedWorkspace {
    single: Lines,
    double: Vec<f64>,
}

impl OwnedWorkspace {
    /// The workspace for one step.
    pub fn lend(&mut self) -> Workspace<'_> {
        Workspace { single: &mut self.single, double: &mut self.double }
    }
}

impl StepBuffers {
    /// The same for steps of `part` of the model, of which `own` parameters are its own.
    #[must_use]
    pub fn for_part(mut self, part: &Model, own: usize, batch_max: usize) -> Self {
        self.gradient_of_part =
            core::mem::replace(&mut self.contribution.gradient, Lines::zeros(own));
        let single = &mut self.workspace.single;
        let needed = part.workspace_len(batch_max, 0);
        if single.len() < needed {
            *single = Lines::zeros(needed);
        }
        self
    }

    /// Bytes of those for steps of up to `batch_max` examples, but for gradients of rows.
    #[must_use]
    pub fn bytes(model: &Model, batch_max: usize) -> u64 {
        let single = model.replica_len() + batch_max + model.workspace_len(batch_max, 0);
        (size_of::<f32>() * single + size_of::<f64>() * model.workspace_f64_len()) as u64
    }

    /// Memory for steps of up to `batch_max` examples with up to `rows_max` distinct rows.
    #[must_use]
    pub fn new(model: &Model, batch_max: usize, rows_max: usize) -> Self {
        let parameters = model.parameters_len();
        Self {
            contribution: Contribution {
                gradient: Lines::zeros(parameters),
                statistics: Lines::zeros(model.replica_len() - parameters),
                sums: vec![],
            },
            gradient_of_part: Lines::default(),
            row_gradients: Lines::zeros(rows_max * model.row_width()),
            row_copies: Lines::default(),
            logits: vec![0.0; batch_max],
            sums: vec![],
            workspace: OwnedWorkspace {
                single: Lines::zeros(model.workspace_len(batch_max, rows_max)),
                double: vec![0.0; model.workspace_f64_len()],
            },
        }
    }
}
