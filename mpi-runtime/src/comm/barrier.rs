//! A barrier of messages, for where the loss of a rank is survived.
//!
//! Hensgen, Finkel, Manber: "Two algorithms for barrier synchronization", International Journal of
//! Parallel Programming 17 (1988): in round k every rank sends to the one 2^k behind it.
//!
//! Ranks that wait for others to train wait here, so that here is where most losses find them. The
//! library's own non-blocking barrier gives such a one up by freeing what it has sent, and ends the
//! process when that can't be delivered (Open MPI 5: "send error after request freed").

use super::Comm;
use super::pending::Pending;
use crate::comm::watch::Lost;

impl Comm {
    /// Waits for all ranks. *Collective.*
    ///
    /// # Errors
    /// When not all come in time, or one is lost.
    pub(super) fn barrier_of_messages(&self, what: &str, patient: bool) -> Result<(), Lost> {
        let rounds = (0..usize::BITS).map(|round| 1 << round);
        for (distance, tag) in rounds.take_while(|distance| *distance < self.size).zip(TAG..) {
            let to = (self.rank + distance) % self.size;
            let from = (self.rank + self.size - distance) % self.size;
            let coming = Pending::with((), |()| self.start_receive::<u8>(from, tag, &mut []));
            let going = Pending::with((), |()| self.start_send::<u8>(to, tag, &[]));
            coming.wait(self, what, patient)?;
            self.meter.received(0);
            going.wait(self, what, patient)?;
        }
        Ok(())
    }
}

/// Of the first round; beyond the tag of `first.rs`.
const TAG: i32 = (1 << 14) + 1;
