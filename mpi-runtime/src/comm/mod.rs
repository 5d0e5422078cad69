//! Communicators with deadlines. This folder and `memory.rs` hold the only unsafe code of the
//! runtime.
//!
//! MPI 3.1 chapters 3, 5 and 6. rsmpi's safe layer drops return codes and its collectives block
//! without end, so the calls made here are non-blocking ones, polled until they are done or
//! overdue. Waiting spins a little, then yields, then sleeps: ranks that share cores do not spin
//! against each other.
//!
//! - here: a communicator and its collectives
//! - [`guard`]: which threads may call MPI when · `raw.rs`: the guarded functions
//! - `pending.rs`: an operation under way and its buffers · [`traffic`]: what is sent, counted
//! - `mailbox.rs`: point-to-point messages · `flight.rs`: operations that are looked at together
//! - [`post`]: what is larger than a message · `first.rs`: bytes to the first rank, and from it
//! - [`reduce`]: sums, by `doubling.rs` · `alarm.rs`: deadlines of what can't be polled
//! - `last_words.rs`: the end of a process, and who else hears why
//! - [`library`]: which MPI this is
//! - [`loss`]: ranks that are lost, `everyone.rs`: those that are left, `barrier.rs`: how they meet
//!
//! Invariants: a [`Comm`] is made on the main thread, in one order on every rank, is used by one
//! thread, and is dropped before MPI is finalised. A buffer lent to MPI outlives its request. A
//! wait that is given up is an error ([`watch::Lost`]), after which the communicator is of no more
//! use: the caller decides what becomes of the job.
#![allow(unsafe_code)]

mod alarm;
mod barrier;
mod doubling;
mod everyone;
mod first;
mod flight;
pub mod guard;
mod last_words;
pub mod library;
pub mod loss;
mod mailbox;
mod pending;
pub mod post;
mod raw;
pub mod reduce;
pub mod traffic;
pub mod watch;

use core::cell::Cell;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

use mpi::traits::{AsRaw, Equivalence};

use crate::comm::traffic::{Meter, Traffic, of_barrier, of_exchange};
use crate::comm::watch::{Backoff, LOOK, Lost, Waiting, Watch};
use crate::error::Error;
use pending::Pending;

pub(crate) use alarm::Alarm;
pub use everyone::Everyone;
pub use first::ToFirst;
pub(crate) use last_words::exit_saying;
pub(crate) use last_words::leave;
pub use last_words::{abort, abort_saying, hand_on, on_end};
pub use mailbox::Mailbox;

/// A communicator of its own for one thread.
pub struct Comm {
    handle: raw::MPI_Comm,
    rank: usize,
    size: usize,
    /// Time between two looks of a wait; `None` for [`Backoff`].
    poll: Option<Duration>,
    /// By how much waits may be longer than the watch allows.
    grace: Duration,
    /// Of which it is.
    epoch: u64,
    watch: Arc<Watch>,
    meter: Arc<Meter>,
    /// MPICH's handle is an integer, which alone would make this Sync.
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: the handle is a pointer in Open MPI and an integer in MPICH; MPI allows its use from any
// thread when calls keep to the thread level, as those of `raw` do, and a Comm is not Sync, so one
// thread uses it at a time.
unsafe impl Send for Comm {}

impl Comm {
    /// The ranks of `members` in a communicator of their own, in the order of their ranks; `None`
    /// on the others. *Collective over this communicator*, main thread only; `members` equal on all
    /// ranks.
    ///
    /// # Errors
    /// When not all ranks come.
    pub fn subset(&self, members: &[usize]) -> Result<Option<Self>, Lost> {
        self.split(members.contains(&self.rank).then_some(0))
    }

    /// The ranks of one group each in a communicator of their own, in the order of their ranks;
    /// `None` on those of no group. *Collective over this communicator*, main thread only.
    ///
    /// # Errors
    /// When not all ranks come.
    pub fn split(&self, group: Option<usize>) -> Result<Option<Self>, Lost> {
        // Creation blocks, for moments when all ranks have come; they meet as others do first. Who
        // stops in it is the alarm's.
        self.barrier("a communicator", false)?;
        let color = group.map_or(raw::undefined(), |group| i32::try_from(group).unwrap_or(0));
        let mut handle = raw::no_comm();
        let _alarm = Alarm::set(&self.watch, format!("MPI_Comm_split of {} ranks", self.size));
        // SAFETY: the handle is live, the out-pointer is valid.
        unsafe { raw::MPI_Comm_split(self.handle, color, 0, &raw mut handle) };
        Waiting::default().check(&self.watch, &"a communicator")?;
        if group.is_some() {
            loss::add(handle);
        }
        Ok(group.map(|_| Self::new(handle, Arc::clone(&self.watch))))
    }

    fn new(handle: raw::MPI_Comm, watch: Arc<Watch>) -> Self {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the handle is live, the out-pointers are valid.
        unsafe {
            raw::MPI_Comm_rank(handle, &raw mut rank);
            raw::MPI_Comm_size(handle, &raw mut size);
        }
        let number = |n: i32| usize::try_from(n).unwrap_or(0);
        Self {
            handle,
            rank: number(rank),
            size: number(size),
            poll: None,
            grace: Duration::ZERO,
            epoch: loss::epoch(),
            watch,
            meter: Arc::default(),
            not_sync: PhantomData,
        }
    }

    /// From now on a wait looks, sleeps this long at first, and looks again ([`Backoff::rest`]).
    /// For threads in the background, which must not cost workers their cores. At most [`LOOK`].
    /// `None` is the beginning again: spins, yields, then sleeps.
    pub fn set_poll(&mut self, poll: Option<Duration>) {
        self.poll = poll.map(|poll| poll.min(LOOK));
    }

    /// From now on waits may be longer by this than the watch allows: others may be held back for
    /// so long, and well.
    pub const fn set_grace(&mut self, grace: Duration) {
        self.grace = grace;
    }

    /// What a wait on this communicator does between two looks: for those who poll by themselves.
    pub fn pause(&self, backoff: &mut Backoff) {
        match self.poll {
            None => backoff.wait(),
            Some(poll) => backoff.rest(poll),
        }
    }

    /// This process in the communicator.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Processes in the communicator.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The deadline keeper that its waits use.
    #[must_use]
    pub const fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// What it has sent and received so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.meter.read()
    }

    /// Its counts, for other threads to read while one uses it.
    #[must_use]
    pub const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Waits for all ranks; `patient` waits without a deadline (a rank with nothing to do while
    /// others train). *Collective.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn barrier(&self, what: &str, patient: bool) -> Result<(), Lost> {
        if loss::is_survivable() {
            return self.barrier_of_messages(what, patient);
        }
        self.meter.count(of_barrier(self.size));
        // SAFETY: no buffers.
        let start = |(): &mut (), request| unsafe { raw::MPI_Ibarrier(self.handle, request) };
        Pending::start((), start).wait(self, what, patient)
    }

    /// Agrees on `result`: when any rank failed, every rank returns an error of the same exit code,
    /// and only the lowest of the failing ranks has a message to print. *Collective.*
    ///
    /// # Errors
    /// This rank's error, or [`Error::Elsewhere`] when another rank speaks; [`Error::Lost`] when
    /// not all ranks come.
    pub fn agree<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let code = result.as_ref().err().map_or(0, |error| i32::from(error.exit_code()));
        let mut codes = vec![0; self.size];
        self.all_gather(&[code], &mut codes, "agreement")?;
        match codes.iter().position(|code| *code != 0) {
            None => result,
            Some(speaker) if speaker == self.rank => result,
            Some(speaker) => Err(Error::Elsewhere {
                rank: speaker,
                code: u8::try_from(codes[speaker]).unwrap_or(1),
            }),
        }
    }

    /// `received[r * n..][..n]` becomes rank r's `sent: [n]`. *Collective; n equal on all ranks.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn all_gather<T: Equivalence + Copy + Default>(
        &self,
        sent: &[T],
        received: &mut [T],
        what: &str,
    ) -> Result<(), Lost> {
        let arriving = vec![T::default(); received.len()];
        let gathering = self.start_all_gather(sent.to_vec(), arriving);
        received.copy_from_slice(&gathering.wait(self, what, false)?.1);
        Ok(())
    }

    fn start_all_gather<T: Equivalence>(
        &self,
        sent: Vec<T>,
        received: Vec<T>,
    ) -> Pending<(Vec<T>, Vec<T>)> {
        assert_eq!(received.len(), sent.len() * self.size, "all-gather buffer of another length");
        let kind = T::equivalent_datatype();
        let each = || core::iter::repeat_n(size_of_val(&*sent), self.size);
        self.meter.count(of_exchange(self.rank, each(), each()));
        // SAFETY: both buffers hold the counts given, and stay until the operation is done.
        Pending::start((sent, received), |(sent, received), request| unsafe {
            raw::MPI_Iallgather(
                reading(sent),
                count(sent.len()),
                kind.as_raw(),
                writing(received),
                count(sent.len()),
                kind.as_raw(),
                self.handle,
                request,
            );
        })
    }

    /// Each rank's `sent`, in rank order. *Collective.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn all_gather_varied<T: Equivalence + Copy + Default>(
        &self,
        sent: &[T],
        what: &str,
    ) -> Result<Vec<Vec<T>>, Lost> {
        let to_all: Vec<&[T]> = vec![sent; self.size];
        self.exchange(&to_all, what)
    }

    /// Sends `sent[r]` to rank r and returns what every rank sent here, in rank order.
    /// *Collective.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn exchange<T: Equivalence + Copy + Default>(
        &self,
        sent: &[&[T]],
        what: &str,
    ) -> Result<Vec<Vec<T>>, Lost> {
        assert_eq!(sent.len(), self.size, "one list per rank");
        let lengths: Vec<u64> = sent.iter().map(|list| list.len() as u64).collect();
        let (_, arriving) =
            self.start_all_to_all(lengths, vec![0; self.size]).wait(self, what, false)?;
        let send_counts: Vec<usize> = sent.iter().map(|list| list.len()).collect();
        let receive_counts: Vec<usize> =
            arriving.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
        let received =
            self.all_to_all_varied(sent.concat(), &send_counts, &receive_counts, what)?;
        let mut rest = received.as_slice();
        let split = receive_counts.iter().map(|n| {
            let (head, tail) = rest.split_at(*n);
            rest = tail;
            head.to_vec()
        });
        Ok(split.collect())
    }

    /// `received[r]` becomes rank r's word for this one. *Collective.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn all_to_all(&self, sent: &[u64], received: &mut [u64], what: &str) -> Result<(), Lost> {
        let exchanging = self.start_all_to_all(sent.to_vec(), vec![0; received.len()]);
        received.copy_from_slice(&exchanging.wait(self, what, false)?.1);
        Ok(())
    }

    fn start_all_to_all(
        &self,
        sent: Vec<u64>,
        received: Vec<u64>,
    ) -> Pending<(Vec<u64>, Vec<u64>)> {
        assert!(sent.len() == self.size && received.len() == self.size, "one word per rank");
        let kind = u64::equivalent_datatype().as_raw();
        let each = || core::iter::repeat_n(size_of::<u64>(), self.size);
        self.meter.count(of_exchange(self.rank, each(), each()));
        // SAFETY: both buffers hold one word per rank, and stay until the operation is done.
        Pending::start((sent, received), |(sent, received), request| unsafe {
            raw::MPI_Ialltoall(
                reading(sent),
                1,
                kind,
                writing(received),
                1,
                kind,
                self.handle,
                request,
            );
        })
    }

    /// Stretch r of `sent` (lengths `send_counts`) goes to rank r; stretch r of what is returned
    /// (lengths `receive_counts`) comes from it. *Collective.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn all_to_all_varied<T: Equivalence + Copy + Default>(
        &self,
        sent: Vec<T>,
        send_counts: &[usize],
        receive_counts: &[usize],
        what: &str,
    ) -> Result<Vec<T>, Lost> {
        let stretches = [Stretches::new(send_counts), Stretches::new(receive_counts)];
        let arriving = vec![T::default(); receive_counts.iter().sum()];
        let exchanging = self.start_all_to_all_varied(sent, arriving, stretches);
        Ok(exchanging.wait(self, what, false)?.1)
    }

    /// `stretches` of `sent` and of `received`.
    fn start_all_to_all_varied<T: Equivalence>(
        &self,
        sent: Vec<T>,
        received: Vec<T>,
        stretches: [Stretches; 2],
    ) -> Pending<(Vec<T>, Vec<T>, [Stretches; 2])> {
        let [send, receive] = &stretches;
        assert_eq!(sent.len(), send.len(self.size), "send counts");
        assert_eq!(received.len(), receive.len(self.size), "receive counts");
        let kind = T::equivalent_datatype();
        self.meter.count(of_exchange(self.rank, send.bytes::<T>(), receive.bytes::<T>()));
        // SAFETY: counts and starts lie inside the buffers; buffers and counts stay until the
        // operation is done.
        Pending::start((sent, received, stretches), |(sent, received, stretches), request| unsafe {
            let [send, receive] = stretches;
            raw::MPI_Ialltoallv(
                reading(sent),
                send.counts.as_ptr(),
                send.starts.as_ptr(),
                kind.as_raw(),
                writing(received),
                receive.counts.as_ptr(),
                receive.starts.as_ptr(),
                kind.as_raw(),
                self.handle,
                request,
            );
        })
    }

    /// `received` becomes the concatenation of every rank's `sent`; `counts[r]` is rank r's length.
    /// *Collective; `counts` equal on all ranks.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn all_gather_stretches<T: Equivalence + Copy + Default>(
        &self,
        sent: &[T],
        received: &mut [T],
        counts: &[usize],
        what: &str,
    ) -> Result<(), Lost> {
        let arriving = vec![T::default(); received.len()];
        let receive = Stretches::new(counts);
        let gathering = self.start_all_gather_varied(sent.to_vec(), arriving, receive);
        received.copy_from_slice(&gathering.wait(self, what, false)?.1);
        Ok(())
    }

    /// `stretches` of `received`.
    fn start_all_gather_varied<T: Equivalence>(
        &self,
        sent: Vec<T>,
        received: Vec<T>,
        stretches: Stretches,
    ) -> Pending<(Vec<T>, Vec<T>, Stretches)> {
        assert_eq!(received.len(), stretches.len(self.size), "receive counts");
        assert_eq!(count(sent.len()), stretches.counts[self.rank], "own stretch");
        let kind = T::equivalent_datatype();
        let each = core::iter::repeat_n(size_of_val(&*sent), self.size);
        self.meter.count(of_exchange(self.rank, each, stretches.bytes::<T>()));
        // SAFETY: as in `start_all_to_all_varied`.
        Pending::start((sent, received, stretches), |(sent, received, stretches), request| unsafe {
            raw::MPI_Iallgatherv(
                reading(sent),
                count(sent.len()),
                kind.as_raw(),
                writing(received),
                stretches.counts.as_ptr(),
                stretches.starts.as_ptr(),
                kind.as_raw(),
                self.handle,
                request,
            );
        })
    }
}

impl Drop for Comm {
    /// The standard calls freeing collective; libraries do it without talking to other ranks.
    fn drop(&mut self) {
        if self.epoch != loss::epoch() || loss::has_happened() {
            // It may have operations that never end.
            return;
        }
        loss::remove(self.handle);
        let _alarm = Alarm::set(&self.watch, format!("MPI_Comm_free of {} ranks", self.size));
        // SAFETY: the handle is live and this was its only user.
        unsafe { raw::MPI_Comm_free(&raw mut self.handle) };
    }
}

/// Counts and starts of the stretches of a buffer, as MPI wants them.
struct Stretches {
    counts: Vec<i32>,
    starts: Vec<i32>,
}

impl Stretches {
    fn new(lengths: &[usize]) -> Self {
        let mut next = 0;
        let starts = lengths.iter().map(|length| (count(next), next += length).0).collect();
        Self { counts: lengths.iter().map(|length| count(*length)).collect(), starts }
    }

    /// Of all stretches together, one for each of `size` ranks.
    fn len(&self, size: usize) -> usize {
        assert!(self.counts.len() == size, "one stretch per rank");
        self.counts.iter().map(|length| usize::try_from(*length).unwrap_or(0)).sum()
    }

    /// Bytes of each, of elements `T`.
    fn bytes<T>(&self) -> impl Iterator<Item = usize> + '_ {
        self.counts.iter().map(|length| usize::try_from(*length).unwrap_or(0) * size_of::<T>())
    }
}

/// Where MPI reads. An empty slice points anywhere, of bytes to 1, which is MPI_IN_PLACE in Open
/// MPI.
const fn reading<T>(sent: &[T]) -> *const c_void {
    if sent.is_empty() { core::ptr::null() } else { sent.as_ptr().cast() }
}

/// Where MPI writes; see [`reading`].
const fn writing<T>(received: &mut [T]) -> *mut c_void {
    if received.is_empty() { core::ptr::null_mut() } else { received.as_mut_ptr().cast() }
}

/// MPI counts are `int`: the plan refuses batches whose messages could be longer.
fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or_else(|_| {
        panic!("a message of {n} elements; MPI counts end at {}", i32::MAX);
    })
}
