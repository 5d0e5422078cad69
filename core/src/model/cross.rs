//! DCN v2: Wang et al., arXiv 2008.13535, figure 1.
//!
//! x_0 = [embeddings, dense features]; x_L = cross(x_0) (`dense/cross.rs`). Section 3.4, where the
//! output layer's one vector w = [w_cross, w_deep] is here two layers, each the last of its part:
//!
//! - parallel: logit = head(x_L) + deep(x_0), head being w_cross and the bias;
//! - stacked: logit = deep(x_L).

use super::concatenation::Concatenation;
use super::plan::{Layout, ModelError};
use super::space::Space;
use super::step::{BackwardPass, ForwardPass, Tile};
use super::tensor::{Part, Parts};
use super::tower::Tower;
use super::{ModelConfig, Structure};
use crate::dense::cross::{CrossBackward, CrossNetwork, CrossStored};
use crate::dense::mlp::Mlp;

/// Shapes and offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DcnV2 {
    structure: Structure,
    input: Concatenation,
    cross: CrossNetwork,
    deep: Mlp,
    /// One layer; none in the stacked structure.
    head: Mlp,
}

/// Buffers of a tile of n examples. Matrices `[n, width]` as in `dense/cross.rs`.
pub(super) struct Buffers<'a> {
    /// Transposed matrices of the cross network, made once a step.
    transposed: &'a mut [f32],
    deep: Tower<'a>,
    head: Tower<'a>,
    /// `[n, width]`
    x0: &'a mut [f32],
    /// Its gradient. `[n, width]`
    d_x0: &'a mut [f32],
    /// What the cross network stores.
    cross: &'a mut [f32],
    /// Gradient of x_L. `[n, width]`
    d_cross: &'a mut [f32],
    /// Scratch of the cross network's backward pass.
    scratch: &'a mut [f32],
}

impl DcnV2 {
    pub(super) fn plan(
        config: &ModelConfig<'_>,
        layout: &mut Layout<'_>,
    ) -> Result<Self, ModelError> {
        layout.check_features(1)?;
        layout.check_embedding()?;
        let input = Concatenation {
            fields: config.fields,
            dense_features: config.dense_features,
            embedding_dim: config.embedding_dim,
            first_column: 0,
        };
        let (structure, width) = (config.cross.structure, input.width());
        let cross = layout.cross(width)?;
        let (deep, head) = match structure {
            Structure::Parallel => (layout.top(width, false)?, layout.head(width)),
            Structure::Stacked => (layout.top(width, true)?, Mlp::default()),
        };
        Ok(Self { structure, input, cross, deep, head })
    }

    pub(super) const fn row_width(&self) -> usize {
        self.input.row_width()
    }

    pub(super) const fn parts(&self) -> Parts<'_> {
        let (deep, head) = (Part::Chain("deep", &self.deep), Part::Chain("head", &self.head));
        [Some(Part::Cross("cross", &self.cross)), Some(deep), Some(head), None]
    }

    pub(super) const fn chains_mut(&mut self) -> [Option<&mut Mlp>; 2] {
        [Some(&mut self.deep), Some(&mut self.head)]
    }

    pub(super) fn buffers<'a>(&self, n: usize, space: &mut Space<'a>) -> Buffers<'a> {
        let transposed = space.single(self.cross.transposed_len());
        let deep = space.single(self.deep.prepared_len());
        let head = space.single(self.head.prepared_len());
        Buffers {
            transposed,
            deep: Tower::new(&self.deep, n, deep, space),
            head: Tower::new(&self.head, n, head, space),
            x0: space.single(self.input.len(n)),
            d_x0: space.single(self.input.len(n)),
            cross: space.single(self.cross.stored_len(n)),
            d_cross: space.single(self.input.len(n)),
            scratch: space.single(self.cross.scratch_len(n)),
        }
    }

    pub(super) fn forward(
        &self,
        tile: &Tile<'_>,
        mut pass: ForwardPass<'_, '_>,
        buffers: Buffers<'_>,
    ) {
        let Buffers { deep, head, x0, cross, .. } = buffers;
        self.input.fill(tile, &mut pass, x0);
        self.cross.forward(pass.replica.parameters, tile.n, x0, cross);
        let crossed = self.cross.output(tile.n, cross);
        pass.logits.fill(0.0);
        match self.structure {
            Structure::Parallel => {
                head.forward(&self.head, crossed, &mut pass);
                deep.forward(&self.deep, self.input.view(tile.n, x0), &mut pass);
            }
            Structure::Stacked => deep.forward(&self.deep, crossed, &mut pass),
        }
    }

    pub(super) fn backward(
        &self,
        tile: &Tile<'_>,
        mut pass: BackwardPass<'_>,
        buffers: Buffers<'_>,
    ) {
        let Buffers { deep, head, x0, d_x0, cross, d_cross, .. } = buffers;
        let n = tile.n;
        let crossed = self.cross.output(n, cross);
        let d_crossed = self.input.view_mut(n, d_cross);
        match self.structure {
            Structure::Parallel => {
                head.backward(&self.head, crossed, d_crossed, &mut pass);
                let d_x = self.input.view_mut(n, d_x0);
                deep.backward(&self.deep, self.input.view(n, x0), d_x, &mut pass);
            }
            Structure::Stacked => {
                d_x0.fill(0.0);
                deep.backward(&self.deep, crossed, d_crossed, &mut pass);
            }
        }
        if pass.fresh {
            self.cross.transpose(pass.parameters, buffers.transposed);
        }
        let stored = CrossStored { transposed: buffers.transposed, x0, stored: cross };
        let out = CrossBackward {
            parameters: &mut *pass.d_parameters,
            fresh: pass.fresh,
            update: pass.update,
            d: d_cross,
            d_x0: &mut *d_x0,
            scratch: buffers.scratch,
        };
        self.cross.backward(n, stored, out);
        self.input.backward(tile, d_x0, pass);
    }
}
