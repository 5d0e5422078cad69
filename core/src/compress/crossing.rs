//! Activations that cross from layer to layer, and gradients that come back.
//!
//! arXiv 2010.08899, model parallelism: of the output of a layer what reaches the threshold is
//! sent, per sample and element, and the rest is 0 for whoever gets it. What comes back are the
//! gradient's values at the elements that were sent (`positions.rs`). Nothing is kept for later:
//! another batch has other samples.
//!
//! Invariant: an element that was sent is not 0, so the output itself says which they are.

use super::Coding;
use super::code::{Values, code};
use super::mask::{Mask, mask_len};
use super::residual::Kept;
use super::threshold::{Counts, Threshold};

/// Memory for finding out what is sent.
#[derive(Debug)]
pub struct Finding<'a> {
    /// `[mask_len(elements)]` or more.
    pub mask: &'a mut [u32],
    /// Scratch.
    pub counts: &'a mut Counts,
}

/// Makes 0 what of `output` does not reach the threshold, and the rest what whoever gets it has.
/// Writes it to `out` (`code.rs`), which has room for `len_max` bytes, unless nobody gets it.
/// `turn`: another number every step.
///
/// # Panics
/// When there is no room.
pub fn hold(
    output: &mut [f32],
    threshold: &mut Threshold,
    coding: Coding,
    turn: u32,
    Finding { mask: words, counts }: Finding<'_>,
    out: Option<&mut [u8]>,
) -> Kept {
    let (len, Coding { keep, values }) = (output.len(), coding);
    let words = &mut words[..mask_len(len)];
    let first = Mask::of(output, threshold.at_first(), words).count();
    let again = |tau| Mask::of(output, tau, words).count();
    let passed = threshold.hold(output, keep, (turn, counts), first, again);
    leave(output, &Mask::counted(words, passed), values, out)
}

/// As [`hold`], with a threshold that stays as it is. `words`: `[mask_len(elements)]` or more
///
/// # Panics
/// When there is no room.
pub fn pass(
    output: &mut [f32],
    tau: f32,
    values: Values,
    words: &mut [u32],
    out: Option<&mut [u8]>,
) -> Kept {
    let mask = Mask::of(output, tau, &mut words[..mask_len(output.len())]);
    leave(output, &mask, values, out)
}

fn leave(output: &mut [f32], mask: &Mask<'_>, values: Values, out: Option<&mut [u8]>) -> Kept {
    for (output, word) in output.chunks_mut(32).zip(mask.words()) {
        for (bit, x) in output.iter_mut().enumerate() {
            *x = if word >> bit & 1 == 1 { values.sent(*x) } else { 0.0 };
        }
    }
    let bytes = out.map_or(0, |out| code(output, mask, values, out));
    Kept { elements: mask.count(), bytes }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::Keep;
    use super::super::code::{Malformed, add, len_max};
    use super::super::positions::{gather, scatter};
    use super::*;

    proptest! {
        /// What is left is what passes; what is sent is what is left; and the gradient comes back
        /// to those elements alone.
        #[test]
        fn what_passes_is_left_and_comes_back(
            output in prop::collection::vec(
                prop_oneof![Just(0.0f32), 0.0f32..2.0, Just(f32::NAN)], 1..700),
            share in prop_oneof![Just(1.0f32), 0.01f32..1.0],
            values in prop_oneof![Just(Values::F32), Just(Values::Bf16), Just(Values::F8)],
        ) {
            let coding = Coding { keep: Keep { share, refresh_every: 3 }, values };
            let len = output.len();
            let (mut mask, mut counts) = (vec![0; mask_len(len)], Box::new([0; 1 << 15]));
            let mut threshold = Threshold::default();
            let (mut held, mut out) = (output.clone(), vec![0; len_max(len, values)]);
            let finding = Finding { mask: &mut mask, counts: &mut counts };
            let kept = hold(&mut held, &mut threshold, coding, 1, finding, Some(&mut out));
            let mut read = vec![0.0; len];
            add(&out[..kept.bytes], &mut read).unwrap();
            let (mut mask, mut alone) = (vec![0; mask_len(len)], output.clone());
            let finding = Finding { mask: &mut mask, counts: &mut counts };
            hold(&mut alone, &mut Threshold::default(), coding, 1, finding, None);
            let mut passed = 0;
            for (((x, held), read), alone) in output.iter().zip(&held).zip(&read).zip(&alone) {
                let passes = x.is_nan() || *x != 0.0 && *x >= threshold.tau();
                passed += usize::from(passes);
                let expected = if passes { values.sent(*x) } else { 0.0 };
                prop_assert_eq!(held.to_bits(), expected.to_bits());
                prop_assert_eq!(alone.to_bits(), held.to_bits());
                prop_assert!(read.to_bits() == held.to_bits() || read.is_nan() && held.is_nan());
            }
            prop_assert_eq!(kept.elements, passed);
            let gradient: Vec<f32> = (0..len).map(|i| i as f32 - 7.5).collect();
            let mut back = vec![0; len * values.bytes()];
            let mask = Mask::nonzero(&held, &mut mask);
            let bytes = gather(&gradient, &mask, values, &mut back);
            prop_assert_eq!(bytes, passed * values.bytes());
            let mut got = vec![1.0; len];
            scatter(&back[..bytes], &mask, values, &mut got).unwrap();
            for ((got, gradient), held) in got.iter().zip(&gradient).zip(&held) {
                let expected = if *held == 0.0 { 1.0 } else { 1.0 + values.sent(*gradient) };
                prop_assert_eq!(*got, expected);
            }
            // Cut, or longer, it is refused.
            back.push(0);
            let longer = scatter(&back[..bytes + 1], &mask, values, &mut got);
            prop_assert_eq!(longer, Err(Malformed));
            if bytes > 0 {
                let shorter = scatter(&back[..bytes - 1], &mask, values, &mut got);
                prop_assert_eq!(shorter, Err(Malformed));
            }
        }
    }
}
