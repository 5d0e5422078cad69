//! Wide & Deep: Cheng et al., arXiv 1606.07792, equation 3.
//!
//! logit = wide + deep([embeddings, dense features]). The wide part is a linear model of the
//! features themselves (`first_order.rs`); the paper's crossed features are columns like any other,
//! made when data are prepared.

use super::ModelConfig;
use super::concatenation::Concatenation;
use super::first_order::FirstOrder;
use super::plan::{Layout, ModelError};
use super::space::Space;
use super::step::{BackwardPass, ForwardPass, Tile};
use super::tensor::{Part, Parts};
use super::tower::Tower;
use crate::dense::mlp::Mlp;

/// Shapes and offsets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WideDeep {
    wide: FirstOrder,
    input: Concatenation,
    deep: Mlp,
}

/// Buffers of a tile of n examples.
pub(super) struct Buffers<'a> {
    deep: Tower<'a>,
    /// Input of the deep part. `[n, width]`
    x: &'a mut [f32],
    /// Its gradient. `[n, width]`
    d_x: &'a mut [f32],
}

impl WideDeep {
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
            // The wide part's parameter of an id.
            first_column: 1,
        };
        // No bias on the last layer: the wide part has one for the whole sum.
        let deep = layout.top(input.width(), false)?;
        Ok(Self { wide: FirstOrder::plan(config.dense_features, layout), input, deep })
    }

    pub(super) const fn row_width(&self) -> usize {
        self.input.row_width()
    }

    pub(super) fn parts(&self) -> Parts<'_> {
        let [bias, weight] = self.wide.parts();
        [Some(Part::Chain("deep", &self.deep)), bias, weight, None]
    }

    pub(super) const fn chains_mut(&mut self) -> [Option<&mut Mlp>; 2] {
        [Some(&mut self.deep), None]
    }

    pub(super) fn buffers<'a>(&self, n: usize, space: &mut Space<'a>) -> Buffers<'a> {
        let prepared = space.single(self.deep.prepared_len());
        Buffers {
            deep: Tower::new(&self.deep, n, prepared, space),
            x: space.single(self.input.len(n)),
            d_x: space.single(self.input.len(n)),
        }
    }

    pub(super) fn forward(
        &self,
        tile: &Tile<'_>,
        mut pass: ForwardPass<'_, '_>,
        buffers: Buffers<'_>,
    ) {
        let Buffers { deep, x, .. } = buffers;
        self.wide.forward(pass.replica.parameters, tile, pass.logits);
        self.input.fill(tile, &mut pass, x);
        deep.forward(&self.deep, self.input.view(tile.n, x), &mut pass);
    }

    pub(super) fn backward(
        &self,
        tile: &Tile<'_>,
        mut pass: BackwardPass<'_>,
        buffers: Buffers<'_>,
    ) {
        let Buffers { deep, x, d_x } = buffers;
        self.wide.backward(tile, &mut pass);
        let of_x = self.input.view_mut(tile.n, d_x);
        deep.backward(&self.deep, self.input.view(tile.n, x), of_x, &mut pass);
        self.input.backward(tile, d_x, pass);
    }
}
