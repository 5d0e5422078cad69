//! Where kernels read matrices from.

use core::sync::atomic::AtomicU32;

use super::Isa;

/// Where a kernel reads a matrix from: private or shared memory.
pub(crate) trait Source: Copy {
    /// The place `elements` further, wherever that is: to be read only if it is in the buffer.
    fn advance(self, elements: usize) -> Self;
    /// Its place.
    fn address(self) -> *const f32;
    /// One element.
    ///
    /// # Safety
    /// It is good for reading.
    unsafe fn get(self) -> f32;
    /// [`Isa::load`] or [`Isa::load_shared`].
    ///
    /// # Safety
    /// It is good for reading a vector.
    unsafe fn load<I: Isa>(self, isa: I) -> I::Vector;
    /// The vector behind that one.
    ///
    /// # Safety
    /// Both are good for reading.
    #[inline(always)]
    unsafe fn load_next<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: the caller's promise.
        unsafe { self.advance(I::LANES).load(isa) }
    }
    /// [`Isa::load_part`] or [`Isa::load_shared_part`].
    ///
    /// # Safety
    /// It is good for reading `count` elements.
    unsafe fn load_part<I: Isa>(self, isa: I, count: usize) -> I::Vector;
}

impl Source for *const f32 {
    #[inline(always)]
    fn address(self) -> *const f32 {
        self
    }

    #[inline(always)]
    fn advance(self, elements: usize) -> Self {
        self.wrapping_add(elements)
    }

    #[inline(always)]
    unsafe fn get(self) -> f32 {
        // SAFETY: the caller's promise, here and below.
        unsafe { *self }
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load(self) }
    }

    #[inline(always)]
    unsafe fn load_part<I: Isa>(self, isa: I, count: usize) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_part(self, count) }
    }
}

impl Source for *const AtomicU32 {
    #[inline(always)]
    fn address(self) -> *const f32 {
        self.cast()
    }

    #[inline(always)]
    fn advance(self, elements: usize) -> Self {
        self.wrapping_add(elements)
    }

    #[inline(always)]
    unsafe fn get(self) -> f32 {
        // SAFETY: the caller's promise, here and below.
        let word = unsafe { &*self };
        f32::from_bits(word.load(core::sync::atomic::Ordering::Relaxed))
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_shared(self) }
    }

    #[inline(always)]
    unsafe fn load_next<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_shared_next(self) }
    }

    #[inline(always)]
    unsafe fn load_part<I: Isa>(self, isa: I, count: usize) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_shared_part(self, count) }
    }
}

/// Private memory that is read in place ([`Isa::load_in_place`]). It is not shared memory by a
/// cast: a `&AtomicU32` permits writing, which a pointer made of a `&[f32]` does not.
#[derive(Clone, Copy)]
pub(crate) struct InPlace(pub(crate) *const f32);

impl Source for InPlace {
    #[inline(always)]
    fn address(self) -> *const f32 {
        self.0
    }

    #[inline(always)]
    fn advance(self, elements: usize) -> Self {
        Self(self.0.wrapping_add(elements))
    }

    #[inline(always)]
    unsafe fn get(self) -> f32 {
        // SAFETY: the caller's promise, here and below.
        unsafe { *self.0 }
    }

    #[inline(always)]
    unsafe fn load<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_in_place(self.0) }
    }

    #[inline(always)]
    unsafe fn load_next<I: Isa>(self, isa: I) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_in_place_next(self.0) }
    }

    #[inline(always)]
    unsafe fn load_part<I: Isa>(self, isa: I, count: usize) -> I::Vector {
        // SAFETY: as above.
        unsafe { isa.load_in_place_part(self.0, count) }
    }
}
