//! Messages between any two ranks, none of which the sender or the receiver ever blocks for.
//!
//! MPI 3.1 sections 3.7 and 3.8. A message that is announced is matched at once (MPI_Improbe) and
//! received without blocking (MPI_Imrecv): a large one on a slow link crosses while its receiver
//! does other things.
//!
//! Invariants: messages of one sender come out in the order they were sent. One sender, whatever it
//! does or leaves undone, delays no other: so many of its messages have a buffer here at a time
//! ([`per_sender`]), those behind them are matched and wait with their sender, and who is next asks
//! nothing of it. So buffers hold at most [`BUFFERS_MAX`] messages, or [`LEAST`] of every rank.
//! Buffers stay until their requests are done. At the end every message has been received, wanted
//! or not.

use std::collections::VecDeque;

use mpi::traits::{AsRaw, Equivalence};

use super::flight::Flight;
use super::pending::{Pending, Request};
use super::{Comm, count, loss, raw};
use crate::comm::watch::{Backoff, Waiting};

/// Point-to-point messages of `u32` words between all ranks; messages to oneself stay in process.
///
/// Dropping one is *collective*: it throws away what nobody has taken, until everything that any
/// rank sent has crossed.
pub struct Mailbox {
    comm: Comm,
    sending: Flight<Sending>,
    /// Messages in `sending`, by receiver. `[size]`
    sending_to: Vec<usize>,
    arriving: Flight<Arriving>,
    /// By sender. `[size]`
    inbound: Vec<Inbound>,
    /// Messages that are here in full, with their senders.
    here: VecDeque<(usize, Vec<u32>)>,
    spare: Vec<Vec<u32>>,
    /// Messages sent, by receiver. `[size]`
    sent: Vec<u64>,
    /// Messages of a sender that have a buffer at a time, at most.
    per_sender: usize,
}

/// A message that MPI may still read.
struct Sending {
    to: usize,
    words: Vec<u32>,
}

/// A message that MPI may still write.
struct Arriving {
    from: usize,
    /// Among all messages of its sender.
    number: u64,
    words: Vec<u32>,
}

/// What one rank has sent here and nobody has taken.
#[derive(Default)]
struct Inbound {
    /// Matched; they have no buffer yet.
    announced: VecDeque<Announced>,
    /// Those with a buffer, in their order: `None` while MPI may write it.
    begun: VecDeque<Option<Vec<u32>>>,
    /// Number of the first of them among all messages of the sender.
    first: u64,
    /// Messages matched so far.
    matched: u64,
}

/// A message that was matched, and is received by nobody else.
struct Announced {
    message: raw::MPI_Message,
    /// Words.
    length: i32,
}

// SAFETY: messages are handles like the communicator's; see `Comm`.
unsafe impl Send for Announced {}

impl Mailbox {
    /// A mailbox over a communicator of its own.
    #[must_use]
    pub fn new(comm: Comm) -> Self {
        let size = comm.size;
        Self {
            comm,
            sending: Flight::default(),
            sending_to: vec![0; size],
            arriving: Flight::default(),
            inbound: (0..size).map(|_| Inbound::default()).collect(),
            here: VecDeque::new(),
            spare: vec![],
            sent: vec![0; size],
            per_sender: per_sender(size),
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
    pub fn recycle(&mut self, words: Vec<u32>) {
        keep(&mut self.spare, words);
    }

    /// Starts sending `words` to rank `to`. *Not collective.*
    pub fn send(&mut self, to: usize, words: Vec<u32>) {
        if to == self.comm.rank {
            self.here.push_back((to, words));
            return;
        }
        let (length, rank) = (count(words.len()), count(to));
        let kind = u32::equivalent_datatype().as_raw();
        // SAFETY: `words` is kept beside its request until the request is done.
        let request = Request::of(|request| unsafe {
            let message = (words.as_ptr().cast(), length, kind);
            raw::send(message, (rank, TAG), self.comm.handle, request);
        });
        self.comm.meter.sent(size_of_val(&*words));
        self.sent[to] += 1;
        self.sending_to[to] += 1;
        self.sending.add(request, Sending { to, words });
    }

    /// The next message that is here in full, with its sender; `None` if there is none. Does not
    /// block. *Not collective.*
    pub fn receive(&mut self) -> Option<(usize, Vec<u32>)> {
        if self.here.is_empty() {
            self.look();
        }
        self.here.pop_front()
    }

    /// Looks once at everything: takes up what is announced, and finds what has come and gone.
    fn look(&mut self) {
        // Not without end: who sends faster than this rank takes must not keep it here.
        for _ in 0..MATCHED_AT_ONCE {
            if !self.match_next() {
                break;
            }
        }
        let Self { arriving, inbound, here, .. } = self;
        let mut freed = vec![];
        arriving.land(|Arriving { from, number, words }| {
            let sender = &mut inbound[from];
            let place = usize::try_from(number - sender.first).unwrap_or(usize::MAX);
            sender.begun[place] = Some(words);
            // A message comes out when those before it have.
            while let Some(Some(_)) = sender.begun.front() {
                sender.first += 1;
                here.extend(sender.begun.pop_front().flatten().map(|words| (from, words)));
            }
            freed.push(from);
        });
        freed.into_iter().for_each(|from| self.begin(from));
        self.reclaim();
    }

    /// Matches the next message that is announced, if one is.
    fn match_next(&mut self) -> bool {
        let (mut found, mut length) = (0, 0);
        let mut message = core::mem::MaybeUninit::uninit();
        let mut status = core::mem::MaybeUninit::uninit();
        let kind = u32::equivalent_datatype().as_raw();
        // SAFETY: all out-pointers are valid; message and status are read only if `found` is set,
        // when MPI has written them.
        let (from, message) = unsafe {
            raw::MPI_Improbe(
                raw::any_source(),
                TAG,
                self.comm.handle,
                &raw mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            );
            if found == 0 || loss::has_happened() {
                return false;
            }
            raw::MPI_Get_count(status.as_ptr(), kind, &raw mut length);
            (status.assume_init_ref().MPI_SOURCE, message.assume_init())
        };
        let from = usize::try_from(from).unwrap_or(0);
        let sender = &mut self.inbound[from];
        sender.matched += 1;
        sender.announced.push_back(Announced { message, length });
        self.begin(from);
        true
    }

    /// Gives buffers to the next messages of `from`, as many as it may have.
    fn begin(&mut self, from: usize) {
        while self.inbound[from].begun.len() < self.per_sender
            && let Some(Announced { mut message, length }) =
                self.inbound[from].announced.pop_front()
        {
            let mut words = self.buffer();
            words.resize(usize::try_from(length).unwrap_or(0), 0);
            self.comm.meter.received(size_of_val(&*words));
            let into = words.as_mut_ptr().cast();
            let kind = u32::equivalent_datatype().as_raw();
            // SAFETY: `message` was matched and is received here only; the buffer has the length
            // that MPI reported, and is kept beside its request, untouched, until that is done.
            let request = Request::of(|request| unsafe {
                raw::MPI_Imrecv(into, length, kind, &raw mut message, request);
            });
            let sender = &mut self.inbound[from];
            let number = sender.first + sender.begun.len() as u64;
            sender.begun.push_back(None);
            self.arriving.add(request, Arriving { from, number, words });
        }
    }

    /// Messages that MPI may still read. Looks.
    #[must_use]
    pub fn sending(&mut self) -> usize {
        self.reclaim();
        self.sending.len()
    }

    /// As [`sending`](Self::sending), those to rank `to`, when this mailbox last looked.
    #[must_use]
    pub fn sending_to(&self, to: usize) -> usize {
        self.sending_to[to]
    }

    fn reclaim(&mut self) {
        let Self { sending, sending_to, spare, .. } = self;
        sending.land(|Sending { to, words }| {
            sending_to[to] -= 1;
            keep(spare, words);
        });
    }

    /// Whether everything that `due` says was sent here has been received, and all that was sent
    /// from here has left. `due: [size]`
    fn is_done(&self, due: &[u64]) -> bool {
        let received = |(sender, due): (&Inbound, &u64)| {
            sender.matched == *due && sender.announced.is_empty() && sender.begun.is_empty()
        };
        self.sending.len() == 0 && self.inbound.iter().zip(due).all(received)
    }

    /// Leaves to MPI for ever what it may still use.
    fn abandon(&mut self) {
        core::mem::forget(core::mem::take(&mut self.sending));
        core::mem::forget(core::mem::take(&mut self.arriving));
    }
}

impl Drop for Mailbox {
    /// MPI must not be left with a pointer into freed memory, nor another rank with a message that
    /// nobody takes: each is told how many were sent to it, and takes them all.
    fn drop(&mut self) {
        if self.comm.epoch != loss::epoch() || loss::has_happened() {
            self.abandon();
            return;
        }
        let nothing = vec![0; self.comm.size];
        let sent = core::mem::take(&mut self.sent);
        let mut told = Some(self.comm.start_all_to_all(sent, nothing));
        let mut due = None;
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        loop {
            while let Some((_, words)) = self.receive() {
                self.recycle(words);
            }
            if let Some(done) = told.take_if(Pending::is_done) {
                // It is done, and waits no more.
                due = done.wait(&self.comm, "", true).ok();
            }
            if due.as_ref().is_some_and(|(_, due)| self.is_done(due)) {
                return;
            }
            let waited = waiting.check(&self.comm.watch, &"the last messages of all ranks");
            if loss::has_happened() {
                // The next wait of this thread says so; an unwinding one has none.
                self.abandon();
                return;
            }
            self.comm.watch.or_end(waited);
            self.comm.pause(&mut backoff);
        }
    }
}

/// Keeps a used buffer, if there are not enough.
fn keep(spare: &mut Vec<Vec<u32>>, mut words: Vec<u32>) {
    if spare.len() < SPARE_MAX {
        words.clear();
        spare.push(words);
    }
}

/// Messages of one sender that have a buffer at a time, among `size` ranks.
fn per_sender(size: usize) -> usize {
    (BUFFERS_MAX / size).clamp(LEAST, MOST)
}

const TAG: i32 = 0;
/// Spare buffers kept; more are freed.
const SPARE_MAX: usize = 64;
/// Messages with a buffer at a time, of all senders together, while [`LEAST`] allows.
const BUFFERS_MAX: usize = 1024;
/// Messages of a sender with a buffer at a time: one that crosses, and one behind it.
const LEAST: usize = 2;
/// As many keep any link busy.
const MOST: usize = 32;
/// Messages matched in one look.
const MATCHED_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_bounded_for_a_sender_and_for_all() {
        assert_eq!([1, 2, 32, 64, 512, 1000].map(per_sender), [32, 32, 32, 16, 2, 2]);
        assert!((1..=512).all(|size| size * per_sender(size) <= BUFFERS_MAX));
    }
}
