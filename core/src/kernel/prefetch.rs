//! Requests for cache lines ahead of their use: hints, by which nothing is read.
//!
//! A request whose page has to be looked up first keeps what follows it from being completed, and a
//! processor has only so many instructions under way: how many requests are is decided by how few
//! instructions there are to each. So rows that are far are asked for in bursts, with nothing in
//! between, or one by one where that is faster ([`Isa::ONE_BY_ONE`](super::isa::Isa)); their lines
//! without a loop over them; and what is the same for all of them is found out before
//! ([`FarRows`]).

/// Asks for the cache line of `of` ahead of its use.
#[inline(always)]
pub(crate) fn prefetch<T>(of: &T) {
    prefetch_at(of);
}

/// Asks for the cache line at `at`, wherever that is: nothing is read.
#[inline(always)]
pub(crate) fn prefetch_at<T>(at: *const T) {
    ask::<FIRST_LEVEL>(at.cast());
}

/// [`prefetch_at`] of a line that will be written: other cores give it up.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_to_write<T>(at: *const T) {
    // SAFETY: a hint, which every processor of the architecture takes or leaves.
    unsafe {
        core::arch::asm!("prefetchw [{at}]", at = in(reg) at,
            options(nostack, preserves_flags, readonly));
    }
}

/// Rows that are asked for at once; they are used when as many more have been asked for. Measured
/// on a Zen 4 core, rows of 16 to 128 numbers on pages of 2 MiB: read in .78 to .87 of the time
/// that one request to every row took, and updated in .86 to .99 of it; bursts of 24 to 192 differ
/// by a few hundredths. On an Intel core whose pages are of 4 KiB, rows of 64 numbers: steps that
/// read and update 26 of them an example took .75 of the time by bursts of 24 to 96, and steps of
/// bags of 10 ids .80 to .88; bursts of 8 are too short.
pub(crate) const BURST: usize = 48;

/// Rows between the one that is pooled and the one that is asked for meanwhile, where they are
/// asked for one by one. Measured on a Zen 3 core, rows of 64 numbers: 8 to 24 are alike.
pub(crate) const ROWS_AHEAD: usize = 16;

/// Rows until that which is fetched to the first level, where bags' rows are updated: there is room
/// for the instructions of a few rows in a core, which wait for what comes from the second level.
/// Measured on a Zen 4 core, rows of 64 numbers: updated in .90 of the time (SGD) and .86 (row-wise
/// Adagrad); 8 to 24 are alike, 4 are too few. Pooling gains nothing by it, nor do rows that a tile
/// has just read.
pub(crate) const NEXT: usize = 12;

/// Where rows stand that are far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarRows {
    first: *const u8,
    /// Bytes from row to row.
    stride: usize,
    /// Cache lines of a row, wherever it begins.
    lines: usize,
    /// Its end may be on one more.
    more: bool,
}

impl FarRows {
    /// Rows of `len` elements, one behind the other.
    #[inline(always)]
    pub(crate) fn new<T>(rows: &[T], len: usize) -> Self {
        let (first, stride) = (rows.as_ptr().cast::<u8>(), len * size_of::<T>());
        let aligned = first.addr().is_multiple_of(LINE) && stride.is_multiple_of(LINE);
        let lines = stride.div_ceil(LINE);
        let at_most = (LINE - size_of::<T>() + stride).div_ceil(LINE);
        Self { first, stride, lines, more: !aligned && at_most > lines }
    }

    /// Asks for the row at `index`, as far as the second level: on their way to the first there can
    /// be no more lines than a core has buffers there, which rows that are far keep full. Measured
    /// on an Intel core, bags of rows of 64: pooled in three quarters of the time, updated in .85
    /// of it.
    #[inline(always)]
    pub(crate) fn ask(self, index: usize) {
        self.each(index, ask::<SECOND_LEVEL>);
    }

    /// Asks for the row at `index`, which was asked for before, as far as the first level.
    #[inline(always)]
    pub(crate) fn fetch(self, index: usize) {
        self.each(index, ask::<FIRST_LEVEL>);
    }

    /// Somewhere in each of the row's lines; maybe twice in the last. Four at a time: asked for
    /// line by line in a loop, rows of 64 numbers took 1.1 to 1.25 times as long to be read or
    /// updated on a Zen 3 core.
    #[inline(always)]
    fn each(self, index: usize, mut line: impl FnMut(*const u8)) {
        let row = self.first.wrapping_add(index.wrapping_mul(self.stride));
        let (mut at, mut left) = (row, self.lines);
        while left >= 4 {
            line(at);
            line(at.wrapping_add(LINE));
            line(at.wrapping_add(2 * LINE));
            line(at.wrapping_add(3 * LINE));
            (at, left) = (at.wrapping_add(4 * LINE), left - 4);
        }
        if left >= 2 {
            line(at);
            line(at.wrapping_add(LINE));
            (at, left) = (at.wrapping_add(2 * LINE), left - 2);
        }
        if left > 0 {
            line(at);
        }
        if self.more {
            line(row.wrapping_add(self.stride - 1));
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// How near a line is to come, as `_mm_prefetch` numbers it.
const FIRST_LEVEL: i32 = 3;
const SECOND_LEVEL: i32 = 2;
#[cfg(target_arch = "x86_64")]
const _: () = assert!(
    FIRST_LEVEL == core::arch::x86_64::_MM_HINT_T0
        && SECOND_LEVEL == core::arch::x86_64::_MM_HINT_T1
);

#[inline(always)]
fn ask<const LEVEL: i32>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint. SSE is part of the architecture.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<LEVEL>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wherever the first row begins, and however rows lie on lines.
    #[test]
    fn rows_are_asked_for_line_by_line() {
        let numbers = [0f32; 2000];
        for (len, first) in (1..140).flat_map(|len| (0..20).map(move |first| (len, first))) {
            let rows = &numbers[first..first + len * ((numbers.len() - first) / len)];
            let far = FarRows::new(rows, len);
            for (index, row) in rows.chunks_exact(len).enumerate() {
                let line = |at: *const u8| at.addr() / LINE;
                let ends = (line(row.as_ptr().cast()), line((&raw const row[len - 1]).cast()));
                let mut asked = 0;
                far.each(index, |at| {
                    let expected = ends.1.min(ends.0 + asked);
                    assert_eq!(line(at), expected, "row {index} of {len} from {first} on");
                    asked += 1;
                });
                let lines = ends.1 - ends.0 + 1;
                assert!(asked == lines || asked == lines + 1, "row {index} of {len} from {first}");
            }
        }
    }
}
