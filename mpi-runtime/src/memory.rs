//! Memory for tables and replicas: page-aligned words, in huge pages where the system grants them.
//!
//! A table of gigabytes is read at random, so with pages of 4 KiB nearly every row costs a walk
//! through the page tables as well. Linux gives pages of 2 MiB to memory that asks for them
//! (`madvise`, transparent huge pages).
#![allow(unsafe_code)]

use core::ops::Deref;
use core::sync::atomic::AtomicU32;
use std::io;

use memmap2::{Advice, MmapMut, MmapRaw};

/// Shared words, all 0 at first.
#[derive(Debug)]
pub struct Words {
    /// Nobody but `deref` looks at it again.
    map: Option<MmapRaw>,
    len: usize,
}

impl Words {
    /// `len` words.
    ///
    /// # Errors
    /// When the system has no memory for them.
    pub fn new(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { map: None, len });
        }
        let map = MmapMut::map_anon(len * size_of::<AtomicU32>()).map_err(|error| {
            let gigabytes = (len * size_of::<AtomicU32>()) as f64 / 1e9;
            let message = format!("no memory for {gigabytes:.2} GB of parameters: {error}");
            io::Error::new(error.kind(), message)
        })?;
        // A hint: without huge pages everything works, slower.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { map: Some(map.into()), len })
    }
}

impl Deref for Words {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        let Some(map) = &self.map else { return &[] };
        // SAFETY: the map is private, page-aligned, zeroed, `len` words long and lives as long as
        // `self`. It is only ever seen as atomic words, which may be written through shared
        // references; so the pointer must be one for writing, and no `&[u8]` of the map is ever
        // made.
        unsafe { core::slice::from_raw_parts(map.as_mut_ptr().cast_const().cast(), self.len) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn words_are_zero_aligned_and_shared() {
        let words = Words::new(1_000_000).unwrap();
        assert_eq!(words.len(), 1_000_000);
        assert_eq!(words.as_ptr() as usize % 4096, 0);
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        std::thread::scope(|scope| {
            scope.spawn(|| words[999_999].store(7, Relaxed));
        });
        assert_eq!(words[999_999].load(Relaxed), 7);
        assert!(Words::new(0).unwrap().is_empty());
        assert!(Words::new(usize::MAX / 8).is_err());
    }
}
