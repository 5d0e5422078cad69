//! From the words of a configuration to the types of the core.

use umbra_core::model::{
    Cross, Model, ModelConfig, ModelError, ModelKind, Pooling, Precision, Structure,
};
use umbra_core::optim::{Adam, Optimizer, OptimizerKind, Rate, Schedule, SparseOptimizer};

use crate::config::{self, Config, ModelSection, OptimKind, OptimSection};

/// The model of a `[model]` section on data with these features.
///
/// # Errors
/// When the section describes no model.
pub fn model(
    section: &ModelSection,
    dense_features: usize,
    fields: usize,
) -> Result<Model, ModelError> {
    Model::new(&model_config(section, dense_features, fields))
}

/// The model that a job trains on data with these features: that of its `[model]` section, with
/// the precision of its `[train]` section.
///
/// # Errors
/// As [`model`].
pub fn trained_model(
    config: &Config,
    dense_features: usize,
    fields: usize,
) -> Result<Model, ModelError> {
    let precision = precision(config.train.precision);
    Ok(model(&config.model, dense_features, fields)?.with_precision(precision))
}

/// What operands or values are.
#[must_use]
pub const fn precision(name: config::Precision) -> Precision {
    match name {
        config::Precision::F32 => Precision::F32,
        config::Precision::Bf16 => Precision::Bf16,
    }
}

/// What that model is made from.
#[must_use]
pub fn model_config(
    section: &ModelSection,
    dense_features: usize,
    fields: usize,
) -> ModelConfig<'_> {
    ModelConfig {
        kind: match section.kind {
            config::ModelKind::Dlrm => ModelKind::Dlrm,
            config::ModelKind::DeepFm => ModelKind::DeepFm,
            config::ModelKind::Fm => ModelKind::Fm,
            config::ModelKind::Lr => ModelKind::Lr,
            config::ModelKind::DcnV2 => ModelKind::DcnV2,
            config::ModelKind::WideDeep => ModelKind::WideDeep,
        },
        dense_features,
        fields,
        embedding_dim: section.embedding_dim,
        pooling: match section.pooling {
            config::Pooling::Sum => Pooling::Sum,
            config::Pooling::Mean => Pooling::Mean,
        },
        bottom: &section.bottom,
        top: &section.top,
        cross: Cross {
            layers: section.cross_layers,
            rank: section.cross_rank,
            structure: match section.structure {
                config::Structure::Parallel => Structure::Parallel,
                config::Structure::Stacked => Structure::Stacked,
            },
        },
        batch_norm: section.batch_norm,
        batch_norm_momentum: single(section.batch_norm_momentum),
        dropout: single(section.dropout),
    }
}

/// The optimizer of `[optim.dense]`; `None` for row-wise Adagrad, which only rows can have and the
/// configuration refuses there.
#[must_use]
pub fn dense_optimizer(section: &OptimSection) -> Option<Optimizer> {
    let eps = single(section.eps);
    let kind = match section.kind {
        OptimKind::Sgd => OptimizerKind::Sgd,
        OptimKind::Momentum => OptimizerKind::Momentum { beta: single(section.momentum) },
        OptimKind::Adagrad => {
            OptimizerKind::Adagrad { eps, initial: single(section.initial_accumulator) }
        }
        OptimKind::Adam => OptimizerKind::Adam(Adam {
            beta1: single(section.beta1),
            beta2: single(section.beta2),
            eps,
        }),
        OptimKind::RowwiseAdagrad => return None,
    };
    Some(Optimizer { kind, weight_decay: single(section.weight_decay) })
}

/// The optimizer of `[optim.sparse]`.
#[must_use]
pub fn sparse_optimizer(section: &OptimSection) -> SparseOptimizer {
    dense_optimizer(section).map_or(
        SparseOptimizer::RowwiseAdagrad {
            eps: single(section.eps),
            initial: single(section.initial_accumulator),
            weight_decay: single(section.weight_decay),
        },
        SparseOptimizer::Elementwise,
    )
}

/// The learning rate of a section over the steps.
#[must_use]
pub fn rate(section: &OptimSection) -> Rate {
    Rate {
        base: single(section.lr),
        schedule: Schedule {
            warmup_steps: section.warmup_steps,
            decay_start_step: section.decay_start_step,
            decay_steps: section.decay_steps.unwrap_or(1),
            final_factor: single(section.final_lr / section.lr),
        },
    }
}

#[expect(clippy::cast_possible_truncation, reason = "settings are computed with in f32")]
const fn single(x: f64) -> f32 {
    x as f32
}
