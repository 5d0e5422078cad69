//! Memory for tables and replicas, page-aligned words, and for a worker's steps: in huge pages
//! where the system grants them.
//!
//! A table of gigabytes is read at random, so with pages of 4 KiB nearly every row costs a walk
//! through the page tables as well. Linux gives pages of 2 MiB to memory that asks for them
//! (`madvise`, transparent huge pages), and to memory that processes share only where its owner has
//! said so (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::AtomicU32;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw, UncheckedAdvice};
use rustix::fs::{MemfdFlags, memfd_create};

/// Shared words, all 0 at first.
#[derive(Debug)]
pub struct Words {
    /// Nobody but `deref` looks at it again.
    map: Option<MmapRaw>,
    /// Bytes of the map before them.
    start: usize,
    len: usize,
    seen: Seen,
}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// By whom words are seen.
#[derive(Debug)]
enum Seen {
    /// By this process alone.
    Here,
    /// By whomever it tells of them: they are those of a file in memory.
    Lent(File),
    /// They are another's.
    Borrowed,
}

/// Where another process of the same system finds words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Number of the process that has them.
    pub process: u32,
    /// Number of their file there.
    pub descriptor: u32,
    /// What tells that file from all others of the system.
    pub device: u64,
    /// The same.
    pub inode: u64,
}

impl Words {
    /// `len` words.
    ///
    /// # Errors
    /// When the system has no memory for them.
    pub fn new(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { map: None, start: 0, len, seen: Seen::Here });
        }
        let bytes = len * size_of::<AtomicU32>();
        // Only whole pages can be huge: a replica of 2 MB that starts anywhere has none.
        let room = if bytes < HUGE / 2 { bytes } else { bytes.next_multiple_of(HUGE) + HUGE };
        let map = MmapMut::map_anon(room).map_err(|error| {
            let gigabytes = (len * size_of::<AtomicU32>()) as f64 / 1e9;
            let message = format!("no memory for {gigabytes:.2} GB of parameters: {error}");
            io::Error::new(error.kind(), message)
        })?;
        // A hint: without huge pages everything works, slower.
        let _ = map.advise(Advice::HugePage);
        let start = if room > bytes { map.as_ptr().align_offset(HUGE) } else { 0 };
        Ok(Self { map: Some(map.into()), start, len, seen: Seen::Here })
    }

    /// The same, which other processes can [borrow](Self::borrow).
    ///
    /// # Errors
    /// When the system has no memory that processes can share.
    pub fn to_lend(len: usize) -> io::Result<Self> {
        let file = File::from(memfd_create("umbra", MemfdFlags::CLOEXEC)?);
        file.set_len((len * size_of::<AtomicU32>()) as u64)?;
        let map = map_file(&file, len)?;
        Ok(Self { map, start: 0, len, seen: Seen::Lent(file) })
    }

    /// Where others find them; `None` of those that this process has for itself.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn whereabouts(&self) -> io::Result<Option<Whereabouts>> {
        let Seen::Lent(file) = &self.seen else { return Ok(None) };
        let about = file.metadata()?;
        Ok(Some(Whereabouts {
            process: std::process::id(),
            descriptor: file.as_raw_fd().unsigned_abs(),
            device: about.dev(),
            inode: about.ino(),
        }))
    }

    /// The `len` words of another process, which has them for as long as either wants.
    ///
    /// # Errors
    /// When this process may not see them, or what is there is something else.
    pub fn borrow(from: &Whereabouts, len: usize) -> io::Result<Self> {
        let Whereabouts { process, descriptor, device, inode } = *from;
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path)?;
        let about = file.metadata()?;
        let bytes = (len * size_of::<AtomicU32>()) as u64;
        if (about.dev(), about.ino(), about.len()) != (device, inode, bytes) {
            return Err(io::Error::other("another process is there by now"));
        }
        Ok(Self { map: map_file(&file, len)?, start: 0, len, seen: Seen::Borrowed })
    }

    /// Gives the memory of words back until they are written again: those of whole pages are 0
    /// then, the others as they were. Words that others can see stay.
    ///
    /// # Panics
    /// When there are fewer words.
    pub fn release(&self, range: Range<usize>) {
        assert!(range.end <= self.len, "words to be released");
        let (Some(map), Seen::Here) = (&self.map, &self.seen) else { return };
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap_or(1 << 16) / size_of::<AtomicU32>();
        let (first, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if first < end {
            let [offset, length] = [first, end - first].map(|words| words * size_of::<AtomicU32>());
            let offset = self.start + offset;
            // SAFETY: whole pages within the map, which is private and without a file: they read
            // as zeros afterwards, and 0 is a word like any other to those who see it change.
            // A hint: where it is refused the memory stays, and so do the words.
            let _ =
                unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, length) };
        }
    }
}

impl Deref for Words {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        let Some(map) = &self.map else { return &[] };
        // SAFETY: the map is page-aligned, zeroed and, from the whole page `start` on, `len` words
        // long, and so is its file, which nobody makes shorter; it lives as long as `self`. It is
        // only ever seen as atomic words, by other processes too, which may be written through
        // shared references; so the pointer must be one for writing, and no `&[u8]` of the map is
        // ever made.
        unsafe {
            let first = map.as_mut_ptr().cast_const().add(self.start);
            core::slice::from_raw_parts(first.cast(), self.len)
        }
    }
}

/// All words of `file`; `None` where there are none.
fn map_file(file: &File, len: usize) -> io::Result<Option<MmapRaw>> {
    if len == 0 {
        return Ok(None);
    }
    let map = MmapOptions::new().len(len * size_of::<AtomicU32>()).map_raw(file)?;
    // As for memory of one process.
    let _ = map.advise(Advice::HugePage);
    Ok(Some(map))
}

/// f32s of one thread that start with a cache line. A kernel reads and writes vectors as long as
/// one; the allocator's memory begins 16 bytes behind a page, where each of them would be in two.
/// Many of them start with a huge page.
#[derive(Debug, Default)]
pub struct Lines {
    /// Room for the numbers, wherever the first line, or page, starts.
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Lines {
    /// Zeros.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        // Of this size they come from the system untouched, so the hint comes before the pages.
        let alignment = if len * size_of::<f32>() < HUGE / 2 { LINE } else { HUGE };
        let more = alignment / size_of::<f32>();
        let memory = vec![0.0; len + more];
        prefer_huge_pages(&memory);
        let start = memory.as_ptr().align_offset(alignment).min(more);
        Self { memory, start, len }
    }

    /// Makes it as long; where that takes new memory, zeros, and otherwise anything.
    pub fn fit(&mut self, len: usize) {
        if self.memory.len() < self.start + len {
            *self = Self::zeros(len);
        }
        self.len = len;
    }
}

impl Deref for Lines {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..][..self.len]
    }
}

impl From<&[f32]> for Lines {
    fn from(numbers: &[f32]) -> Self {
        let mut lines = Self::zeros(numbers.len());
        lines.copy_from_slice(numbers);
        lines
    }
}

/// Asks for huge pages for those of `memory` that are not there yet. A step of wide layers passes
/// through more memory than the processor remembers small pages of.
fn prefer_huge_pages(memory: &[f32]) {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Ok(page) = usize::try_from(page) else { return };
    let skipped = memory.as_ptr().align_offset(page).saturating_mul(size_of::<f32>());
    let len = size_of_val(memory).saturating_sub(skipped) / page.max(1) * page;
    if len > 0 {
        // SAFETY: whole pages of memory that is ours. A hint: what they hold stays.
        unsafe {
            let first = memory.as_ptr().cast_mut().byte_add(skipped).cast();
            libc::madvise(first, len, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn zeros_are_zeros_of_any_length() {
        for len in [0, 1, 1023, 1024, 3_000_000] {
            let mut zeros = Lines::zeros(len);
            assert!(zeros.len() == len && zeros.iter().all(|x| *x == 0.0));
            let alignment = if len < HUGE / 8 { LINE } else { HUGE };
            assert_eq!(zeros.as_ptr() as usize % alignment, 0, "{len} numbers");
            zeros.iter_mut().for_each(|x| *x = 1.0);
            prefer_huge_pages(&zeros);
            assert!(zeros.iter().all(|x| *x == 1.0));
        }
    }

    #[test]
    fn lines_fit_what_they_are_asked_for() {
        let mut lines = Lines::default();
        for len in [0, 5, 3, 5, 100_000, 17] {
            lines.fit(len);
            assert_eq!(lines.len(), len);
            assert_eq!(lines.as_ptr() as usize % if len > 0 { 64 } else { 1 }, 0);
            lines.fill(len as f32);
        }
        assert_eq!(Lines::from(&[1.0, 2.0][..])[..], [1.0, 2.0]);
    }

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
        words.iter().for_each(|word| word.store(9, Relaxed));
        words.release(5000..900_000);
        let is = |value: u32| words.iter().filter(|word| word.load(Relaxed) == value).count();
        // But for a page at each end.
        assert!(is(0) > 895_000 - (1 << 15) && is(0) <= 895_000, "{}", is(0));
        assert_eq!(is(0) + is(9), 1_000_000);
        assert!([0, 4999, 900_000, 999_999].iter().all(|at| words[*at].load(Relaxed) == 9));
        words.release(7..8);
        assert_eq!(words[7].load(Relaxed), 9);
        for (len, alignment) in [(100_000, 4096), (HUGE / 8, HUGE), (HUGE / 4 + 1, HUGE)] {
            let words = Words::new(len).unwrap();
            assert_eq!((words.as_ptr() as usize % alignment, words.len()), (0, len));
            assert_eq!(words[len - 1].swap(1, Relaxed), 0);
        }
        assert!(Words::new(0).unwrap().is_empty());
        assert!(Words::new(usize::MAX / 8).is_err());
    }

    #[test]
    fn what_is_lent_is_seen_twice_and_outlives_its_owner() {
        assert_eq!(Words::new(3).unwrap().whereabouts().unwrap(), None);
        let own = Words::to_lend(5000).unwrap();
        let from = own.whereabouts().unwrap().unwrap();
        let other = Words::borrow(&from, 5000).unwrap();
        own[4999].store(7, Relaxed);
        assert_eq!(other[4999].load(Relaxed), 7);
        other[0].store(8, Relaxed);
        assert_eq!(own[0].load(Relaxed), 8);
        // Others may need them.
        own.release(0..5000);
        drop(own);
        assert_eq!((other[0].load(Relaxed), other[4999].load(Relaxed)), (8, 7));
        assert!(Words::borrow(&from, 5000).is_err(), "its file is closed");
    }

    #[test]
    fn something_else_at_the_same_place_is_not_borrowed() {
        let own = Words::to_lend(8).unwrap();
        let from = own.whereabouts().unwrap().unwrap();
        assert!(Words::borrow(&from, 9).is_err(), "as many words");
        assert!(Words::borrow(&Whereabouts { inode: from.inode + 1, ..from }, 8).is_err());
        assert!(Words::borrow(&Whereabouts { process: u32::MAX, ..from }, 8).is_err());
        assert!(Words::to_lend(0).unwrap().is_empty());
    }
}
