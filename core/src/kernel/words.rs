//! Memory that workers share: relaxed atomic words holding f32s.
//!
//! F. Niu, B. Recht, C. Ré, S. Wright, "Hogwild!", NIPS 2011, without undefined behaviour: two workers
//! may lose each other's update but never race in the language's sense. See `isa/mod.rs` for vectors
//! of words.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::isa::{Isa, Kernel, run};

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

/// Numbers that nobody else uses now, as words.
#[must_use]
pub fn shared(numbers: &mut [f32]) -> &[AtomicU32] {
    let (start, len) = (numbers.as_mut_ptr().cast::<AtomicU32>(), numbers.len());
    // SAFETY: an f32 and an atomic word have the same size and alignment and no invalid bits, and the
    // exclusive borrow lasts as long as the shared one.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// [`load`] in a kernel. What is left of a vector goes word by word: with a mask it would have to wait for
/// narrower stores to the same place, which rows with a word of state behind their values have just made.
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

/// Asks for the cache line of `of` ahead of its use.
#[inline(always)]
pub(crate) fn prefetch<T>(of: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing. SSE is part of the architecture.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(
            core::ptr::from_ref(of).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = of;
}
