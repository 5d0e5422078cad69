//! Batch normalisation over the global batch.
//!
//! S. Ioffe, C. Szegedy, "Batch Normalization", ICML 2015: algorithm 1 forward, the formulas of
//! section 3 backward. Letters: x̂ = (x − mean) · inverse, y = scale · x̂ + shift, per unit.
//!
//! Sums are taken in f64 and go through `reduce`, so mean and variance are those of the batch of
//! all workers; `reduce` is called once forward and once backward even when the local batch is
//! empty.

use core::sync::atomic::AtomicU32;

use super::replica::{element, load};
use crate::kernel::{Activations, ActivationsMut, PANEL, vectorized};

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

/// What backward needs of the forward pass of training.
#[derive(Clone, Copy, Debug)]
pub struct Normalized<'a> {
    /// x̂ `[n, units]`
    pub values: Activations<'a>,
    /// As `normalize_batch` left it. `[kept_len]`
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

    /// Training: turns `x` `[n, units]` into x̂ in place, and writes the batch's mean and unbiased
    /// variance to `statistics`.
    ///
    /// With fewer than two examples in the global batch there is no unbiased variance: the
    /// statistics written are then the running ones of `running`. `kept: [kept_len]`, `sums:
    /// [sums_len]`
    pub fn normalize_batch(
        &self,
        x: &mut ActivationsMut<'_>,
        running: &[AtomicU32],
        statistics: &mut [f32],
        reduce: &mut Reduce<'_>,
        kept: &mut [f64],
        sums: &mut [f64],
    ) {
        let w = self.units;
        let sums = &mut sums[..self.sums_len()];
        sums.fill(0.0);
        sums[0] = x.view().n() as f64;
        let (first, second) = sums[1..].split_at_mut(w);
        vectorized(|| {
            for (unit, rows) in x.view().blocks() {
                for row in rows {
                    let sums = first[unit..].iter_mut().zip(&mut second[unit..]);
                    for (x, (first, second)) in row.iter().zip(sums) {
                        let x = f64::from(*x);
                        *first += x;
                        *second += x * x;
                    }
                }
            }
        });
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
        normalize(x, mean, inverse);
    }

    /// Evaluation: turns `x` `[n, units]` into x̂ in place with the running statistics.
    pub fn normalize_running(
        &self,
        x: &mut ActivationsMut<'_>,
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
        normalize(x, mean, inverse);
    }

    /// Writes y = scale · x̂ + shift, cut below at 0 if `relu`. `normalized`, `y`: `[n, units]`
    pub fn scale_and_shift(
        &self,
        parameters: &[AtomicU32],
        normalized: Activations<'_>,
        relu: bool,
        y: &mut ActivationsMut<'_>,
    ) {
        let floor = if relu { 0.0 } else { f32::NEG_INFINITY };
        let mut blocks = normalized.blocks();
        vectorized(|| {
            y.blocks_mut(|unit, y| {
                let (mut scale, mut shift) = ([0.0; PANEL], [0.0; PANEL]);
                let units = PANEL.min(self.units - unit);
                load(&parameters[self.scale + unit..][..units], &mut scale[..units]);
                load(&parameters[self.shift + unit..][..units], &mut shift[..units]);
                let Some((_, normalized)) = blocks.next() else { return };
                for (y, x) in y.zip(normalized) {
                    for (((y, x), scale), shift) in y.iter_mut().zip(x).zip(&scale).zip(&shift) {
                        let value = scale * x + shift;
                        *y = if value < floor { floor } else { value };
                    }
                }
            });
        });
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
        vectorized(|| {
            for ((unit, d), (_, x)) in d.view().blocks().zip(normalized.blocks()) {
                for (d, x) in d.zip(x) {
                    let sums = first[unit..].iter_mut().zip(&mut second[unit..]);
                    for ((d, x), (first, second)) in d.iter().zip(x).zip(sums) {
                        *first += f64::from(*d);
                        *second += f64::from(*d) * f64::from(*x);
                    }
                }
            }
        });
        for c in 0..w {
            d_parameters[self.shift + c] = single(first[c]);
            d_parameters[self.scale + c] = single(second[c]);
        }
        reduce(sums);
        let (first, second) = sums.split_at_mut(w);
        let (n, inverse) = (kept[0].max(1.0), &kept[1..=w]);
        let mut blocks = normalized.blocks();
        vectorized(|| {
            d.blocks_mut(|unit, d| {
                let mut factor = [0.0; PANEL];
                let units = PANEL.min(w - unit);
                for (c, factor) in (unit..).zip(&mut factor[..units]) {
                    *factor = f64::from(element(&parameters[self.scale + c])) * inverse[c];
                }
                let (first, second) = (&first[unit..], &second[unit..]);
                let Some((_, x)) = blocks.next() else { return };
                for (d, x) in d.zip(x) {
                    let of_unit = factor.iter().zip(first).zip(second);
                    for ((d, x), ((factor, first), second)) in d.iter_mut().zip(x).zip(of_unit) {
                        let centred = f64::from(*d) - first / n - f64::from(*x) * second / n;
                        *d = single(factor * centred);
                    }
                }
            });
        });
    }
}

fn normalize(x: &mut ActivationsMut<'_>, mean: &[f64], inverse: &[f64]) {
    vectorized(|| {
        x.blocks_mut(|unit, rows| {
            for row in rows {
                let of_unit = mean[unit..].iter().zip(&inverse[unit..]);
                for (x, (mean, inverse)) in row.iter_mut().zip(of_unit) {
                    *x = single((f64::from(*x) - mean) * inverse);
                }
            }
        });
    });
}

#[expect(clippy::cast_possible_truncation, reason = "the result of f64 sums, rounded to f32")]
#[inline]
fn single(x: f64) -> f32 {
    x as f32
}
