//! What a norm does with activations: sums of examples, and examples by what was made of sums.
//!
//! Loops go by blocks of the layout: what is known of the units of one stays in registers. A whole
//! block is rows of a length that the compiler knows, so its loop is one of vectors. Dropout behind
//! a norm is of two blocks at a time, whose random bits are made together.

use core::sync::atomic::AtomicU32;

use super::super::dropout::{Keys, Masks, TOGETHER};
use super::{EPSILON, Norm, single};
use crate::float::sqrt_f64;
use crate::kernel::isa::{Isa, Kernel};
use crate::kernel::prefetch::prefetch_at;
use crate::kernel::words::load_with;
use crate::kernel::{Activations, ActivationsMut, PANEL};

/// A row of a whole block.
type Row = [f32; PANEL];

/// Mean, gain and shift of the units of a block.
type OfUnits = [Row; 3];

/// Of `n` examples, mean, inverse deviation and unbiased variance of every unit.
pub(super) struct Close<'a> {
    pub(super) n: f64,
    pub(super) sums: [&'a [f64]; 2],
    pub(super) means: &'a mut [f64],
    pub(super) inverse: &'a mut [f64],
    pub(super) variances: &'a mut [f32],
}

impl Kernel for Close<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        let Self { n, sums: [first, second], means, inverse, variances } = self;
        if n <= 0.0 {
            means.fill(0.0);
            inverse.fill(1.0 / sqrt_f64(1.0 + EPSILON));
            return;
        }
        let of_units = means.iter_mut().zip(inverse).zip(variances);
        for ((first, second), ((mean, inverse), unbiased)) in first.iter().zip(second).zip(of_units)
        {
            *mean = first / n;
            // Rounding may leave a tiny negative number where all values are equal.
            let variance = (second / n - *mean * *mean).max(0.0);
            *inverse = 1.0 / sqrt_f64(variance + EPSILON);
            *unbiased = single(variance * n / (n - 1.0));
        }
    }
}

/// Sums over so many examples become means.
pub(super) struct Divide<'a> {
    pub(super) sums: &'a mut [f64],
    pub(super) by: f64,
}

impl Kernel for Divide<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        self.sums.iter_mut().for_each(|sum| *sum /= self.by);
    }
}

/// Adds Σ x and Σ x² of every unit.
pub(super) struct Moments<'a> {
    pub(super) x: Activations<'a>,
    pub(super) sums: [&'a mut [f64]; 2],
}

impl Kernel for Moments<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn add<'a, I: Isa, const WHOLE: bool>(
            rows: impl Iterator<Item = &'a [f32]>,
        ) -> [[f64; PANEL]; 2] {
            let [mut first, mut second] = [[0.0; PANEL]; 2];
            for x in rows {
                come_near(x);
                let x = if WHOLE { &x[..PANEL] } else { x };
                for ((x, first), second) in x.iter().zip(&mut first).zip(&mut second) {
                    let x = f64::from(*x);
                    *first += x;
                    *second = add_product::<I>(*second, x, x);
                }
            }
            [first, second]
        }
        let mut to = self.sums;
        for unit in (0..self.x.width()).step_by(PANEL) {
            let sums = match self.x.whole_block(unit) {
                Some(rows) => add::<I, true>(rows.iter().map(<[f32; PANEL]>::as_slice)),
                None => add::<I, false>(self.x.block(unit)),
            };
            add_panels(&sums, &mut to, unit);
        }
    }
}

/// Adds Σ d and Σ d · x of every unit.
pub(super) struct Products<'a> {
    pub(super) x: Activations<'a>,
    pub(super) d_y: Activations<'a>,
    pub(super) sums: [&'a mut [f64]; 2],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn add<'a, I: Isa, const WHOLE: bool>(
            rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
        ) -> [[f64; PANEL]; 2] {
            let [mut first, mut second] = [[0.0; PANEL]; 2];
            for (d, x) in rows {
                come_near(x);
                come_near(d);
                let (d, x) = if WHOLE { (&d[..PANEL], &x[..PANEL]) } else { (d, x) };
                for (((d, x), first), second) in d.iter().zip(x).zip(&mut first).zip(&mut second) {
                    let d = f64::from(*d);
                    *first += d;
                    *second = add_product::<I>(*second, d, f64::from(*x));
                }
            }
            [first, second]
        }
        let mut to = self.sums;
        for unit in (0..self.x.width()).step_by(PANEL) {
            let sums = match (self.d_y.whole_block(unit), self.x.whole_block(unit)) {
                (Some(d), Some(x)) => {
                    let rows = d.iter().zip(x).map(|(d, x)| (d.as_slice(), x.as_slice()));
                    add::<I, true>(rows)
                }
                _ => add::<I, false>(self.d_y.block(unit).zip(self.x.block(unit))),
            };
            add_panels(&sums, &mut to, unit);
        }
    }
}

/// `sum + a * b`: the product of two numbers that were f32s has no rounding, so whether it is one
/// instruction does not show.
#[inline(always)]
fn add_product<I: Isa>(sum: f64, a: f64, b: f64) -> f64 {
    #[cfg(feature = "std")]
    if I::FUSES {
        return a.mul_add(b, sum);
    }
    sum + a * b
}

/// Adds those of the block that begins with `unit` to the sums of all units.
#[inline(always)]
fn add_panels(sums: &[[f64; PANEL]; 2], to: &mut [&mut [f64]; 2], unit: usize) {
    for (to, sums) in to.iter_mut().zip(sums) {
        for (to, sum) in to[unit..].iter_mut().zip(sums) {
            *to += sum;
        }
    }
}

/// y of x: one pass over a block.
pub(super) struct Apply<'a, 'y> {
    pub(super) norm: &'a Norm,
    pub(super) parameters: &'a [AtomicU32],
    pub(super) kept: &'a [f64],
    pub(super) x: Activations<'a>,
    pub(super) relu: bool,
    pub(super) masks: Option<Masks<'a>>,
    pub(super) y: &'a mut ActivationsMut<'y>,
}

impl Kernel for Apply<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        #[inline(always)]
        fn apply<'x, 'y, const WHOLE: bool>(
            rows: impl Iterator<Item = (&'x [f32], &'y mut [f32])>,
            of_units: &OfUnits,
            floor: f32,
        ) {
            for (x, y) in rows {
                come_near(x);
                come_near(y);
                let (x, y) = if WHOLE { (&x[..PANEL], &mut y[..PANEL]) } else { (x, y) };
                for (j, (x, y)) in x.iter().zip(y).enumerate() {
                    *y = normalized(*x, of_units, j, floor);
                }
            }
        }
        let Self { norm, parameters, kept, x, relu, masks, y } = self;
        let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
        let (kept, parameters) = (norm.of_units(kept), norm.parameters(parameters));
        for start in (0..x.n()).step_by(TOGETHER) {
            let examples = start..x.n().min(start + TOGETHER);
            let keys = match &masks {
                Some(masks) => masks.keys(examples.clone()),
                None => [[0; 2]; TOGETHER],
            };
            let (x, mut y) = (x.examples(examples.clone()), y.examples(examples));
            for first in (0..norm.units).step_by(2 * PANEL) {
                if let (Some(masks), Some(x), Some(y)) =
                    (masks, x.whole_pair(first), y.whole_pair_mut(first))
                {
                    let of_units = [
                        of_units(isa, kept, parameters, first),
                        of_units(isa, kept, parameters, first + PANEL),
                    ];
                    apply_and_drop(masks, (x, y), &of_units, (&keys, first), floor);
                    continue;
                }
                for unit in (first..norm.units.min(first + 2 * PANEL)).step_by(PANEL) {
                    let of_units = of_units(isa, kept, parameters, unit);
                    match (x.whole_block(unit), y.whole_block_mut(unit)) {
                        (Some(x), Some(y)) => {
                            let rows =
                                x.iter().zip(y).map(|(x, y)| (x.as_slice(), y.as_mut_slice()));
                            apply::<true>(rows, &of_units, floor);
                        }
                        _ => apply::<false>(x.block(unit).zip(y.block_mut(unit)), &of_units, floor),
                    }
                }
                masks.iter().for_each(|masks| masks.apply(&keys, first, &mut y));
            }
        }
    }
}

/// A norm and dropout behind it, of two whole blocks: one word drops of both.
#[inline(always)]
fn apply_and_drop(
    masks: Masks<'_>,
    ([x_low, x_high], [y_low, y_high]): ([&[Row]; 2], [&mut [Row]; 2]),
    [low, high]: &[OfUnits; 2],
    (keys, unit): (&Keys, usize),
    floor: f32,
) {
    let rows = x_low.iter().zip(x_high).zip(y_low.iter_mut().zip(y_high)).zip(keys);
    for (((x_low, x_high), (y_low, y_high)), key) in rows {
        for row in [x_low, x_high, &*y_low, &*y_high] {
            come_near(row);
        }
        for j in 0..PANEL {
            let word = Masks::word(*key, unit, j);
            y_low[j] = masks.dropped::<0>(word, normalized(x_low[j], low, j, floor));
            y_high[j] = masks.dropped::<16>(word, normalized(x_high[j], high, j, floor));
        }
    }
}

/// Those of the block that begins with `unit`, of those of the norm. A function: a closure of the
/// same would not be inlined, and has not the features of the kernel around it.
#[inline(always)]
fn of_units<I: Isa>(
    isa: I,
    [mean, inverse]: [&[f64]; 2],
    [scale, shift]: [&[AtomicU32]; 2],
    unit: usize,
) -> OfUnits {
    let gain = times(&shared_panel(isa, scale, unit), &panel(&inverse[unit..]));
    [panel(&mean[unit..]), gain, shared_panel(isa, shift, unit)]
}

/// Number `j` of a row.
#[inline(always)]
fn normalized(x: f32, [mean, gain, shift]: &OfUnits, j: usize, floor: f32) -> f32 {
    let value = (x - mean[j]) * gain[j] + shift[j];
    if value < floor { floor } else { value }
}

/// d_x = scale · inverse · (d_y − mean of d_y − x̂ · mean of d_y · x̂) in place.
pub(super) struct ApplyGradient<'a, 'd> {
    pub(super) norm: &'a Norm,
    pub(super) parameters: &'a [AtomicU32],
    pub(super) kept: &'a [f64],
    pub(super) means: &'a [f64],
    pub(super) x: Activations<'a>,
    pub(super) d: &'a mut ActivationsMut<'d>,
}

impl Kernel for ApplyGradient<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        #[inline(always)]
        fn apply<'x, 'y, const WHOLE: bool>(
            rows: impl Iterator<Item = (&'x [f32], &'y mut [f32])>,
            [mean, gain, first, slope]: &[[f32; PANEL]; 4],
        ) {
            for (x, d) in rows {
                come_near(x);
                come_near(d);
                let (x, d) = if WHOLE { (&x[..PANEL], &mut d[..PANEL]) } else { (x, d) };
                let of_unit = mean.iter().zip(gain).zip(first.iter().zip(slope));
                for ((x, d), ((mean, gain), (first, slope))) in x.iter().zip(d).zip(of_unit) {
                    *d = (*d - first - (x - mean) * slope) * gain;
                }
            }
        }
        let Self { norm, parameters, kept, means, x, d } = self;
        let [mean, inverse] = norm.of_units(kept);
        let [scale, _] = norm.parameters(parameters);
        let (first, second) = means[..2 * norm.units].split_at(norm.units);
        for unit in (0..norm.units).step_by(PANEL) {
            let inverse = panel(&inverse[unit..]);
            let gain = times(&shared_panel(isa, scale, unit), &inverse);
            let slope = times(&panel(&second[unit..]), &inverse);
            let of_unit = [panel(&mean[unit..]), gain, panel(&first[unit..]), slope];
            match (x.whole_block(unit), d.whole_block_mut(unit)) {
                (Some(x), Some(d)) => {
                    let rows = x.iter().zip(d).map(|(x, d)| (x.as_slice(), d.as_mut_slice()));
                    apply::<true>(rows, &of_unit);
                }
                _ => apply::<false>(x.block(unit).zip(d.block_mut(unit)), &of_unit),
            }
        }
    }
}

/// Rows of a block that are asked for ahead: a large batch comes from far.
const AHEAD: usize = 16;

/// Asks for the row that comes [`AHEAD`] rows later, wherever that is.
#[inline(always)]
fn come_near(row: &[f32]) {
    let at = row.as_ptr().wrapping_add(AHEAD * PANEL);
    prefetch_at(at);
    prefetch_at(at.wrapping_add(PANEL / 2));
}

/// Parameters of the units of the block that begins with `unit`, of those of the norm.
#[inline(always)]
fn shared_panel<I: Isa>(isa: I, parameters: &[AtomicU32], unit: usize) -> [f32; PANEL] {
    let (mut panel, units) = ([0.0; PANEL], PANEL.min(parameters.len() - unit));
    load_with(isa, &parameters[unit..][..units], &mut panel[..units]);
    panel
}

/// The first numbers; zeros behind them.
#[inline(always)]
fn panel(numbers: &[f64]) -> [f32; PANEL] {
    let mut panel = [0.0; PANEL];
    for (to, from) in panel.iter_mut().zip(numbers) {
        *to = single(*from);
    }
    panel
}

#[inline(always)]
fn times(a: &[f32; PANEL], b: &[f32; PANEL]) -> [f32; PANEL] {
    let mut product = *a;
    for (a, b) in product.iter_mut().zip(b) {
        *a *= b;
    }
    product
}
