//! The second order of a factorization machine: Rendle, "Factorization Machines", ICDM 2010, lemma
//! 3.1. ½ Σ_k [(Σ_f v_fk)² − Σ_f v_fk²] of V `[n, F, d]`.
//!
//! A vector of columns k at a time, all F vectors of an example one after the other.

use super::isa::{Isa, Kernel, run};
use super::tile::{load, store};
use super::update::sum_of_lanes;

/// Adds the interaction of every example to its logit. `v`: `[n, F, d]`, `logits: [n]`
///
/// # Panics
/// When lengths do not fit together.
pub fn second_order(width: usize, v: &[f32], logits: &mut [f32]) {
    check(width, v.len(), logits.len());
    run(SecondOrder { width, v, logits });
}

/// Adds to `d_v` the gradient of [`second_order`]: d_v_fk = g (Σ_f v_fk − v_fk). `d_logits: [n]`
///
/// # Panics
/// When lengths do not fit together.
pub fn second_order_backward(width: usize, v: &[f32], d_logits: &[f32], d_v: &mut [f32]) {
    check(width, v.len(), d_logits.len());
    assert_eq!(d_v.len(), v.len(), "length of the gradient");
    run(SecondOrderBackward { width, v, d_logits, d_v });
}

fn check(width: usize, v: usize, n: usize) {
    assert!(
        v == 0 || v.is_multiple_of(n * width),
        "{v} elements of {n} examples, vectors of {width}"
    );
}

pub(super) struct SecondOrder<'a> {
    pub(super) width: usize,
    pub(super) v: &'a [f32],
    pub(super) logits: &'a mut [f32],
}

impl Kernel for SecondOrder<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let len = self.v.len() / self.logits.len().max(1);
        for (v, logit) in self.v.chunks_exact(len.max(1)).zip(self.logits) {
            let (mut whole, mut squares) = (isa.zero(), isa.zero());
            for at in (0..self.width).step_by(I::LANES) {
                let count = I::LANES.min(self.width - at);
                let mut sum = isa.zero();
                for v in v.chunks_exact(self.width) {
                    // SAFETY: `count` elements of a vector from `at` on.
                    let x = unsafe { load(isa, v.as_ptr().add(at), count) };
                    sum = isa.add(sum, x);
                    squares = isa.add(squares, isa.mul(x, x));
                }
                whole = isa.add(whole, isa.mul(sum, sum));
            }
            *logit += 0.5 * (sum_of_lanes(isa, whole) - sum_of_lanes(isa, squares));
        }
    }
}

pub(super) struct SecondOrderBackward<'a> {
    pub(super) width: usize,
    pub(super) v: &'a [f32],
    pub(super) d_logits: &'a [f32],
    pub(super) d_v: &'a mut [f32],
}

impl Kernel for SecondOrderBackward<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let (width, len) = (self.width, self.v.len() / self.d_logits.len().max(1));
        let examples = self.v.chunks_exact(len.max(1)).zip(self.d_v.chunks_exact_mut(len.max(1)));
        for ((v, d_v), g) in examples.zip(self.d_logits) {
            let g = isa.splat(*g);
            for at in (0..width).step_by(I::LANES) {
                let count = I::LANES.min(width - at);
                let mut sum = isa.zero();
                for v in v.chunks_exact(width) {
                    // SAFETY: `count` elements of a vector from `at` on, here and below.
                    sum = isa.add(sum, unsafe { load(isa, v.as_ptr().add(at), count) });
                }
                for (v, d_v) in v.chunks_exact(width).zip(d_v.chunks_exact_mut(width)) {
                    // SAFETY: as above.
                    unsafe {
                        let to = d_v.as_mut_ptr().add(at);
                        let others = isa.sub(sum, load(isa, v.as_ptr().add(at), count));
                        let d = load(isa, to.cast_const(), count);
                        store(isa, to, count, isa.add(d, isa.mul(g, others)));
                    }
                }
            }
        }
    }
}
