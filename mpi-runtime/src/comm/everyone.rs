//! All ranks that are left: what communicators are made of.

use core::mem::ManuallyDrop;
use core::time::Duration;
use std::sync::Arc;

use super::pending::Pending;
use super::raw::{self, FaultTolerance};
use super::watch::{Lost, Watch};
use super::{Alarm, Comm, loss};

/// All ranks of an epoch.
pub struct Everyone(raw::MPI_Comm);

impl Everyone {
    /// The ranks that a job begins with. *Not collective*, main thread only, once MPI has been
    /// started.
    pub(crate) fn at_first() -> Self {
        let world = raw::world();
        loss::add(world);
        Self(world)
    }

    /// A communicator of its own. *Collective over all ranks*, main thread only.
    ///
    /// # Errors
    /// When not all ranks come.
    pub(crate) fn communicator(&self, watch: Arc<Watch>) -> Result<Comm, Lost> {
        let all = self.lent(watch);
        // SAFETY: the handle is live; the new one's place stays until the operation is done.
        let made = Pending::start(vec![raw::no_comm()], |new, request| unsafe {
            raw::MPI_Comm_idup(all.handle, new.as_mut_ptr(), request);
        });
        let handle = made.wait(&all, "a communicator", false)?[0];
        loss::add(handle);
        Ok(Comm::new(handle, Arc::clone(&all.watch)))
    }

    /// This process among them, and how many they are. *Not collective.*
    pub(crate) fn place(&self, watch: &Arc<Watch>) -> (usize, usize) {
        let all = self.lent(Arc::clone(watch));
        (all.rank, all.size)
    }

    /// The communicator itself, which is never freed.
    fn lent(&self, watch: Arc<Watch>) -> ManuallyDrop<Comm> {
        ManuallyDrop::new(Comm::new(self.0, watch))
    }

    /// Those that are left after a loss: the next epoch begins. `None` when the library can't say
    /// who they are. *Collective over those left*, main thread only; every other thread that used
    /// MPI has ended.
    pub(crate) fn left(&self, watch: &Arc<Watch>) -> Option<Self> {
        let library = FaultTolerance::get()?;
        // Who has not heard of the loss yet hears of it now.
        // SAFETY: the handle is live.
        unsafe { library.revoke(self.0) };
        let soon = Watch::new(watch.limit().min(LONGEST), watch.prefix().to_owned());
        let _alarm = Alarm::set(&Arc::new(soon), "the ranks that are left".into());
        // SAFETY: as above.
        let left = unsafe { library.shrink(self.0) };
        if left == raw::no_comm() {
            return None;
        }
        loss::begin_epoch();
        loss::add(left);
        Some(Self(left))
    }
}

impl Comm {
    /// This rank alone. *Not collective*, main thread only, once MPI has been started.
    ///
    /// # Errors
    /// When it is not made in time.
    pub(crate) fn alone(watch: Arc<Watch>) -> Result<Self, Lost> {
        Everyone(raw::itself()).communicator(watch)
    }
}

/// For those left to find each other; it takes milliseconds. One more that is lost meanwhile is not
/// always noticed.
const LONGEST: Duration = Duration::from_secs(10);
