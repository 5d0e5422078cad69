//! The loss of a rank, where the MPI library survives it.
//!
//! User-Level Failure Mitigation (Bland, Bouteiller, Herault, Bosilca, Dongarra: "Post-failure
//! recovery of MPI communication capability", IJHPCA 27, 2013): calls that need a dead rank return
//! errors, a communicator can be revoked, and those left can make one of their own.
//!
//! A rank that hears of a loss, from whichever call on whichever thread, revokes every communicator
//! that it has. So all ranks hear of it, in whatever they wait for: every wait of every thread
//! becomes an error. A thread that cannot go on unwinds ([`Watch::end_job`]), without the panic
//! hook, up to [`survive`] on the main thread, which is left with what the threads owned.
//!
//! Invariants: nothing that came through MPI after a loss was heard of is believed. Communicators
//! and operations of before are left as they are: never freed, never looked at. The next epoch
//! begins when all threads of the last have ended.
//!
//! [`Watch::end_job`]: super::watch::Watch::end_job

use core::ffi::c_int;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::raw::{self, FaultTolerance};

/// How often ranks were lost before.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// A rank of this epoch is lost.
static LOST: AtomicBool = AtomicBool::new(false);
/// What runs now is to be survived.
static SURVIVES: AtomicBool = AtomicBool::new(false);
/// Communicators of this epoch.
static LIVE: Mutex<Vec<Handle>> = Mutex::new(vec![]);

struct Handle(raw::MPI_Comm);

// SAFETY: as of `Comm`: a handle may be used from any thread.
unsafe impl Send for Handle {}

/// A rank was lost, and the work was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankLost;

/// Whether this program survives the loss of a rank on the MPI library that it runs on, as that was
/// started. *Not collective; once MPI has been started.*
#[must_use]
pub fn is_survivable() -> bool {
    FaultTolerance::get().is_some()
}

/// Whether a rank of this epoch is lost, as far as this one has heard.
#[must_use]
pub fn has_happened() -> bool {
    LOST.load(Ordering::Acquire)
}

/// Whether the job goes on without the rank that is lost: whoever cannot go on now unwinds, and
/// nothing that follows from the loss ends the job.
#[must_use]
pub fn is_survived() -> bool {
    has_happened() && SURVIVES.load(Ordering::Acquire)
}

/// How often ranks were lost before.
#[must_use]
pub fn epoch() -> u64 {
    EPOCH.load(Ordering::Acquire)
}

/// Does `work`, which is given up when a rank is lost: its threads unwind, whenever they hear of
/// it, until the next epoch begins. *Main thread only.*
///
/// # Errors
/// When a rank was lost.
pub fn survive<T>(work: impl FnOnce() -> T) -> Result<T, RankLost> {
    SURVIVES.store(is_survivable(), Ordering::Release);
    // What it leaves half done is not gone on with, but for what is said to be whole.
    let done = catch_unwind(AssertUnwindSafe(work));
    match done {
        Ok(done) if !has_happened() => {
            SURVIVES.store(false, Ordering::Release);
            Ok(done)
        }
        // Another thread has heard of it already.
        Ok(_) | Err(_) if is_survived() => Err(RankLost),
        Ok(done) => Ok(done),
        Err(panic) => resume_unwind(panic),
    }
}

/// Leaves this thread's work, which has become impossible. Only where the loss [`is_survived`].
pub(super) fn unwind() -> ! {
    resume_unwind(Box::new(RankLost))
}

/// All threads of the epoch have ended: the next one begins, with communicators of its own.
pub(super) fn begin_epoch() {
    live().clear();
    SURVIVES.store(false, Ordering::Release);
    EPOCH.fetch_add(1, Ordering::AcqRel);
    LOST.store(false, Ordering::Release);
}

/// What a call of MPI has returned. Only a loss makes a call fail (every other error is a defect of
/// ours, of which those left would learn that nobody is lost).
pub(super) fn hear(code: c_int) {
    if code == 0 || LOST.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(library) = FaultTolerance::get() else { return };
    for Handle(comm) in live().iter() {
        // SAFETY: those of this epoch are live, or were freed after they were taken out.
        unsafe { library.revoke(*comm) };
    }
}

/// A communicator of this epoch has been made.
pub(super) fn add(comm: raw::MPI_Comm) {
    if is_survivable() {
        // SAFETY: it is live.
        unsafe { raw::return_errors(comm) };
        live().push(Handle(comm));
    }
}

/// It is about to be freed.
pub(super) fn remove(comm: raw::MPI_Comm) {
    live().retain(|Handle(other)| *other != comm);
}

fn live() -> MutexGuard<'static, Vec<Handle>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}
