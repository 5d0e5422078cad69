//! Which elements of a vector pass a threshold: a bit each.

use crate::kernel::isa::{Isa, Kernel, run};

/// Words of a mask for `len` elements.
#[must_use]
pub const fn mask_len(len: usize) -> usize {
    len.div_ceil(32)
}

/// Which elements of a vector pass. Bit i mod 32 of word i / 32 is that of element i.
#[derive(Clone, Copy, Debug)]
pub struct Mask<'a> {
    words: &'a [u32],
    /// Elements that pass.
    count: usize,
}

impl<'a> Mask<'a> {
    /// The elements of `vector` that are not below `tau` in size, and no zeros; those that are not
    /// a number are among them. `words`: `[mask_len(vector.len())]`
    pub(super) fn of(vector: &[f32], tau: f32, words: &'a mut [u32]) -> Self {
        let mut count = 0;
        run(Fill { vector, tau, words: &mut *words, count: &mut count });
        Self { words, count }
    }

    /// As [`of`](Self::of), of `sum`, to which `more` is added first.
    pub(super) fn of_sum(sum: &mut [f32], more: &[f32], tau: f32, words: &'a mut [u32]) -> Self {
        assert_eq!(sum.len(), more.len(), "vectors of different lengths");
        let mut count = 0;
        run(FillSum { sum, more, tau, words: &mut *words, count: &mut count });
        Self { words, count }
    }

    /// A mask that has been filled before, with so many that pass.
    pub(super) const fn counted(words: &'a [u32], count: usize) -> Self {
        Self { words, count }
    }

    /// The elements whose bits are set: a mask that somebody has told.
    #[must_use]
    pub fn told(words: &'a [u32]) -> Self {
        Self { words, count: words.iter().map(|word| word.count_ones() as usize).sum() }
    }

    /// The elements of `vector` that are not 0, nor next to it (subnormal). `words`:
    /// `[mask_len(vector.len())]`
    #[must_use]
    pub fn nonzero(vector: &[f32], words: &'a mut [u32]) -> Self {
        Self::of(vector, 0.0, words)
    }

    /// Elements that pass.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The words.
    #[must_use]
    pub const fn words(&self) -> &'a [u32] {
        self.words
    }

    /// Calls `visit` with the elements that pass, ascending.
    #[inline(always)]
    pub fn visit(&self, mut visit: impl FnMut(usize)) {
        for (first, word) in (0..).step_by(32).zip(self.words) {
            let mut word = *word;
            while word != 0 {
                visit(first + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
    }
}

/// Elements looked at together: they stay in the first cache.
const BLOCK: usize = 1 << 10;

/// As words, of which those that are not a number are the largest.
#[inline(always)]
const fn passes(x: f32, tau: f32) -> bool {
    x.abs().to_bits() >= tau.to_bits()
}

/// [`fill`] as a kernel.
struct Fill<'a> {
    vector: &'a [f32],
    tau: f32,
    words: &'a mut [u32],
    /// Elements that pass.
    count: &'a mut usize,
}

impl Kernel for Fill<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        *self.count = fill(self.vector, self.tau, self.words);
    }
}

/// The same of a sum, to which `more` is added.
struct FillSum<'a> {
    sum: &'a mut [f32],
    more: &'a [f32],
    tau: f32,
    words: &'a mut [u32],
    count: &'a mut usize,
}

impl Kernel for FillSum<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        // A block is still at hand when it is looked at.
        let blocks = self.sum.chunks_mut(BLOCK).zip(self.more.chunks(BLOCK));
        for ((sum, more), words) in blocks.zip(self.words.chunks_mut(mask_len(BLOCK))) {
            for (sum, more) in sum.iter_mut().zip(more) {
                *sum += more;
            }
            *self.count += fill(sum, self.tau, words);
        }
    }
}

/// Fills the words of a vector's mask. Returns how many pass.
#[inline(always)]
fn fill(vector: &[f32], tau: f32, words: &mut [u32]) -> usize {
    // Zeros say nothing, whatever the threshold.
    let tau = tau.max(f32::MIN_POSITIVE);
    let mut count = 0;
    let (whole, rest) = vector.as_chunks::<32>();
    for (vector, word) in whole.iter().zip(&mut *words) {
        let mut bits = 0;
        for (bit, x) in vector.iter().enumerate() {
            bits |= u32::from(passes(*x, tau)) << bit;
        }
        *word = bits;
        count += bits.count_ones();
    }
    if let (false, Some(word)) = (rest.is_empty(), words.get_mut(whole.len())) {
        let bits = rest.iter().zip(0..).map(|(x, bit)| u32::from(passes(*x, tau)) << bit);
        *word = bits.fold(0, |all, bit| all | bit);
        count += word.count_ones();
    }
    count as usize
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_passes_is_what_is_large(
            vector in prop::collection::vec(prop_oneof![
                Just(0.0f32), Just(f32::NAN), Just(f32::INFINITY), -2.0f32..2.0], 0..3000),
            tau in prop_oneof![Just(0.0f32), 0.0f32..2.0],
        ) {
            let passes = |x: &f32| *x != 0.0 && (x.is_nan() || x.abs() >= tau);
            let expected: Vec<usize> =
                (0..vector.len()).filter(|at| passes(&vector[*at])).collect();
            let mut words = vec![u32::MAX; mask_len(vector.len())];
            let mask = Mask::of(&vector, tau, &mut words);
            let mut found = vec![];
            mask.visit(|at| found.push(at));
            prop_assert_eq!(mask.count(), found.len());
            prop_assert_eq!(&found, &expected);
            // With half of it added the same.
            let half: Vec<f32> = vector.iter().map(|x| x / 2.0).collect();
            let (mut sum, mut words) = (half.clone(), vec![u32::MAX; mask_len(vector.len())]);
            let mask = Mask::of_sum(&mut sum, &half, tau, &mut words);
            prop_assert_eq!(mask.count(), expected.len());
            prop_assert!(sum.iter().zip(&vector).all(|(a, b)| a.to_bits() == b.to_bits()
                || a.is_nan() && b.is_nan()));
        }
    }
}
