//! Values of a row as they stand in shared words: f32s, one to a word, or bf16s, two to a word, the
//! first in the lower half. Computed with as f32s; what becomes a bf16 is rounded stochastically.
//!
//! S. Gupta, A. Agrawal, K. Gopalakrishnan, P. Narayanan, "Deep learning with limited numerical
//! precision", ICML 2015, section 3: x between two neighbours a < b becomes b with probability
//! (x - a) / (b - a), so that its mean is x. Sixteen random bits, added to the sixteen that are cut
//! off, give that probability exactly.
//!
//! Invariant: where a row has an odd number of bf16s, its last word's upper half is 0.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::isa::{Isa, Source};
use super::tile::{load, store};
use super::update::lanes;
use crate::rng::{NOISES, noises};

/// What pooled rows consist of.
pub(crate) trait Stored {
    /// Values in one.
    const VALUES: usize;
}

impl Stored for f32 {
    const VALUES: usize = 1;
}

impl Stored for AtomicU32 {
    const VALUES: usize = 1;
}

/// A word of two bf16s.
#[repr(transparent)]
pub(crate) struct Pair(AtomicU32);

impl Stored for Pair {
    const VALUES: usize = 2;
}

impl Pair {
    /// Words as pairs.
    #[inline(always)]
    pub(crate) const fn of(words: &[AtomicU32]) -> &[Self] {
        // SAFETY: a pair is a word.
        unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
    }
}

/// Elements are bf16s, and even numbers of them are gone ahead.
impl Source for *const Pair {
    #[inline(always)]
    fn address(self) -> *const f32 {
        self.cast()
    }

    #[inline(always)]
    fn advance(self, elements: usize) -> Self {
        debug_assert!(elements.is_multiple_of(2), "half a word ahead");
        self.wrapping_add(elements / 2)
    }

    #[inline(always)]
    unsafe fn get(self) -> f32 {
        // SAFETY: the caller's promise, here and below.
        let word = unsafe { &(*self).0 }.load(Relaxed);
        f32::from_bits(word << 16)
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_halves(self.cast()) }
    }

    #[inline(always)]
    unsafe fn load_part<I: Isa>(self, isa: I, count: usize) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_halves_part(self.cast(), count) }
    }
}

/// Values of a row that are updated where they stand.
pub(crate) trait RowValues: Copy {
    /// Elements that one noise is for: a multiple of every vector's length.
    const RUN: usize;
    /// What decides how elements are rounded.
    type Noise;

    /// Words of `len` values.
    fn words(len: usize) -> usize;
    /// The words.
    fn as_words(&self) -> &[AtomicU32];
    /// The noise of the elements from `run` on, a multiple of [`Self::RUN`].
    fn noise(&self, run: usize) -> Self::Noise;

    /// Elements `at..at + count`, zeros behind them.
    ///
    /// # Safety
    /// The row has them; `at` is a multiple of a vector's length and `count` no more than it.
    unsafe fn load<I: Isa>(&self, isa: I, at: usize, count: usize) -> I::Vector;
    /// Writes them. What is left of a vector is written word by word: masked stores are slow on
    /// some processors.
    ///
    /// # Safety
    /// As above, and they are in the run of the noise.
    unsafe fn store<I: Isa>(
        &self,
        isa: I,
        at: usize,
        count: usize,
        x: I::Vector,
        noise: &Self::Noise,
    );
}

/// f32s.
#[derive(Clone, Copy)]
pub(crate) struct Whole<'a>(pub(crate) &'a [AtomicU32]);

impl RowValues for Whole<'_> {
    const RUN: usize = usize::MAX;
    type Noise = ();

    #[inline(always)]
    fn words(len: usize) -> usize {
        len
    }

    #[inline(always)]
    fn as_words(&self) -> &[AtomicU32] {
        self.0
    }

    #[inline(always)]
    fn noise(&self, _run: usize) {}

    #[inline(always)]
    unsafe fn load<I: Isa>(&self, isa: I, at: usize, count: usize) -> I::Vector {
        // SAFETY: the caller's promise, here and below.
        unsafe { load(isa, self.0.as_ptr().add(at), count) }
    }

    #[inline(always)]
    unsafe fn store<I: Isa>(&self, isa: I, at: usize, count: usize, x: I::Vector, (): &()) {
        // SAFETY: as above.
        unsafe { store_words(isa, &self.0[at..], count, x) }
    }
}

/// Writes a vector of a row, or the first `count` lanes of it.
///
/// # Safety
/// `to` has as many words.
#[inline(always)]
pub(super) unsafe fn store_words<I: Isa>(isa: I, to: &[AtomicU32], count: usize, x: I::Vector) {
    if count == I::LANES {
        // SAFETY: the caller's promise.
        unsafe { isa.store_shared(to.as_ptr(), x) }
    } else {
        for (word, x) in to.iter().zip(lanes(isa, x)).take(count) {
            word.store(x.to_bits(), Relaxed);
        }
    }
}

/// bf16s, and the key of the random numbers by which they are rounded.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<'a> {
    words: &'a [AtomicU32],
    key: [u32; 2],
}

impl<'a> Rounded<'a> {
    pub(crate) const fn new(words: &'a [AtomicU32], key: [u32; 2]) -> Self {
        Self { words, key }
    }
}

impl RowValues for Rounded<'_> {
    const RUN: usize = NOISES;
    type Noise = [f32; NOISES];

    #[inline(always)]
    fn words(len: usize) -> usize {
        len.div_ceil(2)
    }

    #[inline(always)]
    fn as_words(&self) -> &[AtomicU32] {
        self.words
    }

    #[inline(always)]
    fn noise(&self, at: usize) -> [f32; NOISES] {
        #[expect(clippy::cast_possible_truncation, reason = "wrapped, it would be another number")]
        noises(self.key, (at / 2) as u32)
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(&self, isa: I, at: usize, count: usize) -> I::Vector {
        let from: *const Pair = self.words.as_ptr().cast();
        // SAFETY: the caller's promise, here and below.
        unsafe { load(isa, from.advance(at), count) }
    }

    #[inline(always)]
    unsafe fn store<I: Isa>(
        &self,
        isa: I,
        at: usize,
        count: usize,
        x: I::Vector,
        noise: &[f32; NOISES],
    ) {
        let to = &self.words[at / 2..];
        // SAFETY: the run has all lanes of a vector that begins in it.
        let noise = unsafe { isa.load(noise.as_ptr().add(at % NOISES)) };
        let x = isa.round_by(x, noise);
        if count == I::LANES {
            // SAFETY: as above.
            unsafe { isa.store_halves(to.as_ptr(), x) }
        } else {
            let lanes = lanes(isa, x);
            for (word, pair) in to.iter().zip(lanes[..count].chunks(2)) {
                let upper = pair.get(1).map_or(0, |x| x.to_bits());
                word.store(pair[0].to_bits() >> 16 | upper, Relaxed);
            }
        }
    }
}

/// Copies the values of a row out.
#[inline(always)]
pub(crate) fn load_pairs<I: Isa>(isa: I, words: &[AtomicU32], out: &mut [f32]) {
    assert_eq!(words.len(), out.len().div_ceil(2), "a row of bf16s of another length");
    let from: *const Pair = words.as_ptr().cast();
    for (out, at) in out.chunks_mut(I::LANES).zip((0..).step_by(I::LANES)) {
        // SAFETY: the words have as many halves.
        unsafe { store(isa, out.as_mut_ptr(), out.len(), load(isa, from.advance(at), out.len())) }
    }
}

/// Writes the values of a row, rounded.
#[inline(always)]
pub(crate) fn store_pairs<I: Isa>(isa: I, to: Rounded<'_>, values: &[f32]) {
    let n = values.len();
    assert_eq!(to.words.len(), n.div_ceil(2), "a row of bf16s of another length");
    for run in (0..n).step_by(NOISES) {
        let noise = to.noise(run);
        for at in (run..n.min(run + NOISES)).step_by(I::LANES) {
            let count = I::LANES.min(n - at);
            // SAFETY: lengths were compared, and at is in the run.
            unsafe {
                let x = load(isa, values.as_ptr().add(at), count);
                to.store(isa, at, count, x, &noise);
            }
        }
    }
}
