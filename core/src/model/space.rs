//! The lent workspace, handed out in pieces.
//!
//! A model takes its buffers from a [`Space`] in one function, which serves twice: on lent memory
//! it cuts that up, on none it counts what is needed. Backward takes the same pieces as forward
//! did, and finds in them what forward left.
//!
//! Invariant: pieces whose length does not depend on the number of examples are taken first. They
//! stay where they are from tile to tile.

use core::mem;

use super::Model;
use super::strips::{self, Gather};

/// Scratch lent for a step: nothing in it outlives the call, and its contents do not matter.
#[derive(Debug)]
pub struct Workspace<'a> {
    /// `[Model::workspace_len]` or more.
    pub single: &'a mut [f32],
    /// `[Model::workspace_f64_len]` or more.
    pub double: &'a mut [f64],
}

/// f32s of a cache line, on which every piece starts.
const LINE: usize = 16;

/// f32s for a tile of `n` examples.
pub(super) fn single_len(model: &Model, n: usize) -> usize {
    let gather = counted(|space| _ = gather_buffers(model, n, space)).0;
    LINE + body_len(model, n).0 + 2 * n.next_multiple_of(LINE) + gather
}

/// f64s for a tile of any size.
pub(super) fn double_len(model: &Model) -> usize {
    body_len(model, 0).1
}

/// f32s and f64s of a body's own buffers.
fn body_len(model: &Model, n: usize) -> (usize, usize) {
    counted(|space| model.body.take(n, space))
}

/// What gathering vectors needs of `space`.
fn gather_buffers<'a>(model: &Model, n: usize, space: &mut Space<'a>) -> strips::Buffers<'a> {
    model.strips.map_or_else(strips::Buffers::default, |strips| strips.take(n, space))
}

/// f32s and f64s that are taken.
fn counted(take: impl FnOnce(&mut Space<'_>)) -> (usize, usize) {
    let mut space = Space::Counted { single: 0, double: 0 };
    take(&mut space);
    match space {
        Space::Counted { single, double } => (single, double),
        Space::Lent { .. } => (0, 0),
    }
}

/// The workspace of one tile.
pub(super) struct Lent<'a> {
    /// `[n]`
    pub(super) logits: &'a mut [f32],
    /// `[n]`
    pub(super) d_logits: &'a mut [f32],
    pub(super) gather: Gather<'a>,
    pub(super) memory: Memory<'a>,
}

/// Memory of a body's buffers.
pub(super) struct Memory<'a> {
    single: &'a mut [f32],
    double: &'a mut [f64],
}

impl<'a> Lent<'a> {
    /// Divides the workspace for a tile of `n` examples.
    ///
    /// # Panics
    /// When it is too short.
    pub(super) fn new(model: &Model, n: usize, workspace: &'a mut Workspace<'_>) -> Self {
        let (needed, got) = (single_len(model, n), workspace.single.len());
        assert!(got >= needed, "workspace needs {needed} f32 for {n} examples, got {got}");
        let (needed, got) = (double_len(model), workspace.double.len());
        assert!(got >= needed, "workspace needs {needed} f64, got {got}");
        let skip = workspace.single.as_ptr().align_offset(size_of::<f32>() * LINE).min(LINE);
        let (single, rest) = workspace.single[skip..].split_at_mut(body_len(model, n).0);
        let mut rest = Space::Lent { single: rest, double: &mut [] };
        let (logits, d_logits) = (rest.single(n), rest.single(n));
        let buffers = gather_buffers(model, n, &mut rest);
        let gather = Gather { strips: model.strips, buffers };
        let memory = Memory { single, double: workspace.double };
        Self { logits: &mut logits[..n], d_logits: &mut d_logits[..n], gather, memory }
    }
}

impl Memory<'_> {
    /// All of it, to be taken from.
    pub(super) const fn space(&mut self) -> Space<'_> {
        Space::Lent { single: self.single, double: self.double }
    }
}

/// Where a body takes its buffers from.
pub(super) enum Space<'a> {
    /// Nowhere: what is taken is empty, and its length is counted.
    Counted { single: usize, double: usize },
    /// What is left.
    Lent { single: &'a mut [f32], double: &'a mut [f64] },
}

impl<'a> Space<'a> {
    /// The next `len` f32s, up to the end of a cache line.
    pub(super) fn single(&mut self, len: usize) -> &'a mut [f32] {
        let len = len.next_multiple_of(LINE);
        match self {
            Self::Counted { single, .. } => {
                *single += len;
                &mut []
            }
            Self::Lent { single, .. } => cut(single, len),
        }
    }

    /// The next `len` f64s.
    pub(super) fn double(&mut self, len: usize) -> &'a mut [f64] {
        match self {
            Self::Counted { double, .. } => {
                *double += len;
                &mut []
            }
            Self::Lent { double, .. } => cut(double, len),
        }
    }
}

fn cut<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (piece, after) = mem::take(rest).split_at_mut(len);
    *rest = after;
    piece
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::model::{Cross, ModelConfig, ModelKind, Pooling};

    /// Wherever the memory that is lent begins.
    #[test]
    fn buffers_start_with_cache_lines() {
        let config = ModelConfig {
            kind: ModelKind::Dlrm,
            dense_features: 3,
            fields: 4,
            embedding_dim: 5,
            pooling: Pooling::Sum,
            bottom: &[7, 5],
            top: &[6],
            cross: Cross::NONE,
            batch_norm: false,
            batch_norm_momentum: 0.1,
            dropout: 0.0,
        };
        let model = Model::new(&config).unwrap();
        let len = single_len(&model, 9);
        let (mut single, mut double) = (vec![0.0; len + LINE], vec![0.0; double_len(&model)]);
        for start in 0..LINE {
            let single = &mut single[start..][..len];
            let mut workspace = Workspace { single, double: &mut double };
            let mut lent = Lent::new(&model, 9, &mut workspace);
            let mut space = lent.memory.space();
            for piece in [space.single(1).as_ptr(), space.single(20).as_ptr()] {
                assert_eq!(piece.addr() % 64, 0, "memory from {start} on");
            }
            assert_eq!(lent.logits.as_ptr().addr() % 64, 0, "memory from {start} on");
        }
    }
}
