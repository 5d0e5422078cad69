//! Who runs which protocols of the method on which slice of the dense replica.
//!
//! "ShadowSync: performing synchronization in the background for highly scalable distributed
//! training", arXiv 2003.03477: one replica per trainer, a thread beside the workers that
//! synchronizes it, and for elastic averaging a center that sync PSs hold a slice each of.
//!
//! | method | threads of a trainer beside its workers | of a sync PS |
//! | --- | --- | --- |
//! | `bsp` | one, which adds gradients over the trainers | |
//! | averaging | one, which reduces with all trainers, or with those of its group | |
//! | elastic | one for all its slices (and gates), and for the slices that it is the center of | one |
//! | parameter server | one for all its workers, and for what it serves (`served.rs`) | one |
//!
//! Invariants: communicators are made on the main thread, each used by one thread. A foreground
//! method is the same threads with the workers gated. Between stretches of training no thread runs,
//! and what a method remembers (`umbra_core::sync::Memory`: centers, velocities, the number of the
//! next round) stays.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use crossbeam_channel::unbounded;
use umbra_core::compress::Coding;
use umbra_core::model::Model;
use umbra_core::sync::owned::Owned;
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    Conductor, Dealing, GateOf, Instances, Machine, Method, Pace, Part, Protocol, Published, Rounds,
};
use umbra_core::units::Nanos;

use crate::comm::post::Post;
use crate::comm::reduce::plan;
use crate::comm::traffic::Traffic;
use crate::comm::watch::Watch;
use crate::comm::{Comm, Mailbox};
use crate::dense::bsp::Bsp;
use crate::dense::coded::Coded;
use crate::dense::driver::drive;
use crate::dense::endpoints::Endpoints;
use crate::dense::gate::Gate;
use crate::dense::gradients::{GradientLink, GradientQueue};
use crate::dense::group_sums::GroupSums;
use crate::dense::hand::Hand;
use crate::dense::ledger::Ledger;
use crate::dense::places::Places;
use crate::dense::seat::{Gaps, GateKeeper, Seat, Steps, Workers};
use crate::dense::served::{self, Served, ServedStretch};
use crate::error::Error;
use crate::launch::processor::Pins;
use crate::launch::roles::Roles;
use crate::launch::world::World;
use crate::measure::counters::Counters;
use crate::measure::trace::{Trace, Track};
use crate::rows::router::Router;

/// What a worker does at the end of its steps so that replicas stay together.
#[derive(Clone, Copy)]
pub enum StepEnd<'a> {
    /// Nothing: one trainer, or others do it in the background.
    Free,
    /// The gradients of all become one update.
    Sum(&'a Bsp),
    /// The same, by whoever makes the steps of all workers in one thread: the contribution stays in
    /// the worker's buffers.
    Handed {
        /// Of the global batch.
        weight: f64,
    },
    /// It trains the batches that it is handed: its own end, by its number here.
    Served(&'a [Hand<'a>]),
    /// Servers apply its gradient, which stays in its buffers with what was found of it.
    Brought {
        /// What the batch is trained with.
        replica: &'a [AtomicU32],
    },
    /// It stands at a gate now and then.
    Gate {
        /// Of all workers, or one of each.
        gates: &'a [Gate],
        /// Steps between rounds.
        every: u64,
    },
}

/// What `bsp` needs of a trainer: a meeting of its workers, over this link to the other trainers.
pub type MakeBsp<'a> = dyn FnOnce(Option<GradientLink>) -> Bsp + 'a;

/// The method of a run on this rank, from its start to its end.
pub struct DenseSync {
    method: Method<'static>,
    /// Trainers' nodes and their numbers there, where groups are dealt by nodes.
    places: Option<Places>,
    instances: Instances,
    workers: usize,
    trainers: usize,
    parameters: usize,
    elements: usize,
    /// This rank's instances: their numbers, and what they are lent.
    lent: Vec<(usize, Owned)>,
    post: Option<Post>,
    poll: Duration,
    grace: Duration,
    /// By instance, its rank.
    rank_of: Arc<[usize]>,
    served: Option<Served>,
    coded: Coded,
    watch: Arc<Watch>,
}

/// A trainer's part in a stretch of training.
pub struct TrainerEnd<'a> {
    /// Over the trainers.
    pub comm: &'a mut Comm,
    /// The live replica, running statistics included.
    pub replica: &'a [AtomicU32],
    /// Makes the meeting of the workers, for `bsp`.
    pub bsp: Box<MakeBsp<'a>>,
}

/// What a stretch of training came to.
pub struct Stretch<T> {
    /// What the workers came to; `None` on a rank without a trainer.
    pub worked: Option<T>,
    /// Steps between rounds.
    pub gaps: Gaps,
    /// `bsp`: the loss of every step over the global batch.
    pub losses: Vec<f64>,
}

impl DenseSync {
    /// What `method` needs, looking at MPI every `poll_us` microseconds. `initial: [replica_len]`
    /// is the model before the first step, `parameters` of it are trained. *Collective over all
    /// ranks, main thread only.*
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        world: &World,
        (mut method, poll_us): (Method<'static>, u64),
        roles: &Roles,
        workers: usize,
        (initial, parameters): (&[f32], usize),
        watch: &Arc<Watch>,
    ) -> io::Result<Self> {
        let poll = Duration::from_micros(poll_us);
        let trainers = roles.replicas();
        let instances = method.instances(trainers, workers);
        let part = roles.part_of(world.rank).map_or(0, |of| of.part);
        let rank_of = |number| match instances.part(number) {
            Part::Trainer { trainer, .. } => roles.trainer_of(trainer, part),
            Part::Center { slice } => served::center_rank(&method, roles, slice),
        };
        let rank_of: Arc<[usize]> = (0..instances.len()).map(rank_of).collect();
        let talks = method.has_centers() || method.dealing().is_some();
        let mut places = None;
        let mailbox = (talks && world.size > 1).then(|| {
            let mut comm = watch.or_end(world.communicator(watch));
            comm.set_poll(Some(poll));
            if let Some(Dealing::Nodes { .. }) = method.dealing() {
                let hosts = comm.all_gather_varied(world.host.as_bytes(), "the hosts of trainers");
                let hosts = watch.or_end(hosts);
                let trainers = roles.trainers.ranks().iter();
                let hosts: Vec<Vec<u8>> = trainers.map(|rank| hosts[*rank].clone()).collect();
                places = Some(Places::new(&hosts));
            }
            Mailbox::new(comm)
        });
        let post = talks.then(|| Post::new(world.rank, Arc::clone(&rank_of), mailbox));
        let mut grace = Duration::ZERO;
        if let Rounds::Background(pace) = &mut method.rounds {
            // A share of a core holds nobody back for longer than others may wait.
            pace.longest_rest = nanos(watch.limit() / 2);
            grace = longest_hold(&pace.of_slice(instances.slices), trainers, initial.len());
        }
        let lend = |number: usize| match instances.part(number) {
            Part::Trainer { slice, .. } => {
                let range = method.slice(slice, initial.len());
                Owned::new(method.sizes(range.len(), trainers), &initial[range])
            }
            Part::Center { slice } => {
                let range = method.slice(slice, initial.len());
                Owned::new(method.center_sizes(range.len()), &initial[range])
            }
        };
        let is_own = |number: &usize| rank_of[*number] == world.rank && method.serving().is_none();
        let own = (0..instances.len()).filter(is_own);
        let lent = own.map(|number| (number, lend(number))).collect();
        let served = method.serving().map(|serving| {
            let model = (initial, parameters);
            Served::new(method, serving, instances, &rank_of, world.rank, model)
        });
        let served = served.transpose()?;
        let (elements, watch) = (initial.len(), Arc::clone(watch));
        Ok(Self {
            method,
            places,
            instances,
            workers,
            trainers,
            parameters,
            elements,
            lent,
            post,
            poll,
            grace,
            rank_of,
            served,
            coded: Coded::default(),
            watch,
        })
    }

    /// What is exchanged is coded from now on, on the rank of this `trainer`, if it is one's. Of a
    /// `model` as in [`Self::new`].
    pub fn code(&mut self, coding: Coding, model: &Model, trainer: Option<usize>) {
        let shares = (model, self.parameters, self.elements);
        self.coded = Coded::new(coding, &self.method, self.instances, shares, trainer);
    }

    /// What coding came to on this rank.
    #[must_use]
    pub fn coded(&self) -> Ledger {
        self.coded.ledger()
    }

    /// What this rank has of a parameter server.
    #[must_use]
    pub const fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// The same, to go on from elsewhere. Nothing runs meanwhile.
    pub fn served_mut(&mut self) -> Option<&mut Served> {
        // Its values may be others from now on.
        self.coded.forget();
        self.served.as_mut()
    }

    /// Replicas are synchronized in rounds of their own.
    #[must_use]
    pub const fn has_rounds(&self) -> bool {
        !matches!(self.method.rounds, Rounds::Never | Rounds::EveryStep | Rounds::Handed)
    }

    /// Messages between instances that this rank has sent and received so far.
    #[must_use]
    pub fn posted(&self) -> Traffic {
        self.post.as_ref().map_or(Traffic::default(), Post::traffic)
    }

    /// The model that a run ends with.
    #[must_use]
    pub const fn published(&self) -> Published {
        self.method.published(self.trainers)
    }

    /// What the instances of this rank remember, with their parts in the method. Nothing runs
    /// meanwhile.
    pub fn memory_mut(&mut self) -> impl Iterator<Item = (Part, &mut Owned)> {
        let Self { lent, instances, .. } = self;
        lent.iter_mut().map(|(number, owned)| (instances.part(*number), owned))
    }

    /// The same, to be looked at.
    pub fn memory(&self) -> impl Iterator<Item = (Part, &Owned)> {
        self.lent.iter().map(|(number, owned)| (self.instances.part(*number), owned))
    }

    /// Forgets what the instances of this rank remember: global models and centers are slices of
    /// `model` from now on. Nothing runs meanwhile. `model: [replica_len]`
    pub fn begin_again(&mut self, model: &[f32]) {
        let Self { lent, instances, method, coded, .. } = self;
        coded.forget();
        for (number, owned) in lent {
            let (Part::Trainer { slice, .. } | Part::Center { slice }) = instances.part(*number);
            let own = &model[method.slice(slice, model.len())];
            let global = owned.global.len();
            owned.global.copy_from_slice(&own[..global]);
            owned.velocity.fill(0.0);
        }
    }

    /// The slices of the center that this rank holds, in order. Nothing runs meanwhile.
    pub fn center(&self) -> impl Iterator<Item = &[f32]> {
        let center = |(part, owned)| match part {
            Part::Center { .. } => Some(owned),
            Part::Trainer { .. } => None,
        };
        let centers = self.memory().filter_map(center).map(|owned: &Owned| owned.global.as_slice());
        centers.chain(self.served.iter().flat_map(Served::values))
    }

    /// Lengths of the center's slices by rank.
    #[must_use]
    pub fn center_lengths(&self, ranks: usize) -> Vec<usize> {
        let mut lengths = vec![0; ranks];
        for slice in 0..self.instances.centers.min(self.method.slices()) {
            let rank = self.rank_of[self.instances.center(slice)];
            lengths[rank] += self.method.slice(slice, self.elements).len();
        }
        lengths
    }

    /// Trains: runs `work`, which runs the workers of this trainer, beside this rank's protocols,
    /// and returns when all trainers of the run have ended. A rank without a trainer serves its
    /// slices. *Collective over trainers and sync PSs, as far as the method is.*
    ///
    /// # Errors
    /// A defect of a protocol, or a trainer that is lost.
    pub fn run<T>(
        &mut self,
        trainer: Option<TrainerEnd<'_>>,
        counters: &Counters,
        trace: Option<&Trace>,
        pins: &Pins,
        (stretch, rows): (ServedStretch, Option<&Arc<Router>>),
        work: impl FnOnce(StepEnd<'_>) -> T,
    ) -> Result<Stretch<T>, Error> {
        if let Some(served) = &mut self.served {
            let ends = Endpoints {
                post: self.post.as_mut(),
                coded_links: self.coded.links.as_mut(),
                rows: rows.cloned(),
                poll: self.poll,
                longest: served::LONGEST_SLEEP,
                ..Endpoints::none(&self.watch)
            };
            let around = (counters, trace, pins);
            return Ok(served.run(ends, stretch, trainer.is_some(), around, work));
        }
        let Self { workers, instances, lent, post, coded, .. } = self;
        let Coded { sum, links, groups } = coded;
        let watch = &self.watch;
        let watch: &Arc<Watch> = watch;
        let method = match &self.places {
            Some(Places { node, place }) => self.method.with_nodes(node, place),
            None => self.method,
        };
        let (replica, mut comm, bsp) = match trainer {
            Some(TrainerEnd { comm, replica, bsp }) => (Some(replica), Some(comm), Some(bsp)),
            None => (None, None, None),
        };
        if let Some(comm) = &mut comm {
            // Workers that wait for it may have their cores taken.
            let waits = matches!(method.rounds, Rounds::EveryStep);
            comm.set_poll((!waits).then_some(self.poll));
            comm.set_grace(self.grace);
        }
        let alone = comm.as_ref().is_none_or(|comm| comm.size() == 1);
        let (mut coded_sum, mut link, mut queue) = (sum.as_mut(), None, None);
        if matches!(method.rounds, Rounds::EveryStep) && !alone {
            let ends = GradientQueue::new(coded_sum.take());
            (link, queue) = (Some(ends.0), Some(ends.1));
        }
        let sums = matches!(method.rounds, Rounds::EveryStep);
        let bsp = bsp.filter(|_| sums).map(|make| make(link));
        let ended = AtomicBool::new(false);
        let mut gate_ends: Vec<(Vec<_>, Vec<_>)> = vec![];
        gate_ends.resize_with(instances.gates, Default::default);
        let number = lent.first().map_or(0, |(number, _)| match instances.part(*number) {
            Part::Trainer { trainer, .. } => trainer,
            Part::Center { .. } => 0,
        });
        let dealing = method.dealing().filter(|_| replica.is_some());
        let ends = Endpoints {
            comm,
            groups: dealing.map(|it| GroupSums::new(it, (number, self.trainers), groups.as_mut())),
            coded_sum,
            post: post.as_mut(),
            coded_links: links.as_mut(),
            gradients: queue,
            poll: self.poll,
            grace: self.grace,
            ..Endpoints::none(watch)
        };
        let mut machines: Vec<(usize, Machine<'_>)> = vec![];
        for (number, owned) in lent.iter_mut() {
            let (scratch, memory) = owned.lend();
            let machine = match instances.part(*number) {
                // Alone there is nothing to sum, and nobody to average with in groups.
                Part::Trainer { .. } if alone && sums => None,
                Part::Trainer { slice, .. } => {
                    let range = method.slice(slice, self.elements);
                    let parameters = self.parameters.clamp(range.start, range.end) - range.start;
                    method.trainer(scratch, memory, instances.center(slice), parameters)
                }
                Part::Center { .. } => {
                    let clients = instances.trainers * instances.gates;
                    method.center(scratch, memory, clients)
                }
            };
            machines.extend(machine.map(|machine| (*number, machine)));
        }
        let mut seats = vec![];
        for (number, machine) in &mut machines {
            let machine: &mut (dyn Protocol + Send) = machine;
            let (number, nobody) = (*number, Rounds::Never);
            seats.push(match (instances.part(number), replica) {
                (Part::Trainer { slice, gate, .. }, Some(replica)) => {
                    let steps = match method.rounds {
                        Rounds::Gated { gate: GateOf::Worker, .. } => {
                            Steps::Of(&counters.workers[gate])
                        }
                        _ => Steps::All(counters),
                    };
                    let so_far = match &steps {
                        Steps::Of(worker) => worker.steps(),
                        _ => counters.steps(),
                    };
                    let workers = match method.rounds {
                        Rounds::Background(_) => {
                            Workers::Background { ended: &ended, steps: counters }
                        }
                        Rounds::Gated { .. } => {
                            let ((knock, knocks), (opens, open)) = (unbounded(), unbounded());
                            gate_ends[gate].0.push(knock);
                            gate_ends[gate].1.push(open);
                            Workers::Gated { gate: GateKeeper { knocks, opens }, steps }
                        }
                        Rounds::Never | Rounds::EveryStep | Rounds::Handed => Workers::None,
                    };
                    let own = slice * instances.gates + gate;
                    Seat {
                        number,
                        machine,
                        replica: &replica[method.slice(slice, self.elements)],
                        workers,
                        conductor: Conductor::new(method.rounds.of_slice(instances.slices), so_far),
                        counters: &counters.rounds[own],
                        track: Track::of(trace, &format!("synchronization {own}")),
                    }
                }
                _ => Seat {
                    number,
                    machine,
                    replica: &[],
                    workers: Workers::None,
                    conductor: Conductor::new(nobody, 0),
                    counters: &counters.center,
                    track: Track::of(trace, "center"),
                },
            });
        }
        let gates: Vec<Gate> = gate_ends
            .into_iter()
            .map(|(knocks, opens)| {
                let meeting = *workers / instances.gates;
                Gate::new(meeting, knocks, opens, watch)
            })
            .collect();
        let trains = replica.is_some();
        let (worked, gaps) = std::thread::scope(|scope| {
            let driver = (!seats.is_empty()).then(move || {
                scope.spawn(move || {
                    // A synchronizing thread keeps off the workers' cores, if there are others.
                    if let Err(error) = pins.beside() {
                        watch.end_job(error.exit_code(), &error);
                    }
                    // Workers wait for what this thread does: whatever stops it ends the job.
                    drive(seats, ends).unwrap_or_else(|error| watch.end_job(1, &error))
                })
            });
            let step_end = match (&bsp, method.rounds) {
                (Some(bsp), _) => StepEnd::Sum(bsp),
                (None, Rounds::Gated { every, .. }) => StepEnd::Gate { gates: &gates, every },
                _ => StepEnd::Free,
            };
            let worked = trains.then(|| work(step_end));
            ended.store(true, Ordering::Release);
            // Whoever waits for the workers sees that they have gone.
            drop(gates);
            let losses = bsp.map(Bsp::close).unwrap_or_default();
            let gaps = match driver.map(std::thread::ScopedJoinHandle::join) {
                None => vec![],
                Some(Ok(gaps)) => gaps,
                Some(Err(panic)) => std::panic::resume_unwind(panic),
            };
            ((worked, losses), gaps)
        });
        let (worked, losses) = worked;
        // Slices go side by side: the first one's gaps are the replica's, at each of its gates.
        let mut first = Gaps::new();
        for gaps in gaps.into_iter().take(if trains { instances.gates } else { 0 }) {
            for (gap, count) in gaps {
                *first.entry(gap).or_default() += count;
            }
        }
        Ok(Stretch { worked, gaps: first, losses })
    }
}

/// For how long the pace of any of `trainers` may hold its next round back, while others wait for
/// it. `elements` of the replica are exchanged.
fn longest_hold(pace: &Pace, trainers: usize, elements: usize) -> Duration {
    // There and back in a group; in a sum of all, a rank that plays two roles sends the most.
    let sum = plan::<f32>(trainers, elements + TAIL);
    let sends = (0..trainers).map(|trainer| sum.sends(trainer).bytes).max().unwrap_or(0);
    let by_bytes = match pace.bytes_per_second {
        0 => 0.0,
        rate => sends.max(8 * elements as u64) as f64 / rate as f64,
    };
    let by_core = if pace.core_share > 0.0 { pace.longest_rest.0 } else { 0 };
    Duration::from_nanos(pace.interval.0.max(by_core)).max(Duration::from_secs_f64(by_bytes))
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
