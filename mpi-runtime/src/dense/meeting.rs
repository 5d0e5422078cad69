//! The workers of one trainer as a group: they meet, and one of them acts for all.
//!
//! Foreground methods need the workers together: `bsp` at every sum, `local_sgd` every k steps. The
//! group is a barrier with a deadline, and a table in which each worker puts what it brings.
//!
//! Invariant: what the leader computes from the table depends on the workers' numbers, never on who
//! came first.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::comm::watch::{GLANCE, Lost, Waiting, Watch};

/// A meeting place of `workers` threads, each bringing a `T`.
pub struct Meeting<T> {
    workers: usize,
    table: Mutex<Table<T>>,
    changed: Condvar,
    watch: Arc<Watch>,
}

struct Table<T> {
    /// How often the group has met.
    round: u64,
    arrived: usize,
    brought: Vec<Option<T>>,
    /// Brought back by each worker after the meeting.
    results: Vec<Option<T>>,
}

impl<T> Meeting<T> {
    /// A group of `workers` threads.
    #[must_use]
    pub fn new(workers: usize, watch: Arc<Watch>) -> Self {
        let empty = || (0..workers).map(|_| None).collect();
        let table = Mutex::new(Table { round: 0, arrived: 0, brought: empty(), results: empty() });
        Self { workers, table, changed: Condvar::new(), watch }
    }

    /// Brings `item`, waits for the others; the last to come runs `act` on all items in the order
    /// of workers, and everyone leaves with its own item as `act` left it.
    ///
    /// # Errors
    /// When the others do not come in time, or `act` has waited in vain: then there is no meeting
    /// any more.
    pub fn meet(
        &self,
        worker: usize,
        item: T,
        what: &str,
        act: impl FnOnce(&mut [T]) -> Result<(), Lost>,
    ) -> Result<T, Lost> {
        let mut meeting = self.lock();
        meeting.brought[worker] = Some(item);
        meeting.arrived += 1;
        let round = meeting.round;
        if meeting.arrived == self.workers {
            let mut items: Vec<T> = meeting.brought.iter_mut().filter_map(Option::take).collect();
            act(&mut items)?;
            meeting.results = items.into_iter().map(Some).collect();
            meeting.arrived = 0;
            meeting.round += 1;
            self.changed.notify_all();
        } else {
            let mut waiting = Waiting::default();
            while meeting.round == round {
                let late = self.workers - meeting.arrived;
                let late = format_args!("{late} of {} workers at {what}", self.workers);
                waiting.glance(&self.watch, &late)?;
                let waited = self.changed.wait_timeout(meeting, GLANCE);
                meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        // The next round cannot complete before every worker has come again, so the result is ours.
        match meeting.results[worker].take() {
            Some(result) => Ok(result),
            None => unreachable!("every worker leaves with what it brought"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table<T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use core::time::Duration;

    use super::*;

    #[test]
    fn every_worker_leaves_with_the_sum_in_every_round() {
        let watch = Arc::new(Watch::new(Duration::from_secs(60), String::new()));
        let group = Meeting::new(3, watch);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let group = &group;
                scope.spawn(move || {
                    for round in 0..1000u64 {
                        let sum = group.meet(worker, round + worker as u64, "a test", |items| {
                            let sum = items.iter().sum();
                            items.fill(sum);
                            Ok(())
                        });
                        assert_eq!(sum, Ok(3 * round + 3));
                    }
                });
            }
        });
    }
    #[test]
    fn a_worker_that_never_comes_is_an_error_and_not_the_end() {
        let watch = Arc::new(Watch::new(Duration::ZERO, String::new()));
        let group = Meeting::new(2, watch);
        let said = group.meet(0, (), "a test", |_| Ok(())).unwrap_err().to_string();
        let end = " s for 1 of 2 workers at a test and gave up (run.watchdog_s = 0)";
        assert!(said.starts_with("waited ") && said.ends_with(end), "{said}");
    }
}
