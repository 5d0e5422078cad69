//! Signals to a verb that writes a file: it ends at the next block, and leaves nothing behind.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::Error;

/// What was asked of this process.
pub(super) struct Interrupt {
    /// Set by the first SIGINT, SIGTERM or SIGHUP; the second one leaves at once.
    pub(super) stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers.
    ///
    /// # Errors
    /// When the system refuses one.
    pub(super) fn install() -> Result<Self, Error> {
        let interrupt = Self { stop: Arc::default(), signal: Arc::default() };
        let refused = |error| Error::Failure(format!("cannot handle signals: {error}"));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).unwrap_or_default();
            // Order matters: the second signal finds the flag that the first one sets after this.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&interrupt.stop))
                .map_err(refused)?;
            flag::register(signal, Arc::clone(&interrupt.stop)).map_err(refused)?;
            flag::register_usize(signal, Arc::clone(&interrupt.signal), number).map_err(refused)?;
        }
        Ok(interrupt)
    }

    /// The error of a verb that ended early.
    pub(super) fn error(&self) -> Error {
        let signal = u8::try_from(self.signal.load(Ordering::Relaxed)).unwrap_or_default();
        Error::Interrupted { signal }
    }
}
