//! The lent workspace, cut into the buffers of one tile of examples.

use core::mem;

use super::Model;

/// Scratch lent for a step: nothing in it outlives the call, and its contents do not matter.
#[derive(Debug)]
pub struct Workspace<'a> {
    /// `[Model::workspace_len]` or more.
    pub single: &'a mut [f32],
    /// `[Model::workspace_f64_len]` or more.
    pub double: &'a mut [f64],
}

/// Buffers of one tile of n examples. Letters as in the models' files.
pub(super) struct Buffers<'a> {
    /// Vectors that interact. `[n, F, d]`
    pub(super) vectors: &'a mut [f32],
    /// Their gradient. `[n, F, d]`
    pub(super) d_vectors: &'a mut [f32],
    /// What the bottom MLP stores.
    pub(super) bottom: &'a mut [f32],
    /// Input of DLRM's top MLP. `[n, inputs]`
    pub(super) joined: &'a mut [f32],
    /// Its gradient. `[n, inputs]`
    pub(super) d_joined: &'a mut [f32],
    /// What the top MLP stores.
    pub(super) top: &'a mut [f32],
    /// Gradients on their way back, two in turn. `[n, widest]`
    pub(super) d: [&'a mut [f32]; 2],
    /// `[n]`
    pub(super) logits: &'a mut [f32],
    /// `[n]`
    pub(super) d_logits: &'a mut [f32],
    /// Scratch of matrix products.
    pub(super) product: &'a mut [f32],
    /// Scratch of the interaction.
    pub(super) interaction: &'a mut [f32],
    /// f64s that the bottom's norms keep.
    pub(super) bottom_kept: &'a mut [f64],
    /// f64s that the top's norms keep.
    pub(super) top_kept: &'a mut [f64],
    /// f64 scratch of the norms.
    pub(super) sums: &'a mut [f64],
}

impl<'a> Buffers<'a> {
    /// f32s for a tile of `n` examples.
    pub(super) fn len(model: &Model, n: usize) -> usize {
        lengths(model, n).iter().sum()
    }

    /// f64s for a tile of any size.
    pub(super) fn len_f64(model: &Model) -> usize {
        lengths_f64(model).iter().sum()
    }

    /// Cuts the workspace for a tile of `n` examples.
    ///
    /// # Panics
    /// When it is too short.
    pub(super) fn carve(model: &Model, n: usize, workspace: &'a mut Workspace<'_>) -> Self {
        let (needed, got) = (Self::len(model, n), workspace.single.len());
        assert!(got >= needed, "workspace needs {needed} f32 for {n} examples, got {got}");
        let (needed, got) = (Self::len_f64(model), workspace.double.len());
        assert!(got >= needed, "workspace needs {needed} f64, got {got}");
        let [vectors, d_vectors, bottom, joined, d_joined, top, d, other, rest @ ..] =
            cut(workspace.single, lengths(model, n));
        let [logits, d_logits, product, interaction] = rest;
        let [bottom_kept, top_kept, sums] = cut(workspace.double, lengths_f64(model));
        let d = [d, other];
        Self {
            vectors,
            d_vectors,
            bottom,
            joined,
            d_joined,
            top,
            d,
            logits,
            d_logits,
            product,
            interaction,
            bottom_kept,
            top_kept,
            sums,
        }
    }
}

/// In the order in which `carve` names them.
fn lengths(model: &Model, n: usize) -> [usize; 12] {
    let vectors = n * model.vectors.len();
    let joined = n * model.joined_width();
    let widest = n * model.bottom.widest().max(model.top.widest());
    [
        vectors,
        vectors,
        n * model.bottom.stored_len(),
        joined,
        joined,
        n * model.top.stored_len(),
        widest,
        widest,
        n,
        n,
        model.bottom.product_len(n).max(model.top.product_len(n)),
        model.interaction_scratch_len(),
    ]
}

fn lengths_f64(model: &Model) -> [usize; 3] {
    let (bottom, top) = (&model.bottom, &model.top);
    [bottom.kept_len(), top.kept_len(), bottom.sums_len().max(top.sums_len())]
}

/// Consecutive pieces of `whole`.
fn cut<const N: usize, T>(mut whole: &mut [T], lengths: [usize; N]) -> [&mut [T]; N] {
    lengths.map(|length| {
        let (piece, rest) = mem::take(&mut whole).split_at_mut(length);
        whole = rest;
        piece
    })
}
