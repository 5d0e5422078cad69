//! Tables of several widths: strips side by side, and matrices between widths.

use umbra_core::dense::replica::Update;
use umbra_core::kernel::shared;
use umbra_core::model::{Gradients, Model, ModelConfig, ModelKind, Pooling, StripShape, Workspace};
use umbra_core::optim::{Optimizer, OptimizerKind, StepSize};
use umbra_core::sparse::{CutInto, cut, cut_len};

use crate::models::{ALL, check_data, train};
use crate::twin::{Data, KEY};

/// The model of `config` on tables of `widths` `[S]`, in strips of `width`, and the strips.
fn model(config: &ModelConfig<'_>, widths: &[usize], width: usize) -> (Model, Vec<u32>) {
    let mut strips = vec![0];
    for wide in widths {
        strips.push(strips[strips.len() - 1] + (wide / width) as u32);
    }
    let projected = widths.iter().filter(|wide| **wide != config.embedding_dim).sum();
    let shape = StripShape { width, strips: strips[widths.len()] as usize, projected };
    (Model::new(config).unwrap().with_strips(shape).unwrap(), strips)
}

fn with_vectors() -> impl Iterator<Item = ModelConfig<'static>> {
    ALL.into_iter().filter(|config| config.kind != ModelKind::Lr)
}

/// Logits, loss and every gradient, also of the matrices, are those of the definition.
#[test]
fn gradients_are_those_of_the_definition() {
    for (number, config) in with_vectors().enumerate() {
        let bottom: &[usize] = if config.bottom.is_empty() { &[] } else { &[7, 6] };
        let config = ModelConfig { embedding_dim: 6, bottom, ..config };
        for (n, widths, width) in
            [(13, [2, 6, 4, 6], 2), (9, [3, 3, 9, 3], 3), (150, [2, 6, 4, 2], 2)]
        {
            let (model, strips) = model(&config, &widths, width);
            for (pooling, weighed) in [(Pooling::Sum, false), (Pooling::Mean, true)] {
                let config = ModelConfig { pooling, ..config };
                let (model, _) = self::model(&config, &widths, width);
                let mut data = Data::new(&config, &model, 50 + number as u64, n);
                data.strips.clone_from(&strips);
                if weighed {
                    data.weigh_ids(3);
                }
                // Differences of large batches take long, and say no more of each parameter.
                if n < 100 || number == 0 {
                    check_data(&config, &model, &data, &format!("{config:?} of {widths:?}"));
                }
            }
            assert_eq!(model.bags(), strips[4] as usize);
        }
    }
}

/// Vectors that are only cut are the same model, to the bit: logits, gradients of parameters, and
/// those of rows, strip by strip.
#[test]
fn cutting_changes_no_bit() {
    for config in with_vectors() {
        let bottom: &[usize] = if config.bottom.is_empty() { &[] } else { &[7, 6] };
        let config = ModelConfig { embedding_dim: 6, bottom, ..config };
        let whole = Model::new(&config).unwrap();
        let data = Data::new(&config, &whole, 5, 140);
        let expected = train(&whole, &data, &mut |_| {});
        let (first, rows) = (whole.first_order_columns(), data.rows.len() / whole.row_width());
        for width in [1, 2, 3, 6] {
            let (model, strips) = model(&config, &[6; 4], width);
            let input = data.input().batch.bags;
            let count = cut_len(&strips, input);
            let (mut values, mut offsets) = (vec![0; count], vec![0; 140 * model.bags() + 1]);
            let into = CutInto { values: &mut values, offsets: &mut offsets, weights: &mut [] };
            let bags = cut(&strips, input, into);
            // Strip j of row r is row j·rows + r.
            let of = |whole: &[f32], j: usize, r: usize| -> Vec<f32> {
                let row = &whole[r * (first + 6)..][..first + 6];
                let head = row[..first].iter().map(|x| if j == 0 { *x } else { 0.0 });
                head.chain(row[first + j * width..][..width].to_vec()).collect()
            };
            let places = |whole: &[f32]| -> Vec<f32> {
                let strips = (0..6 / width).flat_map(|j| (0..rows).map(move |r| (j, r)));
                strips.flat_map(|(j, r)| of(whole, j, r)).collect()
            };
            let mut values = bags.values.to_vec();
            for (bag, ends) in bags.offsets.windows(2).enumerate() {
                let strip = bag % model.bags() % (6 / width);
                let own = ends[0] as usize..ends[1] as usize;
                values[own].iter_mut().for_each(|row| *row += (strip * rows) as u32);
            }
            let cut = Data {
                values,
                offsets: bags.offsets.to_vec(),
                value_weights: vec![],
                strips,
                rows: places(&data.rows),
                label: data.label.clone(),
                weight: data.weight.clone(),
                dense: data.dense.clone(),
                row: data.row.clone(),
                replica: data.replica.clone(),
            };
            let got = train(&model, &cut, &mut |_| {});
            assert_eq!(got.loss_sum, expected.loss_sum, "{config:?} in strips of {width}");
            assert_eq!(got.parameters, expected.parameters, "{config:?} in strips of {width}");
            assert_eq!(got.rows, places(&expected.rows), "{config:?} in strips of {width}");
        }
    }
}

/// A strip begins with the values that its columns have in a table that is not cut.
#[test]
fn columns_have_the_first_values_of_their_row() {
    for config in ALL {
        let model = Model::new(&config).unwrap();
        let of = |range: core::ops::Range<usize>| {
            let mut out = vec![f32::NAN; range.len()];
            model.initialize_columns(3, 1, 50, 17, (13, range.start), &mut out);
            out
        };
        let mut whole = vec![f32::NAN; 13];
        model.initialize_row(3, 1, 50, 17, &mut whole);
        for start in 0..13 {
            for end in start + 1..=13 {
                assert_eq!(of(start..end), whole[start..end], "{:?} {start}", config.kind);
            }
        }
    }
}

/// A step that updates the matrices as their gradient comes is a step, then an update.
#[test]
fn matrices_are_updated_in_the_step() {
    let config = ModelConfig { embedding_dim: 6, bottom: &[7, 6], ..ALL[0] };
    let (model, strips) = model(&config, &[2, 6, 4, 2], 2);
    let mut data = Data::new(&config, &model, 3, 300);
    data.strips = strips;
    let plain = train(&model, &data, &mut |_| {});
    let optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
    let size = StepSize { rate: 0.1, count: 1 };
    let mut replica = data.replica.clone();
    let mut single = vec![f32::NAN; model.workspace_len(300, 0)];
    let mut double = vec![f64::NAN; model.workspace_f64_len()];
    let words = shared(&mut replica);
    let parameters = &words[..model.parameters_len()];
    let mut out = Gradients {
        parameters: &mut vec![f32::NAN; model.parameters_len()],
        update: Some(Update::new(&optimizer, size, parameters, &[])),
        rows: &mut vec![f32::NAN; data.rows.len()],
        statistics: &mut [],
        logits: &mut [],
    };
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    model.train_step(words, &data.input(), KEY, &mut |_| {}, &mut workspace, &mut out);
    for ((got, before), gradient) in replica.iter().zip(&data.replica).zip(&plain.parameters) {
        assert_eq!(*got, before - 0.1 * gradient);
    }
    let tensor = model.tensors().last().unwrap();
    assert_eq!((tensor.name.to_string(), tensor.len()), ("projection.weight".into(), 8 * 6));
    assert!(plain.parameters[tensor.offset..].iter().any(|x| *x != 0.0));
}
