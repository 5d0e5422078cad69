//! Messages between any two ranks, none of which the sender or the receiver ever blocks for.
//!
//! MPI 3.1 sections 3.7 and 3.8. A message that has arrived is matched at once and received without
//! blocking (MPI_Imrecv): a large one on a slow link crosses while its receiver does other things.
//!
//! Invariants: messages of one sender come out in the order they were sent. Buffers stay until
//! their requests are done. At the end every message has been received, wanted or not.

use std::collections::VecDeque;

use mpi::traits::{AsRaw, Equivalence};

use super::{Comm, Request, count, raw};
use crate::comm::watch::{Backoff, Waiting};

/// Point-to-point messages of `u32` words between all ranks; messages to oneself stay in process.
///
/// Dropping one is *collective*: it throws away what nobody has taken, until everything that any
/// rank sent has crossed.
pub struct Mailbox {
    comm: Comm,
    sending: Vec<Sending>,
    /// In the order they were sent, as far as they have one sender.
    arriving: VecDeque<Arriving>,
    to_self: VecDeque<Vec<u32>>,
    spare: Vec<Vec<u32>>,
    /// Messages sent, by receiver. `[size]`
    sent: Vec<u64>,
    /// Messages received or on their way into a buffer, by sender. `[size]`
    matched: Vec<u64>,
}

/// A message that MPI may still read.
struct Sending {
    request: Request,
    words: Vec<u32>,
}

/// A message that MPI may still write.
struct Arriving {
    from: usize,
    request: Request,
    words: Vec<u32>,
}

impl Mailbox {
    /// A mailbox over a communicator of its own.
    #[must_use]
    pub fn new(comm: Comm) -> Self {
        let size = comm.size;
        Self {
            comm,
            sending: vec![],
            arriving: VecDeque::new(),
            to_self: VecDeque::new(),
            spare: vec![],
            sent: vec![0; size],
            matched: vec![0; size],
        }
    }

    /// The communicator: rank, size, and how to wait.
    #[must_use]
    pub const fn comm(&self) -> &Comm {
        &self.comm
    }

    /// An empty buffer, a used one where there is one.
    #[must_use]
    pub fn buffer(&mut self) -> Vec<u32> {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives a used buffer back.
    pub fn recycle(&mut self, mut words: Vec<u32>) {
        if self.spare.len() < SPARE_MAX {
            words.clear();
            self.spare.push(words);
        }
    }

    /// Starts sending `words` to rank `to`. *Not collective.*
    pub fn send(&mut self, to: usize, words: Vec<u32>) {
        if to == self.comm.rank {
            self.to_self.push_back(words);
            return;
        }
        let (length, rank) = (count(words.len()), count(to));
        let kind = u32::equivalent_datatype().as_raw();
        // SAFETY: `words` is kept beside its request until the request is done.
        let request = Request::of(|request| unsafe {
            raw::MPI_Isend(
                words.as_ptr().cast(),
                length,
                kind,
                rank,
                TAG,
                self.comm.handle,
                request,
            );
        });
        self.sent[to] += 1;
        self.sending.push(Sending { request, words });
    }

    /// The next message that is here in full, with its sender; `None` if there is none. Does not
    /// block. *Not collective.*
    pub fn receive(&mut self) -> Option<(usize, Vec<u32>)> {
        self.reclaim();
        if let Some(words) = self.to_self.pop_front() {
            return Some((self.comm.rank, words));
        }
        loop {
            if let Some(arrived) = self.arrived() {
                return Some(arrived);
            }
            if self.arriving.len() == ARRIVING_MAX || !self.match_next() {
                return None;
            }
        }
    }

    /// Takes out the first message that is complete and has none of its sender before it.
    fn arrived(&mut self) -> Option<(usize, Vec<u32>)> {
        let place = (0..self.arriving.len()).find(|&at| {
            let from = self.arriving[at].from;
            let first = self.arriving.range(..at).all(|earlier| earlier.from != from);
            first && self.arriving[at].request.is_done()
        })?;
        self.arriving.remove(place).map(|arrived| (arrived.from, arrived.words))
    }

    /// Starts to receive a message that is announced, if one is.
    fn match_next(&mut self) -> bool {
        let (mut found, mut length) = (0, 0);
        let mut message = core::mem::MaybeUninit::uninit();
        let mut status = core::mem::MaybeUninit::uninit();
        let kind = u32::equivalent_datatype().as_raw();
        // SAFETY: all out-pointers are valid; message and status are read only if `found` is set,
        // when MPI has written them.
        let from = unsafe {
            raw::MPI_Improbe(
                raw::any_source(),
                TAG,
                self.comm.handle,
                &raw mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            );
            if found == 0 {
                return false;
            }
            raw::MPI_Get_count(status.as_ptr(), kind, &raw mut length);
            status.assume_init_ref().MPI_SOURCE
        };
        let from = usize::try_from(from).unwrap_or(0);
        let mut words = self.buffer();
        words.resize(usize::try_from(length).unwrap_or(0), 0);
        let into = words.as_mut_ptr().cast();
        // SAFETY: `message` is the matched message; the buffer has the length MPI just reported,
        // and is kept beside its request, untouched, until the request is done.
        let request = Request::of(|request| unsafe {
            raw::MPI_Imrecv(into, length, kind, message.as_mut_ptr(), request);
        });
        self.matched[from] += 1;
        self.arriving.push_back(Arriving { from, request, words });
        true
    }

    /// Messages that MPI may still read.
    #[must_use]
    pub fn sending(&mut self) -> usize {
        self.reclaim();
        self.sending.len()
    }

    fn reclaim(&mut self) {
        let mut at = 0;
        while at < self.sending.len() {
            if self.sending[at].request.is_done() {
                let done = self.sending.swap_remove(at);
                self.recycle(done.words);
            } else {
                at += 1;
            }
        }
    }
}

impl Drop for Mailbox {
    /// MPI must not be left with a pointer into freed memory, nor another rank with a message that
    /// nobody takes: each is told how many were sent to it, and takes them all.
    fn drop(&mut self) {
        let mut due = vec![0; self.comm.size];
        let mut told = self.comm.start_all_to_all(&self.sent, &mut due);
        let mut known = false;
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        loop {
            while let Some((_, words)) = self.receive() {
                self.recycle(words);
            }
            known = known || told.is_done();
            if known && self.sending.is_empty() && self.arriving.is_empty() && self.matched == due {
                return;
            }
            self.comm
                .watch
                .or_end(waiting.check(&self.comm.watch, &"the last messages of all ranks"));
            self.comm.pause(&mut backoff);
        }
    }
}

const TAG: i32 = 0;
/// Spare buffers kept; more are freed.
const SPARE_MAX: usize = 64;
/// Messages on their way into buffers at a time; more wait with their senders.
const ARRIVING_MAX: usize = 64;
