//! Non-blocking operations, and the buffers that MPI may use until they are done.
//!
//! MPI 3.1 section 3.7. A buffer belongs to its operation, which gives it back when it is done. An
//! operation that is given up keeps it for ever: a collective cannot be cancelled, and MPI may
//! still write, so that memory is never used again. That happens at most a few times in a process.

use core::mem::ManuallyDrop;

use super::{Comm, loss, raw};
use crate::comm::watch::{Backoff, Lost, Waiting};

/// A non-blocking operation: MPI may use its buffers until it is done.
#[repr(transparent)]
pub(super) struct Request(raw::MPI_Request);

// SAFETY: requests are handles like the communicator's; see `Comm`.
unsafe impl Send for Request {}

impl Request {
    /// The operation that `start` starts, which writes its handle where it is told.
    pub(super) fn of(start: impl FnOnce(*mut raw::MPI_Request)) -> Self {
        let mut handle = raw::no_request();
        start(&raw mut handle);
        Self(handle)
    }

    /// Whether it is done; stays so, unless a rank is lost: then nothing is.
    pub(super) fn is_done(&mut self) -> bool {
        let mut done = 0;
        // SAFETY: a live request or, once it was done, the null one, which is done.
        unsafe { raw::MPI_Test(&raw mut self.0, &raw mut done, raw::no_status()) };
        done != 0 && !loss::has_happened()
    }
}

/// An operation and what MPI may use meanwhile: vectors, whose memory stays where it is when they
/// are moved.
pub(super) struct Pending<B> {
    request: Request,
    lent: ManuallyDrop<B>,
}

impl<B> Pending<B> {
    /// Starts an operation on `lent`.
    pub(super) fn start(lent: B, start: impl FnOnce(&mut B, *mut raw::MPI_Request)) -> Self {
        Self::with(lent, |lent| Request::of(|request| start(lent, request)))
    }

    /// The operation on `lent` whose request `start` returns.
    pub(super) fn with(mut lent: B, start: impl FnOnce(&mut B) -> Request) -> Self {
        let request = start(&mut lent);
        Self { request, lent: ManuallyDrop::new(lent) }
    }

    /// Whether it is done; stays so.
    pub(super) fn is_done(&mut self) -> bool {
        self.request.is_done()
    }

    /// Polls until it is done, and gives the buffers back. `patient`: for as long as it takes.
    ///
    /// # Errors
    /// When it is overdue; the buffers are then left to MPI.
    pub(super) fn wait(mut self, comm: &Comm, what: &str, patient: bool) -> Result<B, Lost> {
        let (mut waiting, mut backoff) = (Waiting::patient(comm.grace), Backoff::default());
        while !self.is_done() {
            let what = format_args!("{what} of {} ranks", comm.size);
            if patient {
                Waiting::check_loss(&what)?;
            } else {
                waiting.check(&comm.watch, &what)?;
            }
            comm.pause(&mut backoff);
        }
        Ok(ManuallyDrop::into_inner(self.lent))
    }
}
