//! The tensors of a replica by name, for checkpoints, and their first values.
//!
//! Initial values of linear layers are those of the reference program of Naumov et al., arXiv
//! 1906.00091: W ~ N(0, √(2/(m+n))), b ~ N(0, √(1/m)) with m outputs and n inputs; a DLRM row of a
//! table of c rows ~ U(−√(1/c), √(1/c)). The rest is ours: factor vectors, and the vectors of DCN
//! v2 and of Wide & Deep, ~ N(0, 0.01); first-order parameters, the output bias and biases of cross
//! layers 0; batch norms start as the identity.

use core::fmt;

use super::Model;
use super::strips::Strips;
use crate::dense::cross::CrossNetwork;
use crate::dense::linear::Linear;
use crate::dense::mlp::Mlp;
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

    /// The matrix of a linear layer, with W ~ N(0, √(2/(m+n))).
    fn matrix(name: TensorName, linear: &Linear) -> Self {
        let Linear { inputs, outputs, matrix, .. } = *linear;
        let deviation = float::sqrt(2.0 / (outputs + inputs) as f32);
        let initial = Initial::Normal(deviation);
        Self {
            name,
            rows: outputs,
            columns: inputs,
            offset: matrix,
            panels: true,
            trainable: true,
            initial,
        }
    }

    /// Trainable parameters of `columns` units.
    const fn vector(name: TensorName, columns: usize, offset: usize, initial: Initial) -> Self {
        Self { name, rows: 1, columns, offset, panels: false, trainable: true, initial }
    }

    /// Parameters outside layers, row-major; `None` where there is no element.
    pub(super) fn plain(
        group: &'static str,
        item: &'static str,
        [rows, columns]: [usize; 2],
        offset: usize,
        initial: Initial,
    ) -> Option<Self> {
        let name = TensorName { group, layer: None, item };
        let tensor = Self { rows, ..Self::vector(name, columns, offset, initial) };
        Some(tensor).filter(|tensor| !tensor.is_empty())
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
        let parts = self.body.parts().into_iter().flatten();
        let layers = parts.flat_map(|part| (0..part.layers()).map(move |number| (part, number)));
        let trainable = layers.clone().flat_map(|(part, number)| part.trainable(number)).flatten();
        let statistics = layers.flat_map(|(part, number)| {
            part.statistics(number, self.parameters_len).into_iter().flatten()
        });
        let projection = self.strips.as_ref().and_then(Strips::tensor);
        trainable.chain(projection).chain(statistics)
    }

    /// The place in the replica of every element in the order of files: tensor by tensor, each
    /// row-major. The first `parameters_len` are the trainable ones, and the order of optimizer
    /// state. `[replica_len]`
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.tensors().flat_map(|tensor| tensor.places())
    }

    /// Fills `replica` `[replica_len]` with the first values: a function of `seed` and the model
    /// alone.
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
        let whole = out.len();
        self.initialize_columns(seed, table, cardinality, row, (whole, 0), out);
    }

    /// The same of a table that is cut into strips, whose rows have `whole` values together: those
    /// of its values from number `from` on that `out` has room for.
    pub fn initialize_columns(
        &self,
        seed: u64,
        table: u32,
        cardinality: u64,
        row: u64,
        (whole, from): (usize, usize),
        out: &mut [f32],
    ) {
        let stream = Stream::new(seed, Purpose::RowInit(table));
        self.body.initialize_row(&stream, cardinality, row, (whole, from), out);
    }
}

/// U(−√(1/c), √(1/c)): values from number `from` on of a row of `whole`.
pub(super) fn uniform_row(
    stream: &Stream,
    cardinality: u64,
    row: u64,
    (whole, from): (usize, usize),
    out: &mut [f32],
) {
    let bound = 1.0 / float::sqrt(cardinality.max(1) as f32);
    let first = row.wrapping_mul(whole.div_ceil(4) as u64).wrapping_add((from / 4) as u64);
    // The rest of the block that it begins in, then block by block.
    let (begun, blocks) = out.split_at_mut(out.len().min(from.wrapping_neg() % 4));
    let fill = |block: u64, skip: usize, out: &mut [f32]| {
        for (value, word) in out.iter_mut().zip(&stream.block(block)[skip..]) {
            // The upper 24 bits, exact in f32, as a number in [-1, 1).
            *value = bound * ((word >> 8) as f32 / 8_388_608.0 - 1.0);
        }
    };
    if !begun.is_empty() {
        fill(first, from % 4, begun);
    }
    let next = first.wrapping_add(u64::from(!from.is_multiple_of(4)));
    for (block, out) in (next..).zip(blocks.chunks_mut(4)) {
        fill(block, 0, out);
    }
}

/// N(0, 0.01), as [`uniform_row`].
pub(super) fn factor_row(
    stream: &Stream,
    row: u64,
    (whole, from): (usize, usize),
    out: &mut [f32],
) {
    let first = row.wrapping_mul(whole as u64).wrapping_add(from as u64);
    for (index, value) in (first..).zip(out) {
        *value = FACTOR_DEVIATION * stream.normal(index);
    }
}

/// A first-order parameter of 0, then N(0, 0.01), as [`uniform_row`].
pub(super) fn first_order_row(
    stream: &Stream,
    row: u64,
    (whole, from): (usize, usize),
    out: &mut [f32],
) {
    factor_row(stream, row, (whole, from), out);
    if from == 0 {
        out[0] = 0.0;
    }
}

/// First values of factor vectors.
pub(super) const FACTORS: Initial = Initial::Normal(FACTOR_DEVIATION);

/// What a replica is made of, in the order of offsets.
pub(super) type Parts<'a> = [Option<Part<'a>>; 4];

/// Tensors that belong together.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    /// Layers of an MLP, with their norms: `top.0.weight`.
    Chain(&'static str, &'a Mlp),
    /// Layers of a cross network: `cross.0.weight`, or `cross.0.v.weight` and `cross.0.u.weight`.
    Cross(&'static str, &'a CrossNetwork),
    /// One tensor by itself.
    Plain(Tensor),
}

impl Part<'_> {
    fn layers(&self) -> usize {
        match self {
            Self::Chain(_, chain) => chain.layers().len(),
            Self::Cross(_, network) => network.layers().len(),
            Self::Plain(_) => 1,
        }
    }

    fn trainable(&self, number: usize) -> [Option<Tensor>; 4] {
        match *self {
            Self::Chain(group, chain) => {
                let layer = &chain.layers()[number];
                let name = |item| TensorName { group, layer: Some(number), item };
                let units = layer.linear.outputs;
                let bias = Initial::Normal(float::sqrt(1.0 / units as f32));
                let vector = |item, at, initial| Tensor::vector(name(item), units, at, initial);
                [
                    Some(Tensor::matrix(name("weight"), &layer.linear)),
                    layer.linear.bias.map(|at| vector("bias", at, bias)),
                    layer.norm.map(|x| vector("norm.scale", x.scale, Initial::Constant(1.0))),
                    layer.norm.map(|x| vector("norm.shift", x.shift, Initial::Constant(0.0))),
                ]
            }
            Self::Cross(group, network) => {
                let layer = &network.layers()[number];
                let name = |item| TensorName { group, layer: Some(number), item };
                let up = if layer.down.is_some() { "u.weight" } else { "weight" };
                let bias = |at| {
                    let zero = Initial::Constant(0.0);
                    Tensor::vector(name("bias"), layer.up.outputs, at, zero)
                };
                [
                    layer.down.map(|down| Tensor::matrix(name("v.weight"), &down)),
                    Some(Tensor::matrix(name(up), &layer.up)),
                    layer.up.bias.map(bias),
                    None,
                ]
            }
            Self::Plain(tensor) => [Some(tensor), None, None, None],
        }
    }

    fn statistics(&self, number: usize, parameters_len: usize) -> [Option<Tensor>; 2] {
        match *self {
            Self::Chain(group, chain) => {
                let norm = chain.layers()[number].norm;
                let part = |item, at: usize, units, value| Tensor {
                    trainable: false,
                    ..Tensor::vector(
                        TensorName { group, layer: Some(number), item },
                        units,
                        parameters_len + at,
                        Initial::Constant(value),
                    )
                };
                [
                    norm.map(|norm| part("norm.mean", norm.mean, norm.units, 0.0)),
                    norm.map(|norm| part("norm.variance", norm.variance, norm.units, 1.0)),
                ]
            }
            Self::Cross(..) | Self::Plain(_) => [None; 2],
        }
    }
}
