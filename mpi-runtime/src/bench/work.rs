//! The arithmetic of a training step: what no implementation in plain f32 products can do without.
//!
//! Counted are multiplications and additions of the linear layers (forward, weight gradient, data
//! gradient; the bottom MLP's first layer passes none on) and of DLRM's dot interaction (forward,
//! and the gradient of both vectors of a pair). Biases, activations, losses, element-wise products,
//! the other interactions, optimizers and embedding rows are not: that is what time beyond the
//! floor is spent on.

use umbra_core::model::{Model, ModelKind};

/// One linear layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearLayer {
    /// `bottom.0`
    pub name: String,
    /// Width of its input.
    pub inputs: usize,
    /// Width of its output.
    pub outputs: usize,
    /// A gradient of its input is needed.
    pub passes_gradient: bool,
}

/// The linear layers of a model, in order.
#[must_use]
pub fn layers(model: &Model) -> Vec<LinearLayer> {
    let layer = |tensor: umbra_core::model::Tensor| {
        let name = tensor.name.to_string();
        // "top.1.weight"; a factorization machine's "dense.weight" is no layer.
        let layer = name.strip_suffix(".weight")?;
        layer.split_once('.')?;
        Some(LinearLayer {
            name: layer.to_owned(),
            inputs: tensor.columns,
            outputs: tensor.rows,
            passes_gradient: layer != "bottom.0",
        })
    };
    model.tensors().filter_map(layer).collect()
}

/// Multiplications and additions of a training step, per example.
#[must_use]
pub fn flop_per_example(model: &Model) -> u64 {
    let products = layers(model).into_iter().map(|layer| {
        let products = if layer.passes_gradient { 3 } else { 2 };
        products * layer.inputs * layer.outputs
    });
    let interaction = dot_columns(model).1 * model.row_width() * 3;
    2 * (products.sum::<usize>() + interaction) as u64
}

/// What DLRM's interaction hands to its top MLP: columns of the bottom's output, where there is
/// one, and pairs of vectors whose dot products it takes. 0 for the other models.
#[must_use]
pub fn dot_columns(model: &Model) -> (usize, usize) {
    let layers = layers(model);
    let first = |name| layers.iter().find(|layer| layer.name == name);
    match model.kind() {
        ModelKind::Dlrm => first("top.0").map_or((0, 0), |top| {
            let lead = first("bottom.0").map_or(0, |_| model.row_width());
            (lead, top.inputs - lead)
        }),
        ModelKind::DeepFm
        | ModelKind::Fm
        | ModelKind::Lr
        | ModelKind::DcnV2
        | ModelKind::WideDeep => (0, 0),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use umbra_core::model::{Cross, ModelConfig, Pooling, Structure};

    use super::*;
    use crate::bench::{Operands, Optimizers, Subject};

    fn model(kind: ModelKind, dense_features: usize, bottom: &[usize], top: &[usize]) -> Model {
        crossed(kind, dense_features, bottom, top, Cross::NONE)
    }

    fn crossed(
        kind: ModelKind,
        dense_features: usize,
        bottom: &[usize],
        top: &[usize],
        cross: Cross,
    ) -> Model {
        Model::new(&ModelConfig {
            kind,
            dense_features,
            fields: 3,
            embedding_dim: 4,
            pooling: Pooling::Sum,
            bottom,
            top,
            cross,
            batch_norm: false,
            batch_norm_momentum: 0.1,
            dropout: 0.0,
        })
        .unwrap()
    }

    /// 13-512-256-64-16 and 367-512-256-1 have 474,368 weights; 27 vectors make 351 pairs.
    #[test]
    fn the_kaggle_dlrm_takes_2_87_mflop_per_example() {
        let subject =
            Subject::criteo_kaggle(&[(Optimizers::Sgd, Operands::F32, Operands::F32)], None)
                .unwrap();
        let by_hand = 2 * (3 * 474_368 - 13 * 512 + 3 * 351 * 16);
        assert_eq!(flop_per_example(&subject.model), by_hand);
        assert_eq!(by_hand, 2_866_592);
        assert_eq!(layers(&subject.model).len(), 7);
    }

    #[test]
    fn other_models_by_hand() {
        // Two fields' and one dense vector: 4 vectors, 6 pairs, top input 4 + 6.
        let dlrm = model(ModelKind::Dlrm, 2, &[8, 4], &[5]);
        let weights = [2 * 8 * 2, 3 * 8 * 4, 3 * 10 * 5, 3 * 5];
        assert_eq!(flop_per_example(&dlrm), 2 * (weights.iter().sum::<u64>() + 3 * 6 * 4));
        // Without dense features there is no bottom, and top's input is the 3 pairs.
        let bottomless = model(ModelKind::Dlrm, 0, &[], &[5]);
        assert_eq!(flop_per_example(&bottomless), 2 * (3 * (3 * 5 + 5) + 3 * 3 * 4));
        // The deep part passes its gradient on to the embedding vectors. 5 vectors of 4.
        let deep = model(ModelKind::DeepFm, 2, &[], &[5]);
        assert_eq!(flop_per_example(&deep), 2 * 3 * (20 * 5 + 5));
        assert_eq!(flop_per_example(&model(ModelKind::Fm, 2, &[], &[])), 0);
        assert_eq!(flop_per_example(&model(ModelKind::Lr, 2, &[], &[])), 0);
        // Three embeddings of 4 and two dense features: 14 columns.
        let wide = model(ModelKind::WideDeep, 2, &[], &[5]);
        assert_eq!(flop_per_example(&wide), 2 * 3 * (14 * 5 + 5));
        let dcn = |rank, structure| {
            let cross = Cross { layers: 2, rank, structure };
            flop_per_example(&crossed(ModelKind::DcnV2, 2, &[], &[5], cross))
        };
        let deep = 14 * 5 + 5;
        assert_eq!(dcn(0, Structure::Parallel), 2 * 3 * (2 * 14 * 14 + deep + 14));
        assert_eq!(dcn(3, Structure::Stacked), 2 * 3 * (2 * 2 * 14 * 3 + deep));
    }
}
