//! Memory that workers share: relaxed atomic words holding f32s.
//!
//! F. Niu, B. Recht, C. Ré, S. Wright, "Hogwild!", NIPS 2011, without undefined behaviour: two
//! workers may lose each other's update but never race in the language's sense. See `isa/mod.rs`
//! for vectors of words.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::isa::{Isa, Kernel, run};
use super::tile;

/// Copies words out as numbers. Lengths are equal.
#[inline]
pub fn load(words: &[AtomicU32], out: &mut [f32]) {
    struct Load<'a>(&'a [AtomicU32], &'a mut [f32]);
    impl Kernel for Load<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            load_with(isa, self.0, self.1);
        }
    }
    run(Load(words, out));
}

/// Copies numbers into words. Lengths are equal.
#[inline]
pub fn store(words: &[AtomicU32], values: &[f32]) {
    struct Store<'a>(&'a [AtomicU32], &'a [f32]);
    impl Kernel for Store<'_> {
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            store_with(isa, self.0, self.1);
        }
    }
    run(Store(words, values));
}

/// Copies words out as numbers and says whether all of them are finite: the numbers that were
/// copied, whatever the words have become meanwhile. Lengths are equal.
#[inline]
#[must_use]
pub fn load_finite(words: &[AtomicU32], out: &mut [f32]) -> bool {
    let mut finite = false;
    run(LoadFinite { words, out, finite: &mut finite });
    finite
}

/// Whether all numbers are finite.
#[inline]
#[must_use]
pub fn all_finite(numbers: &[f32]) -> bool {
    let mut finite = false;
    run(AllFinite { numbers, finite: &mut finite });
    finite
}

/// `word += alpha * (value - word)`, against the words as they are now; with `alpha` 1 a word
/// becomes its value exactly, whatever it was. Lengths are equal.
#[inline]
pub fn interpolate(words: &[AtomicU32], alpha: f32, values: &[f32]) {
    if alpha == 1.0 {
        return store(words, values);
    }
    run(Move::<true> { words, alpha, values });
}

/// `word += alpha * value`, against the words as they are now. Lengths are equal.
#[inline]
pub fn add(words: &[AtomicU32], alpha: f32, values: &[f32]) {
    run(Move::<false> { words, alpha, values });
}

/// [`load_finite`] as a kernel.
pub(super) struct LoadFinite<'a> {
    pub(super) words: &'a [AtomicU32],
    pub(super) out: &'a mut [f32],
    pub(super) finite: &'a mut bool,
}

impl Kernel for LoadFinite<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { words, out, finite } = self;
        assert_eq!(words.len(), out.len(), "copy of words into a buffer of another length");
        // x - x is 0 if x is finite, else not a number, which no sum gets rid of.
        let mut sum = isa.zero();
        for (from, to) in words.chunks(I::LANES).zip(out.chunks_mut(I::LANES)) {
            // SAFETY: both are as long as each other.
            unsafe {
                let x = tile::load(isa, from.as_ptr(), from.len());
                tile::store(isa, to.as_mut_ptr(), from.len(), x);
                sum = isa.add(sum, isa.sub(x, x));
            }
        }
        *finite = !isa.has_nan(sum);
    }
}

struct AllFinite<'a> {
    numbers: &'a [f32],
    finite: &'a mut bool,
}

impl Kernel for AllFinite<'_> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        *self.finite = all_finite_with(isa, self.numbers);
    }
}

/// [`interpolate`] (`TOWARDS` the values) or [`add`] as a kernel. No fused operations: the same
/// bits on every instruction set.
pub(super) struct Move<'a, const TOWARDS: bool> {
    pub(super) words: &'a [AtomicU32],
    pub(super) alpha: f32,
    pub(super) values: &'a [f32],
}

impl<const TOWARDS: bool> Kernel for Move<'_, TOWARDS> {
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Self { words, alpha, values } = self;
        assert_eq!(words.len(), values.len(), "a replica moved by a buffer of another length");
        let alpha = isa.splat(alpha);
        for (to, from) in words.chunks(I::LANES).zip(values.chunks(I::LANES)) {
            // SAFETY: both are as long as each other.
            unsafe {
                let now = tile::load(isa, to.as_ptr(), to.len());
                let value = tile::load(isa, from.as_ptr(), from.len());
                let step = if TOWARDS { isa.sub(value, now) } else { value };
                let moved = isa.add(now, isa.mul(alpha, step));
                tile::store_shared(isa, to.as_ptr(), to.len(), moved);
            }
        }
    }
}

/// Numbers that nobody else uses now, as words.
#[must_use]
pub fn shared(numbers: &mut [f32]) -> &[AtomicU32] {
    let (start, len) = (numbers.as_mut_ptr().cast::<AtomicU32>(), numbers.len());
    // SAFETY: an f32 and an atomic word have the same size and alignment and no invalid bits, and
    // the exclusive borrow lasts as long as the shared one.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// [`all_finite`] in a kernel.
#[inline(always)]
pub(crate) fn all_finite_with<I: Isa>(isa: I, numbers: &[f32]) -> bool {
    // As in `LoadFinite`, in several sums: one alone would wait for itself.
    let mut sums = [isa.zero(); 4];
    let blocks = numbers.chunks_exact(sums.len() * I::LANES);
    let rest = blocks.remainder();
    for numbers in blocks {
        for (sum, numbers) in sums.iter_mut().zip(numbers.chunks_exact(I::LANES)) {
            // SAFETY: as long as a vector.
            let x = unsafe { isa.load(numbers.as_ptr()) };
            *sum = isa.add(*sum, isa.sub(x, x));
        }
    }
    for (sum, numbers) in sums.iter_mut().zip(rest.chunks(I::LANES)) {
        // SAFETY: as many elements as there are left.
        let x = unsafe { tile::load(isa, numbers.as_ptr(), numbers.len()) };
        *sum = isa.add(*sum, isa.sub(x, x));
    }
    let [a, b, c, d] = sums;
    !isa.has_nan(isa.add(isa.add(a, b), isa.add(c, d)))
}

/// [`load`] in a kernel. What is left of a vector goes word by word: with a mask it would have to
/// wait for narrower stores to the same place, which rows with a word of state behind their values
/// have just made.
#[inline(always)]
pub(crate) fn load_with<I: Isa>(isa: I, words: &[AtomicU32], out: &mut [f32]) {
    assert_eq!(words.len(), out.len(), "copy of words into a buffer of another length");
    let whole = out.len() / I::LANES * I::LANES;
    let (vectors, rest) = words.split_at(whole);
    let (out, out_rest) = out.split_at_mut(whole);
    for (from, to) in vectors.chunks_exact(I::LANES).zip(out.chunks_exact_mut(I::LANES)) {
        // SAFETY: both are as long as a vector.
        unsafe { isa.store(to.as_mut_ptr(), isa.load_shared(from.as_ptr())) }
    }
    for (from, to) in rest.iter().zip(out_rest) {
        *to = f32::from_bits(from.load(Relaxed));
    }
}

/// [`store`] in a kernel.
#[inline(always)]
pub(crate) fn store_with<I: Isa>(isa: I, words: &[AtomicU32], values: &[f32]) {
    assert_eq!(words.len(), values.len(), "copy of a buffer of another length into words");
    let whole = words.len() / I::LANES * I::LANES;
    let (vectors, rest) = words.split_at(whole);
    let (values, values_rest) = values.split_at(whole);
    for (to, from) in vectors.chunks_exact(I::LANES).zip(values.chunks_exact(I::LANES)) {
        // SAFETY: both are as long as a vector.
        unsafe { isa.store_shared(to.as_ptr(), isa.load(from.as_ptr())) }
    }
    for (to, from) in rest.iter().zip(values_rest) {
        to.store(from.to_bits(), Relaxed);
    }
}

/// Reads words and writes them back, or only reads them: what no kernel on them can do without.
#[inline(always)]
pub(crate) fn touch_with<I: Isa>(isa: I, words: &[AtomicU32], write: bool) -> I::Vector {
    let mut sum = isa.zero();
    let vectors = words.chunks_exact(I::LANES);
    let rest = vectors.remainder();
    for words in vectors {
        // SAFETY: as long as a vector.
        let x = unsafe { isa.load_shared(words.as_ptr()) };
        if write {
            // SAFETY: as above.
            unsafe { isa.store_shared(words.as_ptr(), x) }
        }
        sum = isa.add(sum, x);
    }
    for word in rest {
        let x = word.load(Relaxed);
        if write {
            word.store(x, Relaxed);
        }
        sum = isa.add(sum, isa.splat(f32::from_bits(x)));
    }
    sum
}
