//! What every architecture must say of itself.
//!
//! A body is the part of a model that differs between architectures: its plan, its pieces of the
//! workspace, its tensors, its passes. One file each. No match on the kind of a model or of a body,
//! here or elsewhere, has an arm for the rest: a new architecture does not compile before it has
//! everything.

use super::cross::DcnV2;
use super::dlrm::Dlrm;
use super::factorization::Factorization;
use super::plan::{Layout, ModelError};
use super::space::Space;
use super::step::{BackwardPass, ForwardPass, Tile};
use super::tensor::{Parts, factor_row, first_order_row, uniform_row};
use super::wide_deep::WideDeep;
use super::{ModelConfig, ModelKind};
use crate::dense::mlp::Mlp;
use crate::kernel::Precision;
use crate::rng::Stream;

/// The architectures: shapes and offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is no allocator, and a program has one model")]
pub(super) enum Body {
    Dlrm(Dlrm),
    Factorization(Factorization),
    DcnV2(DcnV2),
    WideDeep(WideDeep),
}

impl Body {
    pub(super) fn plan(
        config: &ModelConfig<'_>,
        layout: &mut Layout<'_>,
    ) -> Result<Self, ModelError> {
        Ok(match config.kind {
            ModelKind::Dlrm => Self::Dlrm(Dlrm::plan(config, layout)?),
            ModelKind::DeepFm => Self::Factorization(Factorization::deep_fm(config, layout)?),
            ModelKind::Fm => Self::Factorization(Factorization::fm(config, layout)?),
            ModelKind::Lr => Self::Factorization(Factorization::lr(config, layout)?),
            ModelKind::DcnV2 => Self::DcnV2(DcnV2::plan(config, layout)?),
            ModelKind::WideDeep => Self::WideDeep(WideDeep::plan(config, layout)?),
        })
    }

    /// f32s of an embedding row.
    pub(super) const fn row_width(&self) -> usize {
        match self {
            Self::Dlrm(body) => body.row_width(),
            Self::Factorization(body) => body.row_width(),
            Self::DcnV2(body) => body.row_width(),
            Self::WideDeep(body) => body.row_width(),
        }
    }

    /// What the replica is made of.
    pub(super) fn parts(&self) -> Parts<'_> {
        match self {
            Self::Dlrm(body) => body.parts(),
            Self::Factorization(body) => body.parts(),
            Self::DcnV2(body) => body.parts(),
            Self::WideDeep(body) => body.parts(),
        }
    }

    /// Its MLPs.
    pub(super) const fn chains_mut(&mut self) -> [Option<&mut Mlp>; 2] {
        match self {
            Self::Dlrm(body) => body.chains_mut(),
            Self::Factorization(body) => body.chains_mut(),
            Self::DcnV2(body) => body.chains_mut(),
            Self::WideDeep(body) => body.chains_mut(),
        }
    }

    /// Makes the products of training steps `precision`.
    pub(super) fn set_precision(&mut self, precision: Precision) {
        match self {
            Self::Dlrm(body) => body.set_precision(precision),
            Self::Factorization(_) | Self::DcnV2(_) | Self::WideDeep(_) => {
                self.chains_mut().into_iter().flatten().for_each(|it| it.set_precision(precision));
            }
        }
    }

    /// Writes first values of row `row`, of a table of `cardinality` rows, that `stream` gives: of
    /// the `whole` ones those from number `from` on.
    pub(super) fn initialize_row(
        &self,
        stream: &Stream,
        cardinality: u64,
        row: u64,
        (whole, from): (usize, usize),
        out: &mut [f32],
    ) {
        let of = (whole, from);
        match self {
            Self::Dlrm(_) => uniform_row(stream, cardinality, row, of, out),
            Self::Factorization(_) | Self::WideDeep(_) => first_order_row(stream, row, of, out),
            Self::DcnV2(_) => factor_row(stream, row, of, out),
        }
    }

    /// Takes from `space` what a tile of `n` examples needs.
    pub(super) fn take(&self, n: usize, space: &mut Space<'_>) {
        match self {
            Self::Dlrm(body) => {
                body.buffers(n, space);
            }
            Self::Factorization(body) => {
                body.buffers(n, space);
            }
            Self::DcnV2(body) => {
                body.buffers(n, space);
            }
            Self::WideDeep(body) => {
                body.buffers(n, space);
            }
        }
    }

    /// Writes the logits of a tile, and to `space` what backward needs.
    pub(super) fn forward(&self, tile: &Tile<'_>, pass: ForwardPass<'_, '_>, mut space: Space<'_>) {
        match self {
            Self::Dlrm(body) => body.forward(tile, pass, body.buffers(tile.n, &mut space)),
            Self::Factorization(body) => body.forward(tile, pass, body.buffers(tile.n, &mut space)),
            Self::DcnV2(body) => body.forward(tile, pass, body.buffers(tile.n, &mut space)),
            Self::WideDeep(body) => body.forward(tile, pass, body.buffers(tile.n, &mut space)),
        }
    }

    /// Gradients of parameters and rows, from those of the logits; `space` as forward left it.
    pub(super) fn backward(&self, tile: &Tile<'_>, pass: BackwardPass<'_>, mut space: Space<'_>) {
        match self {
            Self::Dlrm(body) => body.backward(tile, pass, body.buffers(tile.n, &mut space)),
            Self::Factorization(body) => {
                body.backward(tile, pass, body.buffers(tile.n, &mut space))
            }
            Self::DcnV2(body) => body.backward(tile, pass, body.buffers(tile.n, &mut space)),
            Self::WideDeep(body) => body.backward(tile, pass, body.buffers(tile.n, &mut space)),
        }
    }
}
