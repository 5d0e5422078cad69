//! Products of thirds: parts that add up to what was split, on every instruction set; the bits of
//! the definition where they can be multiplied; and no less accuracy than f32s have.

use super::*;
use crate::kernel::linear::{Forward, Mask};
use crate::kernel::thirds::{
    Columns, MakeAll, PLANE, Panels, Rows, STEP, SplitExamples, TransposedPanels,
};

/// An instruction set, the twin of all, or the one that multiplies thirds.
#[derive(Clone, Copy, Debug)]
enum Way {
    Set(Simd),
    Twin,
    Tiles,
}

fn ways() -> impl Iterator<Item = Way> {
    let tiles = Simd::Amx.is_supported().then_some(Way::Tiles);
    sets().map(Way::Set).chain([Way::Twin]).chain(tiles)
}

impl Way {
    fn run(self, kernel: impl Kernel) {
        match self {
            Self::Set(set) => run_on(set, kernel),
            Self::Twin => kernel.run(Plain::new()),
            Self::Tiles => crate::kernel::isa::run_tiles(kernel),
        }
    }
}

/// The parts of `x` by their definition. Of two bf16s that are as near it is the larger.
fn parts(x: f32) -> [f32; 3] {
    let nearest = |x: f32| f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000);
    let first = nearest(x);
    let second = nearest(x - first);
    [first, second, x - first - second]
}

/// Numbers of many sizes, with ties and zeros.
fn of_many_sizes(stream: u32, len: usize) -> Vec<f32> {
    let sizes = numbers(stream + 1000, len);
    let scaled = numbers(stream, len).into_iter().zip(sizes).enumerate().map(|(i, (x, size))| {
        let x = x * (2.0f32).powi((size * 120.0) as i32);
        match i % 17 {
            0 => 0.0,
            1 => f32::from_bits(x.to_bits() & 0xffff_0000 | 0x8000),
            2 => f32::from_bits(x.to_bits() | 0xffff),
            _ => x,
        }
    });
    scaled.collect()
}

/// The lower and the upper half of a word, as f32s.
fn of_word(word: f32) -> [f32; 2] {
    [word.to_bits() << 16, word.to_bits() & 0xffff_0000].map(f32::from_bits)
}

#[test]
fn an_f32_is_the_sum_of_its_parts_and_what_is_left_out_of_a_product_is_half_a_rounding() {
    let (a, b) = (of_many_sizes(51, 4096), of_many_sizes(52, 4096));
    for (a, b) in a.into_iter().zip(b) {
        let (of_a, of_b) = (parts(a).map(f64::from), parts(b).map(f64::from));
        for (x, of_x) in [(a, of_a), (b, of_b)] {
            assert_eq!(of_x.iter().sum::<f64>(), f64::from(x), "{x:e}");
            for part in parts(x) {
                assert_eq!(part.to_bits() & 0xffff, 0, "{x:e} has a part {part:e}");
            }
        }
        let left_out = of_a[1] * of_b[2] + of_a[2] * of_b[1] + of_a[2] * of_b[2];
        let bound = (2.0f64).powi(-24) * (1.0 + (2.0f64).powi(-9));
        let product = f64::from(a) * f64::from(b);
        assert!(left_out.abs() <= bound * product.abs(), "{a:e} {b:e}: {left_out:e}");
    }
}

/// Rows or columns and depths: one of each, whole tiles and steps, and parts of them.
const SIZES: [(usize, usize); 7] =
    [(1, 1), (2, 33), (31, 32), (32, 64), (33, 31), (70, 95), (129, 47)];

#[test]
fn operands_stand_as_registers_are_loaded() {
    for (n, width) in SIZES {
        let x = of_many_sizes(61, n * width);
        for (way, blocked) in ways().flat_map(|way| [(way, false), (way, true)]) {
            let placed = Placed::of(&x, n, width, blocked);
            let what = format!("{way:?} {n} x {width} blocked {blocked}");
            let mut left = vec![f32::NAN; thirds_len(n, width)];
            way.run(MakeAll { make: Rows(placed.view()), to: &mut left });
            check_words(
                &what,
                &left,
                (n, width),
                |row, word| row % 32 * 16 + word,
                |i, f| x[i * width + f],
            );
            let mut right = vec![f32::NAN; thirds_len(width, n)];
            way.run(SplitExamples { x: placed.view(), to: &mut right });
            let place =
                |column: usize, word: usize| column % 32 / 16 * 256 + word * 16 + column % 16;
            check_words(&what, &right, (width, n), place, |f, i| x[i * width + f]);
            let mut columns = vec![f32::NAN; thirds_len(width, n)];
            way.run(MakeAll { make: Columns::new(placed.view()), to: &mut columns });
            check_words(
                &what,
                &columns,
                (width, n),
                |row, word| row % 32 * 16 + word,
                |f, i| x[i * width + f],
            );
        }
    }
}

#[test]
fn panels_stand_as_registers_are_loaded() {
    for (outputs, inputs) in SIZES {
        let w = of_many_sizes(63, outputs * inputs);
        let mut weight = panels(outputs, inputs, &w);
        let weight = shared(&mut weight);
        let place = |column: usize, word: usize| column % 32 / 16 * 256 + word * 16 + column % 16;
        for way in ways() {
            let what = format!("{way:?} {outputs} x {inputs}");
            let mut to = vec![f32::NAN; thirds_len(outputs, inputs)];
            let make = Panels { weight, depth: inputs, count: outputs };
            way.run(MakeAll { make, to: &mut to });
            check_words(&what, &to, (outputs, inputs), place, |o, p| w[o * inputs + p]);
            let mut to = vec![f32::NAN; thirds_len(inputs, outputs)];
            let make = TransposedPanels::new(weight, outputs, inputs);
            way.run(MakeAll { make, to: &mut to });
            check_words(&what, &to, (inputs, outputs), place, |p, o| w[o * inputs + p]);
        }
    }
}

/// Every word of an operand holds the parts of its two elements, or zeros behind them.
fn check_words(
    what: &str,
    words: &[f32],
    (count, depth): (usize, usize),
    place: impl Fn(usize, usize) -> usize,
    element: impl Fn(usize, usize) -> f32,
) {
    let steps = depth.div_ceil(32);
    for (row, k) in (0..count).flat_map(|row| (0..steps * 16).map(move |k| (row, k))) {
        let step = (row / 32 * steps + k / 16) * STEP;
        let of = |p: usize| if p < depth { parts(element(row, p)) } else { [0.0; 3] };
        let (lower, upper) = (of(2 * k), of(2 * k + 1));
        for plane in 0..3 {
            let word = words[step + plane * PLANE + place(row, k % 16)];
            assert_eq!(of_word(word), [lower[plane], upper[plane]], "{what}: {row}, word {k}");
        }
    }
}

#[test]
fn what_is_no_number_is_none_in_parts() {
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7fff_ffff)] {
        for way in ways() {
            let mut words = vec![0.0; thirds_len(1, 2)];
            let placed = Placed::of(&[1.0, x], 1, 2, false);
            way.run(MakeAll { make: Rows(placed.view()), to: &mut words });
            let of_x = [0, 1, 2].map(|plane| of_word(words[plane * PLANE])[1]);
            assert!(of_x.iter().any(|part| !part.is_finite()), "{way:?} {x}: {of_x:?}");
        }
    }
}

/// The twin of `amx/thirds.rs`: for each thirty-two elements six products of parts, of each the
/// even elements added up from 0, and the odd ones.
fn sum_of(depth: usize, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
    (0..depth).step_by(32).fold(0.0, |sum, first| {
        let pairs = [(2, 0), (0, 0), (0, 2), (0, 1), (1, 1), (1, 0)];
        pairs.into_iter().fold(sum, |sum, (of_a, of_b)| {
            let of = |odd: usize| {
                let elements = (first + odd..depth.min(first + 32)).step_by(2);
                elements.fold(0.0, |sum, p| sum + parts(a(p))[of_a] * parts(b(p))[of_b])
            };
            sum + (of(0) + of(1))
        })
    })
}

/// What a layer is multiplied with.
struct Case {
    n: usize,
    outputs: usize,
    inputs: usize,
    x: Vec<f32>,
    d: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
}

impl Case {
    fn new((n, outputs, inputs): (usize, usize, usize)) -> Self {
        let (x, d) = (numbers(71, n * inputs), numbers(72, n * outputs));
        let (w, b) = (numbers(73, outputs * inputs), numbers(74, outputs));
        Self { n, outputs, inputs, x, d, w, b }
    }

    fn forward(&self) -> Vec<f32> {
        let Self { n, outputs, inputs, .. } = *self;
        let x = Placed::of(&self.x, n, inputs, true);
        let (mut weight, mut bias) = (panels(outputs, inputs, &self.w), self.b.clone());
        let mut y = Placed::new(n, outputs, true);
        let mut to = vec![f32::NAN; thirds_len(n, inputs)];
        let mut scratch = vec![f32::NAN; thirds_len(2 * PANEL, inputs)];
        let (weight, bias) = (shared(&mut weight), Some(shared(&mut bias)));
        let scratch = (&mut to[..], &mut scratch[..]);
        forward_of_thirds(x.view(), weight, bias, true, &mut y.view_mut(), scratch);
        y.elements()
    }

    fn data_gradient(&self, mask: Option<&Placed>) -> Vec<f32> {
        let Self { n, outputs, inputs, .. } = *self;
        let d = Placed::of(&self.d, n, outputs, true);
        let mut weight = panels(outputs, inputs, &self.w);
        let mut d_x = Placed::new(n, inputs, true);
        let mut to = vec![f32::NAN; thirds_len(n, outputs)];
        let mut scratch = vec![f32::NAN; thirds_len(2 * PANEL, outputs)];
        let mask = mask.map(|y| Mask { y: y.view(), scale: 1.25 });
        let (weight, d_x_view) = (shared(&mut weight), &mut d_x.view_mut());
        let scratch = (&mut to[..], &mut scratch[..]);
        data_gradient_of_thirds(d.view(), weight, mask, d_x_view, scratch);
        d_x.elements()
    }

    fn weight_gradient(&self, fresh: bool, d_weight: &mut [f32]) {
        let Self { n, outputs, inputs, .. } = *self;
        let (x, d) = (Placed::of(&self.x, n, inputs, true), Placed::of(&self.d, n, outputs, true));
        let mut to = vec![f32::NAN; thirds_len(outputs, n)];
        let d = split_examples(d.view(), &mut to);
        weight_gradient(Factors::Thirds(x.view(), d), fresh, d_weight);
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_of_thirds_have_the_bits_of_their_definition() {
    if !Simd::Amx.is_supported() {
        return;
    }
    for size in
        [(1, 32, 32), (2, 33, 34), (16, 64, 33), (48, 40, 100), (131, 35, 65), (256, 32, 47)]
    {
        let case = Case::new(size);
        let (n, outputs, inputs) = size;
        let (x_at, d_at) = (
            |i: usize, f: usize| case.x[i * inputs + f],
            |i: usize, o: usize| case.d[i * outputs + o],
        );
        let w_at = |o: usize, f: usize| case.w[o * inputs + f];
        let cells = |rows: usize, columns: usize| {
            (0..rows).flat_map(move |i| (0..columns).map(move |j| (i, j)))
        };
        let y: Vec<f32> = cells(n, outputs)
            .map(|(i, o)| (sum_of(inputs, |f| x_at(i, f), |f| w_at(o, f)) + case.b[o]).max(0.0))
            .collect();
        assert_eq!(bits(&case.forward()), bits(&y), "{size:?}: forward");

        let d_x: Vec<f32> = cells(n, inputs)
            .map(|(i, f)| sum_of(outputs, |o| d_at(i, o), |o| w_at(o, f)))
            .collect();
        assert_eq!(bits(&case.data_gradient(None)), bits(&d_x), "{size:?}: data gradient");
        let mask = Placed::of(&case.x, n, inputs, true);
        let masked = case.x.iter().zip(&d_x).map(|(y, d)| if *y > 0.0 { d * 1.25 } else { 0.0 });
        let masked: Vec<f32> = masked.collect();
        assert_eq!(bits(&case.data_gradient(Some(&mask))), bits(&masked), "{size:?}: masked");

        let d_w: Vec<f32> = cells(outputs, inputs)
            .map(|(o, f)| sum_of(n, |i| x_at(i, f), |i| d_at(i, o)))
            .collect();
        let mut got = vec![f32::NAN; outputs * inputs];
        case.weight_gradient(true, &mut got);
        assert_eq!(bits(&row_major(outputs, inputs, &got)), bits(&d_w), "{size:?}: d_W");
        case.weight_gradient(false, &mut got);
        let twice: Vec<f32> = d_w.iter().map(|d| d + d).collect();
        assert_eq!(bits(&row_major(outputs, inputs, &got)), bits(&twice), "{size:?}: added");
    }
}

/// A row of a product depends on its own row of the left operand alone, not on how many there are.
#[test]
fn rows_of_products_of_thirds_know_nothing_of_each_other() {
    if !Simd::Amx.is_supported() {
        return;
    }
    let all = Case::new((100, 40, 70));
    for n in [1, 16, 17, 33, 64] {
        let x = all.x[..n * 70].to_vec();
        let some = Case { n, x, d: vec![], w: all.w.clone(), b: all.b.clone(), ..all };
        assert_eq!(bits(&some.forward()), bits(&all.forward()[..n * 40]), "{n}");
    }
}

#[test]
fn no_examples_are_no_work() {
    if !Simd::Amx.is_supported() {
        return;
    }
    let case = Case::new((0, 40, 70));
    assert_eq!(case.forward(), [0.0; 0]);
    assert_eq!(case.data_gradient(None), [0.0; 0]);
    let mut got = vec![f32::NAN; 40 * 70];
    case.weight_gradient(true, &mut got);
    assert_eq!(got, [0.0; 40 * 70]);
}

/// Root of the mean square of errors.
fn error(got: &[f32], exact: &[f64]) -> f64 {
    let squares = got.iter().zip(exact).map(|(got, exact)| (f64::from(*got) - exact).powi(2));
    (squares.sum::<f64>() / exact.len() as f64).sqrt()
}

/// By the twin, so on every machine.
#[test]
fn sums_of_thirds_are_as_accurate_as_sums_of_f32s() {
    for (depth, positive) in [(32, false), (367, false), (512, false), (512, true), (2048, false)] {
        let count = 400;
        let of = |stream: u32| -> Vec<f32> {
            let numbers = numbers(stream, count * depth).into_iter();
            numbers.map(|x| if positive { x.abs() } else { x }).collect()
        };
        let (a, b) = (of(81), of(82));
        let row = |x: &[f32], i: usize| x[i * depth..][..depth].to_vec();
        let (mut exact, mut thirds, mut fused) = (vec![], vec![], vec![]);
        for i in 0..count {
            let (a, b) = (row(&a, i), row(&b, i));
            exact.push(a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>());
            thirds.push(sum_of(depth, |p| a[p], |p| b[p]));
            fused.push(a.iter().zip(&b).fold(0.0, |sum: f32, (a, b)| a.mul_add(*b, sum)));
        }
        let (thirds, fused) = (error(&thirds, &exact), error(&fused, &exact));
        assert!(thirds <= fused, "depth {depth} positive {positive}: {thirds:e}, {fused:e}");
    }
}

/// The same of the products themselves, beside those of f32s.
#[test]
fn layers_of_thirds_are_as_accurate_as_layers_of_f32s() {
    if !Simd::Amx.is_supported() {
        return;
    }
    let case = Case::new((64, 128, 367));
    let mut whole = Placed::new(64, 128, true);
    let (mut weight, mut bias) = (panels(128, 367, &case.w), case.b.clone());
    let x = Placed::of(&case.x, 64, 367, true);
    run_on(
        Simd::Avx512,
        Forward {
            operand: Whole,
            x: x.view(),
            panels: shared(&mut weight).as_ptr(),
            bias: Some(shared(&mut bias)),
            relu: true,
            y: &mut whole.view_mut(),
        },
    );
    let y = product(64, 128, 367, |i, p| case.x[i * 367 + p], |p, o| case.w[o * 367 + p]);
    let y: Vec<f64> =
        y.iter().enumerate().map(|(at, y)| (y + f64::from(case.b[at % 128])).max(0.0)).collect();
    let (thirds, whole) = (error(&case.forward(), &y), error(&whole.elements(), &y));
    assert!(thirds <= whole, "{thirds:e}, {whole:e}");
}

#[test]
#[should_panic(expected = "length of W")]
fn operands_of_other_widths_are_refused() {
    let x = Placed::of(&numbers(91, 64), 2, 32, true);
    let mut words = vec![0.0; thirds_len(2, 32)];
    let (mut weight, mut y) = (vec![0.0; 33], Placed::new(2, 1, true));
    let scratch = (&mut words[..], &mut vec![0.0; thirds_len(2 * PANEL, 32)][..]);
    forward_of_thirds(x.view(), shared(&mut weight), None, false, &mut y.view_mut(), scratch);
}
