//! Deadlines: no thread waits for ever, and who waits too long says for what.

use core::fmt::Display;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::time::Instant;

use crate::comm::loss;
use crate::error::Error;

/// How long a wait may take on this rank, and what happens then.
#[derive(Debug)]
pub struct Watch {
    limit_ms: AtomicU64,
    prefix: String,
}

impl Watch {
    /// Waits up to `limit`; messages begin with `prefix`, "[rank/size host]".
    #[must_use]
    pub fn new(limit: Duration, prefix: String) -> Self {
        Self { limit_ms: AtomicU64::new(milliseconds(limit)), prefix }
    }

    /// Changes the limit, once the configuration is known.
    pub fn set_limit(&self, limit: Duration) {
        self.limit_ms.store(milliseconds(limit), Relaxed);
    }

    /// The longest legal wait.
    #[must_use]
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.load(Relaxed))
    }

    /// "[rank/size host]"
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The outcome of a wait for a caller that cannot go on without it: if it was given up, ends
    /// the job with exit code 1 on every rank and says who waited for what.
    pub fn or_end<T>(&self, outcome: Result<T, Lost>) -> T {
        outcome.unwrap_or_else(|lost| self.end_job(1, &lost))
    }

    /// As [`or_end`](Self::or_end), for work that can fail in other ways too: those are the
    /// caller's.
    ///
    /// # Errors
    /// Every other error of `outcome`.
    pub fn end_if_lost<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error @ Error::Lost(_)) = &outcome {
            self.end_job(error.exit_code(), error);
        }
        outcome
    }

    /// Says why and ends the job with this exit code on every rank. Of several threads that come
    /// here for one cause, the first speaks. Where the job goes on without a rank that is lost,
    /// only this thread's work ends: whatever is in its way follows from that.
    pub fn end_job(&self, code: u8, why: &dyn Display) -> ! {
        if loss::is_survived() {
            loss::unwind();
        }
        crate::comm::abort_saying(i32::from(code), &self.last_words(why))
    }

    /// As [`end_job`](Self::end_job), but ends this process alone and without MPI, for when MPI
    /// itself does not answer: the launcher ends the others.
    pub(super) fn end_process(&self, code: u8, why: &dyn Display) -> ! {
        crate::comm::exit_saying(i32::from(code), &self.last_words(why))
    }

    /// What a process says that ends the job; does not return to any thread but the first.
    fn last_words(&self, why: &dyn Display) -> String {
        static ENDING: AtomicBool = AtomicBool::new(false);
        if ENDING.swap(true, Relaxed) {
            loop {
                std::thread::park();
            }
        }
        format!("umbra: {} {why}\n", self.prefix)
    }

    /// Takes the next item of `channel`, waiting at most the limit. `None` when the other side is
    /// gone.
    ///
    /// # Errors
    /// When nothing came in time.
    pub fn receive<T>(
        &self,
        channel: &crossbeam_channel::Receiver<T>,
        what: &dyn Display,
    ) -> Result<Option<T>, Lost> {
        let mut waiting = Waiting::default();
        loop {
            match channel.recv_timeout(GLANCE) {
                Ok(item) => return Ok(Some(item)),
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => return Ok(None),
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                    waiting.glance(self, what)?;
                }
            }
        }
    }
}

/// A wait that was given up. Whoever was waited for is lost, as far as this rank can tell; what
/// becomes of the job is the caller's decision ([`Watch::or_end`] is the usual one).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It took too long.
    #[error(
        "waited {} s for {what} and gave up (run.watchdog_s = {})",
        waited.as_secs(),
        limit.as_secs()
    )]
    Overdue {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
        /// How long was allowed.
        limit: Duration,
    },
    /// A rank has gone: what comes from MPI is not to be believed any more.
    #[error("a rank was lost during the wait for {what}")]
    Gone {
        /// What was waited for.
        what: String,
    },
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost.into())
    }
}

fn milliseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// How long a thread has waited, by its own count: time in which the process was suspended
/// (SIGSTOP, a job suspended by its scheduler) is no waiting.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    looked: Instant,
    waited: Duration,
    /// By how much it may be longer than others.
    grace: Duration,
}

impl Default for Waiting {
    fn default() -> Self {
        Self::patient(Duration::ZERO)
    }
}

impl Waiting {
    /// A wait that may be longer than others by `grace`: who is waited for may be held back for so
    /// long and well.
    #[must_use]
    pub fn patient(grace: Duration) -> Self {
        Self { looked: Instant::now(), waited: Duration::ZERO, grace }
    }

    /// A rank is lost, and with it whatever is waited for.
    ///
    /// # Errors
    /// When that is so.
    pub fn check_loss(what: &dyn Display) -> Result<(), Lost> {
        if loss::has_happened() { Err(Lost::Gone { what: what.to_string() }) } else { Ok(()) }
    }

    /// Counts the time since the last look, at most [`LOOK`] of it. To be called at least every
    /// `LOOK`.
    ///
    /// # Errors
    /// When the limit is passed, or a rank is lost: the wait is given up.
    pub fn check(&mut self, watch: &Watch, what: &dyn Display) -> Result<(), Lost> {
        Self::check_loss(what)?;
        self.check_time(watch, what)
    }

    /// As [`check`](Self::check), for who looks more often than every `LOOK`: a loss is seen at
    /// once, and time is counted in whole `LOOK`s, so that who waits for ranks gives up before who
    /// waits for threads that do.
    ///
    /// # Errors
    /// When the limit is passed, or a rank is lost.
    pub fn glance(&mut self, watch: &Watch, what: &dyn Display) -> Result<(), Lost> {
        Self::check_loss(what)?;
        if self.looked.elapsed() < LOOK { Ok(()) } else { self.check_time(watch, what) }
    }

    /// As [`check`](Self::check), of what no rank that is lost can keep: threads here.
    ///
    /// # Errors
    /// When the limit is passed.
    pub fn check_time(&mut self, watch: &Watch, what: &dyn Display) -> Result<(), Lost> {
        let now = Instant::now();
        self.waited += now.duration_since(self.looked).min(LOOK);
        self.looked = now;
        if self.waited > watch.limit().saturating_add(self.grace) {
            let (waited, limit) = (self.waited, watch.limit());
            return Err(Lost::Overdue { what: what.to_string(), waited, limit });
        }
        Ok(())
    }
}

/// Longest time between two looks at a wait.
pub const LOOK: Duration = Duration::from_secs(1);

/// Longest sleep of a wait for threads here, which a loss ends as well.
pub const GLANCE: Duration = Duration::from_millis(20);

/// Longest sleep of [`Backoff::wait`].
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Longest sleep of [`Backoff::rest`], unless its first one is longer.
const LONGEST_REST: Duration = Duration::from_millis(5);

/// Waiting that costs others little: spins, then yields, then sleeps a microsecond longer each
/// time, up to a millisecond. What is waited for is seen a hundredth of the wait late, or less,
/// once it has lasted 20 ms; a thread that nobody needs wakes a thousand times a second.
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
                let sleep = Duration::from_micros(u64::from(polls - 255));
                std::thread::sleep(sleep.min(LONGEST_SLEEP));
            }
        }
    }

    /// Waits as a thread in the background does, which must not cost workers their cores: sleeps
    /// `first` at the beginning, and ever longer while nothing happens, up to five milliseconds.
    /// Zero only yields.
    pub fn rest(&mut self, first: Duration) {
        self.rest_at_most(first, Duration::MAX);
    }

    /// As [`Self::rest`], and no longer than `most` this time.
    pub fn rest_at_most(&mut self, first: Duration, most: Duration) {
        if first.is_zero() {
            return std::thread::yield_now();
        }
        let doubled = first.saturating_mul(1 << (self.polls / 4).min(16));
        self.polls = self.polls.saturating_add(1);
        std::thread::sleep(doubled.min(first.max(LONGEST_REST)).min(most));
    }

    /// Something happened: start over.
    pub const fn reset(&mut self) {
        self.polls = 0;
    }
}
