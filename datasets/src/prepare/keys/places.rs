//! The places of a map: zeroed memory, in huge pages where the system grants them.
//!
//! A large map is read at random, so with pages of 4 KiB nearly every key costs a walk through the
//! page tables as well. Linux gives pages of 2 MiB to memory that asks for them (`madvise`,
//! transparent huge pages); memory from the allocator has not asked.

use core::ops::{Deref, DerefMut};

use bytemuck::Pod;
use memmap2::MmapMut;

/// Entries, all zeros at first.
#[derive(Debug)]
pub(crate) enum Places<E> {
    /// Less than a huge page, or the system has no other memory.
    Allocated(Vec<E>),
    Mapped(MmapMut),
}

impl<E: Pod> Places<E> {
    pub(crate) fn new(places: usize) -> Self {
        let bytes = places * size_of::<E>();
        if bytes >= HUGE_PAGE_BYTES
            && let Ok(map) = MmapMut::map_anon(bytes)
        {
            // A hint: without huge pages everything works, slower.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Self::Mapped(map);
        }
        Self::Allocated(vec![E::zeroed(); places])
    }
}

impl<E: Pod> Deref for Places<E> {
    type Target = [E];

    #[inline]
    fn deref(&self) -> &[E] {
        match self {
            Self::Allocated(places) => places,
            // A map begins with a page.
            Self::Mapped(map) => bytemuck::cast_slice(map),
        }
    }
}

impl<E: Pod> DerefMut for Places<E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [E] {
        match self {
            Self::Allocated(places) => places,
            Self::Mapped(map) => bytemuck::cast_slice_mut(map),
        }
    }
}

/// Size of a huge page on x86-64 and most other machines. Where it is larger the system may not
/// give one, and nothing else changes.
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_zeros_of_the_number_asked_for_and_keep_what_is_written() {
        for asked in [1, 1000, HUGE_PAGE_BYTES / 8 - 1, HUGE_PAGE_BYTES / 8, HUGE_PAGE_BYTES] {
            let mut places: Places<[u32; 2]> = Places::new(asked);
            assert_eq!(matches!(places, Places::Mapped(_)), asked * 8 >= HUGE_PAGE_BYTES);
            assert_eq!(places.len(), asked);
            assert!(places.iter().all(|place| *place == [0, 0]));
            places[asked - 1] = [1, 2];
            assert_eq!(places[asked - 1], [1, 2]);
        }
    }
}
