//! Deadlines: no thread waits for ever, and who waits too long says for what.

use core::fmt::Display;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;

/// How long a wait may take on this rank, and what happens then.
#[derive(Debug)]
pub struct Watch {
    limit: Duration,
    prefix: String,
}

impl Watch {
    /// Waits up to `limit`; messages begin with `prefix`, "[rank/size host]".
    #[must_use]
    pub const fn new(limit: Duration, prefix: String) -> Self {
        Self { limit, prefix }
    }

    /// The longest legal wait.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// "[rank/size host]"
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Says what was waited for and ends the job with exit code 1 on every rank.
    pub fn overdue(&self, waited: Duration, what: &dyn Display) -> ! {
        let seconds = waited.as_secs();
        let limit = self.limit.as_secs();
        let why = format!("waited {seconds} s for {what} and gave up (run.watchdog_s = {limit})");
        self.end_job(1, &why)
    }

    /// Says why and ends the job with this exit code on every rank. Of several threads that come here
    /// for one cause, the first speaks.
    pub fn end_job(&self, code: u8, why: &dyn Display) -> ! {
        static ENDING: AtomicBool = AtomicBool::new(false);
        if ENDING.swap(true, Relaxed) {
            loop {
                std::thread::park();
            }
        }
        eprintln!("umbra: {} {why}", self.prefix);
        crate::comm::abort(i32::from(code))
    }

    /// Takes the next item of `channel`, waiting at most the limit. `None` when the other side is
    /// gone.
    pub fn receive<T>(
        &self,
        channel: &crossbeam_channel::Receiver<T>,
        what: &dyn Display,
    ) -> Option<T> {
        match channel.recv_timeout(self.limit) {
            Ok(item) => Some(item),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => None,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => self.overdue(self.limit, what),
        }
    }
}

/// Waiting that costs others little: spins, then yields, then sleeps up to 100 µs at a time.
#[derive(Debug, Default)]
pub struct Backoff {
    polls: u32,
}

impl Backoff {
    /// Waits a little longer than the last time.
    pub fn wait(&mut self) {
        self.polls = self.polls.saturating_add(1);
        match self.polls {
            0..32 => core::hint::spin_loop(),
            32..256 => std::thread::yield_now(),
            polls => {
                let microseconds = u64::from((polls - 255).min(100));
                std::thread::sleep(Duration::from_micros(microseconds));
            }
        }
    }

    /// Something happened: start over.
    pub const fn reset(&mut self) {
        self.polls = 0;
    }
}
