//! Rows that are vectors of bags, each named by one value, in any order: the bits of the same in
//! the order of the values.

use umbra_core::dense::replica::Update;
use umbra_core::kernel::shared;
use umbra_core::model::{Gradients, Input, Model, StepLoss, Workspace};
use umbra_core::optim::{Optimizer, OptimizerKind, StepSize};
use umbra_core::rng::{Purpose, Stream};

use crate::models::ALL;
use crate::twin::{Data, KEY};

const SGD: Optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };

/// What a step gives that updates the replica: the loss, the replica's bits, logits, and gradients
/// of rows.
fn step(model: &Model, data: &Data, input: &Input<'_>) -> (StepLoss, Vec<f32>, Vec<f32>, Vec<f32>) {
    let n = data.label.len();
    let mut single = vec![f32::NAN; model.workspace_len(n, 0)];
    let mut double = vec![f64::NAN; model.workspace_f64_len()];
    let mut replica = data.replica.clone();
    let mut d_rows = vec![f32::NAN; input.rows.len()];
    let mut logits = vec![f32::NAN; n];
    let words = shared(&mut replica);
    let parameters = &words[..model.parameters_len()];
    let size = StepSize { rate: 0.1, count: 1 };
    let mut out = Gradients {
        parameters: &mut vec![f32::NAN; model.parameters_len()],
        update: Some(Update::new(&SGD, size, parameters, &[])),
        rows: &mut d_rows,
        statistics: &mut vec![f32::NAN; model.replica_len() - model.parameters_len()],
        logits: &mut logits,
    };
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    let loss = model.train_step(words, input, KEY, &mut |_| {}, &mut workspace, &mut out);
    (loss, replica, logits, d_rows)
}

/// Every kind of model, in one tile and in several; a loss that is not finite leaves zeros.
#[test]
fn rows_may_be_in_any_order() {
    for seed in 0..48 {
        let (config, n) = (ALL[seed as usize % 6], [1, 40, 300, 517][seed as usize / 6 % 4]);
        let model = Model::new(&config).unwrap();
        let mut data = Data::new(&config, &model, seed, n);
        // A bag has one value or none, and each its own row.
        let mut filled = 0;
        for end in &mut data.offsets[1..] {
            filled += u32::from(*end % 4 != 0);
            *end = filled;
        }
        data.values = (0..filled).collect();
        let (count, width) = (filled as usize, model.row_width());
        let stream = Stream::new(seed, Purpose::Test(30));
        data.rows = (0..(count * width) as u64).map(|i| stream.uniform(i) - 0.5).collect();
        let spoilt = seed % 12 == 11;
        if spoilt {
            data.label[n / 2] = f32::NAN;
        }
        let in_order = step(&model, &data, &data.input());

        let mut slot = data.values.clone();
        for i in (1..count).rev() {
            slot.swap(i, stream.below(1_000_000 + i as u64, i as u64 + 1) as usize);
        }
        let place = |rows: &[f32]| {
            let mut placed = vec![f32::NAN; rows.len()];
            for (row, slot) in rows.chunks(width).zip(&slot) {
                placed[*slot as usize * width..][..width].copy_from_slice(row);
            }
            placed
        };
        let rows = place(&data.rows);
        let input = Input { rows: &rows, slot: &slot, named_once: true, ..data.input() };
        let mut in_any = step(&model, &data, &input);
        let what = format!("{config:?}, {n} examples, seed {seed}");
        let expected = place(&in_order.3);
        assert_eq!(in_any.3, expected, "gradients of rows: {what}");
        assert_eq!(expected.iter().all(|x| *x == 0.0), spoilt || count == 0, "{what}");
        in_any.3 = in_order.3.clone();
        let bits = |(loss, replica, logits, rows): (StepLoss, Vec<f32>, Vec<f32>, Vec<f32>)| {
            let bits = |numbers: Vec<f32>| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            (loss.loss_sum.to_bits(), bits(replica), bits(logits), bits(rows))
        };
        assert_eq!(bits(in_any), bits(in_order), "{what}");
    }
}
