//! A model whose layers are dealt to several ranks (`dense/split.rs`).
//!
//! Invariants: every part has the whole model's layout. The slices of the parts and what all of
//! them compute are together all parameters, each once.

use core::ops::Range;

use super::tensor::Part;
use super::{Boundary, Model, PartOf};
use crate::dense::mlp::Layer;

impl Model {
    /// The part of the model that one of several ranks trains. Nothing else is different: it is
    /// trained with [`train_part`](Self::train_part) and scores with
    /// [`forward_part`](Self::forward_part).
    ///
    /// # Errors
    /// [`NothingToSplit`]
    pub fn part(mut self, of: PartOf) -> Result<Self, NothingToSplit> {
        let mut boundaries = 0;
        self.body.chains_mut().into_iter().flatten().for_each(|it| it.split(of, &mut boundaries));
        self.part = Some(of);
        if boundaries == 0 { Err(NothingToSplit) } else { Ok(self) }
    }

    /// Parameters that this part alone computes, updates and keeps, ascending within a layer.
    pub fn own_slices(&self) -> impl Iterator<Item = Range<usize>> {
        self.layers().filter(|layer| layer.is_split()).flat_map(|layer| {
            let own = layer.own();
            let bias = own.bias.map(|bias| bias..bias + own.outputs);
            [Some(own.matrix..own.matrix + own.matrix_len()), bias].into_iter().flatten()
        })
    }

    /// Where activations cross, by number.
    pub fn boundaries(&self) -> impl Iterator<Item = Boundary> {
        self.layers().filter_map(|layer| layer.boundary)
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.body.parts().into_iter().flatten().flat_map(|part| match part {
            Part::Chain(_, chain) => chain.layers(),
            Part::Cross(..) | Part::Plain(_) => &[],
        })
    }
}

/// No layer of the model is wide enough to be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingToSplit;
