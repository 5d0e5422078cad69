//! When a run stops by itself, so that it can save before its time is over.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The end of a run's time, and what of it is kept for saving. Clones are one.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    end: Option<Instant>,
    /// Milliseconds.
    reserve: Arc<AtomicU64>,
}

impl Deadline {
    /// The earlier of `limit` from now on and of the moment `scheduled`, seconds since 1970.
    #[must_use]
    pub(super) fn new(limit: Option<Duration>, scheduled: Option<u64>) -> Self {
        let now = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = scheduled.map(|end| Duration::from_secs(end).saturating_sub(since));
        let left = limit.into_iter().chain(left).min();
        // Before the first checkpoint nobody knows what one takes.
        let reserve = left.map_or(Duration::ZERO, |left| (left / 10).min(FIRST_RESERVE));
        let reserve = Arc::new(AtomicU64::new(milliseconds(reserve)));
        Self { end: left.and_then(|left| now.checked_add(left)), reserve }
    }

    /// A checkpoint took so long.
    pub(super) fn saved(&self, took: Duration) {
        // Twice as long the next time, and what it takes until all ranks have come to a step's end.
        self.reserve.fetch_max(milliseconds(2 * took + LEAST_RESERVE), Relaxed);
    }

    /// It is time to stop.
    #[must_use]
    pub(super) fn has_come(&self) -> bool {
        let reserve = Duration::from_millis(self.reserve.load(Relaxed));
        self.end.is_some_and(|end| Instant::now() + reserve >= end)
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const FIRST_RESERVE: Duration = Duration::from_secs(60);
const LEAST_RESERVE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_end_counts_and_time_to_save_is_kept() {
        let hour = Duration::from_secs(3600);
        assert!(!Deadline::new(None, None).has_come());
        assert!(!Deadline::new(Some(hour), None).has_come());
        // The scheduler's end was in 1970.
        assert!(Deadline::new(Some(hour), Some(1)).has_come());
        let deadline = Deadline::new(Some(hour), None);
        deadline.saved(hour / 4);
        assert!(!deadline.has_come());
        deadline.clone().saved(hour / 2);
        assert!(deadline.has_come());
        // A quick one later does not make it longer.
        deadline.saved(Duration::ZERO);
        assert!(deadline.has_come());
    }
}
