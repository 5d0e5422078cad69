//! One layer at a time. The scalar that is differenced is Σ c · y with random c, so that every
//! output counts differently.

use umbra_core::batch::Jagged;
use umbra_core::dense::interaction::Vectors;
use umbra_core::dense::linear::Linear;
use umbra_core::dense::loss;
use umbra_core::dense::mlp::{Backward, Layer, Mlp, Replica, Scratch, Stored, Training};
use umbra_core::dense::norm::Norm;
use umbra_core::kernel::{
    Activations, ActivationsMut, Strides, dot, dot_backward, panel_index, second_order_backward,
    shared,
};
use umbra_core::model::{Pooling, Precision};
use umbra_core::rng::{Purpose, Stream};
use umbra_core::sparse::bag::{Bags, Pooled, RowGradients};

use crate::twin::{self, KEY, wide};
use crate::{BOUND, close, differences};

fn numbers(stream: u32, len: usize) -> Vec<f32> {
    let stream = Stream::new(21, Purpose::Test(stream));
    (0..len as u64).map(|i| stream.uniform(i) * 2.0 - 1.0).collect()
}

fn weighted(c: &[f32], y: &[f64]) -> f64 {
    c.iter().zip(y).map(|(c, y)| f64::from(*c) * y).sum()
}

/// A vector [W in panels, the rest] as [W row-major, the rest].
fn row_major<T: Copy>(x: &[T], outputs: usize, inputs: usize) -> Vec<T> {
    let places = (0..outputs).flat_map(|o| (0..inputs).map(move |i| (o, i)));
    let matrix = places.map(|(o, i)| x[panel_index(outputs, inputs, o, i)]);
    matrix.chain(x[outputs * inputs..].iter().copied()).collect()
}

/// Layers within a panel and a block, and beyond.
fn check_layer(what: &str, biased: bool, relu: bool, normed: bool, dropout: f32) {
    for (inputs, outputs) in [(7, 5), (70, 3), (3, 70), (33, 40)] {
        let what = format!("{what} {inputs} to {outputs}");
        check_layer_of(&what, (inputs, outputs), biased, relu, normed, dropout);
    }
}

/// One linear layer with what follows it, as [W, then b or scale and shift].
fn check_layer_of(
    what: &str,
    (inputs, outputs): (usize, usize),
    biased: bool,
    relu: bool,
    normed: bool,
    dropout: f32,
) {
    let n = 19;
    let matrix = outputs * inputs;
    let norm =
        Norm { units: outputs, scale: matrix, shift: matrix + outputs, mean: 0, variance: outputs };
    let layer = Layer {
        linear: Linear::new((outputs, inputs), 0, biased.then_some(matrix)),
        norm: normed.then_some(norm),
        relu,
        dropout,
        stream: 3,
        boundary: None,
    };
    let mut mlp = Mlp::default();
    mlp.push(layer).unwrap();
    let parameters = numbers(0, matrix + 2 * outputs);
    let (x, c) = (numbers(1, n * inputs), numbers(2, n * outputs));
    let rows: Vec<u64> = (40..40 + n as u64).collect();

    let forward = |p: &[f64], x: &[f64]| {
        let p = row_major(p, outputs, inputs);
        let bias = biased.then(|| &p[matrix..matrix + outputs]);
        let mut y = twin::linear(x, inputs, &p[..matrix], bias, outputs);
        if normed {
            let (mean, variance) = twin::moments(&y, outputs);
            let (scale, shift) = p[matrix..].split_at(outputs);
            y = twin::norm(&y, &mean, &variance, scale, shift);
        }
        let mask = twin::mask(3, dropout, &rows, outputs);
        let cut = |(y, m): (&f64, f64)| if relu { y.max(0.0) * m } else { y * m };
        y.iter().zip(mask).map(cut).collect::<Vec<f64>>()
    };

    let mut stored = vec![f32::NAN; mlp.stored_len(n)];
    let (mut kept, mut sums) = (vec![0.0; mlp.kept_len()], vec![0.0; mlp.sums_len()]);
    let (mut words, mut prepared) = (parameters.clone(), vec![f32::NAN; mlp.prepared_len()]);
    let words = shared(&mut words);
    let mut statistics = vec![0.0; 2 * outputs];
    let mut scratch =
        Scratch { prepared: &mut prepared, operands: &mut [], kept: &mut kept, sums: &mut sums };
    let mut training = Training {
        key: KEY,
        rows: &rows,
        statistics: &mut statistics,
        fresh: true,
        reduce: &mut |_: &mut [f64]| {},
    };
    let replica = Replica { parameters: words, statistics: &[] };
    let strides = Strides::row_major(inputs);
    let input = Activations::new(&x, n, inputs, strides);
    mlp.forward(replica, input, Some(&mut training), &mut |_| {}, &mut stored, &mut scratch);
    let y = forward(&wide(&parameters), &wide(&x));
    let mut output = vec![0.0; n * outputs];
    for (i, row) in output.chunks_mut(outputs).enumerate() {
        mlp.output(n, &stored).copy_row(i, row);
    }
    close(&format!("{what}: output"), &output, &y, 1e-6);

    let mut d = vec![f32::NAN; mlp.gradient_len(n)];
    let mut d_y = ActivationsMut::blocked(&mut d, n, outputs);
    c.chunks(outputs).enumerate().for_each(|(i, row)| d_y.set_row(i, row));
    let mut other = vec![0.0; d.len()];
    let mut d_parameters = vec![0.0; parameters.len()];
    let mut d_x = vec![0.0; x.len()];
    let out = Backward {
        parameters: &mut d_parameters,
        fresh: true,
        d: &mut d,
        other: &mut other,
        update: None,
        reduce: &mut |_: &mut [f64]| {},
        exchange: &mut |_| {},
    };
    let stored = Stored { parameters: words, x: input, activations: &stored };
    let d_input = ActivationsMut::new(&mut d_x, n, inputs, strides);
    mlp.backward(stored, out, Some(d_input), &mut scratch);
    let of_parameters = differences(&wide(&parameters), |p| weighted(&c, &forward(p, &wide(&x))));
    let of_x = differences(&wide(&x), |x| weighted(&c, &forward(&wide(&parameters), x)));
    close(&format!("{what}: parameters"), &d_parameters, &of_parameters, BOUND);
    close(&format!("{what}: input"), &d_x, &of_x, BOUND);
}

#[test]
fn linear() {
    check_layer("linear", false, false, false, 0.0);
    check_layer("linear and bias", true, false, false, 0.0);
}

#[test]
fn relu_and_dropout() {
    check_layer("relu", true, true, false, 0.0);
    check_layer("dropout", true, true, false, 0.4);
}

#[test]
fn batch_norm() {
    check_layer("norm", false, false, true, 0.0);
    check_layer("norm, relu, dropout", false, true, true, 0.3);
}

#[test]
fn sigmoid_and_cross_entropy() {
    for z in [-9.0f32, -2.0, -0.1, 0.0, 0.1, 3.0, 9.0] {
        for y in [0.0f32, 0.25, 1.0] {
            let f = |z: &[f64]| twin::cross_entropy(z[0], f64::from(y));
            let expected = differences(&[f64::from(z)], f);
            assert!((loss::cross_entropy(z, y) - f(&[f64::from(z)])).abs() < 1e-12);
            close("cross entropy", &[loss::cross_entropy_gradient(z, y)], &expected, 1e-6);
        }
    }
}

#[test]
fn pooling() {
    // Bags of 0, 1, 3 ids with one id twice, 0, 2, 1.
    let (offsets, slot) = ([0, 0, 1, 4, 4, 6, 7], [2, 0, 3, 3, 1, 2, 0]);
    let (n, fields, width) = (3, 2, 4);
    let rows = numbers(5, 4 * width);
    let c = numbers(6, n * fields * width);
    // Of bag 4 all are 0, and of bag 2 one.
    let some = [0.5, 2.0, 0.0, 1.25, 0.0, 0.0, 3.0];
    let cases = [Pooling::Sum, Pooling::Mean].map(|pooling| [(pooling, &[][..]), (pooling, &some)]);
    for (pooling, weights) in cases.concat() {
        let bags = Jagged { values: &slot, offsets: &offsets, weights };
        let forward = |rows: &[f64]| twin::pool(bags, rows, width, pooling);
        let bags = Bags { bags, slot: &slot, fields, firsts: &[], pooling, row_width: width };
        let shape = Pooled { columns: 0..width, stride: fields * width, at: 0 };
        let mut out = vec![f32::NAN; n * fields * width];
        bags.pool(n, &rows, &shape, &mut out);
        close("pooled", &out, &forward(&wide(&rows)), 1e-6);
        // Rows are set when they are named, in whatever order that is.
        let (mut d_rows, mut set) = (vec![f32::NAN; rows.len()], 0);
        let mut sums = RowGradients::new(&mut d_rows, &mut set);
        bags.pool_backward(n, &c, &shape, sums.again());
        sums.finish(width);
        let expected = differences(&wide(&rows), |rows| weighted(&c, &forward(rows)));
        close("pooling", &d_rows, &expected, BOUND);

        // A part of the columns, into a part of a wider buffer, that leaves the rest alone.
        let shape = Pooled { columns: 1..3, stride: 9, at: 4 };
        let mut wider = vec![7.0; n * 9];
        bags.pool(n, &rows, &shape, &mut wider);
        for (place, x) in wider.iter().enumerate() {
            let (i, at) = (place / 9, place % 9);
            let inside = (4..8).contains(&at);
            let from = |at: usize| out[(i * fields + (at - 4) / 2) * width + 1 + at % 2];
            assert_eq!(*x, if inside { from(at) } else { 7.0 }, "place {place}");
        }

        // Column 0 alone: the sum over the fields.
        let (mut d_rows, mut set) = (vec![f32::NAN; rows.len()], 0);
        let mut sums = RowGradients::new(&mut d_rows, &mut set);
        let of = |rows: &[f64], i: usize| -> f64 {
            let pooled = forward(rows);
            (0..fields).map(|s| pooled[(i * fields + s) * width]).sum()
        };
        for (i, c) in c.iter().enumerate().take(n) {
            let got = bags.pool_column(i, &rows, 0);
            close("column", &[got], &[of(&wide(&rows), i)], 1e-6);
            bags.pool_column_backward(i, *c, 0, &mut sums);
        }
        sums.finish(width);
        let sum = |rows: &[f64]| (0..n).map(|i| f64::from(c[i]) * of(rows, i)).sum();
        close("column gradient", &d_rows, &differences(&wide(&rows), sum), BOUND);
    }
}

/// Where every bag has one id, a vector is the row: the same bits as by way of bags, which weights
/// of 1 make of them. One bag of another length, and all are bags.
#[test]
fn single_ids_are_bags_of_one() {
    let (n, fields, width) = (5, 3, 20);
    let slot: [u32; 15] = [0, 1, 2, 0, 3, 1, 4, 5, 2, 2, 0, 6, 1, 1, 7];
    let single: Vec<u32> = (0..=15).collect();
    // The first is empty, the second has two; as many ids.
    let uneven: Vec<u32> = [0, 0].into_iter().chain(2..=15).collect();
    let rows = numbers(15, 8 * width);
    let mut c = numbers(16, n * fields * width);
    c[0] = -0.0;
    for (offsets, columns) in [(&single, 0..width), (&single, 3..19), (&uneven, 0..width)] {
        let shape = Pooled { columns: columns.clone(), stride: fields * columns.len(), at: 0 };
        let len = n * fields * columns.len();
        let passes = [&[][..], &[1.0; 15]].map(|weights| {
            let bags = Jagged { values: &slot, offsets, weights };
            let pooling = Pooling::Mean;
            let bags = Bags { bags, slot: &slot, fields, firsts: &[], pooling, row_width: width };
            let mut out = vec![f32::NAN; len];
            bags.pool(n, &rows, &shape, &mut out);
            let (mut d_rows, mut set) = (vec![f32::NAN; rows.len()], 0);
            let mut sums = RowGradients::new(&mut d_rows, &mut set);
            bags.pool_backward(n, &c[..len], &shape, sums.again());
            sums.finish(width);
            [out, d_rows].concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        assert_eq!(passes[0], passes[1], "columns {columns:?} of {offsets:?}");
    }
}

/// What a mean would divide by is beyond f32: such a bag is as an empty one, never NaN.
#[test]
fn weights_that_nothing_can_be_divided_by_pool_to_zeros() {
    let (slot, offsets, rows) = ([0, 1], [0, 2], [1.5f32, -2.5]);
    for weights in [[0.0, 0.0], [1e-42, 0.0], [f32::MAX, f32::MAX]] {
        let bags = Jagged { values: &slot, offsets: &offsets, weights: &weights };
        let bags = Bags {
            bags,
            slot: &slot,
            fields: 1,
            firsts: &[],
            pooling: Pooling::Mean,
            row_width: 1,
        };
        let (mut out, mut d_rows, mut set) = ([f32::NAN], [f32::NAN; 2], 0);
        let mut sums = RowGradients::new(&mut d_rows, &mut set);
        let shape = Pooled { columns: 0..1, stride: 1, at: 0 };
        bags.pool(1, &rows, &shape, &mut out);
        bags.pool_backward(1, &[1.0], &shape, sums.again());
        bags.pool_column_backward(0, 1.0, 0, &mut sums);
        sums.finish(1);
        assert_eq!((out, d_rows), ([0.0], [0.0; 2]), "{weights:?}");
        assert_eq!(bags.pool_column(0, &rows, 0), 0.0, "{weights:?}");
    }
}

#[test]
fn dot_interaction() {
    for (n, count, width) in [(3, 5, 4), (2, 1, 3), (2, 27, 16), (2, 40, 9), (3, 33, 32)] {
        for lead in [false, true] {
            let shape = Vectors { vectors: count, width }.dot(lead);
            let (t, columns) = (numbers(7, n * count * width), shape.columns());
            let c = numbers(8, n * columns);
            let forward = |t: &[f64]| {
                let one = |t: &[f64]| [&t[..shape.lead], &twin::dot(t, width)].concat();
                t.chunks(count * width).flat_map(one).collect::<Vec<f64>>()
            };
            let mut scratch = vec![f32::NAN; shape.scratch_len()];
            // What stands behind the vectors does not matter.
            let mut padded = vec![f32::NAN; shape.vectors_len(n)];
            padded[..t.len()].copy_from_slice(&t);
            let strides = Strides::row_major(columns);
            let mut out = vec![f32::NAN; n * columns];
            let mut view = ActivationsMut::new(&mut out, n, columns, strides);
            dot(Precision::F32, shape, &padded, &mut view, &mut scratch);
            close("dot", &out, &forward(&wide(&t)), 1e-6);
            let mut d_t = vec![f32::NAN; t.len()];
            let d_out = Activations::new(&c, n, columns, strides);
            scratch.fill(f32::NAN);
            dot_backward(Precision::F32, shape, &padded, d_out, &mut d_t, &mut scratch);
            if shape.lead > 0 {
                // The copy of the first vector is the caller's to add.
                for (i, d_t) in d_t.chunks_mut(count * width).enumerate() {
                    d_out.add_row(i, &mut d_t[..width]);
                }
            }
            let expected = differences(&wide(&t), |t| weighted(&c, &forward(t)));
            close("dot gradient", &d_t, &expected, BOUND);
        }
    }
}

#[test]
fn second_order() {
    for (n, count, width) in [(4, 6, 5), (3, 10, 16), (5, 3, 37), (0, 4, 8)] {
        let (v, c) = (numbers(9, n * count * width), numbers(10, n));
        // Every pair once: not the form with the square of the sum.
        let forward = |v: &[f64]| {
            let one = |v: &[f64]| twin::dot(v, width).iter().sum();
            v.chunks(count * width).map(one).collect::<Vec<f64>>()
        };
        let mut logits = vec![0.0; n];
        umbra_core::kernel::second_order(width, &v, &mut logits);
        close("second order", &logits, &forward(&wide(&v)), 5e-6);
        let mut d_v = vec![0.0; v.len()];
        second_order_backward(width, &v, &c, &mut d_v);
        let expected = differences(&wide(&v), |v| weighted(&c, &forward(v)));
        close("second order gradient", &d_v, &expected, BOUND);
    }
}
