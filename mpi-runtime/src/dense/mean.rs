//! The mean of all replicas, taken once while no worker trains.

use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{Conductor, ModelAverage, Rounds};

use crate::comm::Comm;
use crate::dense::driver::drive;
use crate::dense::endpoints::{DriveError, Endpoints};
use crate::dense::seat::{Seat, Workers};
use crate::error::Error;
use crate::measure::counters::RoundCounters;
use crate::measure::trace::Track;

/// Makes every trainer's replica the mean of all, bit for bit the same. *Collective over `comm`.*
///
/// # Errors
/// A defect of the protocol, or a trainer that is lost.
pub fn average_once(comm: &mut Comm, replica: &[AtomicU32]) -> Result<(), Error> {
    // Workers wait for it: it may have their cores.
    comm.set_poll(None);
    let mut staging = vec![0.0; replica.len() + TAIL];
    let watch = Arc::clone(comm.watch());
    let ends = Endpoints { comm: Some(comm), ..Endpoints::none(&watch) };
    let mut machine = ModelAverage::once(&mut staging);
    let seat = Seat {
        number: 0,
        machine: &mut machine,
        replica,
        workers: Workers::None,
        conductor: Conductor::new(Rounds::Never, 0),
        counters: &RoundCounters::default(),
        track: Track::of(None, ""),
    };
    match drive(vec![seat], ends) {
        Ok(_) => Ok(()),
        Err(DriveError::Lost(lost)) => Err(lost.into()),
        Err(defect) => Err(Error::Failure(defect.to_string())),
    }
}
