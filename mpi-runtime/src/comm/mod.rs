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
//! - `mailbox.rs`: point-to-point messages · `first.rs`: bytes to the first rank, and from it
//! - [`reduce`]: sums, by `doubling.rs` in few messages, by `piece.rs` straight from all to all
//!
//! Invariants: a [`Comm`] is made on the main thread, in one order on every rank, is used by one
//! thread, and is dropped before MPI is finalised. A buffer lent to MPI outlives its request: a
//! wait ends by completion or by ending the process.
#![allow(unsafe_code)]

mod doubling;
mod first;
pub mod guard;
mod mailbox;
mod piece;
pub mod post;
mod raw;
pub mod reduce;
pub mod watch;

use core::cell::Cell;
use core::ffi::c_void;
use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

use mpi::traits::{AsRaw, Equivalence};

use crate::comm::watch::{Backoff, LOOK, Waiting, Watch};

pub use first::ToFirst;
pub use mailbox::Mailbox;
pub(crate) use piece::{Buffers, Piece};

/// A communicator of its own for one thread.
pub struct Comm {
    handle: raw::MPI_Comm,
    rank: usize,
    size: usize,
    /// Time between two looks of a wait; `None` for [`Backoff`].
    poll: Option<Duration>,
    watch: Arc<Watch>,
    /// MPICH's handle is an integer, which alone would make this Sync.
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: the handle is a pointer in Open MPI and an integer in MPICH; MPI allows its use from any
// thread when calls keep to the thread level, as those of `raw` do, and a Comm is not Sync, so one
// thread uses it at a time.
unsafe impl Send for Comm {}

impl Comm {
    /// All ranks, in a communicator of its own. *Collective over all processes*, main thread only,
    /// while a `World` is there.
    #[must_use]
    pub(crate) fn of_all_ranks(watch: Arc<Watch>) -> Self {
        // Creation blocks, for moments when all ranks have come; they meet as others do first.
        let world = core::mem::ManuallyDrop::new(Self::new(raw::world(), watch));
        world.barrier("a communicator", false);
        let mut handle = raw::no_comm();
        // SAFETY: the handle is the world's, the out-pointer is valid.
        unsafe { raw::MPI_Comm_dup(world.handle, &raw mut handle) };
        Self::new(handle, Arc::clone(&world.watch))
    }

    /// The ranks of `members` in a communicator of their own, `None` on the others.
    /// *Collective over this communicator*, main thread only; `members` equal on all ranks.
    #[must_use]
    pub fn subset(&self, members: core::ops::Range<usize>) -> Option<Self> {
        self.barrier("a communicator", false);
        let member = members.contains(&self.rank);
        let color = if member { 1 } else { raw::undefined() };
        let mut handle = raw::no_comm();
        // SAFETY: the handle is live, the out-pointer is valid.
        unsafe { raw::MPI_Comm_split(self.handle, color, 0, &raw mut handle) };
        member.then(|| Self::new(handle, Arc::clone(&self.watch)))
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
            watch,
            not_sync: PhantomData,
        }
    }

    /// From now on a wait looks, sleeps this long at first, and looks again ([`Backoff::rest`]).
    /// For threads in the background, which must not cost workers their cores. At most [`LOOK`].
    /// `None` is the beginning again: spins, yields, then sleeps.
    pub fn set_poll(&mut self, poll: Option<Duration>) {
        self.poll = poll.map(|poll| poll.min(LOOK));
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

    /// Waits for all ranks; `patient` waits without a deadline (a rank with nothing to do while
    /// others train). *Collective.*
    pub fn barrier(&self, what: &str, patient: bool) {
        // SAFETY: no buffers.
        let request = Request::of(|request| unsafe { raw::MPI_Ibarrier(self.handle, request) });
        self.complete(request, what, patient);
    }

    /// `received[r * n..][..n]` becomes rank r's `sent: [n]`. *Collective; n equal on all ranks.*
    pub fn all_gather<T: Equivalence>(&self, sent: &[T], received: &mut [T], what: &str) {
        let request = self.start_all_gather(sent, received);
        self.complete(request, what, false);
    }

    /// Starts what the caller completes, with both buffers alive until then.
    fn start_all_gather<T: Equivalence>(&self, sent: &[T], received: &mut [T]) -> Request {
        assert_eq!(received.len(), sent.len() * self.size, "all-gather buffer of another length");
        let kind = T::equivalent_datatype();
        // SAFETY: both buffers hold the counts given, and outlive the request by the caller's duty.
        Request::of(|request| unsafe {
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
    #[must_use]
    pub fn all_gather_varied<T: Equivalence + Copy + Default>(
        &self,
        sent: &[T],
        what: &str,
    ) -> Vec<Vec<T>> {
        let to_all: Vec<&[T]> = vec![sent; self.size];
        self.exchange(&to_all, what)
    }

    /// Sends `sent[r]` to rank r and returns what every rank sent here, in rank order.
    /// *Collective.*
    #[must_use]
    pub fn exchange<T: Equivalence + Copy + Default>(
        &self,
        sent: &[&[T]],
        what: &str,
    ) -> Vec<Vec<T>> {
        assert_eq!(sent.len(), self.size, "one list per rank");
        let lengths: Vec<u64> = sent.iter().map(|list| list.len() as u64).collect();
        let mut arriving = vec![0u64; self.size];
        self.all_to_all(&lengths, &mut arriving, what);
        let flat: Vec<T> = sent.concat();
        let send_counts: Vec<usize> = sent.iter().map(|list| list.len()).collect();
        let receive_counts: Vec<usize> =
            arriving.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
        let mut received = vec![T::default(); receive_counts.iter().sum()];
        self.all_to_all_varied(&flat, &send_counts, &mut received, &receive_counts, what);
        let mut rest = received.as_slice();
        receive_counts
            .iter()
            .map(|n| {
                let (head, tail) = rest.split_at(*n);
                rest = tail;
                head.to_vec()
            })
            .collect()
    }

    /// `received[r]` becomes rank r's word for this one. *Collective.*
    pub fn all_to_all(&self, sent: &[u64], received: &mut [u64], what: &str) {
        let request = self.start_all_to_all(sent, received);
        self.complete(request, what, false);
    }

    /// Starts what the caller completes, with both buffers alive until then.
    fn start_all_to_all(&self, sent: &[u64], received: &mut [u64]) -> Request {
        assert!(sent.len() == self.size && received.len() == self.size, "one word per rank");
        let kind = u64::equivalent_datatype().as_raw();
        // SAFETY: both buffers hold one word per rank; they outlive the request by the caller's
        // duty.
        Request::of(|request| unsafe {
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

    /// Stretch r of `sent` (lengths `send_counts`) goes to rank r; stretch r of `received` comes
    /// from it. *Collective.*
    pub fn all_to_all_varied<T: Equivalence>(
        &self,
        sent: &[T],
        send_counts: &[usize],
        received: &mut [T],
        receive_counts: &[usize],
        what: &str,
    ) {
        assert_eq!(sent.len(), send_counts.iter().sum::<usize>(), "send counts");
        assert_eq!(received.len(), receive_counts.iter().sum::<usize>(), "receive counts");
        let stretches = [Stretches::new(send_counts), Stretches::new(receive_counts)];
        let request = self.start_all_to_all_varied(sent, received, &stretches);
        self.complete(request, what, false);
    }

    /// Starts what the caller completes, with both buffers and `stretches` (of `sent`, of
    /// `received`, whose lengths they add up to) alive until then.
    fn start_all_to_all_varied<T: Equivalence>(
        &self,
        sent: &[T],
        received: &mut [T],
        [send, receive]: &[Stretches; 2],
    ) -> Request {
        assert!(send.counts.len() == self.size && receive.counts.len() == self.size);
        let kind = T::equivalent_datatype();
        // SAFETY: counts and displacements lie inside the buffers; buffers and count arrays outlive
        // the request, by the caller's duty.
        Request::of(|request| unsafe {
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
    pub fn all_gather_stretches<T: Equivalence>(
        &self,
        sent: &[T],
        received: &mut [T],
        counts: &[usize],
        what: &str,
    ) {
        let receive = Stretches::new(counts);
        let request = self.start_all_gather_varied(sent, received, counts, &receive);
        self.complete(request, what, false);
    }

    /// Starts what the caller completes, with both buffers and `receive` alive until then.
    fn start_all_gather_varied<T: Equivalence>(
        &self,
        sent: &[T],
        received: &mut [T],
        counts: &[usize],
        receive: &Stretches,
    ) -> Request {
        assert_eq!(sent.len(), counts[self.rank], "own stretch");
        assert_eq!(received.len(), counts.iter().sum::<usize>(), "receive counts");
        let kind = T::equivalent_datatype();
        // SAFETY: as in `start_all_to_all_varied`.
        Request::of(|request| unsafe {
            raw::MPI_Iallgatherv(
                reading(sent),
                count(sent.len()),
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

    /// Polls `request` until it is done; overdue, the process ends with a message.
    fn complete(&self, mut request: Request, what: &str, patient: bool) {
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        while !request.is_done() {
            if !patient {
                self.watch.or_end(
                    waiting.check(&self.watch, &format_args!("{what} of {} ranks", self.size)),
                );
            }
            self.pause(&mut backoff);
        }
    }
}

impl Drop for Comm {
    /// The standard calls freeing collective; libraries do it without talking to other ranks.
    fn drop(&mut self) {
        // SAFETY: the handle is live and this was its only user.
        unsafe { raw::MPI_Comm_free(&raw mut self.handle) };
    }
}

/// A non-blocking operation: MPI may use its buffers until it is done.
struct Request(raw::MPI_Request);

// SAFETY: requests are handles like the communicator's; see `Comm`.
unsafe impl Send for Request {}

impl Request {
    /// The operation that `start` starts, which writes its handle where it is told.
    fn of(start: impl FnOnce(*mut raw::MPI_Request)) -> Self {
        let mut handle = raw::no_request();
        start(&raw mut handle);
        Self(handle)
    }

    /// Whether it is done; stays so.
    fn is_done(&mut self) -> bool {
        let mut done = 0;
        // SAFETY: a live request or, once it was done, the null one, which is done.
        unsafe { raw::MPI_Test(&raw mut self.0, &raw mut done, raw::no_status()) };
        done != 0
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

/// Ends the job on every rank with this exit code. *Not collective, from any thread.*
pub fn abort(code: i32) -> ! {
    raw::abort(code)
}
