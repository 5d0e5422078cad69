//! Which file the HDF5 library is at work on, for those who watch: on a damaged file (before HDF5
//! 2.0) it may never come back, or end the process.
//!
//! Invariants: the library works on one file at a time, since it has one lock; [`name`] and
//! [`since`] are read from a signal handler too, so they are atomics alone and take no lock.

use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

/// Longest name that is kept, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

static NAME: [AtomicU8; NAME_BYTES_MAX] = [const { AtomicU8::new(0) }; NAME_BYTES_MAX];
/// 0: no file.
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// When the work on it began, in milliseconds of this process.
static SINCE: AtomicU64 = AtomicU64::new(0);

/// While it lives the library works on its file.
#[derive(Debug)]
pub(crate) struct Attention(());

impl Attention {
    /// From now on the library works on `path`.
    pub(crate) fn on(path: &Path) -> Self {
        let bytes = path.as_os_str().as_bytes();
        LENGTH.store(0, Ordering::Release);
        for (place, byte) in NAME.iter().zip(bytes) {
            place.store(*byte, Ordering::Relaxed);
        }
        SINCE.store(now(), Ordering::Relaxed);
        LENGTH.store(bytes.len().min(NAME_BYTES_MAX), Ordering::Release);
        Self(())
    }

    /// The library has come back: its time begins anew.
    pub(crate) fn again(&self) {
        SINCE.store(now(), Ordering::Relaxed);
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        LENGTH.store(0, Ordering::Release);
    }
}

/// Writes the name of the file that the library works on to `name`, and returns its length; 0 when
/// it works on none. Safe in a signal handler.
pub fn name(name: &mut [u8; NAME_BYTES_MAX]) -> usize {
    let length = LENGTH.load(Ordering::Acquire);
    for (to, from) in name.iter_mut().zip(&NAME[..length]) {
        *to = from.load(Ordering::Relaxed);
    }
    length
}

/// Milliseconds that the library has been at work on its file; `None` when it works on none.
#[must_use]
pub fn since() -> Option<u64> {
    let busy = LENGTH.load(Ordering::Acquire) > 0;
    busy.then(|| now().saturating_sub(SINCE.load(Ordering::Relaxed)))
}

fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed().as_millis();
    u64::try_from(passed).unwrap_or(u64::MAX)
}
