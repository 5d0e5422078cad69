//! Batch normalisation over the global batch.
//!
//! S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015: algorithm 1 forward, the formulas of
//! section 3 backward. Letters: x̂ = (x − mean) · inverse, y = scale · x̂ + shift, per unit.
//!
//! Sums are taken in f64 and go through `reduce`, so mean and variance are those of the batch of
//! all workers; `reduce` is called once forward and once backward even when the local batch is
//! empty.
//!
//! Loops go by blocks of the layout: what is known of the units of one stays in registers. A row of
//! a whole block has a length that the compiler knows, so its loop is one of vectors.

use core::sync::atomic::AtomicU32;

use super::replica::{element, load};
use crate::kernel::isa::{Isa, Kernel, run};
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

/// y = scale · x̂ + shift, cut below at 0 if `relu`.
pub struct Scaled<'a, 'b> {
    /// The replica's parameters.
    pub parameters: &'a [AtomicU32],
    /// Whether a ReLU follows.
    pub relu: bool,
    /// Out. `[n, units]`
    pub y: &'a mut ActivationsMut<'b>,
}

/// What backward needs of the forward pass of training.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a> {
    /// x̂ `[n, units]`
    pub values: Activations<'a>,
    /// As `forward_batch` left it. `[kept_len]`
    pub kept: &'a [f64],
}

/// Sums over all workers that compute the same global batch.
pub type Reduce<'a> = dyn FnMut(&mut [f64]) + 'a;

impl Norm {
    /// f64s that must be kept from forward to backward: the global count, and the inverse
    /// deviations.
    #[must_use]
    pub const fn kept_len(&self) -> usize {
        1 + self.units
    }

    /// f64s of scratch that both passes need.
    #[must_use]
    pub const fn sums_len(&self) -> usize {
        1 + 2 * self.units
    }

    /// Training: turns `x` `[n, units]` into x̂ in place, writes `y`, and the batch's mean and
    /// unbiased variance to `statistics`.
    ///
    /// With fewer than two examples in the global batch there is no unbiased variance: the
    /// statistics written are then the running ones of `running`. `kept: [kept_len]`, `sums:
    /// [sums_len]`
    pub fn forward_batch(
        &self,
        x: &mut ActivationsMut<'_>,
        y: Scaled<'_, '_>,
        (running, statistics): (&[AtomicU32], &mut [f32]),
        reduce: &mut Reduce<'_>,
        kept: &mut [f64],
        sums: &mut [f64],
    ) {
        let w = self.units;
        let sums = &mut sums[..self.sums_len()];
        sums.fill(0.0);
        sums[0] = x.view().n() as f64;
        let (first, second) = sums[1..].split_at_mut(w);
        run(Moments { x: x.view(), first, second });
        reduce(sums);
        let n = sums[0];
        let (mean, squares) = sums[1..].split_at_mut(w);
        let (count, inverse) = kept.split_at_mut(1);
        count[0] = n;
        for c in 0..w {
            let variance;
            (mean[c], variance) = if n > 0.0 {
                let m = mean[c] / n;
                // Rounding may leave a tiny negative number where all values are equal.
                (m, (squares[c] / n - m * m).max(0.0))
            } else {
                (0.0, 1.0)
            };
            inverse[c] = 1.0 / libm::sqrt(variance + EPSILON);
            let (at_mean, at_variance) = (self.mean + c, self.variance + c);
            (statistics[at_mean], statistics[at_variance]) = if n > 1.0 {
                (single(mean[c]), single(variance * n / (n - 1.0)))
            } else {
                (element(&running[at_mean]), element(&running[at_variance]))
            };
        }
        run(Forward { norm: self, x, mean, inverse, y });
    }

    /// Evaluation: turns `x` `[n, units]` into x̂ in place with the running statistics, and writes
    /// `y`.
    pub fn forward_running(
        &self,
        x: &mut ActivationsMut<'_>,
        y: Scaled<'_, '_>,
        running: &[AtomicU32],
        kept: &mut [f64],
        sums: &mut [f64],
    ) {
        let (inverse, mean) = (&mut kept[1..self.kept_len()], &mut sums[..self.units]);
        for c in 0..self.units {
            mean[c] = f64::from(element(&running[self.mean + c]));
            let variance = f64::from(element(&running[self.variance + c]));
            inverse[c] = 1.0 / libm::sqrt(variance + EPSILON);
        }
        run(Forward { norm: self, x, mean, inverse, y });
    }

    /// Turns `d` `[n, units]` from d_y into d_x in place, and sets this worker's part of the
    /// gradients of scale and shift in `d_parameters`. `sums: [sums_len]`
    pub fn backward(
        &self,
        parameters: &[AtomicU32],
        forward: Normalized<'_>,
        sums: &mut [f64],
        reduce: &mut Reduce<'_>,
        d: &mut ActivationsMut<'_>,
        d_parameters: &mut [f32],
    ) {
        let w = self.units;
        let Normalized { values: normalized, kept } = forward;
        let sums = &mut sums[..2 * w];
        sums.fill(0.0);
        let (first, second) = sums.split_at_mut(w);
        run(Products { d: d.view(), normalized, first, second });
        for c in 0..w {
            d_parameters[self.shift + c] = single(first[c]);
            d_parameters[self.scale + c] = single(second[c]);
        }
        reduce(sums);
        let (first, second) = sums.split_at_mut(w);
        let n = kept[0].max(1.0);
        first.iter_mut().chain(&mut *second).for_each(|sum| *sum /= n);
        let inverse = &kept[1..=w];
        run(Backward { norm: self, parameters, normalized, inverse, first, second, d });
    }
}

/// Σ x and Σ x² of every unit.
struct Moments<'a> {
    x: Activations<'a>,
    first: &'a mut [f64],
    second: &'a mut [f64],
}

impl Kernel for Moments<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn add(row: &[f32], first: &mut [f64; PANEL], second: &mut [f64; PANEL]) {
            for ((x, first), second) in row.iter().zip(first).zip(second) {
                let x = f64::from(*x);
                *first += x;
                *second += x * x;
            }
        }
        for (unit, rows) in self.x.blocks() {
            let (mut first, mut second) = ([0.0; PANEL], [0.0; PANEL]);
            for row in rows {
                if row.len() == PANEL {
                    add(&row[..PANEL], &mut first, &mut second);
                } else {
                    add(row, &mut first, &mut second);
                }
            }
            self.first[unit..].iter_mut().zip(first).for_each(|(sum, of_rows)| *sum = of_rows);
            self.second[unit..].iter_mut().zip(second).for_each(|(sum, of_rows)| *sum = of_rows);
        }
    }
}

/// Σ d and Σ d · x̂ of every unit.
struct Products<'a> {
    d: Activations<'a>,
    normalized: Activations<'a>,
    first: &'a mut [f64],
    second: &'a mut [f64],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn add(d: &[f32], x: &[f32], first: &mut [f64; PANEL], second: &mut [f64; PANEL]) {
            for (((d, x), first), second) in d.iter().zip(x).zip(first).zip(second) {
                *first += f64::from(*d);
                *second += f64::from(*d) * f64::from(*x);
            }
        }
        for ((unit, d), (_, x)) in self.d.blocks().zip(self.normalized.blocks()) {
            let (mut first, mut second) = ([0.0; PANEL], [0.0; PANEL]);
            for (d, x) in d.zip(x) {
                if d.len() == PANEL {
                    add(&d[..PANEL], &x[..PANEL], &mut first, &mut second);
                } else {
                    add(d, x, &mut first, &mut second);
                }
            }
            self.first[unit..].iter_mut().zip(first).for_each(|(sum, of_rows)| *sum = of_rows);
            self.second[unit..].iter_mut().zip(second).for_each(|(sum, of_rows)| *sum = of_rows);
        }
    }
}

/// x̂ = (x − mean) · inverse in place, and y of it: one pass over a block.
struct Forward<'a, 'b, 'c> {
    norm: &'a Norm,
    x: &'a mut ActivationsMut<'b>,
    mean: &'a [f64],
    inverse: &'a [f64],
    y: Scaled<'a, 'c>,
}

impl Kernel for Forward<'_, '_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn apply(
            (x, y): (&mut [f32], &mut [f32]),
            [mean, inverse]: &[[f64; PANEL]; 2],
            [scale, shift]: &[[f32; PANEL]; 2],
            floor: f32,
        ) {
            let of_unit = mean.iter().zip(inverse).zip(scale.iter().zip(shift));
            for ((x, y), ((mean, inverse), (scale, shift))) in x.iter_mut().zip(y).zip(of_unit) {
                *x = single((f64::from(*x) - mean) * inverse);
                let value = scale * *x + shift;
                *y = if value < floor { floor } else { value };
            }
        }
        let Self { norm, x, mean, inverse, y: Scaled { parameters, relu, y } } = self;
        let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
        for unit in x.firsts() {
            let normal = [panel(&mean[unit..norm.units]), panel(&inverse[unit..norm.units])];
            let (mut scaled, units) = ([[0.0; PANEL]; 2], PANEL.min(norm.units - unit));
            load(&parameters[norm.scale + unit..][..units], &mut scaled[0][..units]);
            load(&parameters[norm.shift + unit..][..units], &mut scaled[1][..units]);
            for (x, y) in x.block_mut(unit).zip(y.block_mut(unit)) {
                if x.len() == PANEL {
                    apply((&mut x[..PANEL], &mut y[..PANEL]), &normal, &scaled, floor);
                } else {
                    apply((x, y), &normal, &scaled, floor);
                }
            }
        }
    }
}

/// d_x = scale · inverse · (d_y − mean of d_y − x̂ · mean of d_y · x̂) in place.
struct Backward<'a, 'b> {
    norm: &'a Norm,
    parameters: &'a [AtomicU32],
    normalized: Activations<'a>,
    inverse: &'a [f64],
    /// Means over the global batch.
    first: &'a [f64],
    second: &'a [f64],
    d: &'a mut ActivationsMut<'b>,
}

impl Kernel for Backward<'_, '_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        #[inline(always)]
        fn apply(d: &mut [f32], x: &[f32], [factor, first, second]: &[[f64; PANEL]; 3]) {
            let of_unit = factor.iter().zip(first).zip(second);
            for ((d, x), ((factor, first), second)) in d.iter_mut().zip(x).zip(of_unit) {
                let centred = f64::from(*d) - first - f64::from(*x) * second;
                *d = single(factor * centred);
            }
        }
        for (unit, x) in self.normalized.blocks() {
            let mut of_unit = [
                panel(&self.inverse[unit..]),
                panel(&self.first[unit..]),
                panel(&self.second[unit..]),
            ];
            let scale = &self.parameters[self.norm.scale + unit..self.norm.scale + self.norm.units];
            for (factor, scale) in of_unit[0].iter_mut().zip(scale) {
                *factor *= f64::from(element(scale));
            }
            for (d, x) in self.d.block_mut(unit).zip(x) {
                if d.len() == PANEL {
                    apply(&mut d[..PANEL], &x[..PANEL], &of_unit);
                } else {
                    apply(d, x, &of_unit);
                }
            }
        }
    }
}

/// The first numbers of a block, zeros behind them.
#[inline(always)]
fn panel(numbers: &[f64]) -> [f64; PANEL] {
    let mut panel = [0.0; PANEL];
    panel.iter_mut().zip(numbers).for_each(|(to, from)| *to = *from);
    panel
}

#[expect(clippy::cast_possible_truncation, reason = "the result of f64 sums, rounded to f32")]
#[inline]
fn single(x: f64) -> f32 {
    x as f32
}
