//! The MPI driver of protocols: does what they ask, on a thread of its own.
//!
//! No protocol knowledge here, and no timing: when a round begins is the conductor's decision
//! (`umbra_core::sync::Conductor`). A thread has one *seat* per protocol, all of which talk through
//! its one post; it gives each seat its turn and sleeps when none has anything to do.
//!
//! Invariants: the driver never holds anything that a worker waits for but the gate and the
//! gradient that was taken; it sleeps between looks at MPI (`sync.poll_us`), so a worker that
//! shares its core gets it. Reductions and the wait for a gradient block, so a thread with such a
//! seat has no other.

use core::time::Duration;
use std::time::Instant;

use crossbeam_channel::{Receiver, Select};
use umbra_core::sync::Wait;
use umbra_core::units::Nanos;

use crate::comm::reduce::Sums;
use crate::comm::watch::{Backoff, GLANCE, LOOK, Waiting};
use crate::dense::endpoints::{DriveError, Endpoints, Ends};
use crate::dense::seat::{Gaps, Seat, Seated, Workers};
use crate::launch::processor::thread_time;

/// Runs the protocols of `seats` until all have finished. *Collective over the trainers as far as
/// their actions are.* Returns the gaps between the rounds of each.
///
/// # Errors
/// As [`DriveError`] says.
pub fn drive(seats: Vec<Seat<'_>>, ends: Endpoints<'_>) -> Result<Vec<Gaps>, DriveError> {
    let mut ends = Ends { ends, sums: Sums::default(), start: Instant::now() };
    let mut seats: Vec<Seated<'_>> = seats.into_iter().map(Seated::new).collect();
    match turns(&mut seats, &mut ends) {
        Ok(()) => Ok(seats.into_iter().map(|seated| seated.gaps).collect()),
        Err(error) => {
            // Workers wait at their other ends: they must not find them gone before the caller has
            // decided what becomes of the job.
            core::mem::forget((seats, ends));
            Err(error)
        }
    }
}

/// Gives every seat its turn until all have finished.
fn turns(seats: &mut [Seated<'_>], ends: &mut Ends<'_>) -> Result<(), DriveError> {
    let (mut backoff, mut counted, mut pieces) = (Backoff::default(), thread_time(), 0);
    loop {
        // Also of seats that wait for nobody else: their workers have gone.
        Waiting::check_loss(&"a turn of the synchronization")?;
        let mut moved = false;
        for seated in seats.iter_mut().filter(|seated| !seated.finished) {
            if seated.turn(ends)? {
                moved = true;
                let now = thread_time();
                seated.count_busy(now.saturating_sub(counted));
                counted = now;
            }
        }
        if seats.iter().all(|seated| seated.finished) {
            if let Some(post) = &mut ends.ends.post {
                post.flush(ends.ends.watch, ends.ends.poll)?;
            }
            return Ok(());
        }
        // While the pieces of a message flow the next is near, though no protocol has moved.
        let now = ends.ends.post.as_ref().map_or(0, |post| post.pieces());
        if moved || now != pieces {
            backoff.reset();
        }
        pieces = now;
        if !moved {
            rest(seats, &mut backoff, ends);
        }
    }
}

/// Sleeps until a seat may have something to do: none has now.
fn rest(seats: &[Seated<'_>], backoff: &mut Backoff, ends: &Ends<'_>) {
    let idle = || seats.iter().filter(|seated| !seated.finished);
    let knocks = |seated: &Seated<'_>| match (&seated.seat.workers, seated.waits) {
        (Workers::Gated { gate, .. }, Some(Wait::Gate)) => Some(gate.knocks.clone()),
        _ => None,
    };
    let gates: Option<Vec<Receiver<()>>> = idle().map(knocks).collect();
    if let Some(gates) = gates {
        // Nothing to look for but workers: no look is late.
        let mut select = Select::new();
        for gate in &gates {
            select.recv(gate);
        }
        let _ = select.ready_timeout(GLANCE);
        return;
    }
    let longest = |seated: &Seated<'_>| match seated.waits {
        Some(Wait::Until(time)) => left(time, ends.now()),
        Some(Wait::Step) => ends.ends.poll.max(LEAST_SLEEP),
        Some(Wait::Gate) => GATE_SLEEP,
        None => ends.ends.longest,
    };
    let sleep = idle().map(longest).min().unwrap_or(Duration::MAX);
    // A seat that waits for a message is looked after as the post is; the others as long as theirs
    // allows.
    if idle().any(|seated| seated.waits.is_none()) {
        backoff.rest_at_most(ends.ends.poll, sleep);
    } else {
        std::thread::sleep(sleep);
    }
}

/// Sleep while workers have made no step since the last round.
const LEAST_SLEEP: Duration = Duration::from_micros(200);

/// Longest sleep while workers may come to a gate and a peer may send.
const GATE_SLEEP: Duration = Duration::from_micros(200);

/// A sleep until then, but not so long that the end of the workers goes unnoticed.
fn left(until: Nanos, now: Nanos) -> Duration {
    Duration::from_nanos(until.0.saturating_sub(now.0)).min(LOOK / 1000)
}
