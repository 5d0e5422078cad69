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
/// When the work on it began, in milliseconds of this process; [`UNTIMED`] when others see to it
/// that it ends.
static SINCE: AtomicU64 = AtomicU64::new(UNTIMED);

const UNTIMED: u64 = u64::MAX;

/// While it lives the library works on its file.
#[derive(Debug)]
pub(crate) struct Attention {
    /// Another one lives as long: it says how long the library may take.
    within: bool,
}

impl Attention {
    /// From now on the library works on `path`, for so long as it takes: whoever waits for rows has
    /// a deadline of its own.
    pub(crate) fn on(path: &Path) -> Self {
        Self::begin(path, UNTIMED)
    }

    /// From now on the library works on `path`, and must come back in time.
    pub(crate) fn timed(path: &Path) -> Self {
        Self::begin(path, now())
    }

    fn begin(path: &Path, since: u64) -> Self {
        let bytes = path.as_os_str().as_bytes();
        if LENGTH.load(Ordering::Acquire) > 0 {
            let attention = Self { within: true };
            attention.again();
            return attention;
        }
        for (place, byte) in NAME.iter().zip(bytes) {
            place.store(*byte, Ordering::Relaxed);
        }
        SINCE.store(since, Ordering::Relaxed);
        LENGTH.store(bytes.len().min(NAME_BYTES_MAX), Ordering::Release);
        Self { within: false }
    }

    /// The library has come back: its time, if it has any, begins anew.
    pub(crate) fn again(&self) {
        if SINCE.load(Ordering::Relaxed) != UNTIMED {
            SINCE.store(now(), Ordering::Relaxed);
        }
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        if !self.within {
            LENGTH.store(0, Ordering::Release);
        }
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

/// Milliseconds that the library has been at work on its file; `None` when it works on none, or
/// takes the time that it needs.
#[must_use]
pub fn since() -> Option<u64> {
    let busy = LENGTH.load(Ordering::Acquire) > 0;
    let since = SINCE.load(Ordering::Relaxed);
    (busy && since != UNTIMED).then(|| now().saturating_sub(since))
}

fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let passed = START.get_or_init(Instant::now).elapsed().as_millis();
    u64::try_from(passed).unwrap_or(u64::MAX)
}
