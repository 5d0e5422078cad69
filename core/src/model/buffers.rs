//! The lent workspace, cut into the buffers of one tile of examples.

use core::mem;

use super::Model;
use crate::kernel::blocked_len;

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
    /// Input of DLRM's top MLP, in blocks. `[n, inputs]`
    pub(super) joined: &'a mut [f32],
    /// Its gradient, in blocks. `[n, inputs]`
    pub(super) d_joined: &'a mut [f32],
    /// What the top MLP stores.
    pub(super) top: &'a mut [f32],
    /// Gradients on their way back, two in turn.
    pub(super) d: [&'a mut [f32]; 2],
    /// Transposed matrices of the bottom MLP, made once a step.
    pub(super) bottom_transposed: &'a mut [f32],
    /// Transposed matrices of the top MLP.
    pub(super) top_transposed: &'a mut [f32],
    /// `[n]`
    pub(super) logits: &'a mut [f32],
    /// `[n]`
    pub(super) d_logits: &'a mut [f32],
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
        LINE + lengths(model, n).iter().sum::<usize>()
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
        let skip = workspace.single.as_ptr().align_offset(LINE).min(LINE);
        let [bottom_transposed, top_transposed, rest @ ..] =
            cut(&mut workspace.single[skip..], lengths(model, n));
        let [vectors, d_vectors, bottom, joined, d_joined, top, d, other, rest @ ..] = rest;
        let [logits, d_logits, interaction] = rest;
        let (logits, d_logits) = (&mut logits[..n], &mut d_logits[..n]);
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
            bottom_transposed,
            top_transposed,
            logits,
            d_logits,
            interaction,
            bottom_kept,
            top_kept,
            sums,
        }
    }
}

/// f32s of a cache line, on which every buffer starts.
const LINE: usize = 16;

/// In the order in which `carve` names them. The transposed matrices come first: they stay where they
/// are from tile to tile.
fn lengths(model: &Model, n: usize) -> [usize; 13] {
    let vectors = model.vectors_len(n);
    let joined = blocked_len(n, model.joined_width());
    let gradient = model.bottom.gradient_len(n).max(model.top.gradient_len(n));
    [
        model.bottom.transposed_len(),
        model.top.transposed_len(),
        vectors,
        vectors,
        model.bottom.stored_len(n),
        joined,
        joined,
        model.top.stored_len(n),
        gradient,
        gradient,
        n,
        n,
        model.interaction_scratch_len(),
    ]
    .map(|len| len.next_multiple_of(LINE))
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
