//! Batch normalisation over the global batch.
//!
//! S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015: algorithm 1 forward, the formulas of
//! section 3 backward. Letters: x̂ = (x − mean) · inverse, y = scale · x̂ + shift, per unit.
//!
//! Each way is of three parts, so that activations can be walked a few examples at a time: sums of
//! examples are added up, then go through `reduce`, so that mean and variance are those of the
//! batch of all workers, and then examples are transformed by them. `reduce` is called once forward
//! and once backward even when the local batch is empty. x̂ is made of x again where backward needs
//! it (`norm/walks.rs`).
//!
//! Sums are f64, of products that f64 has without rounding: a batch that is cut among workers in
//! another way has the same mean. What is made of them is f32.

mod walks;

use core::sync::atomic::AtomicU32;

use self::walks::{Apply, ApplyGradient, Close, Divide, Moments, Products};
use super::dropout::Masks;
use super::replica::element;
use crate::float::sqrt_f64;
use crate::kernel::isa::run;
use crate::kernel::{Activations, ActivationsMut};

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
        let [of_mean, of_variance] = [self.mean, self.variance].map(|at| at..at + self.units);
        run(Close {
            n,
            sums: [first, second],
            means,
            inverse,
            variances: &mut statistics[of_variance.clone()],
        });
        if n > 1.0 {
            statistics[of_mean].iter_mut().zip(means).for_each(|(to, mean)| *to = single(*mean));
        } else {
            for of in [of_mean, of_variance] {
                let running = running[of.clone()].iter().map(element);
                statistics[of].iter_mut().zip(running).for_each(|(to, value)| *to = value);
            }
        }
    }

    /// Evaluation: the running statistics, for [`Self::apply`]. `kept: [kept_len]`
    pub fn close_running(&self, running: &[AtomicU32], kept: &mut [f64]) {
        let (mean, inverse) = kept[1..self.kept_len()].split_at_mut(self.units);
        for c in 0..self.units {
            mean[c] = f64::from(element(&running[self.mean + c]));
            let variance = f64::from(element(&running[self.variance + c]));
            inverse[c] = 1.0 / sqrt_f64(variance + EPSILON);
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
        for ((second, first), (mean, inverse)) in
            second.iter_mut().zip(&*first).zip(mean.iter().zip(inverse))
        {
            // Σ d · x̂ by way of Σ d · x: what cancels leaves enough of 53 bits.
            *second = (*second - mean * first) * inverse;
        }
        for (at, sums) in [(self.shift, first), (self.scale, second)] {
            for (d, sum) in d_parameters[at..].iter_mut().zip(sums) {
                *d = single(*sum);
            }
        }
        reduce(sums);
        run(Divide { sums, by: kept[0].max(1.0) });
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

    /// Scale and shift.
    fn parameters<'a>(&self, parameters: &'a [AtomicU32]) -> [&'a [AtomicU32]; 2] {
        [self.scale, self.shift].map(|at| &parameters[at..at + self.units])
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the result of f64 sums, rounded to f32")]
#[inline]
fn single(x: f64) -> f32 {
    x as f32
}
