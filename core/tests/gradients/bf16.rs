//! Training steps whose products are of bf16s: near those of f32, and the same in all that is not a
//! product.

use umbra_core::dense::replica::Update;
use umbra_core::kernel::shared;
use umbra_core::model::{Gradients, Model, ModelConfig, Precision, Workspace};
use umbra_core::optim::{Optimizer, OptimizerKind, StepSize};

use crate::models::{ALL, DCN_V2, DEEPFM, DLRM, WIDE_DEEP, train};
use crate::twin::{Data, KEY};

/// Layers that are wide enough, of odd widths, and some that are not.
pub(crate) const fn wide(config: ModelConfig<'static>) -> ModelConfig<'static> {
    ModelConfig { bottom: &[47, 64, 5], top: &[65, 33, 12], ..config }
}

/// Of the difference of gradients, relative in the square mean.
const BOUND: f64 = 0.15;

/// More than two tiles, the last of an odd number.
const N: usize = 301;

/// An operand is wrong by at most 2^-9 of itself. What becomes of that in a gradient depends on how
/// much of its sum over examples cancels, and on ReLUs whose sum changes its sign; wrong wiring is
/// wrong by a part of 1.
#[test]
fn gradients_are_those_of_f32_to_the_precision_of_operands() {
    for (number, config) in ALL.into_iter().enumerate() {
        for batch_norm in [false, true] {
            let config = ModelConfig { batch_norm, ..wide(config) };
            let model = Model::new(&config).unwrap();
            let mut data = Data::new(&config, &model, 40 + number as u64, N);
            // Matrices as a model begins with: those of Data make everything of the last layers.
            for tensor in model.tensors().filter(|tensor| tensor.columns > 1) {
                let scale = 2.0 / (tensor.columns as f32).sqrt();
                let place = tensor.offset..tensor.offset + tensor.len();
                data.replica[place].iter_mut().for_each(|x| *x *= scale);
            }
            let exact = train(&model, &data, &mut |_| {});
            let half = train(&model.with_precision(Precision::Bf16), &data, &mut |_| {});
            let losses = [&half, &exact].map(|it| it.loss_sum / it.weight_sum);
            let wrong = (losses[0] - losses[1]).abs() / losses[1];
            assert!(wrong < 5e-3, "{config:?}: loss {losses:?}");
            let mut differ = false;
            // The gradients of norms are what is left of sums that cancel: there is no bound.
            let is_sum = |name: String| !name.contains(".norm.");
            let tensors = model.tensors().filter(|tensor| tensor.trainable);
            for tensor in tensors.filter(|tensor| is_sum(tensor.name.to_string())) {
                let place = tensor.offset..tensor.offset + tensor.len();
                let (got, expected) = (&half.parameters[place.clone()], &exact.parameters[place]);
                let error = relative(got, expected);
                assert!(error < BOUND, "{config:?}: {}: {error}", tensor.name);
                differ |= error > 0.0;
            }
            assert!(relative(&half.rows, &exact.rows) < BOUND, "{config:?}: rows");
            let has_layers = model.tensors().any(|t| t.rows >= 32 && t.columns >= 32);
            assert_eq!(differ, has_layers, "{config:?}: products of bf16s differ");
        }
    }
}

/// |got - expected| / |expected|
pub(crate) fn relative(got: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let of = |(a, b): (&f32, &f32)| square(f64::from(*a) - f64::from(*b));
    let wrong: f64 = got.iter().zip(expected).map(of).sum();
    let size: f64 = expected.iter().map(|x| square(f64::from(*x))).sum();
    if wrong == 0.0 { 0.0 } else { (wrong / size).sqrt() }
}

/// Evaluation is the same, to the bit.
#[test]
fn scores_are_of_f32() {
    for config in [DLRM, DEEPFM, DCN_V2, WIDE_DEEP].map(wide) {
        let model = Model::new(&config).unwrap();
        let data = Data::new(&config, &model, 50, N);
        let score = |model: Model| {
            let mut single = vec![f32::NAN; model.workspace_len(N, 0)];
            let mut double = vec![f64::NAN; model.workspace_f64_len()];
            let mut workspace = Workspace { single: &mut single, double: &mut double };
            let (mut words, mut logits) = (data.replica.clone(), vec![f32::NAN; N]);
            model.forward(shared(&mut words), &data.input(), &mut workspace, &mut logits);
            logits
        };
        assert_eq!(score(model), score(model.with_precision(Precision::Bf16)), "{config:?}");
    }
}

/// A step that updates layer by layer has the bits of one that writes the gradient first, in both
/// precisions; the last tile may have too few examples for thirds.
#[test]
fn an_update_in_the_product_is_that_by_its_gradient() {
    let optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
    let size = StepSize { rate: 0.1, count: 1 };
    let normed = ModelConfig { batch_norm: true, ..DLRM };
    let configs = [DLRM, DEEPFM, normed].map(wide).into_iter();
    for (config, precision) in
        configs.flat_map(|config| [Precision::F32, Precision::Bf16].map(|it| (config, it)))
    {
        let model = Model::new(&config).unwrap().with_precision(precision);
        let data = Data::new(&config, &model, 60, N);
        let gradient = train(&model, &data, &mut |_| {}).parameters;
        let (mut expected, len) = (data.replica.clone(), model.parameters_len());
        let (first, second): (&mut [f32], &mut [f32]) = (&mut [], &mut []);
        optimizer.update(size, &mut expected[..len], first, second, &gradient);
        let mut single = vec![f32::NAN; model.workspace_len(N, 0)];
        let mut double = vec![f64::NAN; model.workspace_f64_len()];
        let mut workspace = Workspace { single: &mut single, double: &mut double };
        let (mut words, mut scratch) = (data.replica.clone(), vec![f32::NAN; len]);
        let mut rows = vec![f32::NAN; data.rows.len()];
        let replica = shared(&mut words);
        let mut out = Gradients {
            parameters: &mut scratch,
            update: Some(Update::new(&optimizer, size, &replica[..len], &[])),
            rows: &mut rows,
            statistics: &mut vec![f32::NAN; model.replica_len() - len],
            logits: &mut [],
        };
        model.train_step(replica, &data.input(), KEY, &mut |_| {}, &mut workspace, &mut out);
        assert_eq!(words, expected, "{config:?} {precision:?}");
    }
}
