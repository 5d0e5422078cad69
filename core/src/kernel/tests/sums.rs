//! Sums beside the products of a layer on every instruction set: pairs, second order, rows, biases,
//! and the update at the end of a weight gradient. And the bits of [`Simd::Plain`], which are those
//! of [`Plain`] whatever the target has for it.

use core::cell::Cell;

use super::*;
use crate::kernel::dot::Dot;
use crate::kernel::dot_backward::DotBackward;
use crate::kernel::linear::{DataGradient, Forward, Transposed};
use crate::kernel::pool::{Bag, Rows, add_scaled, sum_rows};
use crate::kernel::second_order::{SecondOrder, SecondOrderBackward};
use crate::kernel::update::{Elements, Update};
use crate::kernel::weight::{BiasGradient, WeightGradient, WeightUpdate};
use crate::optim::{Optimizer, OptimizerKind, StepSize};

/// Pairs and their gradient are their definition at every width of a last vector and every height
/// of a last tile.
#[test]
fn dot_products_are_their_definition() {
    for (n, vectors, width, leads) in
        [(3, 27, 16, true), (2, 9, 10, false), (2, 4, 33, true), (1, 40, 7, true), (2, 1, 5, true)]
    {
        let shape = DotShape { vectors, width, lead: if leads { width } else { 0 } };
        let t = numbers(41, shape.vectors_len(n));
        let d = numbers(42, n * shape.columns());
        let t_at = |i: usize, f: usize, k: usize| f64::from(t[(i * vectors + f) * width + k]);
        let place = |f: usize, g: usize| shape.lead + f * f.saturating_sub(1) / 2 + g;
        let d_at = |i: usize, f: usize, g: usize| match f.cmp(&g) {
            core::cmp::Ordering::Equal => 0.0,
            core::cmp::Ordering::Less => f64::from(d[i * shape.columns() + place(g, f)]),
            core::cmp::Ordering::Greater => f64::from(d[i * shape.columns() + place(f, g)]),
        };
        let (mut z, mut d_t) = (vec![], vec![]);
        for i in 0..n {
            z.extend((0..shape.lead).map(|k| t_at(i, 0, k)));
            for (f, g) in (0..vectors).flat_map(|f| (0..f).map(move |g| (f, g))) {
                z.push((0..width).map(|k| t_at(i, f, k) * t_at(i, g, k)).sum());
            }
            for (f, k) in (0..vectors).flat_map(|f| (0..width).map(move |k| (f, k))) {
                d_t.push((0..vectors).map(|g| d_at(i, f, g) * t_at(i, g, k)).sum());
            }
        }
        for set in sets() {
            let what = format!("{set}: {n} examples, {vectors} vectors of {width}");
            let mut scratch = vec![f32::NAN; shape.scratch_len()];
            let mut out = Placed::new(n, shape.columns(), true);
            let (t, out_view) = (&t, &mut out.view_mut());
            let scratch = &mut scratch[..];
            run_on(set, Dot { operand: Whole, shape, t, out: out_view, scratch });
            close(&what, &out.elements(), &z, width);
            let mut got = vec![f32::NAN; n * vectors * width];
            let placed = Placed::of(&d, n, shape.columns(), true);
            let (d_out, d_t_view) = (placed.view(), &mut got);
            run_on(set, DotBackward { operand: Whole, shape, t, d_out, d_t: d_t_view, scratch });
            close(&format!("{what}: gradient"), &got, &d_t, vectors);
        }
    }
}

#[test]
fn the_second_order_is_its_definition() {
    for (n, fields, width) in [(3, 1, 1), (2, 5, 3), (4, 26, 10), (2, 7, 16), (1, 3, 33)] {
        let (v, d) = (numbers(51, n * fields * width), numbers(52, n));
        let v_at = |i: usize, f: usize, k: usize| f64::from(v[(i * fields + f) * width + k]);
        let sum_at = |i: usize, k: usize| (0..fields).map(|f| v_at(i, f, k)).sum::<f64>();
        let logits: Vec<f64> = (0..n)
            .map(|i| {
                let of_column = |k: usize| {
                    let squares: f64 = (0..fields).map(|f| v_at(i, f, k).powi(2)).sum();
                    0.5 * (sum_at(i, k).powi(2) - squares)
                };
                0.25 + (0..width).map(of_column).sum::<f64>()
            })
            .collect();
        let d_v: Vec<f64> = (0..n * fields * width)
            .map(|at| {
                let (i, f, k) = (at / width / fields, at / width % fields, at % width);
                0.5 + f64::from(d[i]) * (sum_at(i, k) - v_at(i, f, k))
            })
            .collect();
        for set in sets() {
            let what = format!("{set}: {n} examples, {fields} fields of {width}");
            let mut got = vec![0.25; n];
            run_on(set, SecondOrder { width, v: &v, logits: &mut got });
            // A square of a sum has as many terms as pairs of fields.
            close(&what, &got, &logits, fields * fields * width);
            let mut got = vec![0.5; v.len()];
            run_on(set, SecondOrderBackward { width, v: &v, d_logits: &d, d_v: &mut got });
            close(&format!("{what}: gradient"), &got, &d_v, 4 * fields);
        }
    }
}

/// Sums of rows in private and in shared memory, weighted or not, and their gradient.
struct Pool<'a> {
    rows: &'a [f32],
    width: usize,
    indices: &'a [u32],
    weights: &'a [f32],
    scale: f32,
    out: &'a mut [Vec<f32>; 3],
}

impl Kernel for Pool<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let words = words_of(self.rows);
        let (stride, columns) = (self.width + 2, 1..self.width + 1);
        let [private, in_shared, added] = self.out;
        let bag = Bag {
            indices: self.indices,
            range: 1..self.indices.len(),
            weights: self.weights,
            scale: self.scale,
        };
        let rows = Rows { elements: self.rows, stride, columns: columns.clone() };
        let next = Cell::new(bag.range.start);
        sum_rows(isa, &bag, &rows, private, |value| assert_eq!(next.replace(value + 1), value));
        assert_eq!(next.get(), bag.range.end, "values that were come to");
        let rows = Rows { elements: &words[..], stride, columns };
        sum_rows(isa, &bag, &rows, in_shared, |_| ());
        add_scaled(isa, self.scale, private, added);
    }
}

#[test]
fn sums_of_rows_have_the_same_bits_on_every_set() {
    let indices = [9, 4, 0, 7, 4];
    let ones = [1.0; 4];
    for width in [1, 3, 4, 10, 16, 33, 64, 70, 100, 131, 200] {
        let (rows, weights) = (numbers(61, 10 * (width + 2)), numbers(62, 4));
        for (weights, scale) in [(&[][..], 1.0), (&[][..], 0.3), (&weights[..], 0.3)] {
            let sum = |k: usize| {
                let terms =
                    indices[1..].iter().zip(if weights.is_empty() { &ones } else { weights });
                let mut terms =
                    terms.map(|(row, weight)| weight * rows[*row as usize * (width + 2) + 1 + k]);
                let first = terms.next().expect("a bag has values");
                let sum = terms.fold(first, |sum, term| sum + term);
                if scale == 1.0 { sum } else { sum * scale }
            };
            let expected: Vec<f32> = (0..width).map(sum).collect();
            let after: Vec<f32> = expected.iter().map(|x| 7.0 + scale * x).collect();
            for set in sets() {
                let mut out = [vec![9.0; width], vec![9.0; width], vec![7.0; width]];
                let (rows, indices, out_view) = (&rows, &indices, &mut out);
                run_on(set, Pool { rows, width, indices, weights, scale, out: out_view });
                assert_eq!(out, [&expected[..], &expected, &after], "{set}, width {width}");
            }
        }
    }
}

#[test]
fn bias_gradients_are_sums_of_columns() {
    for (n, width) in [(1, 1), (5, 7), (64, 32), (131, 45), (200, 33)] {
        let (d, before) = (numbers(71, n * width), numbers(72, width));
        let column = |j: usize| (0..n).map(|i| f64::from(d[i * width + j])).sum::<f64>();
        let expected: Vec<f64> =
            before.iter().enumerate().map(|(j, b)| f64::from(*b) + column(j)).collect();
        for (set, blocked) in sets().flat_map(|set| [(set, false), (set, true)]) {
            let (d_y, mut d_bias) = (Placed::of(&d, n, width, blocked), before.clone());
            run_on(set, BiasGradient { d_y: d_y.view(), d_bias: &mut d_bias });
            close(&format!("{set}: n {n} width {width}"), &d_bias, &expected, 4 * n);
        }
    }
}

/// An update where the gradient's last sums are made has the bits of one behind it.
#[test]
fn an_update_in_the_product_is_the_update_after_it() {
    let adagrad = OptimizerKind::Adagrad { eps: 1e-10, initial: 0.1 };
    // Without decay SGD is updated in registers, all else by way of memory.
    for (kind, weight_decay) in
        [(adagrad, 0.01), (OptimizerKind::Sgd, 0.01), (OptimizerKind::Sgd, 0.0)]
    {
        update_in_the_product(Optimizer { kind, weight_decay });
    }
}

fn update_in_the_product(optimizer: Optimizer) {
    let rule = optimizer.at(StepSize { rate: 0.1, count: 3 });
    for (n, outputs, inputs) in [(1, 1, 5), (5, 33, 7), (29, 40, 70), (128, 65, 13)] {
        let (x, d) = (numbers(81, n * inputs), numbers(82, n * outputs));
        let (x, d_y) = (Placed::of(&x, n, inputs, true), Placed::of(&d, n, outputs, true));
        let (p, before) = (numbers(83, outputs * inputs), numbers(84, outputs * inputs));
        let s: Vec<f32> =
            numbers(85, optimizer.state_planes() * p.len()).iter().map(|s| s + 1.0).collect();
        for (set, fresh) in sets().flat_map(|set| [(set, false), (set, true)]) {
            let (mut own, mut own_state) = (p.clone(), s.clone());
            let weight = Elements::new(&rule, shared(&mut own), shared(&mut own_state));
            let (x, d_y, rule) = (x.view(), d_y.view(), &rule);
            let so_far = (!fresh).then_some(&before[..]);
            run_on(set, WeightUpdate { operand: Whole, x, d_y, before: so_far, rule, weight });
            let mut gradient = before.clone();
            let d_weight = &mut gradient[..];
            run_on(set, WeightGradient { operand: Whole, x, d_y, fresh, d_weight });
            let (mut after, mut after_state) = (p.clone(), s.clone());
            let elements = Elements::new(rule, shared(&mut after), shared(&mut after_state));
            run_on(set, Update { rule, elements, gradient: &gradient });
            let what = format!(
                "{set} {optimizer:?}: n {n} outputs {outputs} inputs {inputs} fresh {fresh}"
            );
            assert_eq!((own, own_state), (after, after_state), "{what}");
        }
    }
}

/// Forward, data gradient and weight gradient of a layer, on the set of the name and on its twin.
#[test]
fn plain_has_the_bits_of_its_twin() {
    for (n, outputs, inputs) in [(1, 33, 7), (13, 40, 65), (29, 17, 100), (64, 32, 32)] {
        let (x, d) = (numbers(91, n * inputs), numbers(92, n * outputs));
        let (x, d_y) = (Placed::of(&x, n, inputs, true), Placed::of(&d, n, outputs, true));
        let mut weight = panels(outputs, inputs, &numbers(93, outputs * inputs));
        let transposed = panels(inputs, outputs, &numbers(94, outputs * inputs));
        let mut layer = |twin: bool| {
            let (mut y, mut d_x) = (Placed::new(n, outputs, true), Placed::new(n, inputs, true));
            let mut d_weight = vec![f32::NAN; outputs * inputs];
            let (x, d_y) = (x.view(), d_y.view());
            let panels = shared(&mut weight).as_ptr();
            let forward =
                Forward { operand: Whole, x, panels, bias: None, relu: true, y: &mut y.view_mut() };
            let mask = Some(Mask { y: x, scale: 1.25 });
            let data = DataGradient {
                operand: Whole,
                d_y,
                transposed: Transposed::Made(&transposed),
                mask,
                d_x: &mut d_x.view_mut(),
            };
            let of_weight =
                WeightGradient { operand: Whole, x, d_y, fresh: true, d_weight: &mut d_weight };
            if twin {
                forward.run(Plain::new());
                data.run(Plain::new());
                of_weight.run(Plain::new());
            } else {
                run_on(Simd::Plain, forward);
                run_on(Simd::Plain, data);
                run_on(Simd::Plain, of_weight);
            }
            [y.elements(), d_x.elements(), d_weight]
        };
        let (own, of_twin) = (layer(false), layer(true));
        assert_eq!(own, of_twin, "n {n} outputs {outputs} inputs {inputs}");
    }
}
