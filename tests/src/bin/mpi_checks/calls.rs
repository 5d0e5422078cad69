//! Calls of MPI's tests for completion, counted.
//!
//! MPI 3.1 section 14.2: the library's functions have a second name each, so that a program may
//! define the first and stand between its own calls and the library.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

static TESTS: AtomicU64 = AtomicU64::new(0);

/// Calls of MPI_Test and MPI_Testsome so far, on all threads.
pub(super) fn tests() -> u64 {
    TESTS.load(Relaxed)
}

// SAFETY: as in the standard; handles and statuses are behind pointers.
unsafe extern "C" {
    fn PMPI_Test(request: *mut c_void, done: *mut c_int, status: *mut c_void) -> c_int;
    fn PMPI_Testsome(
        count: c_int,
        requests: *mut c_void,
        done_count: *mut c_int,
        done: *mut c_int,
        statuses: *mut c_void,
    ) -> c_int;
}

// SAFETY: no other MPI_Test is linked into the program: the library's is in a shared object, which
// gives way.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Test(
    request: *mut c_void,
    done: *mut c_int,
    status: *mut c_void,
) -> c_int {
    TESTS.fetch_add(1, Relaxed);
    // SAFETY: the caller's word.
    unsafe { PMPI_Test(request, done, status) }
}

// SAFETY: as for MPI_Test.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Testsome(
    count: c_int,
    requests: *mut c_void,
    done_count: *mut c_int,
    done: *mut c_int,
    statuses: *mut c_void,
) -> c_int {
    TESTS.fetch_add(1, Relaxed);
    // SAFETY: the caller's word.
    unsafe { PMPI_Testsome(count, requests, done_count, done, statuses) }
}
