//! The embedding communicators: one thread each that carries messages between this rank and the
//! others, for the rank's workers and for its partitions.
//!
//! It knows nothing of rows: what comes in is the router's. It polls MPI and its channel in turn,
//! and sleeps when both are quiet.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crossbeam_channel::Receiver;

use crate::comm::watch::Backoff;
use crate::comm::{Mailbox, loss};
use crate::rows::router::{Counters, Router};

/// How far the end of a run is. Rows may still be owed to workers that stopped and need them no
/// more; a rank that left while others' messages to it are under way would leave them hanging.
#[derive(Default)]
pub struct Ending {
    /// Send nothing new; set when no worker of any rank waits for an answer.
    pub quiet: AtomicBool,
    /// Links whose messages have all been taken by their receivers.
    pub drained: AtomicUsize,
    /// Leave; set when the links of all ranks are drained.
    pub stop: AtomicBool,
}

/// Carries messages until it is told to stop. *Not collective; the only user of its communicator.*
pub fn carry(
    mut mailbox: Mailbox,
    outgoing: &Receiver<(usize, Vec<u32>)>,
    router: &Router,
    ending: &Ending,
    counters: &Counters,
) {
    let (mut backoff, mut drained) = (Backoff::default(), false);
    // After a loss there is nobody to carry for.
    while !loss::has_happened() {
        let mut moved = false;
        let quiet = ending.quiet.load(Relaxed);
        for (to, words) in outgoing.try_iter().filter(|_| !quiet) {
            counters.sent(words.len());
            mailbox.send(to, words);
            moved = true;
        }
        while let Some((from, words)) = mailbox.receive() {
            counters.received(words.len());
            router.deliver(from, words).unwrap_or_else(|stray| panic!("{stray}"));
            moved = true;
        }
        if quiet && !drained && mailbox.sending() == 0 {
            drained = true;
            ending.drained.fetch_add(1, Relaxed);
        }
        if moved {
            backoff.reset();
        } else if ending.stop.load(Relaxed) {
            return;
        } else {
            backoff.wait();
        }
    }
}
