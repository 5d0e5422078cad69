//! Training steps whose products are of thirds, where the processor multiplies them: beside those
//! of f32s as they are.

use umbra_core::kernel::multiplies_thirds;
use umbra_core::model::{Model, ModelConfig};

use crate::bf16::{relative, wide};
use crate::models::{ALL, train};
use crate::twin::Data;

/// Of the difference of gradients, relative in the square mean: sums in another order, of which
/// some cancel to a hundredth. Wrong wiring is wrong by a part of 1.
const BOUND: f64 = 1e-4;

/// One tile, and more than one, of which the last has too few examples.
const LENGTHS: [usize; 2] = [64, 301];

#[test]
fn gradients_are_those_of_f32s_as_they_are() {
    for (number, config) in ALL.into_iter().enumerate() {
        for (batch_norm, n) in [false, true].into_iter().flat_map(|it| LENGTHS.map(|n| (it, n))) {
            let config = ModelConfig { batch_norm, ..wide(config) };
            let model = Model::new(&config).unwrap();
            let data = Data::new(&config, &model, 70 + number as u64, n);
            let thirds = train(&model, &data, &mut |_| {});
            let whole = train(&model.without_thirds(), &data, &mut |_| {});
            let losses = [&thirds, &whole].map(|it| it.loss_sum / it.weight_sum);
            assert!((losses[0] - losses[1]).abs() < BOUND * losses[1], "{config:?}: {losses:?}");
            let mut differ = false;
            for tensor in model.tensors().filter(|tensor| tensor.trainable) {
                let place = tensor.offset..tensor.offset + tensor.len();
                let (got, expected) = (&thirds.parameters[place.clone()], &whole.parameters[place]);
                let error = relative(got, expected);
                assert!(error < BOUND, "{config:?}, {n}: {}: {error:e}", tensor.name);
                differ |= error > 0.0;
            }
            assert!(relative(&thirds.rows, &whole.rows) < BOUND, "{config:?}, {n}: rows");
            let has_layers = model.tensors().any(|t| t.rows >= 32 && t.columns >= 32);
            let expected = has_layers && multiplies_thirds();
            assert_eq!(differ, expected, "{config:?}, {n}: products of thirds differ");
        }
    }
}
