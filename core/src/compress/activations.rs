//! Activations: which elements of pooled vectors are sent, sample by sample.
//!
//! arXiv 2010.08899, model parallelism (DCT-MP): an element of an activation that does not reach
//! the threshold is zero for whoever gets it, and then its gradient is zero for whoever sent it. So
//! the way back has the values at the mask's positions and says no more which they are. Nothing is
//! kept for later: what is left of one sample says nothing of the next.
//!
//! Scales of tables differ, so each field has a threshold of its own. The first columns of a vector
//! may be of another kind, such as first-order weights, which are 0 in the beginning and would
//! never pass: these always do.
//!
//! Invariants: what a field sends depends on the vectors of that field that came before, in their
//! order, and on nothing else; the mask is the one that the message tells.

use super::code::{Values, code};
use super::mask::{Mask, mask_len};
use super::residual::Kept;
use super::threshold::{Counts, Keep, Threshold, tau_of};

/// The threshold of a field's vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FieldThreshold {
    threshold: Threshold,
    /// In the vectors in hand: elements, and those that pass.
    elements: u32,
    passed: u32,
}

/// Pooled vectors.
#[derive(Clone, Copy, Debug)]
pub struct Vectors<'a> {
    /// `[n, width]`
    pub values: &'a [f32],
    /// Field of each. `[n]`
    pub fields: &'a [u32],
    /// Elements of a vector.
    pub width: usize,
    /// So many of them, the first, always pass.
    pub always: usize,
}

/// What finds thresholds anew.
#[derive(Debug)]
pub struct Refresh<'a> {
    /// Scratch, at least as long as all elements of the vectors.
    pub elements: &'a mut [f32],
    /// Scratch.
    pub counts: &'a mut Counts,
    /// Another number every time.
    pub turn: u32,
}

impl<'a> Vectors<'a> {
    fn each(self) -> impl Iterator<Item = (usize, usize, &'a [f32])> {
        let vectors = self.values.chunks_exact(self.width).zip(self.fields);
        let first = (0..).step_by(self.width);
        vectors.zip(first).map(|((vector, field), first)| (first, *field as usize, vector))
    }

    /// Sets the bits of a vector's elements; returns how many of the thresholded pass.
    fn fill(self, (first, vector): (usize, &[f32]), tau: f32, words: &mut [u32]) -> u32 {
        // As words, of which those that are not a number are the largest; zeros say nothing.
        let tau = tau.max(f32::MIN_POSITIVE).to_bits();
        let mut passed = 0;
        for (column, (at, x)) in (first..).zip(vector).enumerate() {
            let passes = column < self.always || x.abs().to_bits() >= tau;
            let bit = 1 << (at % 32);
            words[at / 32] = words[at / 32] & !bit | if passes { bit } else { 0 };
            passed += u32::from(passes && column >= self.always);
        }
        passed
    }
}

/// Writes what passes the thresholds of its field to `out` (`code.rs`), which has room for
/// `len_max` bytes, and its mask to `words`. Thresholds are found anew when they are due or no
/// longer fit; with no `refresh` they stay as they are, whatever passes.
/// `thresholds`: `[fields]`; `words`: `[mask_len(n * width)]`
///
/// # Panics
/// When a field has no threshold, lengths do not fit or there is no room.
pub fn send(
    vectors: Vectors<'_>,
    thresholds: &mut [FieldThreshold],
    (keep, values): (Keep, Values),
    refresh: Option<Refresh<'_>>,
    words: &mut [u32],
    out: &mut [u8],
) -> Kept {
    let len = vectors.values.len();
    let words = &mut words[..mask_len(len)];
    if keep.share >= 1.0 {
        fill_all(words, len);
    } else {
        mark(vectors, thresholds, words, refresh.is_some());
        if let Some(refresh) = refresh {
            renew(vectors, thresholds, keep, refresh, words);
        }
    }
    let bytes = code(vectors.values, &Mask::told(words), values, out);
    if out[0] == 0 {
        // Many pass, and then it is shorter to send all.
        fill_all(words, len);
    }
    Kept { elements: Mask::told(words).count(), bytes }
}

/// Fills the mask by the thresholds as they are.
fn mark(
    vectors: Vectors<'_>,
    thresholds: &mut [FieldThreshold],
    words: &mut [u32],
    to_be_found: bool,
) {
    for field in &mut *thresholds {
        (field.elements, field.passed) = (0, 0);
    }
    for (first, field, vector) in vectors.each() {
        let it = &mut thresholds[field];
        let tau =
            if to_be_found && it.threshold.is_due() { f32::INFINITY } else { it.threshold.tau() };
        it.passed += vectors.fill((first, vector), tau, words);
        #[expect(clippy::cast_possible_truncation, reason = "at most u32::MAX elements")]
        let elements = (vector.len() - vectors.always.min(vector.len())) as u32;
        it.elements += elements;
    }
}

/// Finds those thresholds anew that are due or that far too many pass.
fn renew(
    vectors: Vectors<'_>,
    thresholds: &mut [FieldThreshold],
    keep: Keep,
    Refresh { elements, counts, turn }: Refresh<'_>,
    words: &mut [u32],
) {
    for (field, it) in thresholds.iter_mut().enumerate() {
        let (len, passed) = (it.elements as usize, it.passed as usize);
        if len == 0 {
            continue;
        }
        if it.threshold.is_due() || it.threshold.is_passed_by_many(passed, len, keep) {
            let of_field = || vectors.each().filter(|(_, own, _)| *own == field);
            let all = of_field().flat_map(|(_, _, vector)| &vector[vectors.always..]);
            elements.iter_mut().zip(all).for_each(|(to, x)| *to = *x);
            it.threshold.set(tau_of(&elements[..len], keep.share, turn, counts), keep);
            it.passed = 0;
            for (first, _, vector) in of_field() {
                it.passed += vectors.fill((first, vector), it.threshold.tau(), words);
            }
        }
        it.threshold.stepped(it.passed as usize, len, keep);
    }
}

/// All of `len` elements pass.
fn fill_all(words: &mut [u32], len: usize) {
    for (word, left) in words.iter_mut().zip((0..len).step_by(32).map(|first| len - first)) {
        *word = if left < 32 { (1 << left) - 1 } else { u32::MAX };
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::super::code::{Malformed, add, len_max, read_mask};
    use super::super::positions::{gather, scatter};
    use super::*;

    const WIDTH: usize = 5;

    struct Memory {
        thresholds: Vec<FieldThreshold>,
        elements: Vec<f32>,
        counts: Box<Counts>,
        words: Vec<u32>,
        out: Vec<u8>,
        turn: u32,
    }

    impl Memory {
        fn new(fields: usize, most: usize) -> Self {
            Self {
                thresholds: vec![FieldThreshold::default(); fields],
                elements: vec![0.0; most],
                counts: Box::new([0; 1 << 15]),
                words: vec![0; mask_len(most)],
                out: vec![0; len_max(most, Values::F32)],
                turn: 0,
            }
        }

        fn send(&mut self, vectors: Vectors<'_>, how: (Keep, Values), learns: bool) -> Kept {
            let Self { thresholds, elements, counts, words, out, turn } = self;
            *turn += 1;
            let refresh = learns.then_some(Refresh { elements, counts, turn: *turn });
            send(vectors, thresholds, how, refresh, words, out)
        }
    }

    /// Field 1 has a hundred times the scale of field 0, and one vector in three is of field 2.
    fn vectors(n: u32, seed: u32) -> (Vec<f32>, Vec<u32>) {
        let fields: Vec<u32> = (0..n).map(|i| i % 3).collect();
        let at = |i: u32| {
            let scale = [0.01, 1.0, 0.1][(i / 5 % 3) as usize];
            let word = (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(9).wrapping_mul(40_503);
            scale * ((word >> 8) as f32 / 8.4e6 - 1.0)
        };
        ((0..n * 5).map(at).collect(), fields)
    }

    #[test]
    fn every_field_sends_its_share_whatever_its_scale() {
        let how = (Keep { share: 0.1, refresh_every: 20 }, Values::F32);
        let mut memory = Memory::new(3, 600 * WIDTH);
        let mut sent = [0usize; 3];
        for step in 0..50 {
            let (values, fields) = vectors(600, step);
            let it = Vectors { values: &values, fields: &fields, width: WIDTH, always: 0 };
            memory.send(it, how, true);
            let mask = Mask::told(&memory.words);
            mask.visit(|at| sent[fields[at / WIDTH] as usize] += 1);
        }
        for sent in sent {
            let share = sent as f32 / (50 * 200 * WIDTH) as f32;
            assert!((0.07..0.15).contains(&share), "{share}");
        }
    }

    #[test]
    fn first_columns_and_what_is_not_finite_always_pass() {
        let (mut values, fields) = vectors(60, 3);
        values.iter_mut().step_by(WIDTH).for_each(|x| *x = 0.0);
        (values[7], values[8]) = (f32::NAN, f32::NEG_INFINITY);
        let it = Vectors { values: &values, fields: &fields, width: WIDTH, always: 1 };
        let mut memory = Memory::new(3, values.len());
        memory.send(it, (Keep { share: 0.05, refresh_every: 9 }, Values::Bf16), true);
        let mut passed = vec![false; values.len()];
        Mask::told(&memory.words).visit(|at| passed[at] = true);
        assert!(passed.iter().step_by(WIDTH).all(|passes| *passes) && passed[7] && passed[8]);
        let others = passed.iter().filter(|passes| **passes).count() - 60 - 2;
        assert!((3..60 * 4 / 8).contains(&others), "{others}");
    }

    /// Those who score while nobody learns.
    #[test]
    fn thresholds_stay_where_nothing_finds_them_anew() {
        let how = (Keep { share: 0.1, refresh_every: 2 }, Values::F32);
        let mut memory = Memory::new(3, 600 * WIDTH);
        let (values, fields) = vectors(600, 1);
        let it = Vectors { values: &values, fields: &fields, width: WIDTH, always: 0 };
        let learnt = memory.send(it, how, true);
        let before = memory.thresholds.iter().map(|field| field.threshold).collect::<Vec<_>>();
        for _ in 0..5 {
            assert_eq!(memory.send(it, how, false), learnt);
        }
        let after = memory.thresholds.iter().map(|field| field.threshold).collect::<Vec<_>>();
        assert_eq!(after, before);
    }

    proptest! {
        /// Whoever reads the message knows the mask, and gradients come back to their places.
        #[test]
        fn both_sides_have_one_mask(
            n in 1u32..80,
            share in prop_oneof![Just(1.0f32), 0.01f32..1.0],
            always in 0usize..2,
            how in prop_oneof![Just(Values::F32), Just(Values::Bf16), Just(Values::F8)],
            seed in any::<u32>(),
        ) {
            let (values, fields) = vectors(n, seed);
            let it = Vectors { values: &values, fields: &fields, width: WIDTH, always };
            let mut memory = Memory::new(3, values.len());
            let kept = memory.send(it, (Keep { share, refresh_every: 5 }, how), true);
            let (message, len) = (&memory.out[..kept.bytes], values.len());
            let mut words = vec![u32::MAX; mask_len(len)];
            let mask = read_mask(message, len, &mut words).unwrap();
            prop_assert_eq!(mask.words(), &memory.words[..mask_len(len)]);
            prop_assert_eq!(mask.count(), kept.elements);
            prop_assert!(share < 1.0 || mask.count() == len);
            let mut got = vec![0.0; len];
            add(message, &mut got).unwrap();
            let mut passed = vec![false; len];
            mask.visit(|at| passed[at] = true);
            for at in 0..len {
                prop_assert_eq!(got[at], if passed[at] { how.sent(values[at]) } else { 0.0 });
            }
            // And back.
            let gradient: Vec<f32> = values.iter().map(|x| x * 3.0 - 0.5).collect();
            let mut bytes = vec![0; 4 * len];
            let length = gather(&gradient, &mask, how, &mut bytes);
            let mut back = vec![0.0; len];
            prop_assert_eq!(scatter(&bytes[..length], &mask, how, &mut back), Ok(()));
            for at in 0..len {
                prop_assert_eq!(back[at], if passed[at] { how.sent(gradient[at]) } else { 0.0 });
            }
            if length > 0 {
                let cut = scatter(&bytes[..length - 1], &mask, how, &mut back);
                prop_assert_eq!(cut, Err(Malformed));
            }
        }
    }
}
