//! Deadlines where MPI itself blocks: its start, its end, the making and freeing of communicators.
//!
//! MPI 3.1 sections 6.4 and 8.7. Such a call can neither be polled nor given up, so a thread beside
//! it waits for its end, and ends the process when that takes longer than a wait may.
//!
//! Invariants: what ends the process calls no MPI and needs no other rank, since the call beside it
//! holds whatever the library holds. The launcher misses the process and ends the others.

use std::sync::Arc;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

use crate::comm::watch::{LOOK, Waiting, Watch};

/// An alarm that is set: it goes off unless it is dropped, or set again, in time.
pub(crate) struct Alarm {
    set: Sender<()>,
}

impl Alarm {
    /// From now on `what` must end within the limit of `watch`. *Not collective, from any thread.*
    pub(crate) fn set(watch: &Arc<Watch>, what: String) -> Self {
        let (set, sets) = bounded(1);
        let watch = Arc::clone(watch);
        // A system that gives no thread gives no deadline either.
        let _ = std::thread::Builder::new().name("alarm".into()).spawn(move || {
            // A rank that is lost is no reason: the call beside it says so itself.
            let mut waiting = Waiting::default();
            loop {
                match sets.recv_timeout(LOOK) {
                    Ok(()) => waiting = Waiting::default(),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(lost) = waiting.check_time(&watch, &what) {
                            watch.end_process(1, &lost);
                        }
                    }
                }
            }
        });
        Self { set }
    }

    /// Begins the wait anew: what it waits for is a sign of life.
    pub(crate) fn again(&self) {
        // One that has not been taken says the same.
        let _ = self.set.try_send(());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// Runs a test of this program again, as a child that takes its `CHILD` branch.
    fn child(test: &str) -> std::process::Output {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("comm::alarm::tests::{test}"), "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap()
    }

    const CHILD: &str = "UMBRA_TEST_CHILD";

    fn watch(limit: Duration) -> Arc<Watch> {
        Arc::new(Watch::new(limit, "[1/2 here]".into()))
    }

    #[test]
    fn what_lasts_too_long_ends_the_process_with_one_line() {
        if std::env::var_os(CHILD).is_some() {
            let _alarm = Alarm::set(&watch(Duration::from_millis(100)), "a call".into());
            std::thread::sleep(Duration::from_secs(600));
            unreachable!("the alarm ends the process");
        }
        let output = child("what_lasts_too_long_ends_the_process_with_one_line");
        assert_eq!(output.status.code(), Some(1));
        let line = "umbra: [1/2 here] waited 1 s for a call and gave up (run.watchdog_s = 0)\n";
        assert_eq!(String::from_utf8(output.stderr).unwrap(), line);
    }

    #[test]
    fn what_ends_or_shows_life_is_left_alone() {
        if std::env::var_os(CHILD).is_some() {
            let alarm = Alarm::set(&watch(Duration::from_millis(2500)), "a call".into());
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(500));
                alarm.again();
            }
            drop(alarm);
            std::thread::sleep(Duration::from_secs(4));
            return;
        }
        let output = child("what_ends_or_shows_life_is_left_alone");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
