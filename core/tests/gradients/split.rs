//! A batch cut in two over two workers is the whole batch: the same loss, statistics and summed
//! gradients, with batch norm over both parts and masks that follow the example. One part may be
//! empty.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use umbra_core::model::{Model, ModelConfig, ModelKind};

use crate::models::{DCN_V2, DEEPFM, DLRM, Trained, WIDE_DEEP, train};
use crate::twin::Data;

/// One end of a sum over two threads. When the other end is gone, or sums once less, this one
/// panics.
struct Sum {
    to: Sender<Vec<f64>>,
    from: Receiver<Vec<f64>>,
}

impl Sum {
    fn pair() -> [Self; 2] {
        let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
        [Self { to: to_b, from: from_b }, Self { to: to_a, from: from_a }]
    }

    fn reduce(&self, part: &mut [f64]) {
        self.to.send(part.to_vec()).unwrap();
        let other = self.from.recv().unwrap();
        assert_eq!(part.len(), other.len(), "the workers disagree about what they sum");
        part.iter_mut().zip(other).for_each(|(sum, x)| *sum += x);
    }
}

fn together(model: &Model, parts: &[Data; 2]) -> [Trained; 2] {
    let [first, second] = Sum::pair();
    let run = |part, sum: Sum| train(model, part, &mut |x| sum.reduce(x));
    thread::scope(|scope| {
        let first = scope.spawn(move || run(&parts[0], first));
        let second = scope.spawn(move || run(&parts[1], second));
        [first.join().unwrap(), second.join().unwrap()]
    })
}

/// Within 1e-6 of the whole in the Euclidean norm: f32 sums of another order, a few 2^-24.
fn close(what: &str, whole: &[f32], parts: [&[f32]; 2]) {
    let (mut error, mut norm) = (0.0, 0.0);
    for (i, whole) in whole.iter().enumerate() {
        let sum = f64::from(parts[0][i]) + f64::from(parts[1][i]);
        error += (sum - f64::from(*whole)).powi(2);
        norm += f64::from(*whole).powi(2);
    }
    assert!(error.sqrt() <= 1e-6 * norm.sqrt(), "{what}: {} of {}", error.sqrt(), norm.sqrt());
}

/// Up to so many examples every tensor is compared by itself. With more, the terms of a small
/// tensor cancel to a sum far below them, to whose size their rounding errors bear no relation; the
/// gradient as a whole is compared then.
const FEW: usize = 64;

fn check(config: &ModelConfig, n: usize, cut: usize) {
    let what = format!("{config:?}, {n} examples cut at {cut}");
    let model = Model::new(config).unwrap();
    let data = Data::new(config, &model, 8, n);
    let whole = train(&model, &data, &mut |_| {});
    let parts = [data.part(config, 0, cut), data.part(config, cut, n)];
    let [a, b] = together(&model, &parts);
    let loss = a.loss_sum + b.loss_sum;
    assert!((loss - whole.loss_sum).abs() <= 1e-6 * whole.loss_sum, "{what}: loss {loss}");
    assert!((a.weight_sum + b.weight_sum - whole.weight_sum).abs() < 1e-9, "{what}: weights");
    for tensor in model.tensors().filter(|t| t.trainable && n <= FEW) {
        let of = |x: &'_ Trained| x.parameters[tensor.offset..][..tensor.len()].to_vec();
        close(&format!("{what}: {}", tensor.name), &of(&whole), [&of(&a), &of(&b)]);
    }
    close(&format!("{what}: parameters"), &whole.parameters, [&a.parameters, &b.parameters]);
    close(&format!("{what}: rows"), &whole.rows, [&a.rows, &b.rows]);
    // Both workers know the statistics of the whole.
    assert_eq!(a.statistics, b.statistics, "{what}");
    let zero = vec![0.0; a.statistics.len()];
    close(&format!("{what}: statistics"), &whole.statistics, [&a.statistics, &zero]);
}

#[test]
fn two_parts_are_the_whole() {
    for config in [DLRM, DEEPFM, DCN_V2, WIDE_DEEP] {
        for batch_norm in [false, true] {
            for dropout in [0.0, 0.3] {
                let config = ModelConfig { batch_norm, dropout, ..config };
                for (n, cut) in [(37, 20), (37, 1), (37, 37), (37, 0), (600, 270)] {
                    check(&config, n, cut);
                }
            }
        }
    }
    for kind in [ModelKind::Fm, ModelKind::Lr] {
        check(&ModelConfig { kind, ..DLRM }, 37, 20);
        check(&ModelConfig { kind, ..DLRM }, 37, 37);
    }
}
