//! A model whose layers are dealt to several parts, each on a thread: with everything sent it is
//! the whole model; with a threshold its gradients are those of the function that is left, the
//! elements that pass frozen.

use std::sync::{Barrier, Mutex};
use std::thread;

use umbra_core::compress::{Coding, Keep, Threshold, Values, len_max, mask_len};
use umbra_core::dense::linear::Linear;
use umbra_core::dense::loss::cross_entropy;
use umbra_core::dense::mlp::{Backward, Layer, Mlp, Replica, Scratch, Stored, Training};
use umbra_core::kernel::{Activations, ActivationsMut, Strides, panel_index, shared};
use umbra_core::model::{
    Boundary, Carrier, Crossing, Exchange, Gradients, Model, ModelConfig, ModelKind, PartOf,
    Workspace,
};
use umbra_core::rng::{Purpose, Stream};

use crate::models::{DCN_V2, DEEPFM, DLRM, Trained, WIDE_DEEP, train};
use crate::twin::{Data, KEY, linear};
use crate::{BOUND, close, differences};

const ALL: Coding = Coding { keep: Keep { share: 1.0, refresh_every: 1000 }, values: Values::F32 };

/// Where the parts meet.
struct Table {
    /// By sender and receiver.
    messages: Vec<Mutex<Vec<Vec<u8>>>>,
    all: Barrier,
}

impl Table {
    fn new(parts: usize) -> Self {
        Self { messages: (0..parts).map(|_| Mutex::default()).collect(), all: Barrier::new(parts) }
    }

    /// What every part has for `part`, which has these for them.
    fn meet(&self, part: usize, own: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        *self.messages[part].lock().unwrap() = own;
        self.all.wait();
        let got = self.messages.iter().map(|it| it.lock().unwrap()[part].clone()).collect();
        self.all.wait();
        got
    }
}

/// What a part remembers.
struct Memory {
    thresholds: Vec<Threshold>,
    buffers: [Vec<f32>; 2],
    mask: Vec<u32>,
    counts: Box<[u32; 1 << 15]>,
}

impl Memory {
    fn new(boundaries: usize, elements: usize) -> Self {
        Self {
            thresholds: vec![Threshold::default(); boundaries],
            buffers: [vec![f32::NAN; elements], vec![f32::NAN; elements]],
            mask: vec![0; mask_len(elements)],
            counts: Box::new([0; 1 << 15]),
        }
    }

    /// `scored`: nobody learns, and all is sent or not.
    fn carry(
        &mut self,
        table: &Table,
        (coding, scored): (Coding, Option<bool>),
        crossing: Crossing<'_>,
    ) {
        let Self { thresholds, buffers: [output, gradient], mask, counts } = self;
        let mut carrier = Carrier { coding, turn: 1, thresholds, output, gradient, mask, counts };
        match crossing {
            Crossing::Outputs { at, mut y } => {
                let PartOf { part, parts } = at.of;
                let mut out = vec![0; len_max(y.view().n() * at.width, Values::F32)];
                let kept = match scored {
                    None => carrier.send_output(at, &mut y, &mut out),
                    Some(all) => carrier.send_scored(at, all, &mut y, &mut out),
                };
                let got = table.meet(part, vec![out[..kept.bytes].to_vec(); parts]);
                for (other, message) in got.iter().enumerate().filter(|_| at.split) {
                    if other != part {
                        carrier.take_output(at, other, message, &mut y).unwrap();
                    }
                }
            }
            Crossing::Gradient { at, y, mut d } => {
                let PartOf { part, parts } = at.of;
                let mut out = vec![0; y.n() * at.width * coding.values.bytes()];
                let mut send = |to| {
                    let kept = carrier.send_gradient(at, to, y, d.view(), &mut out);
                    out[..kept.bytes].to_vec()
                };
                let got = table.meet(part, (0..parts).map(&mut send).collect());
                let messages = got.iter().map(Vec::as_slice);
                carrier.take_gradient(at, messages, y, &mut d).unwrap();
            }
        }
    }
}

/// A training step of a part.
fn train_part(model: &Model, data: &Data, exchange: &mut Exchange<'_>) -> Trained {
    let n = data.label.len();
    let mut single = vec![f32::NAN; model.workspace_len(n, 0)];
    let mut double = vec![f64::NAN; model.workspace_f64_len()];
    let mut parameters = vec![f32::NAN; model.parameters_len()];
    let mut rows = vec![f32::NAN; data.rows.len()];
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    let mut out = Gradients {
        parameters: &mut parameters,
        update: None,
        rows: &mut rows,
        statistics: &mut [],
        logits: &mut [],
    };
    let mut replica = data.replica.clone();
    let (input, replica) = (data.input(), shared(&mut replica));
    let reduce = &mut |_: &mut [f64]| {};
    let loss = model.train_part(replica, &input, KEY, (reduce, exchange), &mut workspace, &mut out);
    let (loss_sum, weight_sum) = (loss.loss_sum, loss.weight_sum);
    Trained { loss_sum, weight_sum, parameters, rows, statistics: vec![] }
}

fn together(model: &Model, data: &Data, parts: usize, coding: Coding) -> Vec<(Model, Trained)> {
    let all = trained_and_scored(model, data, parts, coding);
    all.into_iter().map(|(model, trained, _)| (model, trained)).collect()
}

/// By part, what it gives, and the losses that all have then, of what passes and of all.
fn trained_and_scored(
    model: &Model,
    data: &Data,
    parts: usize,
    coding: Coding,
) -> Vec<(Model, Trained, [f64; 2])> {
    let table = &Table::new(parts);
    thread::scope(|scope| {
        let run = |part| {
            scope.spawn(move || {
                let model = model.part(PartOf { part, parts }).unwrap();
                let elements = model.crossing_len(data.label.len());
                let mut memory = Memory::new(model.boundaries().count(), elements);
                let mut exchange = |it: Crossing<'_>| memory.carry(table, (coding, None), it);
                let trained = train_part(&model, data, &mut exchange);
                let losses = [false, true].map(|all| {
                    let exchange =
                        &mut |it: Crossing<'_>| memory.carry(table, (coding, Some(all)), it);
                    scored(&model, data, exchange)
                });
                (model, trained, losses)
            })
        };
        let threads: Vec<_> = (0..parts).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The gradient of the whole: slices of the parts, and what all of them have alike.
fn gathered(trained: &[(Model, Trained)]) -> Vec<f32> {
    let mut gradient = trained[0].1.parameters.clone();
    for (model, trained) in trained {
        for slice in model.own_slices() {
            gradient[slice.clone()].copy_from_slice(&trained.parameters[slice]);
        }
    }
    for (model, trained) in trained {
        let mut own = gradient.clone();
        let others = trained.parameters.iter().enumerate().filter(|(_, x)| !x.is_nan());
        others.for_each(|(at, x)| own[at] = *x);
        assert_eq!(bits(&own), bits(&gradient), "what all compute is not the same on all");
        assert!(model.own_slices().count() > 0);
    }
    gradient
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Everything is sent: it is the whole model, but for rounding.
fn check_whole(config: &ModelConfig, n: usize, parts: usize) {
    let what = format!("{config:?}, {n} examples, {parts} parts");
    let model = Model::new(config).unwrap();
    let data = Data::new(config, &model, 8, n);
    let whole = train(&model, &data, &mut |_| {});
    let trained = together(&model, &data, parts, ALL);
    for (_, part) in &trained {
        assert!((part.loss_sum - whole.loss_sum).abs() <= 1e-6 * whole.loss_sum, "{what}");
        assert_eq!(bits(&part.rows), bits(&trained[0].1.rows), "{what}");
    }
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let gradient = gathered(&trained);
    close(&format!("{what}: rows"), &trained[0].1.rows, &wide(&whole.rows), 5e-6);
    for tensor in model.tensors().filter(|t| t.trainable) {
        let place = tensor.offset..tensor.offset + tensor.len();
        let expected = wide(&whole.parameters[place.clone()]);
        close(&format!("{what}: {}", tensor.name), &gradient[place], &expected, 5e-6);
    }
}

#[test]
fn parts_are_the_whole() {
    let top: &[usize] = &[40, 270, 200, 33];
    for config in [DLRM, DEEPFM, DCN_V2, WIDE_DEEP] {
        for dropout in [0.0, 0.25] {
            check_whole(&ModelConfig { top, dropout, ..config }, 37, 2);
        }
        check_whole(&ModelConfig { top, ..config }, 150, 3);
    }
    check_whole(&ModelConfig { bottom: &[9, 130, 20, 5], ..DLRM }, 20, 2);
    // Without examples nothing crosses.
    check_whole(&ModelConfig { top, ..DEEPFM }, 0, 2);
}

/// A share of what crosses is left, and less comes of it.
#[test]
fn a_share_of_what_crosses_is_left() {
    let config = ModelConfig { top: &[64, 256, 256, 8], ..DEEPFM };
    let model = Model::new(&config).unwrap();
    let data = Data::new(&config, &model, 8, 64);
    let all = together(&model, &data, 2, ALL);
    let keep = Keep { share: 0.1, refresh_every: 10 };
    let trained = together(&model, &data, 2, Coding { keep, values: Values::Bf16 });
    gathered(&trained);
    let of = |trained: &[(Model, Trained)]| trained[0].1.loss_sum;
    assert!((of(&all) - of(&trained)).abs() > 1e-6 * of(&all));
    assert_eq!(of(&trained).to_bits(), trained[1].1.loss_sum.to_bits());
}

/// Scored together with thresholds as they stand, examples have the loss that they were trained
/// with; with all that there is, the whole model's.
#[test]
fn parts_score_with_what_passes_and_with_all() {
    let config = ModelConfig { top: &[64, 256, 256, 8], ..DEEPFM };
    // As in an evaluation.
    let model = Model::new(&config).unwrap().without_thirds();
    let data = Data::new(&config, &model, 8, 64);
    let whole = scored(&model, &data, &mut |_| {});
    for (share, values) in [(0.1, Values::Bf16), (0.5, Values::F8), (1.0, Values::Bf16)] {
        let coding = Coding { keep: Keep { share, refresh_every: 10 }, values };
        for (_, trained, [masked, all]) in trained_and_scored(&model, &data, 3, coding) {
            assert_eq!(masked.to_bits(), trained.loss_sum.to_bits(), "{share}");
            assert_eq!(all.to_bits(), whole.to_bits(), "{share}");
            assert!((whole - masked).abs() > 1e-9 * whole, "{share}");
        }
    }
}

/// The loss of `data`, in an evaluation.
fn scored(model: &Model, data: &Data, exchange: &mut Exchange<'_>) -> f64 {
    let n = data.label.len();
    let mut single = vec![f32::NAN; model.workspace_len(n, 0)];
    let mut double = vec![f64::NAN; model.workspace_f64_len()];
    let mut workspace = Workspace { single: &mut single, double: &mut double };
    let (mut replica, mut logits) = (data.replica.clone(), vec![f32::NAN; n]);
    let replica = shared(&mut replica);
    model.forward_part(replica, &data.input(), exchange, &mut workspace, &mut logits);
    let examples = logits.iter().zip(&data.label).zip(&data.weight);
    examples.fold(0.0, |sum, ((logit, label), weight)| {
        sum + f64::from(*weight) * cross_entropy(*logit, *label)
    })
}

#[test]
fn narrow_models_are_not_split() {
    let of = PartOf { part: 0, parts: 2 };
    let part = |config: &ModelConfig| Model::new(config).unwrap().part(of).is_ok();
    assert!(part(&ModelConfig { top: &[8, 128, 8], ..DEEPFM }));
    // Too narrow; the first alone; batch norm; no MLP.
    assert!(!part(&ModelConfig { top: &[8, 127, 8], ..DEEPFM }));
    assert!(!part(&ModelConfig { top: &[128, 8], ..DEEPFM }));
    assert!(!part(&ModelConfig { top: &[8, 128, 8], batch_norm: true, ..DEEPFM }));
    assert!(!part(&ModelConfig { kind: ModelKind::Fm, ..DEEPFM }));
}

/// What a part of an MLP gives: gradients of parameters and input, and the outputs that crossed.
struct Passed {
    parameters: Vec<f32>,
    d_x: Vec<f32>,
    outputs: Vec<Vec<f32>>,
}

/// Widths of the input and of the layers of the MLP below.
const WIDTHS: [usize; 5] = [6, 48, 160, 128, 3];

fn mlp() -> (Mlp, usize) {
    let (mut mlp, mut at) = (Mlp::default(), 0);
    for (pair, relu) in WIDTHS.windows(2).zip([true, true, true, false]) {
        let (inputs, outputs) = (pair[0], pair[1]);
        let (matrix, bias) = (at, at + inputs * outputs);
        let linear = Linear::new((outputs, inputs), matrix, Some(bias));
        mlp.push(Layer { linear, relu, ..Layer::default() }).unwrap();
        at = bias + outputs;
    }
    (mlp, at)
}

/// Forward and backward of one part, with `c` for the gradient of the output.
fn pass(mlp: &Mlp, p: &[f32], x: &[f32], c: &[f32], exchange: &mut Exchange<'_>) -> Passed {
    let (n, inputs, outputs) = (x.len() / WIDTHS[0], WIDTHS[0], WIDTHS[4]);
    let mut words = p.to_vec();
    let parameters = shared(&mut words);
    let mut stored = vec![f32::NAN; mlp.stored_len(n)];
    let x = Activations::new(x, n, inputs, Strides::row_major(inputs));
    let mut prepared = vec![f32::NAN; mlp.prepared_len()];
    let mut scratch =
        Scratch { prepared: &mut prepared, operands: &mut [], kept: &mut [], sums: &mut [] };
    let mut training = Training {
        key: KEY,
        rows: &[],
        statistics: &mut [],
        fresh: true,
        reduce: &mut |_: &mut [f64]| {},
    };
    let replica = Replica { parameters, statistics: &[] };
    mlp.forward(replica, x, Some(&mut training), &mut *exchange, &mut stored, &mut scratch);
    let mut outputs_of = vec![];
    let mut rest = &*stored;
    for width in WIDTHS.into_iter().skip(1) {
        let (here, after) = rest.split_at(umbra_core::kernel::blocked_len(n, width));
        let mut rows = vec![0.0; n * width];
        let y = Activations::blocked(here, n, width);
        rows.chunks_mut(width).enumerate().for_each(|(i, row)| y.copy_row(i, row));
        outputs_of.push(rows);
        rest = after;
    }
    let mut d = vec![f32::NAN; mlp.gradient_len(n)];
    let mut other = d.clone();
    d[..n * outputs].copy_from_slice(c);
    let (mut d_parameters, mut d_x) = (vec![f32::NAN; p.len()], vec![f32::NAN; n * inputs]);
    let of = Stored { parameters, x, activations: &stored };
    let out = Backward {
        parameters: &mut d_parameters,
        fresh: true,
        d: &mut d,
        other: &mut other,
        update: None,
        reduce: &mut |_: &mut [f64]| {},
        exchange,
    };
    let to = ActivationsMut::new(&mut d_x, n, inputs, Strides::row_major(inputs));
    mlp.backward(of, out, Some(to), &mut scratch);
    Passed { parameters: d_parameters, d_x, outputs: outputs_of }
}

/// Σ c · y in f64, where of every hidden output what was 0 is 0, and all else is linear.
fn frozen(mlp: &Mlp, outputs: &[Vec<f32>], p: &[f64], x: &[f64], c: &[f32]) -> f64 {
    let mut x = x.to_vec();
    for (layer, output) in mlp.layers().iter().zip(outputs) {
        let Linear { inputs, outputs, matrix, bias, .. } = layer.linear;
        let mut rows = vec![0.0; inputs * outputs];
        for o in 0..outputs {
            for i in 0..inputs {
                rows[o * inputs + i] = p[matrix + panel_index(outputs, inputs, o, i)];
            }
        }
        let bias = bias.map(|bias| &p[bias..bias + outputs]);
        x = linear(&x, inputs, &rows, bias, outputs);
        if layer.relu {
            x.iter_mut().zip(output).filter(|(_, y)| **y == 0.0).for_each(|(x, _)| *x = 0.0);
        }
    }
    x.iter().zip(c).map(|(y, c)| y * f64::from(*c)).sum()
}

/// With a threshold: of the outputs a share is left, and gradients are those of what is left.
#[test]
fn gradients_are_those_of_what_is_left() {
    let (whole, len) = mlp();
    let (n, parts) = (5, 2);
    let numbers = |stream, len: usize| -> Vec<f32> {
        let stream = Stream::new(5, Purpose::Test(stream));
        (0..len as u64).map(|i| stream.uniform(i) * 2.0 - 1.0).collect()
    };
    let (p, x, c) = (numbers(0, len), numbers(1, n * WIDTHS[0]), numbers(2, n * WIDTHS[4]));
    let keep = Keep { share: 0.2, refresh_every: 10 };
    let (coding, table) = (Coding { keep, ..ALL }, &Table::new(parts));
    let passed: Vec<(Mlp, Passed)> = thread::scope(|scope| {
        let (p, x, c) = (&p, &x, &c);
        let run = |part| {
            scope.spawn(move || {
                let (mut mlp, mut boundaries) = (whole, 0);
                mlp.split(PartOf { part, parts }, &mut boundaries);
                let mut memory = Memory::new(boundaries, n * 160);
                let mut exchange = |it: Crossing<'_>| memory.carry(table, (coding, None), it);
                (mlp, pass(&mlp, p, x, c, &mut exchange))
            })
        };
        let threads: Vec<_> = (0..parts).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [(first, a), (second, b)] = &passed[..] else { panic!("two parts") };
    let at = |mlp: &Mlp| mlp.layers().iter().filter_map(|it| it.boundary).collect::<Vec<_>>();
    let splits: Vec<bool> = at(first).iter().map(|at: &Boundary| at.split).collect();
    assert_eq!(splits, [false, true, true]);
    for (layer, (a, b)) in a.outputs.iter().zip(&b.outputs).enumerate() {
        assert_eq!(bits(a), bits(b), "output {layer}");
        let kept = a.iter().filter(|x| **x != 0.0).count() as f64 / a.len() as f64;
        assert!(layer == 3 || (kept - 0.2).abs() < 0.01, "output {layer}: {kept}");
    }
    let mut gradient = a.parameters.clone();
    for (mlp, passed) in [(first, a), (second, b)] {
        for layer in mlp.layers().iter().filter(|layer| layer.is_split()) {
            let (own, end) = (layer.own(), layer.own().bias.unwrap() + layer.own().outputs);
            for slice in [own.matrix..own.matrix + own.matrix_len(), own.bias.unwrap()..end] {
                gradient[slice.clone()].copy_from_slice(&passed.parameters[slice]);
            }
        }
    }
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (wide_p, wide_x) = (wide(&p), wide(&x));
    let of_x = differences(&wide_x, |x| frozen(first, &a.outputs, &wide_p, x, &c));
    close("input", &a.d_x, &of_x, BOUND);
    assert_eq!(bits(&a.d_x), bits(&b.d_x));
    // One in so many of the parameters.
    let some: Vec<usize> = (0..len).step_by(61).collect();
    let at: Vec<f64> = some.iter().map(|at| wide_p[*at]).collect();
    let of_p = differences(&at, |at| {
        let mut p = wide_p.clone();
        some.iter().zip(at).for_each(|(place, x)| p[*place] = *x);
        frozen(first, &a.outputs, &p, &wide_x, &c)
    });
    let got: Vec<f32> = some.iter().map(|at| gradient[*at]).collect();
    close("parameters", &got, &of_p, BOUND);
}
