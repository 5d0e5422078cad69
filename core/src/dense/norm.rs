//! Batch normalisation over the global batch.
//!
//! S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015: algorithm 1 forward, the formulas of
//! section 3 backward. Letters: x̂ = (x − mean) · inverse, y = scale · x̂ + shift, per unit.
//!
//! Each way is of three parts, so that activations can be walked a few examples at a time: sums of
//! examples are added up, then go through `reduce`, so that mean and variance are those of the
//! batch of all workers, and then examples are transformed by them. `reduce` is called once forward
//! and once backward even when the local batch is empty. x̂ is made of x again where backward needs
//! it.
//!
//! Sums are f64, of products that f64 has without rounding: a batch that is cut among workers in
//! another way has the same mean. What is made of them is f32.
//!
//! Loops go by blocks of the layout: what is known of the units of one stays in registers. A row of
//! a whole block has a length that the compiler knows, so its loop is one of vectors. Dropout
//! behind a norm is applied to two blocks of a few examples while they are near.

use core::sync::atomic::AtomicU32;

use super::dropout::{Masks, TOGETHER};
use super::replica::element;
use crate::kernel::isa::{Isa, Kernel, run};
use crate::kernel::words::{load_with, prefetch_at};
use crate::kernel::{Activations, ActivationsMut, PANEL};

/// Added to the variance (the paper's ε).
pub const EPSILON: f64 = 1e-5;

/// Where a layer's numbers stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Norm {
    /// Units.
    pub units: usize,
    /// Offset of `scale` `[units]` among the parameters.
    pub scale: usize,
    /// Offset of `shift` `[units]` among the parameters.
    pub shift: usize,
    /// Offset of the mean `[units]` among the statistics.
    pub mean: usize,
    /// Offset of the variance `[units]` among the statistics.
    pub variance: usize,
}

/// Sums over all workers that compute the same global batch.
pub type Reduce<'a> = dyn FnMut(&mut [f64]) + 'a;

impl Norm {
    /// f64s that must be kept from forward to backward: the global count, means, and inverse
    /// deviations.
    #[must_use]
    pub const fn kept_len(&self) -> usize {
        1 + 2 * self.units
    }

    /// f64s of scratch that both passes need.
    #[must_use]
    pub const fn sums_len(&self) -> usize {
        1 + 2 * self.units
    }

    /// Training: adds those of the examples `x` `[n, units]` to the sums, which begin as 0. `sums:
    /// [sums_len]`
    pub fn add(&self, x: Activations<'_>, sums: &mut [f64]) {
        sums[0] += x.n() as f64;
        let sums = sums[1..=2 * self.units].split_at_mut(self.units);
        run(Moments { x, sums: sums.into() });
    }

    /// Training: closes the sums of the local batch, for [`Self::apply`] and backward; writes the
    /// batch's mean and unbiased variance to `statistics`.
    ///
    /// With fewer than two examples in the global batch there is no unbiased variance: the
    /// statistics written are then the running ones of `running`. `sums: [sums_len]`, `kept:
    /// [kept_len]`
    pub fn close(
        &self,
        sums: &mut [f64],
        (running, statistics): (&[AtomicU32], &mut [f32]),
        reduce: &mut Reduce<'_>,
        kept: &mut [f64],
    ) {
        let sums = &mut sums[..self.sums_len()];
        reduce(sums);
        let n = sums[0];
        let (first, second) = sums[1..].split_at(self.units);
        let (count, of_units) = kept[..self.kept_len()].split_at_mut(1);
        let (means, inverse) = of_units.split_at_mut(self.units);
        count[0] = n;
        for c in 0..self.units {
            let (mean, variance) = if n > 0.0 {
                let mean = first[c] / n;
                // Rounding may leave a tiny negative number where all values are equal.
                (mean, (second[c] / n - mean * mean).max(0.0))
            } else {
                (0.0, 1.0)
            };
            (means[c], inverse[c]) = (mean, 1.0 / libm::sqrt(variance + EPSILON));
            let (at_mean, at_variance) = (self.mean + c, self.variance + c);
            (statistics[at_mean], statistics[at_variance]) = if n > 1.0 {
                (single(mean), single(variance * n / (n - 1.0)))
            } else {
                (element(&running[at_mean]), element(&running[at_variance]))
            };
        }
    }

    /// Evaluation: the running statistics, for [`Self::apply`]. `kept: [kept_len]`
    pub fn close_running(&self, running: &[AtomicU32], kept: &mut [f64]) {
        let (mean, inverse) = kept[1..self.kept_len()].split_at_mut(self.units);
        for c in 0..self.units {
            mean[c] = f64::from(element(&running[self.mean + c]));
            let variance = f64::from(element(&running[self.variance + c]));
            inverse[c] = 1.0 / libm::sqrt(variance + EPSILON);
        }
    }

    /// Writes y = scale · x̂ + shift of the examples `x` `[n, units]`, cut below at 0 if `relu`,
    /// and drops of it what the `masks` say, if there are.
    pub fn apply(
        &self,
        parameters: &[AtomicU32],
        kept: &[f64],
        x: Activations<'_>,
        (relu, masks): (bool, Option<Masks<'_>>),
        y: &mut ActivationsMut<'_>,
    ) {
        run(Apply { norm: self, parameters, kept, x, relu, masks, y });
    }

    /// Adds those of the examples `x` `[n, units]` with their d_y to the sums of backward, which
    /// begin as 0. `sums: [sums_len]`
    pub fn add_products(&self, x: Activations<'_>, d_y: Activations<'_>, sums: &mut [f64]) {
        let sums = sums[..2 * self.units].split_at_mut(self.units);
        run(Products { x, d_y, sums: sums.into() });
    }

    /// Closes the sums of backward: sets this worker's part of the gradients of scale and shift in
    /// `d_parameters`, and leaves means over the global batch. `sums: [sums_len]`
    pub fn close_products(
        &self,
        kept: &[f64],
        sums: &mut [f64],
        reduce: &mut Reduce<'_>,
        d_parameters: &mut [f32],
    ) {
        let sums = &mut sums[..2 * self.units];
        let (first, second) = sums.split_at_mut(self.units);
        let [mean, inverse] = self.of_units(kept);
        for c in 0..self.units {
            // Σ d · x̂ by way of Σ d · x: what cancels leaves enough of 53 bits.
            second[c] = (second[c] - mean[c] * first[c]) * inverse[c];
            d_parameters[self.shift + c] = single(first[c]);
            d_parameters[self.scale + c] = single(second[c]);
        }
        reduce(sums);
        let n = kept[0].max(1.0);
        sums.iter_mut().for_each(|sum| *sum /= n);
    }

    /// Turns `d` `[n, units]` of the examples `x` from d_y into d_x in place. `means` as
    /// [`Self::close_products`] left them.
    pub fn apply_gradient(
        &self,
        parameters: &[AtomicU32],
        kept: &[f64],
        means: &[f64],
        x: Activations<'_>,
        d: &mut ActivationsMut<'_>,
    ) {
        run(ApplyGradient { norm: self, parameters, kept, means, x, d });
    }

    /// Means and inverse deviations.
    fn of_units<'a>(&self, kept: &'a [f64]) -> [&'a [f64]; 2] {
        let (mean, inverse) = kept[1..=2 * self.units].split_at(self.units);
        [mean, inverse]
    }

    /// Parameters of the units of the block that begins with `unit`, of those at `first`.
    #[inline(always)]
    fn panel_of<I: Isa>(
        &self,
        isa: I,
        parameters: &[AtomicU32],
        first: usize,
        unit: usize,
    ) -> [f32; PANEL] {
        let (mut panel, units) = ([0.0; PANEL], PANEL.min(self.units - unit));
        load_with(isa, &parameters[first + unit..][..units], &mut panel[..units]);
        panel
    }
}

/// Adds Σ x and Σ x² of every unit.
struct Moments<'a> {
    x: Activations<'a>,
    sums: [&'a mut [f64]; 2],
}

impl Kernel for Moments<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn add<'a, const WHOLE: bool>(rows: impl Iterator<Item = &'a [f32]>) -> [[f64; PANEL]; 2] {
            let [mut first, mut second] = [[0.0; PANEL]; 2];
            for x in rows {
                come_near(x);
                let x = if WHOLE { &x[..PANEL] } else { x };
                for ((x, first), second) in x.iter().zip(&mut first).zip(&mut second) {
                    let x = f64::from(*x);
                    *first += x;
                    *second += x * x;
                }
            }
            [first, second]
        }
        let mut to = self.sums;
        for (unit, x) in self.x.blocks() {
            let whole = to[0].len() - unit >= PANEL;
            let sums = if whole { add::<true>(x) } else { add::<false>(x) };
            add_panels(&sums, &mut to, unit);
        }
    }
}

/// Adds Σ d and Σ d · x of every unit.
struct Products<'a> {
    x: Activations<'a>,
    d_y: Activations<'a>,
    sums: [&'a mut [f64]; 2],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn add<'a, const WHOLE: bool>(
            rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
        ) -> [[f64; PANEL]; 2] {
            let [mut first, mut second] = [[0.0; PANEL]; 2];
            for (d, x) in rows {
                come_near(x);
                come_near(d);
                let (d, x) = if WHOLE { (&d[..PANEL], &x[..PANEL]) } else { (d, x) };
                for (((d, x), first), second) in d.iter().zip(x).zip(&mut first).zip(&mut second) {
                    *first += f64::from(*d);
                    *second += f64::from(*d) * f64::from(*x);
                }
            }
            [first, second]
        }
        let mut to = self.sums;
        for ((unit, d), (_, x)) in self.d_y.blocks().zip(self.x.blocks()) {
            let (rows, whole) = (d.zip(x), to[0].len() - unit >= PANEL);
            let sums = if whole { add::<true>(rows) } else { add::<false>(rows) };
            add_panels(&sums, &mut to, unit);
        }
    }
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
struct Apply<'a, 'y> {
    norm: &'a Norm,
    parameters: &'a [AtomicU32],
    kept: &'a [f64],
    x: Activations<'a>,
    relu: bool,
    masks: Option<Masks<'a>>,
    y: &'a mut ActivationsMut<'y>,
}

impl Kernel for Apply<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        #[inline(always)]
        fn apply<'x, 'y, const WHOLE: bool>(
            rows: impl Iterator<Item = (&'x [f32], &'y mut [f32])>,
            [mean, gain, shift]: &[[f32; PANEL]; 3],
            floor: f32,
        ) {
            for (x, y) in rows {
                come_near(x);
                come_near(y);
                let (x, y) = if WHOLE { (&x[..PANEL], &mut y[..PANEL]) } else { (x, y) };
                let of_unit = mean.iter().zip(gain).zip(shift);
                for ((x, y), ((mean, gain), shift)) in x.iter().zip(y).zip(of_unit) {
                    let value = (x - mean) * gain + shift;
                    *y = if value < floor { floor } else { value };
                }
            }
        }
        let Self { norm, parameters, kept, x, relu, masks, y } = self;
        let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
        let [mean, inverse] = norm.of_units(kept);
        for start in (0..x.n()).step_by(TOGETHER) {
            let examples = start..x.n().min(start + TOGETHER);
            let keys = match &masks {
                Some(masks) => masks.keys(examples.clone()),
                None => [[0; 2]; TOGETHER],
            };
            let mut y = y.examples(examples.clone());
            for (unit, x) in x.examples(examples).blocks() {
                let scale = norm.panel_of(isa, parameters, norm.scale, unit);
                let gain = times(&scale, &panel(&inverse[unit..]));
                let shift = norm.panel_of(isa, parameters, norm.shift, unit);
                let (rows, of_unit) =
                    (x.zip(y.block_mut(unit)), [panel(&mean[unit..]), gain, shift]);
                if norm.units - unit >= PANEL {
                    apply::<true>(rows, &of_unit, floor);
                } else {
                    apply::<false>(rows, &of_unit, floor);
                }
                // Two blocks at a time, when the second is there.
                let (second, last) = (unit / PANEL % 2 == 1, unit + PANEL >= norm.units);
                if let (Some(masks), true) = (&masks, second || last) {
                    masks.apply(&keys, if second { unit - PANEL } else { unit }, &mut y);
                }
            }
        }
    }
}

/// d_x = scale · inverse · (d_y − mean of d_y − x̂ · mean of d_y · x̂) in place.
struct ApplyGradient<'a, 'd> {
    norm: &'a Norm,
    parameters: &'a [AtomicU32],
    kept: &'a [f64],
    means: &'a [f64],
    x: Activations<'a>,
    d: &'a mut ActivationsMut<'d>,
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
        let (first, second) = means[..2 * norm.units].split_at(norm.units);
        for (unit, x) in x.blocks() {
            let scale = norm.panel_of(isa, parameters, norm.scale, unit);
            let inverse = panel(&inverse[unit..]);
            let gain = times(&scale, &inverse);
            let slope = times(&panel(&second[unit..]), &inverse);
            let of_unit = [panel(&mean[unit..]), gain, panel(&first[unit..]), slope];
            let rows = x.zip(d.block_mut(unit));
            if norm.units - unit >= PANEL {
                apply::<true>(rows, &of_unit);
            } else {
                apply::<false>(rows, &of_unit);
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

#[expect(clippy::cast_possible_truncation, reason = "the result of f64 sums, rounded to f32")]
#[inline]
fn single(x: f64) -> f32 {
    x as f32
}
