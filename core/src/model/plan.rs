//! From a configuration to shapes and offsets.

use core::fmt;

use super::body::Body;
use super::{Model, ModelConfig};
use crate::dense::cross::{CrossLayer, CrossNetwork};
use crate::dense::linear::Linear;
use crate::dense::mlp::{Layer, MAX_LAYERS, Mlp};
use crate::dense::norm::Norm;
use crate::kernel::Precision;

/// Why a configuration does not describe a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModelError {
    /// No features at all, or too few to interact.
    TooFewFeatures {
        /// Dense features and sparse fields needed together.
        expected: usize,
        /// Dense features given.
        dense: usize,
        /// Sparse fields given.
        fields: usize,
    },
    /// The model has embedding vectors, of no elements.
    NoEmbeddingDim,
    /// The last layer of the bottom MLP does not fit the embedding vectors.
    BottomOutput {
        /// The embedding dimension.
        expected: usize,
        /// Width of the last bottom layer; `None` when there is none.
        got: Option<usize>,
    },
    /// A layer of no units.
    EmptyLayer {
        /// `bottom` or `top`.
        chain: &'static str,
        /// Number of the layer, from 0.
        layer: usize,
    },
    /// More layers than [`MAX_LAYERS`].
    TooManyLayers {
        /// `bottom`, `top` or `cross`.
        chain: &'static str,
        /// Layers given, in `top` with the last one of width 1.
        got: usize,
    },
    /// DCN v2 without cross layers.
    NoCrossLayers,
    /// Dropout is not in 0 ≤ p < 1.
    Dropout {
        /// What was given.
        got: f32,
    },
    /// Batch norm momentum is not in 0 < m ≤ 1.
    BatchNormMomentum {
        /// What was given.
        got: f32,
    },
    /// More parameters, or longer buffers, than can be counted.
    TooLarge,
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooFewFeatures { expected, dense, fields } => write!(
                f,
                "the model needs at least {expected} features, got {dense} dense and {fields} \
                 sparse"
            ),
            Self::NoEmbeddingDim => write!(f, "the embedding dimension must be 1 or more, got 0"),
            Self::BottomOutput { expected, got: Some(got) } => write!(
                f,
                "the last bottom layer must be as wide as the embedding dimension, {expected}, \
                 got {got}"
            ),
            Self::BottomOutput { expected, got: None } => write!(
                f,
                "with dense features a bottom layer as wide as the embedding dimension, \
                 {expected}, \
                 is needed, got none"
            ),
            Self::EmptyLayer { chain, layer } => {
                write!(f, "layer {layer} of {chain} must have 1 unit or more, got 0")
            }
            Self::TooManyLayers { chain, got } => {
                write!(f, "{chain} may have at most {MAX_LAYERS} layers, got {got}")
            }
            Self::NoCrossLayers => write!(f, "dcn_v2 needs 1 cross layer or more, got 0"),
            Self::Dropout { got } => write!(f, "dropout must be in 0 <= p < 1, got {got}"),
            Self::BatchNormMomentum { got } => {
                write!(f, "batch norm momentum must be in 0 < m <= 1, got {got}")
            }
            Self::TooLarge => write!(f, "the model is larger than any memory"),
        }
    }
}

impl core::error::Error for ModelError {}

impl Model {
    /// Lays out the model that `config` describes.
    ///
    /// A DLRM without dense features has no bottom MLP, and `bottom` is not looked at; neither is
    /// `top` for FM and LR, nor `embedding_dim` for LR; only DCN v2 looks at `cross`.
    ///
    /// # Errors
    /// [`ModelError`], the first that is found.
    pub fn new(config: &ModelConfig<'_>) -> Result<Self, ModelError> {
        if !(0.0..1.0).contains(&config.dropout) {
            return Err(ModelError::Dropout { got: config.dropout });
        }
        let momentum = config.batch_norm_momentum;
        if !(momentum > 0.0 && momentum <= 1.0) {
            return Err(ModelError::BatchNormMomentum { got: momentum });
        }
        if !is_countable(config) {
            return Err(ModelError::TooLarge);
        }
        let mut layout = Layout { config, parameters: 0, statistics: 0, layers: 0 };
        let body = Body::plan(config, &mut layout)?;
        let model = Self {
            kind: config.kind,
            dense_features: config.dense_features,
            fields: config.fields,
            pooling: config.pooling,
            batch_norm_momentum: momentum,
            body,
            precision: Precision::F32,
            part: None,
            strips: None,
            parameters_len: layout.parameters,
            statistics_len: layout.statistics,
        };
        Ok(model.with_precision(Precision::F32))
    }
}

/// Whether all lengths of the model can be counted: not of more layers, wider ones or more features
/// than such that a bound on them, in f64s that do not overflow, is below a share of all memory.
fn is_countable(config: &ModelConfig<'_>) -> bool {
    let ModelConfig { dense_features, fields, embedding_dim, bottom, top, cross, .. } = *config;
    let number = |x: usize| x as f64;
    let hidden = bottom.iter().chain(top).chain([&cross.rank]).copied().max().unwrap_or(0);
    // Vectors of all features in a row, or products of all their pairs.
    let features = number(dense_features) + number(fields) + 1.0;
    let inputs = features * (features + number(embedding_dim));
    let widest = inputs.max(number(hidden));
    let outputs = if cross.layers > 0 { widest } else { number(hidden) };
    let layers = number(bottom.len() + top.len() + cross.layers.min(MAX_LAYERS)) + 2.0;
    // Beside a matrix a layer has vectors, and activations of a tile.
    layers * widest * (outputs + 1024.0) < number(isize::MAX as usize / 8)
}

/// Hands out offsets in the order in which it is asked.
pub(super) struct Layout<'a> {
    config: &'a ModelConfig<'a>,
    parameters: usize,
    statistics: usize,
    /// Layers laid out so far: numbers of the dropout streams.
    layers: u32,
}

impl Layout<'_> {
    /// # Errors
    /// When there are fewer features than `expected`, dense and sparse together.
    pub(super) const fn check_features(&self, expected: usize) -> Result<(), ModelError> {
        let (dense, fields) = (self.config.dense_features, self.config.fields);
        if dense + fields < expected {
            return Err(ModelError::TooFewFeatures { expected, dense, fields });
        }
        Ok(())
    }

    /// # Errors
    /// When embedding vectors have no elements.
    pub(super) const fn check_embedding(&self) -> Result<(), ModelError> {
        if self.config.embedding_dim == 0 { Err(ModelError::NoEmbeddingDim) } else { Ok(()) }
    }

    /// Offset of `len` parameters.
    pub(super) fn parameter(&mut self, len: usize) -> usize {
        self.parameters += len;
        self.parameters - len
    }

    fn statistic(&mut self, len: usize) -> usize {
        self.statistics += len;
        self.statistics - len
    }

    /// ReLU on every layer; norm and dropout on all but the last, which is the chain's output.
    pub(super) fn bottom(&mut self) -> Result<Mlp, ModelError> {
        let widths = self.config.bottom;
        let mut chain = Mlp::default();
        let mut inputs = self.config.dense_features;
        for (layer, &outputs) in widths.iter().enumerate() {
            let hidden = layer + 1 < widths.len();
            let planned = self.layer(inputs, outputs, hidden, true);
            Self::push(&mut chain, "bottom", layer, widths.len(), Layer { relu: true, ..planned })?;
            inputs = outputs;
        }
        Ok(chain)
    }

    /// Hidden layers and a last one of width 1 without ReLU, and without bias unless `biased`.
    pub(super) fn top(&mut self, mut inputs: usize, biased: bool) -> Result<Mlp, ModelError> {
        let widths = self.config.top;
        let mut chain = Mlp::default();
        for (layer, &outputs) in widths.iter().chain(&[1]).enumerate() {
            let hidden = layer < widths.len();
            let planned = self.layer(inputs, outputs, hidden, hidden || biased);
            Self::push(&mut chain, "top", layer, widths.len() + 1, planned)?;
            inputs = outputs;
        }
        Ok(chain)
    }

    /// One layer of width 1, with bias.
    pub(super) fn head(&mut self, inputs: usize) -> Mlp {
        let mut chain = Mlp::default();
        let layer = self.layer(inputs, 1, false, true);
        // An empty chain has room for one.
        let _ = chain.push(layer);
        chain
    }

    /// The cross network on `width` columns.
    pub(super) fn cross(&mut self, width: usize) -> Result<CrossNetwork, ModelError> {
        let super::Cross { layers, rank, .. } = self.config.cross;
        if layers == 0 {
            return Err(ModelError::NoCrossLayers);
        }
        let mut network = CrossNetwork::default();
        for _ in 0..layers {
            let down = (rank > 0).then(|| self.linear(width, rank, false));
            let up = self.linear(if rank > 0 { rank } else { width }, width, true);
            let full = ModelError::TooManyLayers { chain: "cross", got: layers };
            network.push(CrossLayer { down, up }).ok_or(full)?;
        }
        Ok(network)
    }

    fn linear(&mut self, inputs: usize, outputs: usize, biased: bool) -> Linear {
        let matrix = self.parameter(outputs * inputs);
        Linear::new((outputs, inputs), matrix, biased.then(|| self.parameter(outputs)))
    }

    fn layer(&mut self, inputs: usize, outputs: usize, hidden: bool, biased: bool) -> Layer {
        let norm = hidden && self.config.batch_norm;
        self.layers += 1;
        Layer {
            linear: self.linear(inputs, outputs, biased && !norm),
            norm: norm.then(|| Norm {
                units: outputs,
                scale: self.parameter(outputs),
                shift: self.parameter(outputs),
                mean: self.statistic(outputs),
                variance: self.statistic(outputs),
            }),
            relu: hidden,
            boundary: None,
            dropout: if hidden { self.config.dropout } else { 0.0 },
            stream: self.layers - 1,
        }
    }

    fn push(
        chain: &mut Mlp,
        name: &'static str,
        number: usize,
        count: usize,
        layer: Layer,
    ) -> Result<(), ModelError> {
        if layer.linear.outputs == 0 {
            return Err(ModelError::EmptyLayer { chain: name, layer: number });
        }
        chain.push(layer).ok_or(ModelError::TooManyLayers { chain: name, got: count })
    }
}
