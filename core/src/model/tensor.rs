//! The tensors of a replica by name, for checkpoints, and their first values.
//!
//! Initial values of linear layers are those of the reference program of Naumov et al., arXiv
//! 1906.00091: W ~ N(0, √(2/(m+n))), b ~ N(0, √(1/m)) with m outputs and n inputs; a DLRM row of a
//! table of c rows ~ U(−√(1/c), √(1/c)). The rest is ours: factor vectors ~ N(0, 0.01), first-order
//! parameters and the output bias 0; batch norms start as the identity.

use core::fmt;

use super::{Model, ModelKind};
use crate::dense::mlp::{Layer, Mlp};
use crate::float;
use crate::kernel::panel_index;
use crate::rng::{Purpose, Stream};

/// Standard deviation of the first factor vectors.
const FACTOR_DEVIATION: f32 = 0.01;

/// Name of a tensor, the same in every run of a model: `top.0.weight`, `dense.vectors`, `bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorName {
    group: &'static str,
    layer: Option<usize>,
    item: &'static str,
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "{}.{layer}.{}", self.group, self.item),
            None if self.group.is_empty() => f.write_str(self.item),
            None => write!(f, "{}.{}", self.group, self.item),
        }
    }
}

/// First values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initial {
    /// The same everywhere.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
}

/// One matrix or vector of the replica. A vector has one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: TensorName,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Where its elements start in the replica.
    pub offset: usize,
    /// They stand in panels (`kernel/layout.rs`), else row-major.
    pub panels: bool,
    /// Changed by the optimizer; the others are running statistics.
    pub trainable: bool,
    /// Its first values.
    pub initial: Initial,
}

impl Tensor {
    /// Elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows * self.columns
    }

    /// Places in the replica of the elements in row-major order, the order of checkpoints.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { rows, columns, offset, panels, .. } = *self;
        (0..rows * columns).map(move |element| {
            let at = if panels {
                panel_index(rows, columns, element / columns, element % columns)
            } else {
                element
            };
            offset + at
        })
    }

    /// Without elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Model {
    /// Every tensor once, in the order of their offsets.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        let chains = [("bottom", &self.bottom), (self.top_name(), &self.top)];
        let trainable = chains.into_iter().flat_map(|(group, chain)| layers(group, chain));
        let statistics = chains.into_iter().flat_map(move |(group, chain)| {
            numbered(chain)
                .flat_map(move |(number, layer)| self.statistics_of(group, number, layer))
                .flatten()
        });
        trainable.chain(self.direct_tensors().into_iter().flatten()).chain(statistics)
    }

    /// The place in the replica of every element in the order of files: tensor by tensor, each row-major.
    /// The first `parameters_len` are the trainable ones, and the order of optimizer state. `[replica_len]`
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.tensors().flat_map(|tensor| tensor.places())
    }

    /// Fills `replica` `[replica_len]` with the first values: a function of `seed` and the model alone.
    ///
    /// # Panics
    /// When `replica` has another length.
    pub fn initialize(&self, seed: u64, replica: &mut [f32]) {
        assert_eq!(replica.len(), self.replica_len(), "length of the replica");
        for (number, tensor) in (0u32..).zip(self.tensors()) {
            let stream = Stream::new(seed, Purpose::DenseInit(number));
            for (index, place) in (0..).zip(tensor.places()) {
                replica[place] = match tensor.initial {
                    Initial::Constant(value) => value,
                    Initial::Normal(deviation) => deviation * stream.normal(index),
                };
            }
        }
    }

    /// Fills `out` `[row_width]` with the first values of a row of a table of `cardinality` rows: a
    /// function of the arguments alone.
    pub fn initialize_row(
        &self,
        seed: u64,
        table: u32,
        cardinality: u64,
        row: u64,
        out: &mut [f32],
    ) {
        let stream = Stream::new(seed, Purpose::RowInit(table));
        match self.kind {
            ModelKind::Dlrm => {
                let bound = 1.0 / float::sqrt(cardinality.max(1) as f32);
                let blocks = out.len().div_ceil(4) as u64;
                for (block, out) in (row.wrapping_mul(blocks)..).zip(out.chunks_mut(4)) {
                    for (value, word) in out.iter_mut().zip(stream.block(block)) {
                        // The upper 24 bits, exact in f32, as a number in [-1, 1).
                        *value = bound * ((word >> 8) as f32 / 8_388_608.0 - 1.0);
                    }
                }
            }
            ModelKind::DeepFm | ModelKind::Fm | ModelKind::Lr => {
                let first = row.wrapping_mul(out.len() as u64);
                for (index, value) in (first..).zip(&mut *out) {
                    *value = FACTOR_DEVIATION * stream.normal(index);
                }
                out[0] = 0.0;
            }
        }
    }

    const fn top_name(&self) -> &'static str {
        match self.kind {
            ModelKind::DeepFm => "deep",
            _ => "top",
        }
    }

    /// Tensors outside the MLPs: those of the factorization machine.
    fn direct_tensors(&self) -> [Option<Tensor>; 3] {
        let Some(direct) = self.direct else { return [None; 3] };
        let (features, zero) = (self.dense_features, Initial::Constant(0.0));
        let factors = Initial::Normal(FACTOR_DEVIATION);
        let tensor = |group, item, rows, columns, offset, initial| {
            let name = TensorName { group, layer: None, item };
            let (panels, trainable) = (false, true);
            let tensor = Tensor { name, rows, columns, offset, panels, trainable, initial };
            Some(tensor).filter(|tensor| !tensor.is_empty())
        };
        [
            tensor("", "bias", 1, 1, direct.bias, zero),
            tensor("dense", "weight", 1, features, direct.weight, zero),
            tensor("dense", "vectors", features, self.vectors.width, direct.vectors, factors),
        ]
    }

    fn statistics_of(
        &self,
        group: &'static str,
        number: usize,
        layer: &Layer,
    ) -> [Option<Tensor>; 2] {
        let part = |item, at: usize, value| {
            layer.norm.map(|norm| Tensor {
                name: TensorName { group, layer: Some(number), item },
                rows: 1,
                columns: norm.units,
                offset: self.parameters_len + at,
                panels: false,
                trainable: false,
                initial: Initial::Constant(value),
            })
        };
        let norm = layer.norm.unwrap_or_default();
        [part("norm.mean", norm.mean, 0.0), part("norm.variance", norm.variance, 1.0)]
    }
}

fn numbered(chain: &Mlp) -> impl Iterator<Item = (usize, &Layer)> {
    chain.layers().iter().enumerate()
}

/// Trainable tensors of a chain.
fn layers(group: &'static str, chain: &Mlp) -> impl Iterator<Item = Tensor> {
    numbered(chain).flat_map(move |(number, layer)| {
        let (m, n) = (layer.outputs, layer.inputs);
        let tensor = |item, rows, columns, offset, initial| Tensor {
            name: TensorName { group, layer: Some(number), item },
            rows,
            columns,
            offset,
            panels: item == "weight",
            trainable: true,
            initial,
        };
        let deviation = float::sqrt(2.0 / (m + n) as f32);
        let bias = Initial::Normal(float::sqrt(1.0 / m as f32));
        [
            Some(tensor("weight", m, n, layer.matrix, Initial::Normal(deviation))),
            layer.bias.map(|at| tensor("bias", 1, m, at, bias)),
            layer.norm.map(|x| tensor("norm.scale", 1, m, x.scale, Initial::Constant(1.0))),
            layer.norm.map(|x| tensor("norm.shift", 1, m, x.shift, Initial::Constant(0.0))),
        ]
        .into_iter()
        .flatten()
    })
}
