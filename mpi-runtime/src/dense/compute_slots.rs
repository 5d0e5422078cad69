//! Turns: more slices of a batch than threads that may compute.
//!
//! Under `bsp` the unit of arithmetic is a *slice* of the global batch (one lane's examples), so
//! that results do not depend on how slices are dealt to ranks and threads. Each slice has a thread
//! that waits most of the time; a turn is the right to compute, and there are as many as
//! `train.worker_threads`.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::comm::watch::{GLANCE, Lost, Waiting, Watch};

/// A counted right to compute.
pub struct Turns {
    free: Mutex<usize>,
    freed: Condvar,
    watch: Arc<Watch>,
}

impl Turns {
    /// `count` turns.
    #[must_use]
    pub fn new(count: usize, watch: Arc<Watch>) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new(), watch }
    }

    /// Waits for a turn and takes it.
    ///
    /// # Errors
    /// When none is given back in time.
    pub fn take(&self) -> Result<(), Lost> {
        let mut waiting = Waiting::default();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        while *free == 0 {
            waiting.glance(&self.watch, &"a turn to compute")?;
            free = self.freed.wait_timeout(free, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        *free -= 1;
        Ok(())
    }

    /// Gives a turn back.
    pub fn give(&self) {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.freed.notify_one();
    }

    /// Runs `wait` without holding a turn.
    ///
    /// # Errors
    /// When no turn is given back in time.
    pub fn rest<T>(&self, wait: impl FnOnce() -> T) -> Result<T, Lost> {
        self.give();
        let result = wait();
        self.take()?;
        Ok(result)
    }
}
