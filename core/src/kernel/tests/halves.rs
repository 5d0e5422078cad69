//! Products of bf16s: every instruction set gives the bits of the definition; of those of linear
//! layers there are two, which differ in the order of a sum.

use super::*;
use crate::kernel::dot::Dot;
use crate::kernel::dot_backward::DotBackward;
use crate::kernel::linear::{DataGradient, Forward};
use crate::kernel::operand::Halves;
use crate::kernel::round::{RoundActivations, RoundWeight};
use crate::kernel::weight::WeightGradient;

/// An instruction set, the twin of all, or the best one with its instructions for bf16.
#[derive(Clone, Copy, Debug)]
enum Way {
    Set(Simd),
    Twin,
    #[cfg(target_arch = "x86_64")]
    Halves,
    /// By matrices in registers.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

fn ways() -> Vec<Way> {
    let ways = sets().map(Way::Set).chain([Way::Twin]);
    #[cfg(target_arch = "x86_64")]
    let ways = ways
        .chain(crate::kernel::simd::has_halves().then_some(Way::Halves))
        .chain(Simd::Amx.is_supported().then_some(Way::Tiles));
    ways.collect()
}

impl Way {
    fn run(self, kernel: impl Kernel) {
        match self {
            Self::Set(set) => run_on(set, kernel),
            Self::Twin => kernel.run(Plain::new()),
            #[cfg(target_arch = "x86_64")]
            Self::Halves => crate::kernel::isa::run_halves_on_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => crate::kernel::isa::run_tiles(kernel),
        }
    }

    /// The order in which products of linear layers are summed.
    fn sum_of(self) -> SumOf {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tiles => sum_of_sixteens,
            _ => sum_of,
        }
    }
}

/// The nearest bf16, by its definition: of the two around `x` the nearer, of two as near the even.
fn nearest(x: f32) -> f32 {
    if x.is_nan() {
        return f32::from_bits(x.to_bits() & 0xffff_0000 | 0x40_0000);
    }
    if f64::from(x).abs() < (2.0f64).powi(-56) {
        return 0.0;
    }
    if x.is_infinite() {
        return x;
    }
    let below = x.to_bits() & 0xffff_0000;
    let value = |word: u32| match f32::from_bits(word) {
        // What would come behind the largest: as far from it as the one before.
        it if it.is_infinite() => f64::from(it.signum()) * (2.0f64).powi(128),
        it => f64::from(it),
    };
    let distance = |word: u32| (value(word) - f64::from(x)).abs();
    let above = below.wrapping_add(0x1_0000);
    match distance(below).total_cmp(&distance(above)) {
        core::cmp::Ordering::Less => f32::from_bits(below),
        core::cmp::Ordering::Greater => f32::from_bits(above),
        core::cmp::Ordering::Equal => {
            f32::from_bits(if below & 0x1_0000 == 0 { below } else { above })
        }
    }
}

/// Numbers of all sizes, ties, edges and those that are none.
fn awkward() -> Vec<f32> {
    let stream = Stream::new(11, Purpose::Test(0));
    let mut words: Vec<u32> = (0..4096u64).map(|i| stream.block(i)[0]).collect();
    for upper in [0x3f80_0000, 0x3f81_0000, 0xbf7f_0000, 0x2380_0000, 0x237f_0000, 0x7f7f_0000] {
        words.extend([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lower| upper | lower));
    }
    words.extend([0, 1, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7f80_0001, 0x7fff_ffff]);
    words.resize(words.len().next_multiple_of(64), 0);
    words.into_iter().map(f32::from_bits).collect()
}

/// The lower and the upper half of a word, as f32s.
fn of_word(word: f32) -> [f32; 2] {
    [word.to_bits() << 16, word.to_bits() & 0xffff_0000].map(f32::from_bits)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn rounding_is_to_the_nearest_and_the_even_of_two() {
    let numbers = awkward();
    for way in ways() {
        for blocked in [false, true] {
            let n = numbers.len() / 64;
            let x = Placed::of(&numbers, n, 64, blocked);
            let (columns, _) = rounded(way, &x);
            let mut words = vec![0.0; numbers.len() / 2];
            for (i, row) in words.chunks_mut(32).enumerate() {
                columns.view().copy_row(i, row);
            }
            for (x, half) in numbers.iter().zip(words.into_iter().flat_map(of_word)) {
                let (got, expected) = (half.to_bits(), nearest(*x).to_bits());
                assert_eq!(got, expected, "{way:?}: {x:e} ({:x})", x.to_bits());
            }
        }
    }
}

/// Both forms of activations.
fn rounded(way: Way, x: &Placed) -> (Placed, Placed) {
    let (n, width) = (x.n, x.width);
    let mut columns = Placed::new(n, width.div_ceil(2), true);
    let mut examples = Placed::new(n.div_ceil(2), width, true);
    way.run(RoundActivations {
        x: x.view(),
        columns: Some(&mut columns.view_mut()),
        examples: &mut examples.view_mut(),
    });
    (columns, examples)
}

/// Element (i, f) of [n, width], or 0 outside.
fn at(x: &[f32], (n, width): (usize, usize), i: usize, f: usize) -> f32 {
    if i < n && f < width { nearest(x[i * width + f]) } else { 0.0 }
}

const SIZES: [(usize, usize, usize); 8] = [
    (1, 32, 32),
    (2, 33, 34),
    (5, 47, 64),
    (14, 64, 33),
    (29, 40, 100),
    (31, 96, 65),
    (128, 32, 47),
    (131, 35, 130),
];

#[test]
fn both_forms_of_activations_hold_their_halves() {
    for (n, width, _) in SIZES {
        let x = numbers(21, n * width);
        for (way, blocked) in ways().into_iter().flat_map(|way| [(way, false), (way, true)]) {
            let (columns, examples) = rounded(way, &Placed::of(&x, n, width, blocked));
            let (half_n, half_width) = (n.div_ceil(2), width.div_ceil(2));
            let words = columns.elements();
            for (i, k) in (0..n).flat_map(|i| (0..half_width).map(move |k| (i, k))) {
                let expected = [0, 1].map(|odd| at(&x, (n, width), i, 2 * k + odd));
                assert_eq!(of_word(words[i * half_width + k]), expected, "{way:?} {n} {width}");
            }
            let words = examples.elements();
            for (k, f) in (0..half_n).flat_map(|k| (0..width).map(move |f| (k, f))) {
                let expected = [0, 1].map(|odd| at(&x, (n, width), 2 * k + odd, f));
                assert_eq!(of_word(words[k * width + f]), expected, "{way:?} {n} {width}");
            }
        }
    }
}

/// A sum over so many products of the halves of two operands.
type SumOf = fn(usize, &dyn Fn(usize) -> f32, &dyn Fn(usize) -> f32) -> f32;

/// The twin of `amx/halves.rs`: for each sixteen words, the lower and the upper halves are added up
/// by themselves, then both.
#[cfg(target_arch = "x86_64")]
fn sum_of_sixteens(depth: usize, a: &dyn Fn(usize) -> f32, b: &dyn Fn(usize) -> f32) -> f32 {
    (0..depth).step_by(32).fold(0.0, |sum, first| {
        let of = |odd: usize| {
            let halves = (first + odd..depth.min(first + 32)).step_by(2);
            halves.fold(0.0, |sum, p| sum + a(p) * b(p))
        };
        sum + (of(0) + of(1))
    })
}

/// The sum of products of halves in their order: of each word the upper, then the lower.
fn sum_of(depth: usize, a: &dyn Fn(usize) -> f32, b: &dyn Fn(usize) -> f32) -> f32 {
    (0..depth.div_ceil(2)).fold(0.0, |sum, k| {
        let term = |p: usize| if p < depth { a(p) * b(p) } else { 0.0 };
        sum + term(2 * k + 1) + term(2 * k)
    })
}

/// Forward, data gradient and weight gradient of a layer have the bits of their definition.
#[test]
fn products_of_halves_have_the_same_bits_everywhere() {
    for (n, outputs, inputs) in SIZES {
        let what = format!("n {n} outputs {outputs} inputs {inputs}");
        let (x, d) = (numbers(31, n * inputs), numbers(32, n * outputs));
        let (w, b) = (numbers(33, outputs * inputs), numbers(34, outputs));
        let (x_at, d_at) = (
            |i: usize, f: usize| at(&x, (n, inputs), i, f),
            |i: usize, f: usize| at(&d, (n, outputs), i, f),
        );
        let w_at = |o: usize, f: usize| at(&w, (outputs, inputs), o, f);
        let cells = |rows: usize, columns: usize| {
            (0..rows).flat_map(move |i| (0..columns).map(move |j| (i, j)))
        };
        for way in ways() {
            let sum_of = way.sum_of();
            let y: Vec<f32> = cells(n, outputs)
                .map(|(i, o)| (sum_of(inputs, &|f| x_at(i, f), &|f| w_at(o, f)) + b[o]).max(0.0))
                .collect();
            let d_x: Vec<f32> = cells(n, inputs)
                .map(|(i, f)| sum_of(outputs, &|o| d_at(i, o), &|o| w_at(o, f)))
                .collect();
            let d_w: Vec<f32> = cells(outputs, inputs)
                .map(|(o, f)| sum_of(n, &|i| d_at(i, o), &|i| x_at(i, f)))
                .collect();
            let (x_columns, x_examples) = rounded(way, &Placed::of(&x, n, inputs, true));
            let (d_columns, d_examples) = rounded(way, &Placed::of(&d, n, outputs, true));
            let mut weight = panels(outputs, inputs, &w);
            let mut half_panels = vec![f32::NAN; half_panels_len(outputs, inputs)];
            let mut transposed = vec![f32::NAN; half_panels_len(inputs, outputs)];
            way.run(RoundWeight {
                weight: shared(&mut weight),
                outputs,
                inputs,
                panels: &mut half_panels,
                transposed: &mut transposed,
            });
            let (mut bias, mut got) = (b.clone(), Placed::new(n, outputs, true));
            way.run(Forward {
                operand: Halves,
                x: x_columns.view(),
                panels: InPlace(half_panels.as_ptr()),
                bias: Some(shared(&mut bias)),
                relu: true,
                y: &mut got.view_mut(),
            });
            assert_eq!(bits(&got.elements()), bits(&y), "{way:?} {what}: forward");
            let mut got = Placed::new(n, inputs, true);
            let (d_y, d_x_view) = (d_columns.view(), &mut got.view_mut());
            way.run(DataGradient {
                operand: Halves,
                d_y,
                transposed: Transposed::Made(&transposed),
                mask: None,
                d_x: d_x_view,
            });
            assert_eq!(bits(&got.elements()), bits(&d_x), "{way:?} {what}: data gradient");
            let mut d_weight = vec![f32::NAN; outputs * inputs];
            let (x, d_y) = (x_examples.view(), d_examples.view());
            way.run(WeightGradient {
                operand: Halves,
                x,
                d_y,
                fresh: true,
                d_weight: &mut d_weight,
            });
            let d_weight = row_major(outputs, inputs, &d_weight);
            assert_eq!(bits(&d_weight), bits(&d_w), "{way:?} {what}: weight gradient");
        }
    }
}

/// The dot products of vectors and their gradient have the bits of their definition.
#[test]
fn dot_products_of_halves_have_the_same_bits_everywhere() {
    for (n, vectors, width, leads) in [
        (3, 27, 64, true),
        (2, 9, 32, false),
        (4, 4, 96, true),
        (1, 40, 32, true),
        (2, 1, 32, true),
    ] {
        let shape = DotShape { vectors, width, lead: if leads { width } else { 0 } };
        let what = format!("{n} examples, {vectors} vectors of {width}");
        let t = numbers(41, shape.vectors_len(n));
        let d = numbers(42, n * shape.columns());
        let t_at = |i: usize, f: usize, k: usize| nearest(t[(i * vectors + f) * width + k]);
        let place = |f: usize, g: usize| shape.lead + f * f.saturating_sub(1) / 2 + g;
        let s_at = |i: usize, f: usize, g: usize| match f.cmp(&g) {
            core::cmp::Ordering::Equal => 0.0,
            core::cmp::Ordering::Less => nearest(d[i * shape.columns() + place(g, f)]),
            core::cmp::Ordering::Greater => nearest(d[i * shape.columns() + place(f, g)]),
        };
        let mut z = vec![];
        for i in 0..n {
            z.extend(&t[i * vectors * width..][..shape.lead]);
            for (f, g) in (0..vectors).flat_map(|f| (0..f).map(move |g| (f, g))) {
                z.push(sum_of(width, &|k| t_at(i, f, k), &|k| t_at(i, g, k)));
            }
        }
        let mut d_t = vec![];
        for (i, f) in (0..n).flat_map(|i| (0..vectors).map(move |f| (i, f))) {
            d_t.extend((0..width).map(|k| sum_of(vectors, &|g| s_at(i, f, g), &|g| t_at(i, g, k))));
        }
        for way in ways() {
            let mut scratch = vec![f32::NAN; shape.scratch_len()];
            let mut got = Placed::new(n, shape.columns(), true);
            way.run(Dot {
                operand: Halves,
                shape,
                t: &t,
                out: &mut got.view_mut(),
                scratch: &mut scratch,
            });
            assert_eq!(bits(&got.elements()), bits(&z), "{way:?} {what}");
            let mut got = vec![f32::NAN; n * vectors * width];
            let d_out = Placed::of(&d, n, shape.columns(), true);
            let d_out = d_out.view();
            let (t, d_t_view) = (&t, &mut got);
            way.run(DotBackward {
                operand: Halves,
                shape,
                t,
                d_out,
                d_t: d_t_view,
                scratch: &mut scratch,
            });
            assert_eq!(bits(&got), bits(&d_t), "{way:?} {what}: gradient");
        }
    }
}
