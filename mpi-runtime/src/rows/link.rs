//! The embedding communicator: one thread per rank that carries messages between this rank and the
//! others, for the rank's workers and for its partitions.
//!
//! It knows nothing of rows: requests go to the thread that owns the partition, answers to the
//! worker that asked. It polls MPI and its channel in turn, and sleeps when both are quiet.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crossbeam_channel::{Receiver, Sender};

use crate::comm::Mailbox;
use crate::comm::watch::Backoff;
use crate::rows::partition::{Asker, Request};
use crate::rows::wire::{Header, Kind};

/// Where incoming messages go on this rank.
pub struct Inlets {
    /// Partitions of this rank: `[number % stride]`, `None` for those elsewhere.
    pub partitions: Vec<Option<Sender<Request>>>,
    /// Answers for the workers of this rank.
    pub workers: Vec<Sender<Vec<u32>>>,
    /// Number over all trainers of this rank's first worker.
    pub first_worker: usize,
}

/// How far the end of a run is. Rows may still be owed to workers that stopped and need them no
/// more; a rank that left while others' messages to it are under way would leave them hanging.
#[derive(Default)]
pub struct Ending {
    /// Send nothing new; set when no worker of any rank waits for an answer.
    pub quiet: AtomicBool,
    /// Everything sent has been taken by its receiver; set by the link.
    pub drained: AtomicBool,
    /// Leave; set when the links of all ranks are drained.
    pub stop: AtomicBool,
}

/// Carries messages until it is told to stop. *Not collective; the only user of its communicator.*
pub fn carry(
    mut mailbox: Mailbox,
    outgoing: &Receiver<(usize, Vec<u32>)>,
    inlets: &Inlets,
    ending: &Ending,
    bytes_sent: &AtomicU64,
) {
    let mut backoff = Backoff::default();
    loop {
        let mut moved = false;
        let quiet = ending.quiet.load(Relaxed);
        for (to, words) in outgoing.try_iter().filter(|_| !quiet) {
            bytes_sent.fetch_add(4 * words.len() as u64, Relaxed);
            mailbox.send(to, words);
            moved = true;
        }
        while let Some((from, words)) = mailbox.receive() {
            deliver(inlets, from, words);
            moved = true;
        }
        if quiet && mailbox.sending() == 0 {
            ending.drained.store(true, Relaxed);
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

/// Hands a message to its thread; one whose thread has gone is not needed any more.
fn deliver(inlets: &Inlets, from: usize, words: Vec<u32>) {
    let Some(header) = Header::read(&words) else {
        panic!("rank {from} sent a message that is none of ours");
    };
    match header.kind {
        Kind::Lookup | Kind::LookupNow | Kind::Push => {
            let Some(Some(partition)) = inlets.partitions.get(header.partition as usize) else {
                panic!("rank {from} asked for partition {}, not here", header.partition);
            };
            drop(partition.send(Request { words, from: Asker::Rank(from) }));
        }
        Kind::Rows | Kind::Ack => {
            let worker = (header.worker as usize).checked_sub(inlets.first_worker);
            let Some(worker) = worker.and_then(|worker| inlets.workers.get(worker)) else {
                panic!("rank {from} answered worker {}, not here", header.worker);
            };
            drop(worker.send(words));
        }
    }
}
