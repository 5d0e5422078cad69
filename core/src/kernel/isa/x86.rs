//! What AVX2 and AVX-512 have in common: the same operations under two sets of names. What differs,
//! masks and shuffles, is in `avx2.rs` and `avx512.rs`.

/// The functions of `Isa` that are one instruction each, inside an `impl Isa`. In all of them
/// holding `self` proves that the machine has the instruction; of pointers the caller has promised
/// what `Isa` says.
macro_rules! one_instruction {
    ($vector:ident, $zero:ident, $splat:ident, $add:ident, $mul:ident, $sub:ident, $div:ident,
     $sqrt:ident,
     $multiply_add:ident, $load:ident, $store:ident) => {
        #[inline(always)]
        fn zero(self) -> $vector {
            // SAFETY: see above, here and below.
            unsafe { $zero() }
        }

        #[inline(always)]
        fn splat(self, x: f32) -> $vector {
            // SAFETY: as above.
            unsafe { $splat(x) }
        }

        #[inline(always)]
        fn add(self, a: $vector, b: $vector) -> $vector {
            // SAFETY: as above.
            unsafe { $add(a, b) }
        }

        #[inline(always)]
        fn mul(self, a: $vector, b: $vector) -> $vector {
            // SAFETY: as above.
            unsafe { $mul(a, b) }
        }

        #[inline(always)]
        fn sub(self, a: $vector, b: $vector) -> $vector {
            // SAFETY: as above.
            unsafe { $sub(a, b) }
        }

        #[inline(always)]
        fn div(self, a: $vector, b: $vector) -> $vector {
            // SAFETY: as above.
            unsafe { $div(a, b) }
        }

        #[inline(always)]
        fn sqrt(self, x: $vector) -> $vector {
            // SAFETY: as above.
            unsafe { $sqrt(x) }
        }

        #[inline(always)]
        fn multiply_add(self, a: $vector, b: $vector, c: $vector) -> $vector {
            // SAFETY: as above.
            unsafe { $multiply_add(a, b, c) }
        }

        #[inline(always)]
        unsafe fn load(self, from: *const f32) -> $vector {
            // SAFETY: as above.
            unsafe { $load(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32, x: $vector) {
            // SAFETY: as above.
            unsafe { $store(to, x) }
        }

        // The instructions behind these know pointers only, so they read private memory as well.
        #[inline(always)]
        unsafe fn load_in_place(self, from: *const f32) -> $vector {
            // SAFETY: as above.
            unsafe { load_shared::<0>(from.cast()) }
        }

        #[inline(always)]
        unsafe fn load_in_place_next(self, from: *const f32) -> $vector {
            // SAFETY: as above.
            unsafe { load_shared::<{ size_of::<$vector>() }>(from.cast()) }
        }

        #[inline(always)]
        unsafe fn load_in_place_part(self, from: *const f32, count: usize) -> $vector {
            // SAFETY: as above.
            unsafe { load_shared_part(from.cast(), self.mask(count)) }
        }

        #[inline(always)]
        unsafe fn load_shared(self, from: *const AtomicU32) -> $vector {
            // SAFETY: as above.
            unsafe { load_shared::<0>(from) }
        }

        #[inline(always)]
        unsafe fn load_shared_next(self, from: *const AtomicU32) -> $vector {
            // SAFETY: as above.
            unsafe { load_shared::<{ size_of::<$vector>() }>(from) }
        }

        #[inline(always)]
        unsafe fn load_shared_part(self, from: *const AtomicU32, count: usize) -> $vector {
            // SAFETY: as above.
            unsafe { load_shared_part(from, self.mask(count)) }
        }

        #[inline(always)]
        unsafe fn store_shared(self, to: *const AtomicU32, x: $vector) {
            // SAFETY: as above.
            unsafe { store_shared(to, x) }
        }

        #[inline(always)]
        unsafe fn store_shared_part(self, to: *const AtomicU32, count: usize, x: $vector) {
            // SAFETY: as above.
            unsafe { store_shared_part(to, self.mask(count), x) }
        }
    };
}

/// Functions that read and write a vector of shared memory: one instruction each, which the
/// compiler may neither split nor repeat. What other threads write meanwhile is seen word by word.
macro_rules! shared_memory {
    ($features:literal, $vector:ident in $register:ident, $mask:ident in $mask_register:ident,
     $load_part:literal, $store_part:literal) => {
        /// The vector `BYTES` behind `from`.
        ///
        /// # Safety
        /// The machine has the features, and the place is good for reading a vector.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_shared<const BYTES: usize>(from: *const AtomicU32) -> $vector {
            let x;
            // SAFETY: the caller's promise, here and below.
            unsafe {
                asm!("vmovups {x}, [{from} + {bytes}]", x = lateout($register) x,
                    from = in(reg) from, bytes = const BYTES,
                    options(nostack, preserves_flags, readonly));
            }
            x
        }

        /// # Safety
        /// The machine has the features, and `from` is good for reading the lanes of the mask.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn load_shared_part(from: *const AtomicU32, mask: $mask) -> $vector {
            let x;
            // SAFETY: as above; lanes outside the mask are not touched.
            unsafe {
                asm!($load_part, x = lateout($register) x, mask = in($mask_register) mask,
                    from = in(reg) from, options(nostack, preserves_flags, readonly));
            }
            x
        }

        /// # Safety
        /// The machine has the features, and `to` is good for writing a vector.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store_shared(to: *const AtomicU32, x: $vector) {
            // SAFETY: as above.
            unsafe {
                asm!("vmovups [{to}], {x}", x = in($register) x, to = in(reg) to,
                    options(nostack, preserves_flags));
            }
        }

        /// # Safety
        /// The machine has the features, and `to` is good for writing the lanes of the mask.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn store_shared_part(to: *const AtomicU32, mask: $mask, x: $vector) {
            // SAFETY: as above; lanes outside the mask are not touched.
            unsafe {
                asm!($store_part, x = in($register) x, mask = in($mask_register) mask,
                    to = in(reg) to, options(nostack, preserves_flags));
            }
        }
    };
}

pub(super) use {one_instruction, shared_memory};
