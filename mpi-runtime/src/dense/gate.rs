//! The gate of a foreground method: workers that have made so many steps wait here while a round
//! runs.
//!
//! Invariant: the last worker to come knocks at the driver of every slice of the replica, and all
//! go on when every one of them has answered; a worker that was asked to stop takes all of its
//! trainer along, without a round.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use crate::comm::watch::{Lost, Watch};
use crate::dense::meeting::Meeting;

/// The workers' end of the gate of a foreground protocol.
pub struct Gate {
    group: Meeting<bool>,
    knocks: Vec<Sender<()>>,
    opens: Vec<Receiver<()>>,
}

impl Gate {
    /// A gate for `workers` threads; the other ends are the drivers', one for each slice of the
    /// replica.
    #[must_use]
    pub fn new(
        workers: usize,
        knocks: Vec<Sender<()>>,
        opens: Vec<Receiver<()>>,
        watch: &Arc<Watch>,
    ) -> Self {
        Self { group: Meeting::new(workers, Arc::clone(watch)), knocks, opens }
    }

    /// Waits while the protocols run a round. True when a worker was asked to stop: all of this
    /// trainer stop, without a round.
    ///
    /// # Errors
    /// When the other workers do not come, or the round does not end, in time.
    pub fn pass(&self, worker: usize, stop: bool, watch: &Watch) -> Result<bool, Lost> {
        self.group.meet(worker, stop, "the gate of a synchronization", |stops| {
            if stops.contains(&true) {
                stops.fill(true);
                return Ok(());
            }
            let knocked = self.knocks.iter().all(|knock| knock.send(()).is_ok());
            for open in &self.opens {
                let open = watch.receive(open, &"a synchronization round")?;
                let ended = "the dense communicator thread has ended before a round";
                assert!(knocked && open.is_some(), "{ended}");
            }
            Ok(())
        })
    }
}
