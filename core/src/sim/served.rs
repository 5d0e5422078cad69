//! A parameter server on a cluster: workers, servers and the dispatcher.
//!
//! | instance | node |
//! | --- | --- |
//! | of a worker | its trainer's |
//! | server s, dispatcher | as centers; the dispatcher comes behind the last server |
//! | relay | the dispatcher's: rows are one store, which hears of it at once |

use alloc::vec;
use alloc::vec::Vec;

use super::cluster::Cluster;
use super::instance::{Instance, Seat, Training};
use super::method::{Job, Simulated, center_node};
use super::outcome::SimError;
use super::run::run;
use crate::dense::replica::load;
use crate::sync::owned::{OwnedDispatcher, OwnedShard};
use crate::sync::reduction::TAIL;
use crate::sync::server::{Dispatcher, Relay, Shard};
use crate::sync::token::{Coordinator, Streams};
use crate::sync::{Machine, Part, Protocol, Serving};

/// Runs the batches of all workers, each as many steps as the first trainer has, until all are
/// applied or dropped.
///
/// # Errors
/// As [`run`].
pub(super) fn simulate<'c>(
    cluster: &'c Cluster,
    job: &Job<'_>,
    serving: Serving,
    training: Training<'c>,
    trace: bool,
) -> Result<Simulated, SimError> {
    let Job { method, replica_bytes, parameters, steps: of_data } = *job;
    let trainers = cluster.trainers.len();
    let first = cluster.trainers.first();
    let (workers, steps) = first.map_or((1, 0), |trainer| (trainer.workers, trainer.steps));
    let all = method.instances(trainers, workers);
    let servers = serving.servers();
    let (first_server, workers) = (all.center(0), trainers * workers);
    // Over other streams than workers the same batches, or a few less.
    let streams = if serving.streams > 0 { serving.streams } else { workers };
    let steps = of_data.unwrap_or(steps * workers as u64 / streams as u64);
    let dispatcher = method.dispatcher(all);
    let elements = training.replicas.first().map_or(0, |replica| replica.len());
    let mut initial = vec![0.0; elements];
    if let Some(replica) = training.replicas.first() {
        load(replica, &mut initial);
    }
    let pieces: Vec<_> = (0..servers).map(|server| method.slice(server, elements)).collect();
    let own = |piece: &core::ops::Range<usize>| {
        let parameters = parameters.clamp(piece.start, piece.end) - piece.start;
        let values = &initial[piece.clone()];
        let shard = OwnedShard::new(serving.updates.optimizer, values, parameters, workers);
        (shard, parameters)
    };
    let mut shards: Vec<(OwnedShard, usize)> = pieces.iter().map(own).collect();
    let mut desk = OwnedDispatcher::new(workers, serving.places(workers), streams);
    let mut staging = vec![vec![0.0; elements + TAIL]; workers];
    let mut machines: Vec<Machine<'_>> = Vec::with_capacity(all.len());
    for staging in &mut staging {
        machines.extend(method.worker(staging, all));
    }
    for (shard, parameters) in &mut shards {
        let shard = Shard::new(shard.lend(), serving.updates, *parameters, dispatcher, 0);
        machines.push(Machine::Shard(shard));
    }
    let relay = || Machine::Relay(Relay::new(dispatcher, 0));
    machines.extend((0..serving.relays).map(|_| relay()));
    let OwnedDispatcher { workers: known, under_way, given, asking, tally } = &mut desk;
    let streams = Streams::new(given, 0..steps, serving.window);
    let coordinator = Coordinator::new(serving.rule, streams, (0, 0), known, under_way);
    let machine = Dispatcher::new(coordinator, asking, tally, first_server..dispatcher);
    machines.push(Machine::Dispatcher(machine));
    let bytes = |server: usize| {
        let at = |i: usize| replica_bytes * i as u64 / servers as u64;
        at(server + 1) - at(server)
    };
    let instances = machines.iter_mut().enumerate().map(|(number, machine)| {
        let (seat, slice, bytes) = match all.part(number) {
            Part::Trainer { trainer, gate, .. } => {
                (Seat::Trainer { trainer, gate }, 0..elements, replica_bytes)
            }
            Part::Center { slice } => {
                let node = center_node(cluster, slice.min(servers));
                let piece = pieces.get(slice).cloned().unwrap_or(0..0);
                let bytes = if slice < servers { bytes(slice) } else { 0 };
                (Seat::Center { node }, piece, bytes)
            }
        };
        let (rounds, channel, dealing) = (method.rounds, 0, None);
        let protocol: &mut dyn Protocol = machine;
        Instance { protocol, seat, rounds, channel, dealing, slice, bytes }
    });
    let outcome = run(cluster, instances.collect(), training, trace)?;
    drop(machines);
    let center = shards.into_iter().flat_map(|(shard, _)| shard.values).collect();
    Ok(Simulated { outcome, center, tally: desk.tally })
}
