//! Which threads may call MPI when: at once where the library allows it, else one at a time.
//!
//! MPI 3.1 section 12.4. At MPI_THREAD_MULTIPLE nothing is locked. At MPI_THREAD_SERIALIZED all
//! calls of the process take one lock; they are non-blocking and polled, so it is held for moments,
//! and nobody sleeps or waits for another thread under it. The making of a communicator blocks
//! (`MPI_Comm_split`), when all ranks have met for it.

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Instant;

use mpi::Threading;

/// A level of thread support that umbra can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadLevel {
    /// MPI_THREAD_SERIALIZED: the threads of a rank take turns.
    Serialized,
    /// MPI_THREAD_MULTIPLE: any thread, any time.
    Multiple,
}

/// A name that is no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread level is one of multiple, serialized")]
pub struct UnknownThreadLevel;

impl FromStr for ThreadLevel {
    type Err = UnknownThreadLevel;

    fn from_str(name: &str) -> Result<Self, UnknownThreadLevel> {
        match name {
            "serialized" => Ok(Self::Serialized),
            "multiple" => Ok(Self::Multiple),
            _ => Err(UnknownThreadLevel),
        }
    }
}

impl fmt::Display for ThreadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serialized => "MPI_THREAD_SERIALIZED",
            Self::Multiple => "MPI_THREAD_MULTIPLE",
        })
    }
}

impl ThreadLevel {
    /// The environment variable that names the level to work at.
    pub const VARIABLE: &str = "UMBRA_MPI_THREADS";

    /// What to ask the library for.
    pub(crate) const fn to_ask(wanted: Option<Self>) -> Threading {
        match wanted {
            Some(Self::Serialized) => Threading::Serialized,
            Some(Self::Multiple) | None => Threading::Multiple,
        }
    }

    /// The level to work at where the library gives `provided`; without a wish the best there is.
    pub(crate) const fn of(wanted: Option<Self>, provided: Threading) -> Option<Self> {
        match (wanted, provided) {
            (Some(Self::Multiple) | None, Threading::Multiple) => Some(Self::Multiple),
            (Some(Self::Serialized), Threading::Multiple | Threading::Serialized)
            | (None, Threading::Serialized) => Some(Self::Serialized),
            _ => None,
        }
    }

    /// From now on [`guarded`] keeps to this level. Before any other thread calls MPI.
    pub(crate) fn keep(self) {
        SERIALIZED.store(self == Self::Serialized, Relaxed);
    }
}

static SERIALIZED: AtomicBool = AtomicBool::new(false);
static TURN: Mutex<()> = Mutex::new(());

/// Runs `call`, which calls MPI and does nothing else: no wait, no sleep, no `guarded` within.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> T {
    let _turn =
        SERIALIZED.load(Relaxed).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    call()
}

/// As [`guarded`], for the call that ends the job: goes ahead when the turn does not come soon,
/// since the thread that has it may be stuck in MPI, or be this one.
pub(super) fn guarded_at_last(call: impl FnOnce()) {
    let begun = Instant::now();
    let _turn = SERIALIZED.load(Relaxed).then(|| {
        loop {
            match TURN.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if begun.elapsed() > PATIENCE => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
    call();
}

/// A call takes microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_level_there_is_or_the_one_asked_for() {
        use ThreadLevel::{Multiple, Serialized};
        for (wanted, provided, expected) in [
            (None, Threading::Multiple, Some(Multiple)),
            (None, Threading::Serialized, Some(Serialized)),
            (None, Threading::Funneled, None),
            (None, Threading::Single, None),
            (Some(Multiple), Threading::Multiple, Some(Multiple)),
            (Some(Multiple), Threading::Serialized, None),
            (Some(Serialized), Threading::Multiple, Some(Serialized)),
            (Some(Serialized), Threading::Serialized, Some(Serialized)),
            (Some(Serialized), Threading::Funneled, None),
        ] {
            assert_eq!(ThreadLevel::of(wanted, provided), expected, "{wanted:?}, {provided:?}");
        }
    }

    /// The one test that changes the process's level: what it shows needs an order.
    #[test]
    fn serialized_calls_take_turns_and_an_abort_does_not_wait_for_ever() {
        ThreadLevel::Serialized.keep();
        let inside = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        guarded(|| {
                            assert!(!inside.swap(true, Relaxed), "two threads at a time");
                            std::thread::yield_now();
                            inside.store(false, Relaxed);
                        });
                    }
                });
            }
        });
        // A thread that ends the job while it has the turn itself.
        let mut ended = false;
        guarded(|| guarded_at_last(|| ended = true));
        assert!(ended);
        ThreadLevel::Multiple.keep();
        let mut nested = false;
        guarded(|| guarded(|| nested = true));
        assert!(nested, "nothing is locked where threads are free");
    }
}
