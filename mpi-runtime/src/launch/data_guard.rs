//! A damaged file that HDF5 hangs or crashes on: the job ends with the file's name, not in silence.
//!
//! Before version 2.0 the library follows damaged metadata wherever it leads: on single flipped
//! bits it has run for ever, deaf to SIGTERM, and died of SIGSEGV. Neither can be undone in the
//! process that it happened in, so that process ends, with exit code 3 and one line.
//!
//! Invariants: the handler touches atomics, calls `write` and `_exit`, and nothing else; a fault
//! while HDF5 is not at work is handled as if this were not here.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use umbra_datasets::attention::{self, NAME_BYTES_MAX};

use crate::comm;

/// From now on HDF5 may be at work on the metadata of a file, or on a block of its rows, for
/// `limit` at most. To be called once MPI has started, which sets handlers of its own.
pub fn install(limit: Duration) {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::Relaxed) {
        return;
    }
    for (place, signal) in OLD.iter().zip(FAULTS) {
        // SAFETY: `action` is all zeros but for what is set, which is a valid action; the handler
        // keeps to what may be done in one; `place` outlives the process and is written only here.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = handle as extern "C" fn(c_int) as usize;
            // The fault may be of a stack that is full: threads of Rust have another for signals.
            action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, place.0.get().cast());
        }
    }
    // A system that gives no thread gives no deadline either.
    let _ = std::thread::Builder::new().name("data guard".into()).spawn(move || {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        loop {
            std::thread::sleep(LOOK.min(limit / 4));
            if attention::since().is_some_and(|ms| ms > limit_ms) {
                let mut name = [0; NAME_BYTES_MAX];
                let length = attention::name(&mut name);
                let file = String::from_utf8_lossy(&name[..length]);
                comm::exit_saying(
                    3,
                    &format!(
                        "umbra: {file}: the HDF5 library has not come back for {} s: the file is \
                         damaged, or its file system does not answer: copy or prepare it again\n",
                        limit.as_secs()
                    ),
                );
            }
        }
    });
}

extern "C" fn handle(signal: c_int) {
    let mut name = [0; NAME_BYTES_MAX];
    let length = attention::name(&mut name);
    if length > 0 {
        say(b"umbra: ");
        say(&name[..length]);
        say(b": the HDF5 library crashed on it: the file is damaged: copy or prepare it again\n");
        // SAFETY: ends the process, without its exit handlers.
        unsafe { libc::_exit(3) }
    }
    // As if this were not here: the fault comes again, and finds the handler of before.
    for (place, fault) in OLD.iter().zip(FAULTS) {
        if fault == signal {
            // SAFETY: `place` was filled by `install` before this handler could run.
            unsafe { libc::sigaction(signal, place.0.get().cast(), core::ptr::null_mut()) };
        }
    }
    if signal == libc::SIGABRT {
        // SAFETY: async-signal-safe.
        unsafe { libc::raise(signal) };
    }
}

fn say(text: &[u8]) {
    // SAFETY: `text` is as long as said. Nothing is to be done where nobody reads it.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// An action of before: written once by `install`, read by the handler.
struct Old(core::cell::UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written before the handler that reads it is in place, and never again.
unsafe impl Sync for Old {}

static OLD: [Old; FAULTS.len()] =
    [const { Old(core::cell::UnsafeCell::new(MaybeUninit::zeroed())) }; FAULTS.len()];

/// What a process that follows wrong addresses dies of; SIGABRT is the allocator's own check.
const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGABRT];

/// Time between two looks at the library.
const LOOK: Duration = Duration::from_secs(1);
