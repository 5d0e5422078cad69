//! A gradient, what of it is sent, and what is kept for the next.
//!
//! arXiv 2010.08899, data parallelism: u = g + e; what of u reaches the threshold is sent, the rest
//! is the new e. So what has been sent and what is kept are together the sum of all gradients.
//! Values that are sent with fewer bits leave what that has cost in e, too.

use super::code::{Values, code};
use super::mask::{Mask, mask_len};
use super::threshold::{Counts, Keep, Threshold};

/// What was sent of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Elements.
    pub elements: usize,
    /// Bytes of the message.
    pub bytes: usize,
}

/// What has not been sent of a vector, and the memory for finding out.
#[derive(Debug)]
pub struct Residual<'a> {
    /// `[elements]`, zeros in the beginning.
    pub values: &'a mut [f32],
    /// `[mask_len(elements)]`
    pub mask: &'a mut [u32],
    /// Scratch.
    pub counts: &'a mut Counts,
}

impl Residual<'_> {
    /// Adds `gradient`, and writes what reaches the threshold to `out` (`code.rs`), which has room
    /// for `len_max` bytes. `turn`: another number every step.
    ///
    /// # Panics
    /// When lengths differ, or there is no room.
    pub fn send(
        &mut self,
        gradient: &[f32],
        threshold: &mut Threshold,
        keep: Keep,
        sent_as: (Values, u32),
        out: &mut [u8],
    ) -> Kept {
        let form =
            |u: &mut [f32], tau, words: &mut [u32]| Mask::of_sum(u, gradient, tau, words).count();
        self.pass(form, threshold, keep, sent_as, out)
    }

    /// Writes what of `state` is far enough from `known` to `out`, as differences: whoever adds
    /// them to `known` has the state, but for what is left in here, which the next difference has
    /// again.
    ///
    /// # Panics
    /// When lengths differ, or there is no room.
    pub fn send_difference(
        &mut self,
        (state, known): (&[f32], &[f32]),
        threshold: &mut Threshold,
        keep: Keep,
        sent_as: (Values, u32),
        out: &mut [u8],
    ) -> Kept {
        self.pass(difference(state, known), threshold, keep, sent_as, out)
    }

    /// Writes those elements of `state` to `out` that are far enough from `agreed`, as they are,
    /// not as differences. Nothing is kept: what does not pass is as far away the next time.
    ///
    /// # Panics
    /// When lengths differ, or there is no room.
    pub fn send_moved(
        &mut self,
        (state, agreed): (&[f32], &[f32]),
        threshold: &mut Threshold,
        keep: Keep,
        (values, turn): (Values, u32),
        out: &mut [u8],
    ) -> Kept {
        let elements = self.choose(difference(state, agreed), threshold, keep, turn);
        let mask = Mask::counted(&self.mask[..mask_len(state.len())], elements);
        Kept { elements, bytes: code(state, &mask, values, out) }
    }

    /// `form` makes u and its mask, and counts what passes.
    fn pass(
        &mut self,
        form: impl FnOnce(&mut [f32], f32, &mut [u32]) -> usize,
        threshold: &mut Threshold,
        keep: Keep,
        (values, turn): (Values, u32),
        out: &mut [u8],
    ) -> Kept {
        let elements = self.choose(form, threshold, keep, turn);
        let mask = Mask::counted(&self.mask[..mask_len(self.values.len())], elements);
        let bytes = code(self.values, &mask, values, out);
        let all = out[0] == 0;
        let keep = |x: &mut f32| {
            let left = *x - values.sent(*x);
            // What is not finite is somebody else's now.
            *x = if left.is_finite() { left } else { 0.0 };
        };
        if all {
            self.values.iter_mut().for_each(keep);
        } else {
            mask.visit(|at| keep(&mut self.values[at]));
        }
        Kept { elements, bytes }
    }

    /// Which elements of u pass, and how many: `form` makes it, and its mask, and counts.
    fn choose(
        &mut self,
        form: impl FnOnce(&mut [f32], f32, &mut [u32]) -> usize,
        threshold: &mut Threshold,
        keep: Keep,
        turn: u32,
    ) -> usize {
        let Self { values, mask, counts } = self;
        let words = &mut mask[..mask_len(values.len())];
        let first = form(values, threshold.at_first(), words);
        threshold
            .hold(values, keep, (turn, counts), first, |tau| Mask::of(values, tau, words).count())
    }
}

/// Makes u what `state` has over `known`.
fn difference(state: &[f32], known: &[f32]) -> impl FnOnce(&mut [f32], f32, &mut [u32]) -> usize {
    assert_eq!(state.len(), known.len(), "vectors of different lengths");
    move |u, tau, words| {
        let each = u.iter_mut().zip(state).zip(known);
        each.for_each(|((u, state), known)| *u = state - known);
        Mask::of(u, tau, words).count()
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::code::{add, len_max};
    use super::*;

    struct Memory {
        values: Vec<f32>,
        mask: Vec<u32>,
        counts: Box<Counts>,
        out: Vec<u8>,
    }

    impl Memory {
        fn new(len: usize) -> Self {
            Self {
                values: vec![0.0; len],
                mask: vec![0; mask_len(len)],
                counts: Box::new([0; 1 << 15]),
                out: vec![0; len_max(len, Values::F32)],
            }
        }

        fn residual(&mut self) -> (Residual<'_>, &mut [u8]) {
            let Self { values, mask, counts, out } = self;
            (Residual { values, mask, counts }, out)
        }
    }

    proptest! {
        /// Sent and kept are together the sum of all gradients, coordinate by coordinate.
        #[test]
        fn nothing_is_lost(
            len in 1usize..400,
            share in prop_oneof![Just(1.0f32), 0.002f32..1.0],
            refresh_every in 1u32..20,
            values in prop_oneof![Just(Values::F32), Just(Values::Bf16), Just(Values::F8)],
            seed in any::<u32>(),
        ) {
            let keep = Keep { share, refresh_every };
            let (mut memory, mut threshold) = (Memory::new(len), Threshold::default());
            let (mut sum, mut sent) = (vec![0.0f64; len], vec![0.0f64; len]);
            let mut largest = 0.0f64;
            for turn in 0..30u32 {
                let at = |i: u32| {
                    let word = (i ^ seed).wrapping_add(turn).wrapping_mul(2_654_435_761);
                    ((word >> 8) as f32 / 1e7 - 0.8) * if i.is_multiple_of(17) { 20.0 } else { 1.0 }
                };
                let gradient: Vec<f32> = (0..u32::try_from(len).unwrap()).map(at).collect();
                let (mut residual, out) = memory.residual();
                let kept = residual.send(&gradient, &mut threshold, keep, (values, turn), out);
                let mut now = vec![0.0; len];
                add(&out[..kept.bytes], &mut now).unwrap();
                for (sum, x) in sum.iter_mut().zip(&gradient) {
                    *sum += f64::from(*x);
                    largest = largest.max(sum.abs());
                }
                sent.iter_mut().zip(&now).for_each(|(sent, x)| *sent += f64::from(*x));
                prop_assert!(share < 1.0 || kept.elements + 2 >= len);
            }
            for ((sum, sent), kept) in sum.iter().zip(&sent).zip(&memory.values) {
                let error = (sum - sent - f64::from(*kept)).abs();
                prop_assert!(error <= 30.0 * 1.2e-7 * largest, "{error}");
            }
        }
    }

    #[test]
    fn about_the_share_is_sent_however_gradients_grow() {
        let (len, keep) = (100_000, Keep { share: 0.01, refresh_every: 50 });
        let (mut memory, mut threshold) = (Memory::new(len), Threshold::default());
        let mut sent = 0;
        for turn in 0..200u32 {
            // A thousand times as large in the middle.
            let scale = if (50..150).contains(&turn) { 1.0 } else { 1e-3 };
            let at = |i: u32| {
                let word = i.wrapping_mul(40_503).wrapping_add(turn).wrapping_mul(2_654_435_761);
                scale * ((word >> 8) as f32 / 8.4e6 - 1.0)
            };
            let gradient: Vec<f32> = (0..u32::try_from(len).unwrap()).map(at).collect();
            let (mut residual, out) = memory.residual();
            let kept = residual.send(&gradient, &mut threshold, keep, (Values::Bf16, turn), out);
            assert!(kept.elements <= 2 * len / 100, "{turn}: {}", kept.elements);
            sent += kept.elements;
        }
        let share = sent as f32 / (200 * len) as f32;
        assert!((0.004..0.015).contains(&share), "{share}");
    }

    /// What is no number goes to those who refuse it, and does not come again.
    #[test]
    fn what_is_not_finite_leaves_nothing() {
        let keep = Keep { share: 0.1, refresh_every: 10 };
        for values in [Values::F32, Values::Bf16, Values::F8] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                let (mut memory, mut threshold) = (Memory::new(100), Threshold::default());
                let mut gradient = vec![1e-3; 100];
                for turn in 0..3 {
                    gradient[70] = if turn == 1 { bad } else { 2e-3 };
                    let (mut residual, out) = memory.residual();
                    let kept = residual.send(&gradient, &mut threshold, keep, (values, turn), out);
                    let mut sent = vec![0.0; 100];
                    add(&out[..kept.bytes], &mut sent).unwrap();
                    let is_bad = turn == 1 && !bad.is_finite();
                    assert_eq!(sent.iter().all(|x| x.is_finite()), !is_bad, "{bad}");
                    assert!(memory.values.iter().all(|x| x.is_finite()), "{bad}");
                }
            }
        }
    }

    /// Whoever adds up differences follows the state, as far as the threshold lets it, and has all
    /// of it once the state stands still.
    #[test]
    fn differences_follow_a_state() {
        let (len, keep) = (1000u32, Keep { share: 0.05, refresh_every: 7 });
        for values in [Values::F32, Values::Bf16, Values::F8] {
            let (mut memory, mut threshold) = (Memory::new(1000), Threshold::default());
            let (mut state, mut known) = (vec![0.5f32; 1000], vec![0.5f32; 1000]);
            for turn in 0..400u32 {
                for (at, x) in (0..len).zip(&mut state) {
                    let word = (at ^ turn << 12).wrapping_mul(2_654_435_761);
                    *x += if turn < 100 { (word >> 8) as f32 / 1.6e9 - 0.005 } else { 0.0 };
                }
                let (mut residual, out) = memory.residual();
                let sent_as = (values, turn);
                let both = (&*state, &*known);
                let kept = residual.send_difference(both, &mut threshold, keep, sent_as, out);
                let sent = add(&out[..kept.bytes], &mut known).unwrap();
                assert!(sent <= 100 + 1, "{sent}");
            }
            let apart = state.iter().zip(&known).map(|(x, y)| (x - y).abs());
            let most = apart.fold(0.0, f32::max);
            assert!(most < 1e-5, "{values:?}: {most}");
        }
    }

    #[test]
    fn zeros_send_nothing() {
        let keep = Keep { share: 0.1, refresh_every: 10 };
        let (mut memory, mut threshold) = (Memory::new(1000), Threshold::default());
        let (mut residual, out) = memory.residual();
        let kept = residual.send(&[0.0; 1000], &mut threshold, keep, (Values::F32, 0), out);
        assert_eq!(kept.elements, 0);
        assert!(kept.bytes < 16, "{kept:?}");
    }
}
