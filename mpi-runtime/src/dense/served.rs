//! Training on parameter servers: what this rank has of it, and its threads for a stretch.
//!
//! GBA, arXiv 2205.11048, and its kin (`umbra_core::sync::server`). Every worker has a replica of
//! its own, which it fetches for every batch; the servers own the parameters and their optimizer
//! state, a slice each; the dispatcher is beside the first of them.
//!
//! Invariants: one thread of a rank drives all its protocols. Between two stretches every gradient
//! that was brought is applied or dropped, and values, state and version of all servers are of one
//! moment.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::io;

use umbra_core::dense::replica::load;
use umbra_core::sync::owned::{OwnedDispatcher, OwnedShard};
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::server::{Dispatcher, Reached, Relay, Shard, Tally};
use umbra_core::sync::token::{Coordinator, Streams};
use umbra_core::sync::{
    Action, Completion, Conductor, Instances, Machine, Method, OutOfTurn, Part, Protocol, Rounds,
    Serving,
};

use crate::dense::driver::drive;
use crate::dense::endpoints::Endpoints;
use crate::dense::hand::{Desk, Hand};
use crate::dense::replica_sync::{StepEnd, Stretch};
use crate::dense::seat::{Gaps, Seat, Workers};
use crate::launch::processor::Pins;
use crate::launch::roles::Roles;
use crate::measure::counters::{Counters, GradientCounters, GradientReading};
use crate::measure::trace::{Trace, Track};
use crate::memory::Words;

/// This rank's part.
pub struct Served {
    method: Method<'static>,
    serving: Serving,
    all: Instances,
    /// Instances of this rank's workers, their staging and their replicas.
    own: Vec<(usize, Vec<f32>, Words)>,
    /// Slices that this rank serves.
    shards: Vec<OwnShard>,
    /// Instances of this rank's relays.
    relays: Vec<usize>,
    /// On the rank of the dispatcher.
    desk: Option<OwnedDispatcher>,
    /// Aggregates applied so far.
    version: u64,
    reached: Reached,
}

struct OwnShard {
    slice: usize,
    owned: OwnedShard,
    parameters: usize,
}

/// What a rank has left of servers and workers.
#[derive(Clone, Debug, Default)]
pub struct Remains {
    /// Slices: number, values, and the planes of their state one after the other.
    pub slices: Vec<(usize, Vec<f32>, Vec<f32>)>,
    /// The replica that a worker trained with last. `[replica_len]`
    pub trained_with: Option<Vec<f32>>,
}

/// A stretch of training as servers see it.
#[derive(Clone, Copy, Debug)]
pub struct ServedStretch {
    /// Steps of the data before it and at its end.
    pub steps: (u64, u64),
    /// Factor on learning rates.
    pub rate_factor: f32,
}

impl Served {
    /// What `rank` has of `serving`: `rank_of` an instance, of the model `initial`, `parameters` of
    /// which are trained.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        method: Method<'static>,
        serving: Serving,
        all: Instances,
        rank_of: &[usize],
        rank: usize,
        (initial, parameters): (&[f32], usize),
    ) -> io::Result<Self> {
        let workers = all.trainers * all.gates;
        let (mut own, mut shards, mut relays, mut desk) = (vec![], vec![], vec![], None);
        for number in (0..all.len()).filter(|number| rank_of[*number] == rank) {
            match all.part(number) {
                Part::Trainer { .. } => {
                    let staging = vec![0.0; initial.len() + TAIL];
                    own.push((number, staging, Words::new(initial.len())?));
                }
                Part::Center { slice } if slice < serving.servers() => {
                    let range = method.slice(slice, initial.len());
                    let parameters = parameters.clamp(range.start, range.end) - range.start;
                    let optimizer = serving.updates.optimizer;
                    let owned = OwnedShard::new(optimizer, &initial[range], parameters, workers);
                    shards.push(OwnShard { slice, owned, parameters });
                }
                Part::Center { .. } if number != method.dispatcher(all) => relays.push(number),
                Part::Center { .. } => {
                    let (places, streams) = (serving.places(workers), serving.streams);
                    desk = Some(OwnedDispatcher::new(workers, places, streams));
                }
            }
        }
        let (version, reached) = (0, Reached::default());
        Ok(Self { method, serving, all, own, shards, relays, desk, version, reached })
    }

    /// Aggregates applied so far: of a rank that hears of none 0.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// How far the last stretch came, on the rank of the dispatcher.
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        self.desk.as_ref().map(|_| self.reached)
    }

    /// What became of gradients so far, on the rank of the dispatcher.
    #[must_use]
    pub fn tally(&self) -> Option<&Tally> {
        self.desk.as_ref().map(|desk| &desk.tally)
    }

    /// Counts on from what became of gradients before, on the rank of the dispatcher.
    pub fn count_on(&mut self, before: &Tally) {
        if let Some(desk) = &mut self.desk {
            desk.tally.clone_from(before);
        }
    }

    /// The values that this rank serves, slice by slice.
    pub fn values(&self) -> impl Iterator<Item = &[f32]> {
        self.shards.iter().map(|shard| &*shard.owned.values)
    }

    /// Their optimizer state: of every slice its planes, one after the other.
    pub fn state(&self) -> impl Iterator<Item = &[f32]> {
        self.shards.iter().map(|shard| &*shard.owned.state)
    }

    /// What this rank has when servers were lost: the slices that it serves, with their state, and
    /// what a worker of its trained with.
    #[must_use]
    pub fn remains(&self) -> Remains {
        let slices = self.shards.iter().map(|OwnShard { slice, owned, .. }| {
            (*slice, owned.values.to_vec(), owned.state.to_vec())
        });
        let trained_with = self.own.first().map(|(_, _, replica)| {
            let mut values = vec![0.0; replica.len()];
            load(replica, &mut values);
            values
        });
        Remains { slices: slices.collect(), trained_with }
    }

    /// Aggregates of a step.
    #[must_use]
    pub fn versions_per_step(&self) -> f64 {
        self.serving.streams as f64 / f64::from(self.serving.rule.members)
    }

    /// The elements of a slice, of `elements`.
    #[must_use]
    pub fn slice(&self, slice: usize, elements: usize) -> Range<usize> {
        self.method.slice(slice, elements)
    }

    /// Brings the state of all slices, as [`Self::state`] has it, into the order of the whole:
    /// `[planes * parameters]`.
    #[must_use]
    pub fn whole_state(&self, slices: &[f32], elements: usize, parameters: usize) -> Vec<f32> {
        let planes = self.serving.updates.optimizer.state_planes();
        let mut whole = vec![0.0; planes * parameters];
        let mut rest = slices;
        for slice in 0..self.serving.servers() {
            let range = self.method.slice(slice, elements);
            let range = range.start.min(parameters)..range.end.min(parameters);
            for plane in 0..planes {
                let (own, after) = rest.split_at(range.len());
                whole[plane * parameters..][range.clone()].copy_from_slice(own);
                rest = after;
            }
        }
        whole
    }

    /// Goes on from a model, its optimizer state `[planes * parameters]` and its version.
    pub fn begin_again(&mut self, model: &[f32], state: &[f32], version: u64) {
        let planes = self.serving.updates.optimizer.state_planes();
        let parameters = state.len().checked_div(planes).unwrap_or(0);
        for OwnShard { slice, owned, parameters: own } in &mut self.shards {
            let range = self.method.slice(*slice, model.len());
            owned.values.copy_from_slice(&model[range.clone()]);
            for plane in 0..planes {
                let from = &state[plane * parameters + range.start.min(parameters)..][..*own];
                owned.state[plane * *own..][..*own].copy_from_slice(from);
            }
        }
        self.version = version;
    }

    /// The machines of this rank, and the ends of its workers.
    fn machines(
        &mut self,
        stretch: ServedStretch,
    ) -> (Vec<(usize, Machine<'_>)>, Vec<Desk>, Vec<Hand<'_>>) {
        let ServedStretch { steps: (first, end), rate_factor } = stretch;
        let (first_server, dispatcher) = (self.all.center(0), self.method.dispatcher(self.all));
        let mut updates = self.serving.updates;
        updates.rate.base *= rate_factor;
        let version = self.version;
        let (mut machines, mut desks, mut hands) = (vec![], vec![], vec![]);
        for (number, staging, replica) in &mut self.own {
            machines.extend(self.method.worker(staging, self.all).map(|it| (*number, it)));
            let (desk, hand) = Desk::new(replica);
            desks.push(desk);
            hands.push(hand);
        }
        for OwnShard { slice, owned, parameters } in &mut self.shards {
            let shard = Shard::new(owned.lend(), updates, *parameters, dispatcher, version);
            machines.push((self.all.center(*slice), Machine::Shard(shard)));
        }
        for relay in &self.relays {
            machines.push((*relay, Machine::Relay(Relay::new(dispatcher, version))));
        }
        if let Some(desk) = &mut self.desk {
            let OwnedDispatcher { workers, under_way, given, asking, tally } = desk;
            let streams = Streams::new(given, first..end, self.serving.window);
            let at = (first * self.serving.streams as u64, version);
            let coordinator = Coordinator::new(self.serving.rule, streams, at, workers, under_way);
            let machine = Dispatcher::new(coordinator, asking, tally, first_server..dispatcher);
            machines.push((dispatcher, Machine::Dispatcher(machine)));
        }
        (machines, desks, hands)
    }

    /// Trains a stretch; `work` runs the workers of this rank's trainer, if it `trains`.
    /// *Collective over trainers, servers and ranks with rows.*
    pub(super) fn run<T>(
        &mut self,
        ends: Endpoints<'_>,
        stretch: ServedStretch,
        trains: bool,
        (counters, trace, pins): (&Counters, Option<&Trace>, &Pins),
        work: impl FnOnce(StepEnd<'_>) -> T,
    ) -> Stretch<T> {
        let watch = ends.watch;
        let (machines, desks, hands) = self.machines(stretch);
        let counting = |(number, machine)| (number, Counting::new(machine, &counters.gradients));
        let mut machines: Vec<(usize, Counting<'_>)> = machines.into_iter().map(counting).collect();
        let replicas: Vec<&[AtomicU32]> = hands.iter().map(|hand| hand.replica).collect();
        let seats = seats(&mut machines, desks, &replicas, counters, trace);
        let worked = std::thread::scope(|scope| {
            let driver = (!seats.is_empty()).then(|| {
                scope.spawn(move || {
                    if let Err(error) = pins.beside() {
                        watch.end_job(error.exit_code(), &error);
                    }
                    // Workers wait for what this thread does: whatever stops it ends the job.
                    drop(drive(seats, ends).unwrap_or_else(|error| watch.end_job(1, &error)));
                })
            });
            let worked = trains.then(|| work(StepEnd::Served(&hands)));
            if let Some(Err(panic)) = driver.map(std::thread::ScopedJoinHandle::join) {
                std::panic::resume_unwind(panic);
            }
            worked
        });
        let reached = machines.iter().find_map(|(_, it)| match &it.machine {
            Machine::Dispatcher(it) => Some(it.reached()),
            _ => None,
        });
        let version = machines.iter().find_map(|(_, it)| match &it.machine {
            Machine::Shard(it) => Some(it.version()),
            Machine::Relay(it) => Some(it.version()),
            _ => None,
        });
        drop((machines, hands));
        self.ended(reached, version);
        Stretch { worked, gaps: Gaps::new(), losses: vec![] }
    }

    /// What the machines of a stretch came to.
    fn ended(&mut self, reached: Option<Reached>, version: Option<u64>) {
        if let Some(reached) = reached {
            (self.reached, self.version) = (reached, reached.version);
        }
        if let Some(version) = version {
            self.version = version;
        }
    }
}

/// A machine; of the dispatcher's, others read meanwhile what became of gradients.
struct Counting<'a> {
    machine: Machine<'a>,
    counters: &'a GradientCounters,
    counted: GradientReading,
}

impl<'a> Counting<'a> {
    fn new(machine: Machine<'a>, counters: &'a GradientCounters) -> Self {
        let counted = read(&machine).unwrap_or_default();
        Self { machine, counters, counted }
    }
}

/// What became of gradients, where this is the dispatcher.
fn read(machine: &Machine<'_>) -> Option<GradientReading> {
    match machine {
        Machine::Dispatcher(it) => Some(GradientReading::of(it.tally())),
        _ => None,
    }
}

impl Protocol for Counting<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let action = self.machine.step(last)?;
        if let Some(now) = read(&self.machine)
            && now != self.counted
        {
            self.counters.add(&now.since(self.counted));
            self.counted = now;
        }
        Ok(action)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.machine.staging()
    }
}

/// The seats of `machines`, those of workers at their desks.
fn seats<'a, 'm: 'a>(
    machines: &'a mut [(usize, Counting<'m>)],
    desks: Vec<Desk>,
    replicas: &[&'a [AtomicU32]],
    counters: &'a Counters,
    trace: Option<&'a Trace>,
) -> Vec<Seat<'a>> {
    let mut desks = desks.into_iter();
    let mut local = 0;
    let seat = |(number, machine): &'a mut (usize, Counting<'m>)| {
        let is_worker = matches!(machine.machine, Machine::Worker(_));
        let machine: &'a mut (dyn Protocol + Send + 'a) = machine;
        let conductor = Conductor::new(Rounds::Handed, 0);
        let number = *number;
        match desks.next() {
            Some(desk) if is_worker => {
                local += 1;
                Seat {
                    number,
                    machine,
                    replica: replicas[local - 1],
                    workers: Workers::Handed { desk },
                    conductor,
                    counters: &counters.rounds[local - 1],
                    track: Track::of(trace, &format!("synchronization {}", local - 1)),
                }
            }
            _ => Seat {
                number,
                machine,
                replica: &[],
                workers: Workers::None,
                conductor,
                counters: &counters.center,
                track: Track::of(trace, "center"),
            },
        }
    };
    machines.iter_mut().map(seat).collect()
}

/// The rank of a center: a slice's, of a relay that of its rows; the dispatcher is beside the
/// first server.
pub(super) fn center_rank(method: &Method<'_>, roles: &Roles, number: usize) -> usize {
    let slices = method.slices();
    match number.checked_sub(slices) {
        None => roles.sync_ps.rank_of(number),
        Some(relay) if relay < method.relays() => roles.embedding_ps.rank_of(relay),
        Some(_) => roles.sync_ps.rank_of(0),
    }
}

/// Longest sleep of a thread that drives these protocols: a worker waits for each of their words,
/// and two thousand looks a second are a hundredth of a core.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_micros(500);
