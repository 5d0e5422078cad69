//! From a configuration to shapes and offsets.

use core::fmt;

use super::{Direct, Model, ModelConfig, ModelKind};
use crate::dense::interaction::Vectors;
use crate::dense::mlp::{Layer, MAX_LAYERS, Mlp};
use crate::dense::norm::Norm;

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
        /// `bottom` or `top`.
        chain: &'static str,
        /// Layers given, with the last one of width 1.
        got: usize,
    },
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
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooFewFeatures { expected, dense, fields } => write!(
                f,
                "the model needs at least {expected} features, got {dense} dense and {fields} sparse"
            ),
            Self::NoEmbeddingDim => write!(f, "the embedding dimension must be 1 or more, got 0"),
            Self::BottomOutput { expected, got: Some(got) } => write!(
                f,
                "the last bottom layer must be as wide as the embedding dimension, {expected}, got {got}"
            ),
            Self::BottomOutput { expected, got: None } => write!(
                f,
                "with dense features a bottom layer as wide as the embedding dimension, {expected}, \
                 is needed, got none"
            ),
            Self::EmptyLayer { chain, layer } => {
                write!(f, "layer {layer} of {chain} must have 1 unit or more, got 0")
            }
            Self::TooManyLayers { chain, got } => {
                write!(f, "{chain} may have at most {MAX_LAYERS} layers, got {got}")
            }
            Self::Dropout { got } => write!(f, "dropout must be in 0 <= p < 1, got {got}"),
            Self::BatchNormMomentum { got } => {
                write!(f, "batch norm momentum must be in 0 < m <= 1, got {got}")
            }
        }
    }
}

impl core::error::Error for ModelError {}

impl Model {
    /// Lays out the model that `config` describes.
    ///
    /// A DLRM without dense features has no bottom MLP, and `bottom` is not looked at; neither is
    /// `top` for FM and LR, nor `embedding_dim` for LR.
    ///
    /// # Errors
    /// [`ModelError`], the first that is found.
    pub fn new(config: &ModelConfig<'_>) -> Result<Self, ModelError> {
        let ModelConfig { kind, dense_features, fields, embedding_dim, .. } = *config;
        if !(0.0..1.0).contains(&config.dropout) {
            return Err(ModelError::Dropout { got: config.dropout });
        }
        let momentum = config.batch_norm_momentum;
        if !(momentum > 0.0 && momentum <= 1.0) {
            return Err(ModelError::BatchNormMomentum { got: momentum });
        }
        // A DLRM without dense features must at least have one pair of embeddings.
        let expected = if kind == ModelKind::Dlrm && dense_features == 0 { 2 } else { 1 };
        if dense_features + fields < expected {
            return Err(ModelError::TooFewFeatures { expected, dense: dense_features, fields });
        }
        if kind != ModelKind::Lr && embedding_dim == 0 {
            return Err(ModelError::NoEmbeddingDim);
        }
        let mut layout = Layout { config, parameters: 0, statistics: 0, layers: 0 };
        let (mut bottom, mut top, mut direct) = (Mlp::default(), Mlp::default(), None);
        let vectors;
        match kind {
            ModelKind::Dlrm => {
                let has_bottom = dense_features > 0;
                if has_bottom {
                    let got = config.bottom.last().copied();
                    if got != Some(embedding_dim) {
                        return Err(ModelError::BottomOutput { expected: embedding_dim, got });
                    }
                    bottom = layout.bottom()?;
                }
                let count = fields + usize::from(has_bottom);
                vectors = Vectors { vectors: count, width: embedding_dim };
                let kept = if has_bottom { embedding_dim } else { 0 };
                top = layout.top(kept + vectors.pairs(), true)?;
            }
            ModelKind::DeepFm | ModelKind::Fm | ModelKind::Lr => {
                let width = if kind == ModelKind::Lr { 0 } else { embedding_dim };
                vectors = Vectors { vectors: fields + dense_features, width };
                if kind == ModelKind::DeepFm {
                    // No bias on the last layer: the model has one for the whole sum.
                    top = layout.top(vectors.len(), false)?;
                }
                // Behind the matrices, so that those start on cache lines.
                direct = Some(Direct {
                    bias: layout.parameter(1),
                    weight: layout.parameter(dense_features),
                    vectors: layout.parameter(dense_features * width),
                });
            }
        }
        Ok(Self {
            kind,
            dense_features,
            fields,
            pooling: config.pooling,
            batch_norm_momentum: momentum,
            vectors,
            bottom,
            top,
            direct,
            parameters_len: layout.parameters,
            statistics_len: layout.statistics,
        })
    }
}

/// Hands out offsets in the order in which it is asked.
struct Layout<'a> {
    config: &'a ModelConfig<'a>,
    parameters: usize,
    statistics: usize,
    /// Layers laid out so far: numbers of the dropout streams.
    layers: u32,
}

impl Layout<'_> {
    fn parameter(&mut self, len: usize) -> usize {
        self.parameters += len;
        self.parameters - len
    }

    fn statistic(&mut self, len: usize) -> usize {
        self.statistics += len;
        self.statistics - len
    }

    /// ReLU on every layer; norm and dropout on all but the last, which is the chain's output.
    fn bottom(&mut self) -> Result<Mlp, ModelError> {
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
    fn top(&mut self, mut inputs: usize, biased: bool) -> Result<Mlp, ModelError> {
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

    fn layer(&mut self, inputs: usize, outputs: usize, hidden: bool, biased: bool) -> Layer {
        let norm = hidden && self.config.batch_norm;
        self.layers += 1;
        Layer {
            inputs,
            outputs,
            matrix: self.parameter(outputs * inputs),
            bias: (biased && !norm).then(|| self.parameter(outputs)),
            norm: norm.then(|| Norm {
                units: outputs,
                scale: self.parameter(outputs),
                shift: self.parameter(outputs),
                mean: self.statistic(outputs),
                variance: self.statistic(outputs),
            }),
            relu: hidden,
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
        if layer.outputs == 0 {
            return Err(ModelError::EmptyLayer { chain: name, layer: number });
        }
        chain.push(layer).ok_or(ModelError::TooManyLayers { chain: name, got: count })
    }
}
