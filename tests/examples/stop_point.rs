//! A library that stops or kills its process at a call of MPI: loaded before the MPI library
//! (`LD_PRELOAD`), it counts the calls of one function, and raises a signal before the one it was
//! told to.
//!
//! `STOP_RANK`: the rank of the process, as its launcher says it; `STOP_AT`: the function;
//! `STOP_CALL`: which call of it, from 1 on; `STOP_SIGNAL`: the signal's number.
//!
//! Every function here is the library's of that name, with Open MPI's handles, which are pointers;
//! MPICH's are numbers, which go through the same registers.
//! The library may be absent: the launcher is started with this one too.
#![allow(missing_docs, non_snake_case, reason = "the standard's functions")]

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// A call of the function `name` is about to be made.
fn about_to(name: &str) {
    let is = |variable: &str, wanted: &str| std::env::var(variable).is_ok_and(|it| it == wanted);
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let rank =
        ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].into_iter().find_map(|name| std::env::var(name).ok());
    let Some(rank) = rank else { return };
    if !is("STOP_RANK", &rank) || !is("STOP_AT", name) {
        return;
    }
    if Some(CALLS.fetch_add(1, SeqCst) + 1) == number("STOP_CALL") {
        let signal = number("STOP_SIGNAL").and_then(|signal| c_int::try_from(signal).ok());
        // SAFETY: it asks for nothing but a process that is there.
        unsafe { libc::kill(libc::getpid(), signal.unwrap_or(libc::SIGKILL)) };
    }
}

/// The next definition of a function, which is the library's.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?} is in no library");
    found
}

macro_rules! stops {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        // SAFETY: the library's own is in a shared object, which gives way.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            const NAME: &str = concat!(stringify!($name), "\0");
            about_to(stringify!($name));
            let name = CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default();
            let found = next(name);
            // SAFETY: a function of that name has these arguments.
            let function = unsafe {
                core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(
                    found
                )
            };
            // SAFETY: the caller's word.
            unsafe { function($($argument),*) }
        }
    )*};
}

stops! {
    MPI_Init_thread(count: *mut c_int, words: *mut c_void, wanted: c_int, given: *mut c_int);
    MPI_Finalize();
    MPI_Comm_idup(comm: *mut c_void, new: *mut c_void, request: *mut c_void);
    MPI_Comm_split(comm: *mut c_void, color: c_int, key: c_int, new: *mut c_void);
    MPI_Comm_free(comm: *mut c_void);
    MPI_Ibarrier(comm: *mut c_void, request: *mut c_void);
    MPI_Iallgather(
        sent: *const c_void, sent_count: c_int, sent_kind: *mut c_void, received: *mut c_void,
        received_count: c_int, received_kind: *mut c_void, comm: *mut c_void, request: *mut c_void
    );
    MPI_Ialltoall(
        sent: *const c_void, sent_count: c_int, sent_kind: *mut c_void, received: *mut c_void,
        received_count: c_int, received_kind: *mut c_void, comm: *mut c_void, request: *mut c_void
    );
    MPI_Isend(
        buffer: *const c_void, count: c_int, kind: *mut c_void, to: c_int, tag: c_int,
        comm: *mut c_void, request: *mut c_void
    );
}
