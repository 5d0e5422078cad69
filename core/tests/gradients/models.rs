//! Whole models: logits, loss, statistics and every gradient, in training and in evaluation.

use umbra_core::dense::replica::{self, Update};
use umbra_core::kernel::shared;
use umbra_core::model::{
    Cross, Gradients, Model, ModelConfig, ModelKind, Pooling, Structure, Workspace,
};
use umbra_core::optim::{Adam, Optimizer, OptimizerKind, StepSize};

use crate::twin::{Data, KEY, Twin, wide};
use crate::{BOUND, close, differences};

pub(crate) const DLRM: ModelConfig<'static> = ModelConfig {
    kind: ModelKind::Dlrm,
    dense_features: 3,
    fields: 4,
    embedding_dim: 5,
    pooling: Pooling::Sum,
    bottom: &[7, 5],
    top: &[6, 4],
    cross: Cross::NONE,
    batch_norm: false,
    batch_norm_momentum: 0.1,
    dropout: 0.0,
};
pub(crate) const DCN_V2: ModelConfig<'static> = ModelConfig {
    kind: ModelKind::DcnV2,
    cross: Cross { layers: 2, rank: 0, structure: Structure::Parallel },
    ..DLRM
};
pub(crate) const WIDE_DEEP: ModelConfig<'static> =
    ModelConfig { kind: ModelKind::WideDeep, ..DLRM };
/// One configuration of every kind.
pub(crate) const ALL: [ModelConfig<'static>; 6] = [
    DLRM,
    DEEPFM,
    ModelConfig { kind: ModelKind::Fm, ..DLRM },
    ModelConfig { kind: ModelKind::Lr, ..DLRM },
    DCN_V2,
    WIDE_DEEP,
];
pub(crate) const DEEPFM: ModelConfig<'static> = ModelConfig { kind: ModelKind::DeepFm, ..DLRM };

/// What a training step of `data` gives, with no other workers.
pub(crate) struct Trained {
    pub(crate) loss_sum: f64,
    pub(crate) weight_sum: f64,
    pub(crate) parameters: Vec<f32>,
    pub(crate) rows: Vec<f32>,
    pub(crate) statistics: Vec<f32>,
}

pub(crate) fn train(model: &Model, data: &Data, reduce: &mut dyn FnMut(&mut [f64])) -> Trained {
    // Poison everywhere: what is not written shows.
    let mut single = vec![f32::NAN; model.workspace_len(data.label.len(), 0)];
    let mut double = vec![f64::NAN; model.workspace_f64_len()];
    let mut parameters = vec![f32::NAN; model.parameters_len()];
    let mut rows = vec![f32::NAN; data.rows.len()];
    let mut statistics = vec![f32::NAN; model.replica_len() - model.parameters_len()];
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    let mut out = Gradients {
        parameters: &mut parameters,
        update: None,
        rows: &mut rows,
        statistics: &mut statistics,
        logits: &mut [],
    };
    let (input, mut replica) = (data.input(), data.replica.clone());
    let replica = shared(&mut replica);
    let loss = model.train_step(replica, &input, KEY, reduce, &mut workspace, &mut out);
    Trained { loss_sum: loss.loss_sum, weight_sum: loss.weight_sum, parameters, rows, statistics }
}

fn check(config: &ModelConfig, n: usize, seed: u64) {
    let model = Model::new(config).unwrap();
    let data = Data::new(config, &model, seed, n);
    check_data(config, &model, &data, &format!("{config:?}, {n} examples, seed {seed}"));
}

pub(crate) fn check_data(config: &ModelConfig, model: &Model, data: &Data, what: &str) {
    let n = data.label.len();
    let (replica, rows) = (wide(&data.replica), wide(&data.rows));

    let twin = Twin { config, model, data, training: false };
    let expected = twin.run(&replica, &rows);
    let mut single = vec![f32::NAN; model.workspace_len(n, 0)];
    let mut double = vec![f64::NAN; model.workspace_f64_len()];
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    let mut logits = vec![f32::NAN; n];
    let mut words = data.replica.clone();
    model.forward(shared(&mut words), &data.input(), &mut workspace, &mut logits);
    close(&format!("{what}: logits"), &logits, &expected.logits, 5e-6);

    let twin = Twin { training: true, ..twin };
    let expected = twin.run(&replica, &rows);
    let got = train(model, data, &mut |_| {});
    let mean = got.loss_sum / got.weight_sum;
    assert!((mean - expected.loss).abs() < 1e-6 * expected.loss, "{what}: {mean}");
    close(&format!("{what}: statistics"), &got.statistics, &expected.statistics, 5e-6);

    let (parameters, statistics) = replica.split_at(model.parameters_len());
    let of_parameters =
        differences(parameters, |p| twin.run(&[p, statistics].concat(), &rows).loss);
    for tensor in model.tensors().filter(|t| t.trainable) {
        let place = tensor.offset..tensor.offset + tensor.len();
        let name = format!("{what}: {}", tensor.name);
        close(&name, &got.parameters[place.clone()], &of_parameters[place], BOUND);
    }
    let of_rows = differences(&rows, |rows| twin.run(&replica, rows).loss);
    close(&format!("{what}: rows"), &got.rows, &of_rows, BOUND);
}

#[test]
fn dlrm() {
    check(&DLRM, 13, 1);
    check(&ModelConfig { pooling: Pooling::Mean, ..DLRM }, 9, 2);
    check(&ModelConfig { dense_features: 0, bottom: &[], ..DLRM }, 9, 3);
    check(&ModelConfig { fields: 0, ..DLRM }, 9, 4);
    check(&ModelConfig { top: &[], bottom: &[5], ..DLRM }, 9, 5);
    check(&ModelConfig { batch_norm: true, dropout: 0.25, ..DLRM }, 17, 6);
    // More than a panel of outputs, more than a block of inputs.
    check(&ModelConfig { bottom: &[40, 5], top: &[35, 33], ..DLRM }, 17, 7);
    check(&ModelConfig { bottom: &[35, 5], top: &[40], batch_norm: true, ..DLRM }, 17, 8);
}

#[test]
fn deepfm() {
    check(&DEEPFM, 13, 1);
    check(&ModelConfig { batch_norm: true, ..DEEPFM }, 17, 2);
    check(&ModelConfig { dropout: 0.5, ..DEEPFM }, 13, 3);
    check(
        &ModelConfig { batch_norm: true, dropout: 0.25, pooling: Pooling::Mean, ..DEEPFM },
        17,
        4,
    );
    check(&ModelConfig { dense_features: 0, ..DEEPFM }, 9, 5);
}

#[test]
fn dcn_v2() {
    for structure in [Structure::Parallel, Structure::Stacked] {
        for rank in [0, 1, 4] {
            let cross = |layers| Cross { layers, rank, structure };
            check(&ModelConfig { cross: cross(1), ..DCN_V2 }, 9, 1);
            check(&ModelConfig { cross: cross(3), ..DCN_V2 }, 13, 2);
            let config = ModelConfig { cross: cross(2), batch_norm: true, dropout: 0.25, ..DCN_V2 };
            check(&ModelConfig { pooling: Pooling::Mean, ..config }, 17, 3);
            check(&ModelConfig { cross: cross(2), top: &[], ..DCN_V2 }, 9, 4);
            check(&ModelConfig { cross: cross(2), dense_features: 0, ..DCN_V2 }, 9, 5);
            check(&ModelConfig { cross: cross(2), fields: 0, ..DCN_V2 }, 9, 6);
        }
        // More than a panel of outputs and a block of inputs: 38 columns, rank 33.
        for rank in [0, 33] {
            let cross = Cross { layers: 2, rank, structure };
            check(&ModelConfig { cross, fields: 7, top: &[35, 33], ..DCN_V2 }, 17, 7);
        }
    }
}

#[test]
fn wide_deep() {
    check(&WIDE_DEEP, 13, 1);
    check(&ModelConfig { batch_norm: true, ..WIDE_DEEP }, 17, 2);
    check(&ModelConfig { dropout: 0.5, pooling: Pooling::Mean, ..WIDE_DEEP }, 13, 3);
    check(&ModelConfig { batch_norm: true, dropout: 0.25, ..WIDE_DEEP }, 17, 4);
    check(&ModelConfig { dense_features: 0, ..WIDE_DEEP }, 9, 5);
    check(&ModelConfig { fields: 0, ..WIDE_DEEP }, 9, 6);
    check(&ModelConfig { top: &[], ..WIDE_DEEP }, 9, 7);
    check(&ModelConfig { fields: 7, top: &[40, 33], ..WIDE_DEEP }, 17, 8);
}

#[test]
fn fm_and_lr() {
    for kind in [ModelKind::Fm, ModelKind::Lr] {
        check(&ModelConfig { kind, ..DLRM }, 13, 1);
        check(&ModelConfig { kind, pooling: Pooling::Mean, ..DLRM }, 13, 2);
        check(&ModelConfig { kind, dense_features: 0, ..DLRM }, 13, 3);
        check(&ModelConfig { kind, fields: 0, ..DLRM }, 13, 4);
    }
}

/// More examples than a tile holds, so that gradients of several tiles are added up.
#[test]
fn several_tiles() {
    check(&ModelConfig { embedding_dim: 2, bottom: &[3, 2], top: &[3], ..DLRM }, 555, 1);
    check(&ModelConfig { embedding_dim: 2, top: &[3], dropout: 0.5, ..DEEPFM }, 513, 2);
    check(&ModelConfig { embedding_dim: 2, top: &[3], ..DCN_V2 }, 513, 3);
    let cross = Cross { layers: 2, rank: 2, structure: Structure::Stacked };
    check(&ModelConfig { embedding_dim: 2, top: &[3], cross, dropout: 0.5, ..DCN_V2 }, 513, 4);
    check(&ModelConfig { embedding_dim: 2, top: &[3], ..WIDE_DEEP }, 513, 5);
}

/// A tile whose vectors are pooled and multiplied some examples at a time: of 12 fields, 128 wide,
/// 32 of its 70.
#[test]
fn several_parts_of_a_tile() {
    let wide = ModelConfig { fields: 12, embedding_dim: 128, top: &[5], batch_norm: true, ..DLRM };
    check(&ModelConfig { bottom: &[128], ..wide }, 70, 1);
    check(&ModelConfig { bottom: &[128], pooling: Pooling::Mean, dropout: 0.5, ..wide }, 70, 2);
    check(&ModelConfig { dense_features: 0, bottom: &[], ..wide }, 70, 3);
}

/// Ids with weights, in several tiles too.
#[test]
fn ids_have_weights() {
    for pooling in [Pooling::Sum, Pooling::Mean] {
        for (number, config) in ALL.iter().enumerate() {
            let config = ModelConfig { pooling, ..*config };
            let model = Model::new(&config).unwrap();
            let mut data = Data::new(&config, &model, 20 + number as u64, 13);
            data.weigh_ids(3);
            check_data(&config, &model, &data, &format!("{config:?} with weights of ids"));
        }
        let config = ModelConfig { pooling, embedding_dim: 2, top: &[3], ..WIDE_DEEP };
        let model = Model::new(&config).unwrap();
        let mut data = Data::new(&config, &model, 30, 300);
        data.weigh_ids(4);
        check_data(&config, &model, &data, "several tiles with weights of ids");
    }
}

/// Weights of 1 change no bit, and in a sum an id may as well stand twice as weigh 2.
#[test]
fn weights_of_ids_are_repetitions() {
    for pooling in [Pooling::Sum, Pooling::Mean] {
        for config in ALL {
            let config = ModelConfig { pooling, ..config };
            let model = Model::new(&config).unwrap();
            let mut data = Data::new(&config, &model, 7, 9);
            let none = train(&model, &data, &mut |_| {});
            data.value_weights = vec![1.0; data.values.len()];
            let ones = train(&model, &data, &mut |_| {});
            assert_eq!((&ones.parameters, &ones.rows), (&none.parameters, &none.rows));
            assert_eq!(ones.loss_sum, none.loss_sum, "{config:?}");

            data.value_weights.fill(2.0);
            let heavy = train(&model, &data, &mut |_| {});
            if pooling == Pooling::Mean {
                // Alike weights, here of a power of 2, are none.
                assert_eq!((heavy.parameters, heavy.rows), (none.parameters, none.rows));
                continue;
            }
            assert_ne!(heavy.rows, none.rows, "{config:?}");
            data.value_weights.clear();
            data.values = data.values.iter().flat_map(|id| [*id; 2]).collect();
            data.offsets.iter_mut().for_each(|end| *end *= 2);
            let twice = train(&model, &data, &mut |_| {});
            close(&format!("{config:?}: rows"), &heavy.rows, &wide(&twice.rows), 1e-6);
            close("parameters", &heavy.parameters, &wide(&twice.parameters), 1e-6);
        }
    }
}

/// Without weights every example counts 1.
#[test]
fn no_weights_are_ones() {
    let model = Model::new(&DLRM).unwrap();
    let mut data = Data::new(&DLRM, &model, 1, 9);
    data.weight.fill(1.0);
    let ones = train(&model, &data, &mut |_| {});
    data.weight.clear();
    let none = train(&model, &data, &mut |_| {});
    assert_eq!((ones.parameters, ones.rows), (none.parameters, none.rows));
    assert_eq!((none.weight_sum, ones.loss_sum), (9.0, none.loss_sum));
}

/// Nothing to learn from: every gradient is 0, not NaN, and norms keep their running statistics.
#[test]
fn zero_weights_and_no_examples_give_zero_gradients() {
    for config in ALL {
        for batch_norm in [false, true] {
            let config = ModelConfig { batch_norm, dropout: 0.1, ..config };
            let model = Model::new(&config).unwrap();
            for n in [0, 6] {
                let mut data = Data::new(&config, &model, 1, n);
                data.weight.fill(0.0);
                let got = train(&model, &data, &mut |_| {});
                assert!(
                    got.parameters.iter().chain(&got.rows).all(|x| *x == 0.0),
                    "{config:?} {n}"
                );
                assert_eq!((got.loss_sum, got.weight_sum), (0.0, 0.0));
                if n == 0 {
                    assert_eq!(got.statistics, data.replica[model.parameters_len()..]);
                }
            }
        }
    }
}

/// A step that updates the replica as its gradients come is a step, then an update.
#[test]
fn an_update_in_the_step_is_the_update_after_it() {
    let adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    let kinds = [
        OptimizerKind::Sgd,
        OptimizerKind::Momentum { beta: 0.9 },
        OptimizerKind::Adagrad { eps: 1e-10, initial: 0.1 },
        OptimizerKind::Adam(adam),
    ];
    let configs = [
        ModelConfig { bottom: &[40, 5], top: &[33], ..DLRM },
        ModelConfig { batch_norm: true, dropout: 0.2, ..DLRM },
        DEEPFM,
        ModelConfig { kind: ModelKind::Fm, ..DLRM },
        ModelConfig { batch_norm: true, dropout: 0.2, ..DCN_V2 },
        ModelConfig {
            cross: Cross { layers: 3, rank: 4, structure: Structure::Stacked },
            ..DCN_V2
        },
        ModelConfig { dropout: 0.2, ..WIDE_DEEP },
    ];
    for (config, n) in configs.iter().flat_map(|config| [(config, 9), (config, 300)]) {
        let model = Model::new(config).unwrap();
        let data = Data::new(config, &model, 3, n);
        let plain = train(&model, &data, &mut |_| {});
        for kind in kinds {
            let optimizer = Optimizer { kind, weight_decay: 0.01 };
            let size = StepSize { rate: 0.1, count: 2 };
            let mut state = vec![0.3; optimizer.state_planes() * model.parameters_len()];
            let (mut replica, mut expected) = (data.replica.clone(), data.replica.clone());
            let mut expected_state = state.clone();
            replica::update(
                &optimizer,
                size,
                &shared(&mut expected)[..model.parameters_len()],
                shared(&mut expected_state),
                &plain.parameters,
            );
            let mut single = vec![f32::NAN; model.workspace_len(n, 0)];
            let mut double = vec![f64::NAN; model.workspace_f64_len()];
            let mut workspace = Workspace { single: &mut single, double: &mut double };
            let words = shared(&mut replica);
            let parameters = &words[..model.parameters_len()];
            let mut out = Gradients {
                parameters: &mut vec![f32::NAN; model.parameters_len()],
                update: Some(Update::new(&optimizer, size, parameters, shared(&mut state))),
                rows: &mut vec![f32::NAN; data.rows.len()],
                statistics: &mut vec![f32::NAN; model.replica_len() - model.parameters_len()],
                logits: &mut [],
            };
            let input = data.input();
            model.train_step(words, &input, KEY, &mut |_| {}, &mut workspace, &mut out);
            assert_eq!(replica, expected, "{kind:?}, {config:?}, {n} examples");
            assert_eq!(state, expected_state, "state of {kind:?}, {config:?}, {n} examples");
        }
    }
}
