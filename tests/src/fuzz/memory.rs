//! The most memory that a thread has held while it read a case.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

/// The system's allocator, counting bytes by thread. A program that fuzzes makes it its own; where
/// it is not, nothing is counted.
pub struct Counted;

std::thread_local! {
    /// Bytes that this thread holds, and the most since it was asked. What another thread frees
    /// is counted there.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn add(bytes: isize) {
    // A thread that is ending does not count.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

const fn size(layout: Layout) -> isize {
    layout.size().cast_signed()
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(size(layout));
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(size(layout));
        // SAFETY: the caller keeps `alloc_zeroed`'s contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(-size(layout));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        add(new.cast_signed() - size(layout));
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(block, layout, new) }
    }
}

/// What `work` gives, and the most bytes that this thread held during it, beyond those before.
pub(super) fn held_by<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(|held| {
        let (now, _) = held.get();
        held.set((now, now));
        now
    });
    let done = work();
    let most = HELD.with(Cell::get).1;
    (done, usize::try_from(most - before).unwrap_or(0))
}
