//! Dot products of vectors of f32s and their gradient, on every instruction set.

use super::*;
use crate::kernel::dot::Dot;
use crate::kernel::dot_backward::DotBackward;

/// Examples, vectors, their width, and whether the first stands in front of the pairs.
const SHAPES: [(usize, usize, usize, bool); 15] = [
    (37, 27, 16, true),
    (3, 27, 64, true),
    (16, 9, 13, true),
    (17, 4, 33, false),
    (5, 3, 1, true),
    (33, 2, 5, false),
    (4, 1, 7, true),
    (1, 40, 20, true),
    (0, 5, 8, true),
    (2, 5, 48, true),
    (3, 4, 8, false),
    (2, 2, 32, true),
    (3, 27, 128, true),
    (2, 8, 144, false),
    (1, 1, 256, true),
];

fn forward(set: Simd, shape: DotShape, t: &[f32], n: usize, blocked: bool) -> Vec<f32> {
    // Behind the last example anything may stand.
    let mut padded = vec![f32::NAN; shape.vectors_len(n)];
    padded[..t.len()].copy_from_slice(t);
    let mut scratch = vec![f32::NAN; shape.scratch_len()];
    let mut z = Placed::new(n, shape.columns(), blocked);
    let (t, out, scratch) = (&padded, &mut z.view_mut(), &mut scratch);
    run_on(set, Dot { operand: Whole, shape, t, out, scratch });
    z.elements()
}

fn gradient(set: Simd, shape: DotShape, t: &[f32], d: &Placed) -> Vec<f32> {
    let mut d_t = vec![f32::NAN; t.len()];
    let mut scratch = vec![f32::NAN; shape.scratch_len()];
    let mut padded = vec![f32::NAN; shape.vectors_len(d.view().n())];
    padded[..t.len()].copy_from_slice(t);
    let (t, d_out, scratch) = (&padded, d.view(), &mut scratch);
    run_on(set, DotBackward { operand: Whole, shape, t, d_out, d_t: &mut d_t, scratch });
    d_t
}

#[test]
fn dot_products_and_their_gradient_are_their_definitions() {
    for (set, (n, vectors, width, leads)) in sets().flat_map(|set| SHAPES.map(|it| (set, it))) {
        let shape = DotShape { vectors, width, lead: if leads { width } else { 0 } };
        let what = format!("{set} {n} examples, {vectors} vectors of {width}");
        let (t, d) = (numbers(51, n * vectors * width), numbers(52, n * shape.columns()));
        let at = |i: usize, f: usize, k: usize| f64::from(t[(i * vectors + f) * width + k]);
        let mut z = vec![];
        let mut d_t = vec![];
        for i in 0..n {
            z.extend((0..shape.lead).map(|k| at(i, 0, k)));
            for (f, g) in (0..vectors).flat_map(|f| (0..f).map(move |g| (f, g))) {
                z.push((0..width).map(|k| at(i, f, k) * at(i, g, k)).sum());
            }
            let s = |f: usize, g: usize| {
                let (low, high) = (f.min(g), f.max(g));
                let pair = shape.lead + high * high.saturating_sub(1) / 2 + low;
                if f == g { 0.0 } else { f64::from(d[i * shape.columns() + pair]) }
            };
            for (f, k) in (0..vectors).flat_map(|f| (0..width).map(move |k| (f, k))) {
                d_t.push((0..vectors).map(|g| s(f, g) * at(i, g, k)).sum());
            }
        }
        for blocked in [true, false] {
            close(&what, &forward(set, shape, &t, n, blocked), &z, width);
            let d = Placed::of(&d, n, shape.columns(), blocked);
            let got = gradient(set, shape, &t, &d);
            close(&format!("{what}: gradient"), &got, &d_t, vectors);
        }
    }
}

/// The bits of an example are the same whatever stands around it.
#[test]
fn an_example_does_not_depend_on_its_place() {
    let (n, vectors) = (21, 11);
    for (set, width) in sets().flat_map(|set| [37, 128].map(|width| (set, width))) {
        let shape = DotShape { vectors, width, lead: width };
        let t = numbers(53, n * vectors * width);
        let all = forward(set, shape, &t, n, true);
        for (one, all) in t.chunks(vectors * width).zip(all.chunks(shape.columns())) {
            assert_eq!(forward(set, shape, one, 1, false), all, "{set} {width}");
        }
    }
}

/// Whichever way a shape takes: term by term, the vectors in increasing order.
#[test]
fn a_gradient_of_pairs_is_summed_in_the_order_of_vectors() {
    for (set, (n, vectors, width, _)) in sets().flat_map(|set| SHAPES.map(|it| (set, it))) {
        let shape = DotShape { vectors, width, lead: 0 };
        let (t, d) = (numbers(54, n * vectors * width), numbers(55, n * shape.columns()));
        let mut expected = vec![];
        for (t, d) in t.chunks(vectors * width).zip(d.chunks(shape.columns().max(1))) {
            for (f, k) in (0..vectors).flat_map(|f| (0..width).map(move |k| (f, k))) {
                expected.push((0..vectors).filter(|g| *g != f).fold(0.0f32, |sum, g| {
                    let (low, high) = (f.min(g), f.max(g));
                    let (s, t) = (d[high * (high - 1) / 2 + low], t[g * width + k]);
                    if set == Simd::Plain { sum + s * t } else { s.mul_add(t, sum) }
                }));
            }
        }
        if shape.pairs() > 0 {
            let d = Placed::of(&d, n, shape.columns(), true);
            let what = format!("{set} {n} examples, {vectors} vectors of {width}");
            assert_eq!(gradient(set, shape, &t, &d), expected, "{what}");
        }
    }
}
