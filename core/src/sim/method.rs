//! A synchronization method on a cluster: which of its instances run where.
//!
//! | instance | node |
//! | --- | --- |
//! | of a trainer | the trainer's |
//! | center of slice s | sync PS s mod n of n, or trainer s mod n of n when there are no sync PSs |
//!
//! Those of a parameter server: `served.rs`.

use alloc::vec::Vec;

use super::cluster::Cluster;
use super::instance::{Instance, Seat, Training};
use super::outcome::{Outcome, SimError};
use super::run::run;
use super::served;
use crate::dense::replica::load;
use crate::sync::owned::Owned;
use crate::sync::server::Tally;
use crate::sync::{Machine, Method, Part};

/// What a method synchronizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job<'a> {
    /// How replicas stay together.
    pub method: Method<'a>,
    /// Bytes of a replica, all of which a round moves.
    pub replica_bytes: u64,
    /// Elements that are parameters; running statistics follow them. Not used where only time is
    /// simulated.
    pub parameters: usize,
    /// Where batches are handed out: steps of the data, of each stream; else as many batches as all
    /// workers would make.
    pub steps: Option<u64>,
}

/// A run of a method.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Its figures.
    pub outcome: Outcome,
    /// The center as it ended, all slices; empty without one and where only time is simulated.
    pub center: Vec<f32>,
    /// What became of gradients; empty without a parameter server.
    pub tally: Tally,
}

/// The node of the center with this number.
pub(super) fn center_node(cluster: &Cluster, number: usize) -> usize {
    let (trainers, sync_ps) = (cluster.trainers.len(), cluster.sync_ps.len());
    if sync_ps == 0 { number % trainers } else { trainers + number % sync_ps }
}

/// Runs a method until every worker has made its steps; the arguments are those of [`run`].
///
/// # Errors
/// As [`run`].
pub fn simulate<'c>(
    cluster: &'c Cluster,
    job: &Job<'_>,
    training: Training<'c>,
    trace: bool,
) -> Result<Simulated, SimError> {
    let Job { method, replica_bytes, parameters, .. } = *job;
    if let Some(serving) = method.serving() {
        return served::simulate(cluster, job, serving, training, trace);
    }
    let trainers = cluster.trainers.len();
    let workers = cluster.trainers.first().map_or(1, |trainer| trainer.workers);
    let all = method.instances(trainers, workers);
    let first = training.replicas.first();
    let elements = first.map_or(0, |replica| replica.len());
    let mut initial = alloc::vec![0.0; elements];
    if let Some(replica) = first {
        load(replica, &mut initial);
    }
    let pieces: Vec<_> = (0..all.slices).map(|slice| method.slice(slice, elements)).collect();
    let mut memory: Vec<Owned> = (0..all.len())
        .map(|number| match all.part(number) {
            Part::Trainer { slice, .. } => {
                let piece = pieces[slice].clone();
                Owned::new(method.sizes(piece.len(), trainers), &initial[piece])
            }
            Part::Center { slice } => {
                let piece = pieces[slice].clone();
                Owned::new(method.center_sizes(piece.len()), &initial[piece])
            }
        })
        .collect();
    let mut machines: Vec<Machine<'_>> = Vec::with_capacity(memory.len());
    for (number, memory) in memory.iter_mut().enumerate() {
        let (scratch, memory) = memory.lend();
        machines.extend(match all.part(number) {
            Part::Trainer { slice, .. } => {
                let piece = &pieces[slice];
                let parameters = parameters.clamp(piece.start, piece.end) - piece.start;
                method.trainer(scratch, memory, all.center(slice), parameters)
            }
            Part::Center { .. } => method.center(scratch, memory, all.trainers * all.gates),
        });
    }
    let bytes = |slice: usize| {
        let at = |i: usize| replica_bytes * i as u64 / all.slices as u64;
        at(slice + 1) - at(slice)
    };
    let instances = machines.iter_mut().enumerate().map(|(number, machine)| {
        let (slice, seat) = match all.part(number) {
            Part::Trainer { trainer, slice, gate } => (slice, Seat::Trainer { trainer, gate }),
            Part::Center { slice } => (slice, Seat::Center { node: center_node(cluster, slice) }),
        };
        Instance {
            protocol: machine,
            seat,
            rounds: method.rounds.of_slice(all.slices),
            #[expect(clippy::cast_possible_truncation, reason = "slices are few")]
            channel: slice as u32,
            dealing: method.dealing(),
            slice: pieces[slice].clone(),
            bytes: bytes(slice),
        }
    });
    let outcome = run(cluster, instances.collect(), training, trace)?;
    drop(machines);
    let centers = memory.split_off(memory.len() - all.centers);
    let center = centers.into_iter().flat_map(|center| center.global).collect();
    Ok(Simulated { outcome, center, tally: Tally::EMPTY })
}
