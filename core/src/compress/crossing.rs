//! Activations that cross from layer to layer, and gradients that come back.
//!
//! arXiv 2010.08899, model parallelism: of the output of a layer what reaches the threshold is
//! sent, per sample and element, and the rest is 0 for whoever gets it. What comes back are the
//! gradient's values at the elements that were sent, in their order: their places are known.
//! Nothing is kept for later: another batch has other samples.
//!
//! Invariant: an element that was sent is not 0, so the output itself says which they are.

use super::Coding;
use super::code::{Malformed, Values, code};
use super::half::{from_half, to_half};
use super::mask::{Mask, mask_len};
use super::residual::Kept;
use super::threshold::{Counts, Threshold, tau_of};

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
    let tau = if threshold.is_due() { f32::INFINITY } else { threshold.tau() };
    let passed = Mask::of(output, tau, words).count();
    if threshold.is_due() || threshold.is_passed_by_many(passed, len, keep) {
        let all = keep.share >= 1.0;
        threshold.set(if all { 0.0 } else { tau_of(output, keep.share, turn, counts) }, keep);
    }
    let mask = Mask::of(output, threshold.tau(), words);
    threshold.stepped(mask.count(), len, keep);
    for (output, word) in output.chunks_mut(32).zip(mask.words()) {
        for (bit, x) in output.iter_mut().enumerate() {
            *x = if word >> bit & 1 == 1 { values.sent(*x) } else { 0.0 };
        }
    }
    let bytes = out.map_or(0, |out| code(output, &mask, values, out));
    Kept { elements: mask.count(), bytes }
}

/// Writes the values of `gradient` where `output` was sent to `out`, which has room for
/// [`back_len_max`] bytes. Returns how many bytes they are.
///
/// # Panics
/// When there is no room, or lengths differ.
pub fn send_back(gradient: &[f32], output: &[f32], values: Values, out: &mut [u8]) -> usize {
    assert_eq!(gradient.len(), output.len(), "a gradient of another length");
    let sent = gradient.iter().zip(output).filter(|(_, output)| is_sent(**output));
    let sent = sent.map(|(gradient, _)| gradient);
    match values {
        Values::F32 => {
            let places = out.as_chunks_mut::<4>().0;
            let put = |count: usize, x: &f32| {
                places[count] = x.to_le_bytes();
                count + 1
            };
            4 * sent.fold(0, put)
        }
        Values::Bf16 => {
            let places = out.as_chunks_mut::<2>().0;
            let put = |count: usize, x: &f32| {
                places[count] = to_half(*x).to_le_bytes();
                count + 1
            };
            2 * sent.fold(0, put)
        }
    }
}

/// Bytes of the values of a gradient of `len` elements at most.
#[must_use]
pub const fn back_len_max(len: usize, values: Values) -> usize {
    len * values.bytes()
}

/// Adds what [`send_back`] has written of a gradient to `gradient`, where `output` was sent.
///
/// # Errors
/// When these are more or fewer values; some may have been added.
///
/// # Panics
/// When lengths differ.
pub fn add_back(
    message: &[u8],
    output: &[f32],
    values: Values,
    gradient: &mut [f32],
) -> Result<(), Malformed> {
    assert_eq!(gradient.len(), output.len(), "a gradient of another length");
    let sent = gradient.iter_mut().zip(output).filter(|(_, output)| is_sent(**output));
    let sent = sent.map(|(gradient, _)| gradient);
    let rest: &[u8] = match values {
        Values::F32 => {
            let (words, rest) = message.as_chunks::<4>();
            add_all(sent, words.iter().map(|word| f32::from_le_bytes(*word)))?;
            rest
        }
        Values::Bf16 => {
            let (words, rest) = message.as_chunks::<2>();
            add_all(sent, words.iter().map(|word| from_half(u16::from_le_bytes(*word))))?;
            rest
        }
    };
    if rest.is_empty() { Ok(()) } else { Err(Malformed) }
}

/// Whether an element of a held output was sent.
#[inline(always)]
fn is_sent(x: f32) -> bool {
    x.to_bits() != 0
}

fn add_all<'a>(
    places: impl Iterator<Item = &'a mut f32>,
    mut values: impl Iterator<Item = f32>,
) -> Result<(), Malformed> {
    for place in places {
        *place += values.next().ok_or(Malformed)?;
    }
    if values.next().is_none() { Ok(()) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::Keep;
    use super::super::code::{add, len_max};
    use super::*;

    proptest! {
        /// What is left is what passes; what is sent is what is left; and the gradient comes back
        /// to those elements alone.
        #[test]
        fn what_passes_is_left_and_comes_back(
            output in prop::collection::vec(
                prop_oneof![Just(0.0f32), 0.0f32..2.0, Just(f32::NAN)], 1..700),
            share in prop_oneof![Just(1.0f32), 0.01f32..1.0],
            bf16 in any::<bool>(),
        ) {
            let values = if bf16 { Values::Bf16 } else { Values::F32 };
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
            let mut back = vec![0; back_len_max(len, values)];
            let bytes = send_back(&gradient, &held, values, &mut back);
            prop_assert_eq!(bytes, passed * values.bytes());
            let mut got = vec![1.0; len];
            add_back(&back[..bytes], &held, values, &mut got).unwrap();
            for ((got, gradient), held) in got.iter().zip(&gradient).zip(&held) {
                let expected = if *held == 0.0 { 1.0 } else { 1.0 + values.sent(*gradient) };
                prop_assert_eq!(*got, expected);
            }
            // Cut, or longer, it is refused.
            back.push(0);
            let longer = add_back(&back[..bytes + 1], &held, values, &mut got);
            prop_assert_eq!(longer, Err(Malformed));
            if bytes > 0 {
                let shorter = add_back(&back[..bytes - 1], &held, values, &mut got);
                prop_assert_eq!(shorter, Err(Malformed));
            }
        }
    }
}
