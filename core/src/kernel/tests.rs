//! Every kernel on every instruction set of this machine: against its definition in double
//! precision, against `matrixmultiply`, and against itself at other places. The sets are called
//! directly, because `select` is one for the process.

use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use core::sync::atomic::AtomicU32;

use super::isa::{InPlace, Isa, Kernel, Plain, run_on};
use super::operand::Whole;
use super::words::{LoadFinite, Move};
use super::*;
use crate::rng::{Purpose, Stream};

mod edges;
mod halves;
mod pairs;
mod rows;
mod sums;
mod thirds;

fn numbers(stream: u32, len: usize) -> Vec<f32> {
    let stream = Stream::new(5, Purpose::Test(stream));
    (0..len as u64).map(|i| stream.uniform(i) - 0.5).collect()
}

fn sets() -> impl Iterator<Item = Simd> {
    Simd::ALL.into_iter().filter(|set| set.is_supported())
}

/// A row-major matrix in panels, and back.
fn panels(rows: usize, columns: usize, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; rows * columns];
    for (i, x) in x.iter().enumerate() {
        out[panel_index(rows, columns, i / columns, i % columns)] = *x;
    }
    out
}

fn row_major(rows: usize, columns: usize, x: &[f32]) -> Vec<f32> {
    let places = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
    places.map(|(r, c)| x[panel_index(rows, columns, r, c)]).collect()
}

/// A row-major matrix in a layout, between poisoned elements; and its elements again.
struct Placed {
    data: Vec<f32>,
    n: usize,
    width: usize,
    strides: Strides,
}

impl Placed {
    fn new(n: usize, width: usize, blocked: bool) -> Self {
        let strides =
            if blocked { Strides::blocked(n, width) } else { Strides::row_major(width + 3) };
        let len = blocked_len(n, width).max(n * (width + 3));
        Self { data: vec![f32::NAN; len], n, width, strides }
    }

    fn of(x: &[f32], n: usize, width: usize, blocked: bool) -> Self {
        let mut placed = Self::new(n, width, blocked);
        x.chunks(width).enumerate().for_each(|(i, row)| placed.view_mut().set_row(i, row));
        placed
    }

    fn view(&self) -> Activations<'_> {
        Activations::new(&self.data, self.n, self.width, self.strides)
    }

    fn view_mut(&mut self) -> ActivationsMut<'_> {
        ActivationsMut::new(&mut self.data, self.n, self.width, self.strides)
    }

    /// The elements; all others must still be poisoned.
    fn elements(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.n * self.width];
        for (i, row) in out.chunks_mut(self.width).enumerate() {
            self.view().copy_row(i, row);
        }
        let written = self.data.iter().filter(|x| !x.is_nan()).count();
        assert_eq!(written, out.len(), "elements outside the matrix were written");
        out
    }
}

/// Σ_p a(i, p) b(p, j) in double precision.
fn product(
    m: usize,
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> f32,
    b: impl Fn(usize, usize) -> f32,
) -> Vec<f64> {
    let sum = |i, j| (0..k).map(|p| f64::from(a(i, p)) * f64::from(b(p, j))).sum();
    (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).map(|(i, j)| sum(i, j)).collect()
}

fn close(what: &str, got: &[f32], expected: &[f64], terms: usize) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    // Terms of at most 1/4, each rounded to 2^-24 of a sum below terms / 4.
    let bound = 6e-8 * (1.0 + terms as f64 * 0.25) * 2.0;
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= bound, "{what}[{i}]: got {got}, expected {expected}");
    }
}

fn check(set: Simd, n: usize, outputs: usize, inputs: usize, bits: usize) {
    let what = format!("{set:?} n {n} outputs {outputs} inputs {inputs} bits {bits}");
    let (blocked, biased, relu, fresh) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0);
    let (x, w, b) = (numbers(1, n * inputs), numbers(2, outputs * inputs), numbers(3, outputs));
    let placed = Placed::of(&x, n, inputs, blocked);
    let (mut weight, mut bias) = (panels(outputs, inputs, &w), b.clone());

    let forward = |one: bool, weight: &mut [f32], bias: &mut [f32]| {
        let mut y = Placed::new(n, outputs, blocked);
        let (x, weight, y_view) = (placed.view(), shared(weight), &mut y.view_mut());
        let bias = biased.then(|| shared(bias));
        if one {
            run_on(set, linear::ForwardOne { x, weight, bias, relu, y: y_view });
        } else {
            run_on(
                set,
                linear::Forward {
                    operand: Whole,
                    x,
                    panels: weight.as_ptr(),
                    bias,
                    relu,
                    y: y_view,
                },
            );
        }
        y.elements()
    };
    let mut expected =
        product(n, outputs, inputs, |i, p| x[i * inputs + p], |p, j| w[j * inputs + p]);
    for (i, y) in expected.iter_mut().enumerate() {
        *y += if biased { f64::from(b[i % outputs]) } else { 0.0 };
        *y = if relu { y.max(0.0) } else { *y };
    }
    let y = forward(false, &mut weight, &mut bias);
    close(&format!("{what}: forward"), &y, &expected, inputs);
    if outputs == 1 {
        let y = forward(true, &mut weight, &mut bias);
        close(&format!("{what}: forward to one"), &y, &expected, inputs);
    }

    let mut transposed = vec![f32::NAN; w.len()];
    let weight = shared(&mut weight);
    run_on(
        set,
        super::transpose::Transpose { weight, outputs, inputs, transposed: &mut transposed },
    );
    let back = row_major(inputs, outputs, &transposed);
    for (i, x) in back.iter().enumerate() {
        assert_eq!(*x, w[i % outputs * inputs + i / outputs], "{what}: transposed {i}");
    }

    let dy = numbers(4, n * outputs);
    let d_y = Placed::of(&dy, n, outputs, blocked);
    let mask = relu.then(|| Mask { y: placed.view(), scale: 1.25 });
    let d_y = d_y.view();
    let data_gradient = |transposed: Transposed<'_>| {
        let mut d_x = Placed::new(n, inputs, blocked);
        let d_x_view = &mut d_x.view_mut();
        run_on(set, linear::DataGradient { operand: Whole, d_y, transposed, mask, d_x: d_x_view });
        d_x.elements()
    };
    let d_x = data_gradient(Transposed::Made(&transposed));
    for again in [false, true] {
        let mut panels = vec![f32::NAN; w.len()];
        let fresh = Transposed::Fresh { weight, panels: &mut panels, again };
        assert_eq!(data_gradient(fresh), d_x, "{what}: d_x of fresh panels");
        assert!(!again || n == 0 || panels == transposed, "{what}: panels for the next time");
    }
    let mut expected =
        product(n, inputs, outputs, |i, p| dy[i * outputs + p], |p, j| w[p * inputs + j]);
    for (d, x) in expected.iter_mut().zip(&x).filter(|_| relu) {
        *d = if *x > 0.0 { *d * 1.25 } else { 0.0 };
    }
    close(&format!("{what}: d_x"), &d_x, &expected, outputs + outputs / 4);

    let before = numbers(5, w.len());
    let mut d_weight = panels(outputs, inputs, &before);
    run_on(
        set,
        weight::WeightGradient {
            operand: Whole,
            x: placed.view(),
            d_y,
            fresh,
            d_weight: &mut d_weight,
        },
    );
    let mut expected =
        product(outputs, inputs, n, |i, p| dy[p * outputs + i], |p, j| x[p * inputs + j]);
    for (d, before) in expected.iter_mut().zip(&before).filter(|_| !fresh || n == 0) {
        *d += f64::from(*before);
    }
    close(&format!("{what}: d_w"), &row_major(outputs, inputs, &d_weight), &expected, n + 4);
}

#[test]
fn the_products_are_their_definitions() {
    // Miri, which checks pointers, takes a thousand times as long.
    if cfg!(miri) {
        return [(1, 1, 5), (5, 33, 7), (3, 1, 33)].iter().zip([1, 8, 15]).for_each(
            |((n, outputs, inputs), bits)| check(Simd::Plain, *n, *outputs, *inputs, bits),
        );
    }
    let sizes = [1, 2, 5, 7, 8, 13, 16, 31, 32, 33, 47, 65];
    for set in sets() {
        for (x, &n) in sizes.iter().enumerate() {
            for (y, &outputs) in sizes.iter().enumerate() {
                for (z, &inputs) in sizes.iter().enumerate().filter(|(z, _)| (x + y + z) % 2 == 0) {
                    check(set, n, outputs, inputs, x + 3 * y + 5 * z);
                }
            }
        }
        check(set, 0, 33, 7, 5);
        check(set, 300, 100, 70, 7);
        check(set, 257, 70, 400, 0);
        check(set, 20, 550, 600, 7);
    }
}

#[test]
fn agrees_with_matrixmultiply() {
    let (n, outputs, inputs) = (130, 257, 515);
    let (x, w) = (numbers(4, n * inputs), numbers(5, outputs * inputs));
    let mut expected = vec![0.0; n * outputs];
    // SAFETY: the three buffers hold matrices of these sizes: X and Y row-major, W transposed.
    unsafe {
        matrixmultiply::sgemm(
            n,
            inputs,
            outputs,
            1.0,
            x.as_ptr(),
            inputs as isize,
            1,
            w.as_ptr(),
            1,
            inputs as isize,
            0.0,
            expected.as_mut_ptr(),
            outputs as isize,
            1,
        );
    }
    let placed = Placed::of(&x, n, inputs, true);
    let mut y = Placed::new(n, outputs, true);
    let mut weight = panels(outputs, inputs, &w);
    forward(placed.view(), shared(&mut weight), None, false, &mut y.view_mut());
    for (y, expected) in y.elements().iter().zip(&expected) {
        assert!((y - expected).abs() < 2e-5, "{y} {expected}");
    }
}

/// The bits of a row are the same whatever stands around it.
#[test]
fn a_row_does_not_depend_on_its_place() {
    let (n, outputs, inputs) = (41, 37, 300);
    let (x, w) = (numbers(6, n * inputs), numbers(7, outputs * inputs));
    let mut weight = panels(outputs, inputs, &w);
    for set in sets() {
        let mut rows = |x: &[f32], blocked: bool| {
            let placed = Placed::of(x, x.len() / inputs, inputs, blocked);
            let mut y = Placed::new(x.len() / inputs, outputs, blocked);
            let (x, weight, y_view) = (placed.view(), shared(&mut weight), &mut y.view_mut());
            run_on(
                set,
                linear::Forward {
                    operand: Whole,
                    x,
                    panels: weight.as_ptr(),
                    bias: None,
                    relu: false,
                    y: y_view,
                },
            );
            y.elements()
        };
        let whole = rows(&x, true);
        for (i, x) in x.chunks(inputs).enumerate() {
            assert_eq!(rows(x, false), whole[i * outputs..][..outputs], "{set:?} row {i}");
        }
    }
}

/// NaN and infinity go through ReLU and its mask as through the definitions.
#[test]
fn what_is_not_finite_shows() {
    for set in sets() {
        let x = [f32::NAN, f32::INFINITY, -1.0, 2.0];
        let placed = Placed::of(&x, 4, 1, true);
        let mut y = vec![0.0; 4];
        let mut view = ActivationsMut::blocked(&mut y, 4, 1);
        let mut one = [1.0];
        let weight = shared(&mut one);
        run_on(
            set,
            linear::ForwardOne { x: placed.view(), weight, bias: None, relu: true, y: &mut view },
        );
        assert!(y[0].is_nan(), "{set:?}");
        assert_eq!(y[1..], [f32::INFINITY, 0.0, 2.0], "{set:?}");
    }
}

/// Registers of a set against [`Plain`], bit for bit: everything but the fused operation.
struct Operations<'a> {
    out: &'a mut Vec<u32>,
}

impl Kernel for Operations<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let len = 64;
        let (a, b) = (numbers(8, len), numbers(9, len));
        let mut words = vec![0.0; len];
        let mut results: Vec<Vec<f32>> = vec![];
        for operation in 0..12 {
            let mut result = vec![0.0; len];
            for at in (0..len).step_by(I::LANES) {
                // SAFETY: whole vectors of buffers whose length is a multiple of all lanes.
                unsafe {
                    let (x, y) = (isa.load(a.as_ptr().add(at)), isa.load(b.as_ptr().add(at)));
                    let z = match operation {
                        0 => isa.add(x, y),
                        1 => isa.sub(x, y),
                        2 => isa.mul(x, y),
                        3 => isa.div(x, y),
                        4 => isa.sqrt(isa.mul(x, x)),
                        5 => isa.relu(x),
                        6 => isa.where_positive(x, y),
                        7 => isa.flush(isa.mul(x, isa.splat(4e-30))),
                        8 => isa.load_in_place(a.as_ptr().add(at)),
                        9 => isa.load_splat(&a[7]),
                        10 => isa.load_in_place_part(a.as_ptr().add(at), I::LANES),
                        _ => isa.splat(0.75),
                    };
                    isa.store(result.as_mut_ptr().add(at), z);
                }
            }
            results.push(result);
        }
        // Parts of every length, shared and private, at every misalignment.
        for count in 0..=I::LANES.min(4) {
            for start in 0..3 {
                let mut result = vec![7.0; len];
                let shared_words = shared(&mut words);
                // SAFETY: at most LANES elements from `start`, far from the end.
                unsafe {
                    let x = isa.load_part(a.as_ptr().add(start), count);
                    isa.store_shared_part(shared_words.as_ptr().add(start), count, x);
                    let x = isa.load_shared_part(shared_words.as_ptr().add(start), count);
                    isa.store_part(result.as_mut_ptr().add(start), count, isa.add(x, x));
                    let mut whole = vec![0.0; len];
                    isa.store(whole.as_mut_ptr(), x);
                    assert!(whole[count..].iter().all(|x| *x == 0.0), "zeros behind a part");
                }
                results.push(result);
            }
        }
        let bits = results.iter().flatten().map(|x| x.to_bits());
        self.out.extend(bits);
    }
}

#[test]
fn registers_of_all_sets_agree() {
    let mut expected = vec![];
    Operations { out: &mut expected }.run(Plain::new());
    for set in sets() {
        let mut got = vec![];
        run_on(set, Operations { out: &mut got });
        assert!(got == expected, "{set:?}");
    }
}

/// Updates have the same bits on every set, in a pass and in slices.
#[test]
fn updates_of_all_sets_agree() {
    use crate::optim::{Adam, Optimizer, OptimizerKind, StepSize};
    let n = 77;
    let adam = Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    for kind in [
        OptimizerKind::Sgd,
        OptimizerKind::Momentum { beta: 0.9 },
        OptimizerKind::Adagrad { eps: 1e-10, initial: 0.1 },
        OptimizerKind::Adam(adam),
    ] {
        let optimizer = Optimizer { kind, weight_decay: 0.01 };
        let rule = optimizer.at(StepSize { rate: 0.1, count: 3 });
        let planes = optimizer.state_planes();
        let positive =
            |stream, len| -> Vec<f32> { numbers(stream, len).iter().map(|x| x + 1.0).collect() };
        let (mut p, mut s, mut g) = (numbers(1, n), positive(2, planes * n), numbers(3, n));
        // Every third element is about as small as what is flushed, on both sides of it.
        for (i, small) in
            (0..n).step_by(3).zip([0.9e-30, 1.1e-30, 1e-35, 1e-40].into_iter().cycle())
        {
            (p[i], g[i]) = (p[i].signum() * small, 0.0);
            s.iter_mut().skip(i).step_by(n).for_each(|s| *s = small);
        }
        let (mut slices, mut state) = (p.clone(), s.clone());
        let (first, second) = state.split_at_mut(planes.min(1) * n);
        update::update_slices(Plain::new(), &rule, [&mut slices, first, second], &g);
        for set in sets() {
            let (mut words, mut planes) = (p.clone(), s.clone());
            let elements = update::Elements::new(&rule, shared(&mut words), shared(&mut planes));
            run_on(set, update::Update { rule: &rule, elements, gradient: &g });
            let name: String = format!("{kind:?} on {set:?}");
            assert_eq!((&words, &planes), (&slices, &state), "{name}");
        }
    }
}

/// What is smaller than the bound is 0 of either sign; the bound itself and what is not finite
/// stay.
#[test]
fn what_is_flushed() {
    struct Flush<'a>(&'a mut [f32]);
    impl Kernel for Flush<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            for x in self.0 {
                // SAFETY: one element.
                unsafe {
                    let flushed = isa.flush(isa.load_part(x, 1));
                    assert_eq!(isa.has_nan(flushed), x.is_nan());
                    isa.store_part(x, 1, flushed);
                }
            }
        }
    }
    for set in sets() {
        let small = [0.0, -0.0, 1e-45, -1e-45, f32::MIN_POSITIVE, 0.99e-30, -0.99e-30];
        let large = [1e-30, -1e-30, 1.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let (mut zeros, mut kept) = (small, large);
        run_on(set, Flush(&mut zeros));
        run_on(set, Flush(&mut kept));
        assert!(zeros.iter().all(|x| x.to_bits() == 0), "{set}: {zeros:?}");
        assert!(kept.map(f32::to_bits) == large.map(f32::to_bits), "{set}: {kept:?}");
    }
}

#[test]
#[should_panic(expected = "length of W")]
fn shapes_must_fit() {
    let (x, mut w, mut y) = ([0.0; 6], [0.0; 5], [0.0; 4]);
    let x = Activations::blocked(&x, 2, 3);
    forward(x, shared(&mut w), None, false, &mut ActivationsMut::blocked(&mut y, 2, 2));
}

fn words_of(numbers: &[f32]) -> Vec<AtomicU32> {
    numbers.iter().map(|x| AtomicU32::new(x.to_bits())).collect()
}

fn numbers_of(words: Vec<AtomicU32>) -> Vec<f32> {
    words.into_iter().map(|word| f32::from_bits(word.into_inner())).collect()
}

/// Bit for bit, at every length up to two of the longest vectors.
#[test]
fn replicas_move_as_their_definition_says() {
    let alpha = 0.3;
    for (simd, n) in sets().flat_map(|simd| (0..=33).map(move |n| (simd, n))) {
        let (now, values) = (numbers(1, n), numbers(2, n));
        let pairs = || now.iter().zip(&values);
        let (towards, by) = (words_of(&now), words_of(&now));
        run_on(simd, Move::<true> { words: &towards, alpha, values: &values });
        run_on(simd, Move::<false> { words: &by, alpha, values: &values });
        let expected: Vec<f32> = pairs().map(|(x, value)| x + alpha * (value - x)).collect();
        assert_eq!(numbers_of(towards), expected, "{simd}, {n} words towards values");
        let expected: Vec<f32> = pairs().map(|(x, value)| x + alpha * value).collect();
        assert_eq!(numbers_of(by), expected, "{simd}, {n} words by values");
    }
}

/// Wherever it stands, beside numbers of any size.
#[test]
fn a_load_finds_the_one_number_that_is_not_finite() {
    let bad = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)];
    let good = [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -0.0];
    for (simd, n) in sets().flat_map(|simd| [0, 1, 15, 16, 17, 37].map(|n| (simd, n))) {
        let load = |numbers: &[f32]| {
            let (mut out, mut finite) = (vec![9.0; n], n % 2 == 0);
            run_on(
                simd,
                LoadFinite { words: &words_of(numbers), out: &mut out, finite: &mut finite },
            );
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&out), bits(numbers), "{simd}");
            finite
        };
        let finite: Vec<f32> = good.into_iter().cycle().take(n).collect();
        assert!(load(&finite), "{simd}, {n} words");
        for (at, bad) in (0..n).flat_map(|at| bad.map(|bad| (at, bad))) {
            let mut numbers = finite.clone();
            numbers[at] = bad;
            assert!(!load(&numbers), "{simd}, {bad} at {at} of {n} words");
        }
    }
}

#[test]
fn a_claim_leaves_memory_as_it_is() {
    struct Claim<'a>(&'a [AtomicU32]);
    impl Kernel for Claim<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            // SAFETY: every word is there.
            self.0.iter().for_each(|word| unsafe { isa.claim(word) });
        }
    }
    for set in sets() {
        let words: Vec<AtomicU32> = (0..40).map(|i| AtomicU32::new(!i)).collect();
        run_on(set, Claim(&words));
        let left: Vec<u32> = words.into_iter().map(AtomicU32::into_inner).collect();
        assert!(left.into_iter().eq((0..40).map(|i: u32| !i)), "{set}");
    }
}
