//! The memory of a worker: allocated once, lent to every step.

use umbra_core::model::{Model, Workspace};

use crate::dense::bsp::Contribution;

/// Buffers of one worker.
pub struct StepBuffers {
    /// Gradient, batch statistics and sums of the step.
    pub contribution: Contribution,
    /// Gradients of the batch's distinct rows. `[rows_max, width]`
    pub row_gradients: Vec<f32>,
    /// Logits of an evaluation. `[batch_max]`
    pub logits: Vec<f32>,
    /// Scratch of sums over the global batch.
    pub sums: Vec<f64>,
    /// The model's scratch.
    pub workspace: OwnedWorkspace,
}

/// Memory behind a [`Workspace`].
pub struct OwnedWorkspace {
    single: Vec<f32>,
    double: Vec<f64>,
}

impl OwnedWorkspace {
    /// The workspace for one step.
    pub fn lend(&mut self) -> Workspace<'_> {
        Workspace { single: &mut self.single, double: &mut self.double }
    }
}

impl StepBuffers {
    /// Memory for steps of up to `batch_max` examples with up to `rows_max` distinct rows.
    #[must_use]
    pub fn new(model: &Model, batch_max: usize, rows_max: usize) -> Self {
        let parameters = model.parameters_len();
        Self {
            contribution: Contribution {
                gradient: vec![0.0; parameters],
                statistics: vec![0.0; model.replica_len() - parameters],
                sums: vec![],
            },
            row_gradients: vec![0.0; rows_max * model.row_width()],
            logits: vec![0.0; batch_max],
            sums: vec![],
            workspace: OwnedWorkspace {
                single: vec![0.0; model.workspace_len(batch_max, rows_max)],
                double: vec![0.0; model.workspace_f64_len()],
            },
        }
    }
}
