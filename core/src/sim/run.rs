//! The events and their loop.
//!
//! Invariants: events are handled in the order of (time, number), and numbers are given in the
//! order in which events are foreseen, so equal times have one order. Nothing depends on an
//! address, a hash or a clock.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::sync::atomic::AtomicU32;

use super::cluster::{Cluster, Trainer};
use super::driver::{Driver, Message};
use super::instance::{Instance, Rows, Seat, Step, Training};
use super::network::Port;
use super::outcome::{Outcome, SimError, TrainerFigures};
use super::trace::{Deed, Span, Who};
use super::workers::{Crew, Worker};
use crate::sync::reduction::TAIL;
use crate::sync::token::Ticket;
use crate::units::Nanos;

/// Something that will happen. Numbers are places in the lists of [`Simulation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A worker may go on.
    Wake(u32),
    /// A worker's step has ended.
    StepEnded(u32),
    /// A worker's ids begin to arrive at the store; `last`: earliest end.
    AskArrived { worker: u32, last: u64 },
    /// A worker's rows begin to arrive.
    RowsArrived { worker: u32, last: u64 },
    /// A worker's rows are there.
    RowsReady(u32),
    /// A worker's gradients begin to arrive at the store.
    GradientArrived { worker: u32, last: u64 },
    /// A worker's gradients are in the rows.
    Settled(u32),
    /// An instance's round may begin, if it is still at this turn.
    RoundDue { instance: u32, turn: u64 },
    /// What an instance was doing has taken its time.
    Acted(u32),
    /// An instance gets the completion that is laid down for it.
    Resume(u32),
    /// An instance has waited for messages as long as it wanted, if it is still at this turn.
    Waited { instance: u32, turn: u64 },
    /// A message begins to arrive.
    MessageArrived { slot: u32, last: u64 },
    /// A message is there.
    Delivered(u32),
    /// The first half of a reduction, given by its place, is over.
    Scattered(u32),
}

/// The state of a run. Times in ns.
pub(super) struct Simulation<'c, 'p> {
    pub(super) cluster: &'c Cluster,
    training: Training<'c>,
    pub(super) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    foreseen: u64,
    /// Trainers, sync PSs, and the one that stands for all embedding PSs.
    pub(super) ports: Vec<Port>,
    /// Of leaves, towards the spine.
    pub(super) uplinks: Vec<Port>,
    /// When the row store of a trainer, or the one that stands for all, has done what it was asked.
    pub(super) stores_free: Vec<u64>,
    pub(super) crews: Vec<Crew>,
    pub(super) workers: Vec<Worker>,
    pub(super) drivers: Vec<Driver<'p>>,
    /// The instances of each channel that reduce with each other, ascending, and how many of them
    /// have come to a reduction of all.
    pub(super) channels: Vec<(Vec<u32>, usize)>,
    /// The members of the reductions under way, ascending; empty where there is none.
    pub(super) reductions: Vec<Vec<u32>>,
    /// Memory for dealing groups.
    pub(super) dealt: Vec<usize>,
    pub(super) flights: Vec<Option<Message>>,
    pub(super) free_slots: Vec<u32>,
    /// When the last protocol so far finished.
    pub(super) finished_at: u64,
    /// Time for which centers were busy.
    pub(super) center_busy_ns: u64,
    /// Bytes that centers sent to other nodes.
    pub(super) center_bytes: u64,
    /// Bytes of ids, rows and gradients between nodes.
    pub(super) rows_bytes: u64,
    trace: Option<Vec<Span>>,
}

/// Runs `instances` on `cluster` until all have finished. `trace`: whether to keep what happens.
///
/// # Errors
/// When an instance does not fit the cluster, a protocol refuses what it is told, or somebody waits
/// for what never comes.
pub fn run<'c, 'p>(
    cluster: &'c Cluster,
    instances: Vec<Instance<'p>>,
    training: Training<'c>,
    trace: bool,
) -> Result<Outcome, SimError> {
    let mut simulation = Simulation::new(cluster, instances, training, trace)?;
    simulation.start();
    let mut events = 0;
    while let Some(Reverse((time, _, event))) = simulation.queue.pop() {
        simulation.now = time;
        events += 1;
        simulation.handle(event)?;
    }
    simulation.check_ended()?;
    Ok(simulation.outcome(events))
}

impl<'c, 'p> Simulation<'c, 'p> {
    fn new(
        cluster: &'c Cluster,
        mut instances: Vec<Instance<'p>>,
        training: Training<'c>,
        trace: bool,
    ) -> Result<Self, SimError> {
        let links = cluster.trainers.iter().map(|trainer| trainer.link);
        let stores = cluster.embedding.iter().map(|embedding| embedding.link);
        let ports = links.chain(cluster.sync_ps.iter().copied()).chain(stores).map(Port::new);
        let (mut crews, mut workers) = (Vec::new(), Vec::new());
        for (trainer, spec) in (0u32..).zip(&cluster.trainers) {
            crews.push(Crew::new(workers.len(), spec.workers));
            workers.extend((0u32..).take(spec.workers).map(|local| Worker::new(trainer, local)));
        }
        let nodes = cluster.trainers.len() + cluster.sync_ps.len();
        let mut channels: Vec<(Vec<u32>, usize)> = Vec::new();
        for (number, instance) in (0u32..).zip(&mut instances) {
            let (node, limit) = match instance.seat {
                Seat::Center { node } => (node, nodes),
                Seat::Trainer { trainer, .. } => (trainer, cluster.trainers.len()),
            };
            if node >= limit {
                return Err(SimError::NoSuchNode { instance: number, nodes: limit });
            }
            let (expected, got) = (instance.slice.len() + TAIL, instance.protocol.staging().len());
            // Gradients are not staged.
            if got != expected && got > 0 {
                return Err(SimError::Staging { instance: number, expected, got });
            }
            let elements = training.replicas.get(node).map_or(0, |replica| replica.len());
            let end = instance.slice.end;
            if !instance.slice.is_empty() && node < cluster.trainers.len() && end > elements {
                return Err(SimError::Slice { instance: number, end, elements });
            }
            if let Seat::Trainer { trainer, gate } = instance.seat {
                crews[trainer].keep_gate(instance.rounds, gate);
                let channel = instance.channel as usize;
                if channels.len() <= channel {
                    channels.resize(channel + 1, (Vec::new(), 0));
                }
                channels[channel].0.push(number);
            }
        }
        Ok(Self {
            cluster,
            training,
            now: 0,
            queue: BinaryHeap::new(),
            foreseen: 0,
            ports: ports.collect(),
            uplinks: cluster.leaves.map_or(Vec::new(), |leaves| {
                let count = cluster.trainers.len().div_ceil(leaves.nodes);
                alloc::vec![Port::new(leaves.uplink); count]
            }),
            stores_free: alloc::vec![0; cluster.trainers.len().max(1)],
            crews,
            workers,
            drivers: instances.into_iter().map(Driver::new).collect(),
            channels,
            reductions: Vec::new(),
            dealt: Vec::new(),
            flights: Vec::new(),
            free_slots: Vec::new(),
            finished_at: 0,
            center_busy_ns: 0,
            center_bytes: 0,
            rows_bytes: 0,
            trace: trace.then(Vec::new),
        })
    }

    fn start(&mut self) {
        for worker in (0u32..).take(self.workers.len()) {
            self.at(0, Event::Wake(worker));
        }
        for instance in (0u32..).take(self.drivers.len()) {
            self.at(self.awake(instance, 0), Event::Resume(instance));
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::Wake(worker) => self.go_on(worker),
            Event::StepEnded(worker) => self.step_ended(worker),
            Event::AskArrived { worker, last } => self.ask_arrived(worker, last),
            Event::RowsArrived { worker, last } => self.rows_arrived(worker, last),
            Event::RowsReady(worker) => self.rows_ready(worker),
            Event::GradientArrived { worker, last } => self.gradient_arrived(worker, last),
            Event::Settled(worker) => self.settled(worker),
            Event::RoundDue { instance, turn } => return self.round_due(instance, turn),
            Event::Acted(instance) => return self.acted(instance),
            Event::Resume(instance) => return self.resume(instance),
            Event::Waited { instance, turn } => return self.waited(instance, turn),
            Event::MessageArrived { slot, last } => self.message_arrived(slot, last),
            Event::Delivered(slot) => self.delivered(slot),
            Event::Scattered(reduction) => self.scattered(reduction),
        }
        Ok(())
    }

    /// Foresees an event.
    pub(super) fn at(&mut self, time: u64, event: Event) {
        self.queue.push(Reverse((time.max(self.now), self.foreseen, event)));
        self.foreseen += 1;
    }

    /// Keeps what ends at `end`.
    pub(super) fn record(&mut self, who: Who, what: Deed, begin: u64, end: u64) {
        if let Some(trace) = &mut self.trace {
            trace.push(Span { who, what, begin: Nanos(begin), end: Nanos(end) });
        }
    }

    pub(super) fn trainer(&self, trainer: usize) -> &'c Trainer {
        &self.cluster.trainers[trainer]
    }

    /// The replica of a trainer; empty when only time is simulated.
    pub(super) fn replica(&self, trainer: usize) -> &'c [AtomicU32] {
        self.training.replicas.get(trainer).copied().unwrap_or(&[])
    }

    /// Tells the caller of a step that ends now.
    pub(super) fn tell(
        &mut self,
        trainer: usize,
        worker: usize,
        number: u64,
        ticket: Option<Ticket>,
    ) {
        let place = if ticket.is_some() { self.crews[trainer].first + worker } else { trainer };
        let replica = self.replica(place);
        (self.training.step)(Step { trainer, worker, number, ticket, replica });
    }

    /// Tells the caller that the gradient of a trainer is the sum of all.
    pub(super) fn updated(&mut self, trainer: usize) {
        (self.training.update)(trainer);
    }

    /// Tells the caller what becomes of rows.
    pub(super) fn tell_rows(&mut self, rows: Rows) {
        (self.training.rows)(rows);
    }

    /// The gradient of a trainer; empty when only time is simulated.
    pub(super) fn gradient(&self, trainer: usize) -> &'c [AtomicU32] {
        self.training.gradients.get(trainer).copied().unwrap_or(&[])
    }

    fn check_ended(&self) -> Result<(), SimError> {
        let stuck = |who, what, since| SimError::Stuck { who, what, since: Nanos(since) };
        for (number, driver) in (0u32..).zip(&self.drivers) {
            if !driver.finished {
                return Err(stuck(Who::Instance(number), driver.doing, driver.since));
            }
        }
        match self.workers.iter().find_map(Worker::waits) {
            Some((who, what, since)) => Err(stuck(who, what, since)),
            None => Ok(()),
        }
    }

    fn outcome(mut self, events: u64) -> Outcome {
        let slices = self.channels.len().max(1) as f64;
        let mut all: Vec<u64> = Vec::new();
        let figures = |crew: &mut Crew| {
            let workers = crew.len.max(1) as f64;
            crew.gaps.sort_unstable();
            all.extend_from_slice(&crew.gaps);
            let rounds = crew.gaps.len() as u64;
            let total: u64 = crew.gaps.iter().sum();
            TrainerFigures {
                steps: crew.steps,
                rounds,
                gap_mean: total as f64 / rounds.max(1) as f64,
                gap_p99: percentile_99(&crew.gaps).unwrap_or(0.0),
                exposed_seconds: seconds(crew.gate_ns) / workers,
                compute_seconds: seconds(crew.compute_ns) / workers,
                background_seconds: seconds(crew.round_ns) / slices,
                processor_seconds: seconds(crew.sync_busy_ns),
                rows_seconds: seconds(crew.rows_ns) / workers,
                seconds: seconds(crew.ended_at),
                sync_bytes: crew.sync_bytes,
            }
        };
        let trainers: Vec<_> = self.crews.iter_mut().map(figures).collect();
        all.sort_unstable();
        let worked = trainers.iter().map(|trainer| trainer.seconds).fold(0.0, f64::max);
        Outcome {
            seconds: worked,
            seconds_all: worked.max(seconds(self.finished_at)),
            trainers,
            gap_p99: percentile_99(&all),
            center_seconds: seconds(self.center_busy_ns),
            center_bytes: self.center_bytes,
            rows_bytes: self.rows_bytes,
            events,
            trace: self.trace.unwrap_or_default(),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The smallest of `sorted` that 99 of 100 do not exceed.
fn percentile_99(sorted: &[u64]) -> Option<f64> {
    let place = (sorted.len() * 99).div_ceil(100).checked_sub(1)?;
    sorted.get(place).map(|gap| *gap as f64)
}
