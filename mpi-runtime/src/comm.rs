//! Communicators with deadlines: the only unsafe code of the runtime.
//!
//! MPI 3.1 chapters 3 and 5. rsmpi's safe layer drops return codes and its collectives block without
//! end, so the calls made here are non-blocking ones through `mpi::ffi`, polled until they are done
//! or overdue. Errors stay fatal (MPI_ERRORS_ARE_FATAL, the default), so a call that returns has
//! succeeded. Waiting spins a little, then yields, then sleeps: ranks that share cores do not spin
//! against each other.
//!
//! Invariants: a [`Comm`] is made on the main thread, in one order on every rank, is used by one
//! thread, and is dropped before MPI is finalised. A buffer lent to MPI outlives its request: a wait
//! ends by completion or by ending the process.
#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::c_void;
use core::marker::PhantomData;
use std::collections::VecDeque;
use std::sync::Arc;

use mpi::ffi;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator, Equivalence};

use crate::watch::{Backoff, Waiting, Watch};

/// A communicator of its own for one thread.
pub struct Comm {
    inner: SimpleCommunicator,
    rank: usize,
    size: usize,
    watch: Arc<Watch>,
    /// MPICH's handle is an integer, which alone would make this Sync.
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: the handle is a pointer in Open MPI and an integer in MPICH; MPI allows its use from any
// thread under MPI_THREAD_MULTIPLE, which `World::init` demands, and a Comm is not Sync, so one
// thread uses it at a time.
unsafe impl Send for Comm {}

impl Comm {
    /// A duplicate of `parent`. *Collective over `parent`*, main thread only.
    #[must_use]
    pub fn duplicate(parent: &impl Communicator, watch: Arc<Watch>) -> Self {
        let inner = parent.duplicate();
        let rank = usize::try_from(inner.rank()).unwrap_or(0);
        let size = usize::try_from(inner.size()).unwrap_or(1);
        Self { inner, rank, size, watch, not_sync: PhantomData }
    }

    /// The ranks of `members` in a communicator of their own, `None` on the others.
    /// *Collective over this communicator*, main thread only; `members` equal on all ranks.
    #[must_use]
    pub fn subset(&self, members: core::ops::Range<usize>) -> Option<Self> {
        let color = if members.contains(&self.rank) {
            mpi::topology::Color::with_value(1)
        } else {
            mpi::topology::Color::undefined()
        };
        let inner = self.inner.split_by_color(color)?;
        let rank = usize::try_from(inner.rank()).unwrap_or(0);
        let size = usize::try_from(inner.size()).unwrap_or(1);
        let watch = Arc::clone(&self.watch);
        Some(Self { inner, rank, size, watch, not_sync: PhantomData })
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
        let mut request = null_request();
        // SAFETY: no buffers; the request is completed below.
        unsafe { ffi::MPI_Ibarrier(self.inner.as_raw(), &raw mut request) };
        self.complete(request, what, patient);
    }

    /// `received[r * n..][..n]` becomes rank r's `sent: [n]`. *Collective; n equal on all ranks.*
    pub fn all_gather<T: Equivalence>(&self, sent: &[T], received: &mut [T], what: &str) {
        assert_eq!(received.len(), sent.len() * self.size, "all-gather buffer of another length");
        let (kind, mut request) = (T::equivalent_datatype(), null_request());
        // SAFETY: both buffers hold the counts given, and outlive the request, completed below.
        unsafe {
            ffi::MPI_Iallgather(
                reading(sent),
                count(sent.len()),
                kind.as_raw(),
                writing(received),
                count(sent.len()),
                kind.as_raw(),
                self.inner.as_raw(),
                &raw mut request,
            );
        }
        self.complete(request, what, false);
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

    fn all_to_all(&self, sent: &[u64], received: &mut [u64], what: &str) {
        assert!(sent.len() == self.size && received.len() == self.size, "one word per rank");
        let (kind, mut request) = (u64::equivalent_datatype(), null_request());
        // SAFETY: both buffers hold one word per rank and outlive the request, completed below.
        unsafe {
            ffi::MPI_Ialltoall(
                reading(sent),
                1,
                kind.as_raw(),
                writing(received),
                1,
                kind.as_raw(),
                self.inner.as_raw(),
                &raw mut request,
            );
        }
        self.complete(request, what, false);
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
        assert!(send_counts.len() == self.size && receive_counts.len() == self.size);
        let (send, receive) = (Stretches::new(send_counts), Stretches::new(receive_counts));
        let (kind, mut request) = (T::equivalent_datatype(), null_request());
        // SAFETY: counts and displacements lie inside the buffers (asserted above); buffers and
        // count arrays outlive the request, completed below.
        unsafe {
            ffi::MPI_Ialltoallv(
                reading(sent),
                send.counts.as_ptr(),
                send.starts.as_ptr(),
                kind.as_raw(),
                writing(received),
                receive.counts.as_ptr(),
                receive.starts.as_ptr(),
                kind.as_raw(),
                self.inner.as_raw(),
                &raw mut request,
            );
        }
        self.complete(request, what, false);
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
        assert_eq!(sent.len(), counts[self.rank], "own stretch");
        assert_eq!(received.len(), counts.iter().sum::<usize>(), "receive counts");
        let receive = Stretches::new(counts);
        let (kind, mut request) = (T::equivalent_datatype(), null_request());
        // SAFETY: as in `all_to_all_varied`.
        unsafe {
            ffi::MPI_Iallgatherv(
                reading(sent),
                count(sent.len()),
                kind.as_raw(),
                writing(received),
                receive.counts.as_ptr(),
                receive.starts.as_ptr(),
                kind.as_raw(),
                self.inner.as_raw(),
                &raw mut request,
            );
        }
        self.complete(request, what, false);
    }

    /// Polls `request` until it is done; overdue, the process ends with a message.
    fn complete(&self, mut request: ffi::MPI_Request, what: &str, patient: bool) {
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        while !test(&mut request) {
            if !patient {
                waiting.check(&self.watch, &format_args!("{what} of {} ranks", self.size));
            }
            backoff.wait();
        }
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

/// Point-to-point messages of `u32` words between all ranks; messages to oneself stay in process.
pub struct Mailbox {
    comm: Comm,
    sending: Vec<Sending>,
    to_self: VecDeque<Vec<u32>>,
    spare: Vec<Vec<u32>>,
}

/// A message that MPI may still read.
struct Sending {
    request: ffi::MPI_Request,
    words: Vec<u32>,
}

// SAFETY: requests are handles like the communicator's; see `Comm`.
unsafe impl Send for Sending {}

impl Mailbox {
    /// A mailbox over a communicator of its own.
    #[must_use]
    pub const fn new(comm: Comm) -> Self {
        Self { comm, sending: vec![], to_self: VecDeque::new(), spare: vec![] }
    }

    /// The communicator's rank and size.
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
        let mut request = null_request();
        // SAFETY: `words` is kept beside its request until the request is done.
        unsafe {
            ffi::MPI_Isend(
                words.as_ptr().cast(),
                count(words.len()),
                u32::equivalent_datatype().as_raw(),
                count(to),
                TAG,
                self.comm.inner.as_raw(),
                &raw mut request,
            );
        }
        self.sending.push(Sending { request, words });
    }

    /// The next message that is here, with its sender; `None` if there is none. *Not collective.*
    pub fn receive(&mut self) -> Option<(usize, Vec<u32>)> {
        self.reclaim();
        if let Some(words) = self.to_self.pop_front() {
            return Some((self.comm.rank, words));
        }
        let (mut found, mut length) = (0, 0);
        let mut message = core::mem::MaybeUninit::uninit();
        let mut status = core::mem::MaybeUninit::<ffi::MPI_Status>::uninit();
        // SAFETY: all out-pointers are valid; message and status are read only if `found` is set,
        // when MPI has written them.
        let (from, handle) = unsafe {
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                TAG,
                self.comm.inner.as_raw(),
                &raw mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            );
            if found == 0 {
                return None;
            }
            let kind = u32::equivalent_datatype();
            ffi::MPI_Get_count(status.as_ptr(), kind.as_raw(), &raw mut length);
            (status.assume_init_ref().MPI_SOURCE, message.as_mut_ptr())
        };
        let mut words = self.buffer();
        words.resize(usize::try_from(length).unwrap_or(0), 0);
        // SAFETY: `handle` is the matched message; the buffer has the length MPI just reported.
        unsafe {
            ffi::MPI_Mrecv(
                words.as_mut_ptr().cast(),
                length,
                u32::equivalent_datatype().as_raw(),
                handle,
                status.as_mut_ptr(),
            );
        }
        Some((usize::try_from(from).unwrap_or(0), words))
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
            if test(&mut self.sending[at].request) {
                let done = self.sending.swap_remove(at);
                self.recycle(done.words);
            } else {
                at += 1;
            }
        }
    }
}

impl Drop for Mailbox {
    /// MPI must not be left with a pointer into freed memory.
    fn drop(&mut self) {
        let (mut waiting, mut backoff) = (Waiting::default(), Backoff::default());
        while self.sending() > 0 {
            waiting.check(&self.comm.watch, &"the last messages to be taken");
            backoff.wait();
        }
    }
}

const TAG: i32 = 0;
/// Spare buffers kept; more are freed.
const SPARE_MAX: usize = 64;

fn test(request: &mut ffi::MPI_Request) -> bool {
    let mut done = 0;
    // SAFETY: `request` is a live or null request; the ignored status is MPI's own constant.
    unsafe { ffi::MPI_Test(request, &raw mut done, ffi::RSMPI_STATUS_IGNORE) };
    done != 0
}

fn null_request() -> ffi::MPI_Request {
    // SAFETY: reads a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

/// Where MPI reads. An empty slice points anywhere, of bytes to 1, which is MPI_IN_PLACE in Open MPI.
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

/// Ends the job on every rank with this exit code. *Not collective.*
pub fn abort(code: i32) -> ! {
    // SAFETY: MPI_Abort may be called from any thread at MPI_THREAD_MULTIPLE; it does not return,
    // and if it did the process would end all the same.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
    std::process::exit(code)
}
