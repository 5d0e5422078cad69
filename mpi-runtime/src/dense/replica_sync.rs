//! Who runs which protocol on which slice of the dense replica.
//!
//! "ShadowSync: performing synchronization in the background for highly scalable distributed
//! training", arXiv 2003.03477: one replica per trainer, a thread beside the workers that
//! synchronizes it, and for elastic averaging a center that sync PSs hold a slice each of.
//!
//! | method | slices | on a trainer | on sync PS s |
//! | --- | --- | --- | --- |
//! | `*_easgd` | one per sync PS | a thread per slice exchanges with its center | a thread serves slice s |
//! | `*_ma`, `*_bmuf`, `local_sgd` | the whole | a thread reduces with the other trainers | |
//! | `*ds_sync` | the whole | a thread reduces with the trainers of its group | |
//!
//! Invariants: communicators are made here, on the main thread, in the order of slices; each is
//! used by one thread. A foreground method is the same threads with the workers gated. Between
//! stretches of training no thread runs, and what a method remembers (centers, block momentum)
//! stays.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;

use crossbeam_channel::unbounded;
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::{
    self, BlockMomentum, BlockState, Blocks, Dealing, DivideShuffle, ElasticCenter, ElasticTrainer,
    ModelAverage, OutOfTurn, Pace, Spread,
};
use umbra_core::units::Nanos;

use crate::comm::post::Post;
use crate::comm::watch::Watch;
use crate::comm::{Comm, Mailbox};
use crate::config::{self, Algorithm, Rounds, Schedule};
use crate::dense::driver::{Endpoints, Gaps, GateKeeper, Workers, drive};
use crate::dense::gate::Gate;
use crate::dense::group_sums::GroupSums;
use crate::error::Error;
use crate::launch::processor::Pins;
use crate::launch::roles::{Roles, View};
use crate::launch::world::World;
use crate::measure::counters::{Counters, RoundCounters};
use crate::measure::trace::{Trace, Track};

/// What the rounds of a run need on this rank, from its start to its end.
pub struct DenseSync {
    settings: Settings,
    slices: Vec<Slice>,
    /// Ranks of the trainers.
    trainers: View,
    places: Places,
    /// Block momentum's memory: global model and velocity. `[replica_len]` each, or empty.
    global: Vec<f32>,
    velocity: Vec<f32>,
    watch: Arc<Watch>,
}

/// Where trainers are: their nodes, and their numbers there. `[trainers]` each, empty unless groups
/// are dealt.
#[derive(Default)]
struct Places {
    node: Vec<usize>,
    place: Vec<usize>,
}

impl Places {
    /// By the names of nodes. `hosts: [trainers]`
    fn new(hosts: &[Vec<u8>]) -> Self {
        let mut places = Self::default();
        for (trainer, host) in hosts.iter().enumerate() {
            let before = &hosts[..trainer];
            let known = before.iter().position(|other| other == host);
            let next = places.node.iter().max().map_or(0, |node| node + 1);
            places.node.push(known.map_or(next, |other| places.node[other]));
            places.place.push(before.iter().filter(|other| *other == host).count());
        }
        places
    }
}

/// A slice of the replica and this rank's ways to its other ends.
struct Slice {
    range: Range<usize>,
    /// The rank of its center; unused when it has none.
    center_rank: usize,
    /// The trainer's end.
    trainer: Option<Post>,
    /// The center's end and its values. `[range]`
    center: Option<(Post, Vec<f32>)>,
}

/// `[sync]` in the core's words.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) rounds: Rounds,
    pub(crate) every: u64,
    pub(crate) alpha: f32,
    pub(crate) pair: sync::Pair,
    pub(crate) delta: bool,
    pub(crate) blocks: Blocks,
    pub(crate) pace: Pace,
    pub(crate) poll: Duration,
    schedule: Schedule,
    group_size: usize,
    seed: u64,
}

/// A trainer's part in a stretch of training.
pub struct TrainerEnd<'a> {
    /// Over the trainers; `None` when there is one.
    pub comm: Option<&'a mut Comm>,
    /// The live replica, running statistics included.
    pub replica: &'a [AtomicU32],
    /// Parameters in it.
    pub parameters: usize,
    /// Workers of this trainer.
    pub workers: usize,
}

impl DenseSync {
    /// What the method of `config` needs; `None` if it has no rounds. `initial: [replica_len]` is the
    /// model before the first step. *Collective over all ranks, main thread only.*
    #[must_use]
    pub fn new(
        world: &World,
        config: &config::Config,
        roles: &Roles,
        initial: &[f32],
        watch: &Arc<Watch>,
    ) -> Option<Self> {
        let mut settings = Settings::new(config)?;
        let whole =
            || Slice { range: 0..initial.len(), center_rank: 0, trainer: None, center: None };
        let mut places = Places::default();
        let slices = match settings.rounds.algorithm {
            Algorithm::Average | Algorithm::BlockMomentum => vec![whole()],
            Algorithm::DivideShuffle if roles.trainers.len() == 1 => vec![whole()],
            Algorithm::DivideShuffle => {
                let mut comm = watch.or_end(world.communicator(watch));
                comm.set_poll(Some(settings.poll));
                let hosts = comm.all_gather_varied(world.host.as_bytes(), "the hosts of trainers");
                let hosts = watch.or_end(hosts);
                places = {
                    let trainers = roles.trainers.ranks().iter();
                    Places::new(&trainers.map(|rank| hosts[*rank].clone()).collect::<Vec<_>>())
                };
                let post = Post::remote(world.rank, Mailbox::new(comm));
                vec![Slice { trainer: Some(post), ..whole() }]
            }
            Algorithm::Elastic => {
                let centers = roles.sync_ps.len();
                let start = |slice: usize| initial.len() * slice / centers;
                let slice = |index: usize| {
                    let range = start(index)..start(index + 1);
                    let center_rank = roles.sync_ps.rank_of(index);
                    let mailbox = (world.size > 1).then(|| {
                        let mut comm = watch.or_end(world.communicator(watch));
                        comm.set_poll(Some(settings.poll));
                        Mailbox::new(comm)
                    });
                    let trains = roles.trainers.contains(world.rank);
                    let (trainer, center) = match (trains, world.rank == center_rank) {
                        (true, true) => {
                            let (trainer, center) = Post::both(world.rank, mailbox);
                            (Some(trainer), Some(center))
                        }
                        (_, false) => (mailbox.map(|mail| Post::remote(world.rank, mail)), None),
                        (false, true) => (None, mailbox.map(|mail| Post::remote(world.rank, mail))),
                    };
                    let center = center.map(|post| (post, initial[range.clone()].to_vec()));
                    Slice { range, center_rank, trainer, center }
                };
                (0..centers).map(slice).collect()
            }
        };
        // The bound is a trainer's, whose slices share it.
        let sharing = slices.len().max(1) as u64;
        settings.pace.bytes_per_second = settings.pace.bytes_per_second.div_ceil(sharing);
        let blocks = settings.rounds.algorithm == Algorithm::BlockMomentum;
        Some(Self {
            settings,
            slices,
            trainers: roles.trainers.clone(),
            places,
            global: if blocks { initial.to_vec() } else { vec![] },
            velocity: if blocks { vec![0.0; initial.len()] } else { vec![] },
            watch: Arc::clone(watch),
        })
    }

    /// Slices of the replica.
    #[must_use]
    pub fn slices(&self) -> usize {
        self.slices.len()
    }

    /// Steps of a worker between two rounds, with gated workers.
    #[must_use]
    pub const fn every(&self) -> u64 {
        self.settings.every
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.settings.rounds.algorithm
    }

    /// The slices of the center that this rank holds, in order. Nothing runs meanwhile.
    pub fn center(&self) -> impl Iterator<Item = &[f32]> {
        self.slices.iter().filter_map(|slice| slice.center.as_ref()).map(|center| &*center.1)
    }

    /// Lengths of the center's slices by rank.
    #[must_use]
    pub fn center_lengths(&self, ranks: usize) -> Vec<usize> {
        let mut lengths = vec![0; ranks];
        for slice in &self.slices {
            lengths[slice.center_rank] += slice.range.len();
        }
        lengths
    }

    /// Trains: runs `work`, which runs the workers of this trainer, beside this rank's rounds, and
    /// returns when all trainers of the run have ended. A rank without a trainer serves its slices.
    /// *Collective over trainers and sync PSs, as far as the method is.*
    ///
    /// # Errors
    /// A defect of a protocol.
    pub fn run<T>(
        &mut self,
        trainer: Option<TrainerEnd<'_>>,
        counters: &Counters,
        trace: Option<&Trace>,
        pins: &Pins,
        work: impl FnOnce(Option<&Gate>) -> T,
    ) -> Result<(Option<T>, Gaps), Error> {
        let Self { settings, slices, trainers, places, global, velocity, watch } = self;
        let (settings, trainers, watch) = (*settings, &*trainers, &*watch);
        let dealing = settings.dealing(Dealing::Nodes { node: &places.node, place: &places.place });
        let ended = AtomicBool::new(false);
        let ended = &ended;
        let done = std::thread::scope(|scope| {
            let (mut shadows, mut centers, mut knocks, mut opens) =
                (vec![], vec![], vec![], vec![]);
            let (mut comm, trainer) = match trainer {
                Some(TrainerEnd { comm, replica, parameters, workers }) => {
                    (comm, Some((replica, parameters, workers)))
                }
                None => (None, None),
            };
            if let Some(comm) = &mut comm {
                comm.set_poll(Some(settings.poll));
            }
            let mut blocks = Some((&mut **global, &mut **velocity));
            for (index, slice) in slices.iter_mut().enumerate() {
                let Slice { range, center_rank, trainer: post, center } = slice;
                if let Some((post, values)) = center {
                    let track = Track::of(trace, "center");
                    let trainers = trainers.len();
                    let end = CenterEnd { settings, trainers, post, values, watch, track };
                    centers.push(scope.spawn(move || {
                        off_the_workers(pins, watch);
                        end.serve(&counters.center)
                    }));
                }
                let Some((replica, parameters, _)) = trainer else { continue };
                let end = SliceEnd {
                    settings,
                    replica: &replica[range.clone()],
                    parameters: parameters.clamp(range.start, range.end) - range.start,
                    center: *center_rank,
                    post: post.as_mut(),
                    comm: comm.take(),
                    trainers: trainers.ranks(),
                    dealing,
                    blocks: blocks.take(),
                    counters: &counters.rounds[index],
                    steps: counters,
                    track: Track::of(trace, &format!("synchronization {index}")),
                    watch,
                };
                let beside = if settings.rounds.gated {
                    let ((knock, knocked), (open, opened)) = (unbounded(), unbounded());
                    knocks.push(knock);
                    opens.push(opened);
                    Workers::Gated(GateKeeper { knocks: knocked, opens: open })
                } else {
                    Workers::Background { ended, pace: settings.pace }
                };
                shadows.push(scope.spawn(move || {
                    off_the_workers(pins, watch);
                    end.run(beside)
                }));
            }
            let worked = trainer.map(|(_, _, workers)| {
                let gate = Gate::new(workers, knocks, opens, watch);
                work(settings.rounds.gated.then_some(&gate))
            });
            ended.store(true, Ordering::Release);
            let mut gaps = Ok(Gaps::new());
            for thread in shadows {
                let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                // Slices go side by side: the first one's gaps are the replica's.
                if gaps.as_ref().is_ok_and(Gaps::is_empty) || result.is_err() {
                    gaps = result;
                }
            }
            for thread in centers {
                let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                gaps = result.and(gaps);
            }
            gaps.map(|gaps| (worked, gaps))
        });
        done.map_err(|error| Error::Failure(error.to_string()))
    }
}

/// Keeps a synchronizing thread off the workers' cores, if there are others.
fn off_the_workers(pins: &Pins, watch: &Watch) {
    if let Err(error) = pins.beside() {
        watch.end_job(error.exit_code(), &error);
    }
}

/// What the thread of a slice works with on a trainer.
struct SliceEnd<'a> {
    settings: Settings,
    replica: &'a [AtomicU32],
    parameters: usize,
    center: usize,
    post: Option<&'a mut Post>,
    comm: Option<&'a mut Comm>,
    trainers: &'a [usize],
    dealing: Dealing<'a>,
    blocks: Option<(&'a mut [f32], &'a mut [f32])>,
    counters: &'a RoundCounters,
    steps: &'a Counters,
    track: Track<'a>,
    watch: &'a Watch,
}

impl SliceEnd<'_> {
    /// Rounds until the workers have ended and the method allows.
    fn run(self, workers: Workers<'_>) -> Result<Gaps, OutOfTurn> {
        let Self { settings, replica, parameters, center, post, comm, blocks, .. } = self;
        let mut staging = vec![0.0; replica.len() + TAIL];
        let mut loaded = vec![0.0; if settings.delta { replica.len() } else { 0 }];
        let intake = if settings.delta {
            sync::Intake::Delta { loaded: &mut loaded }
        } else {
            sync::Intake::Interpolate
        };
        let count = self.trainers.len();
        let dealt = settings.rounds.algorithm == Algorithm::DivideShuffle;
        let number = comm.as_ref().map_or(0, |comm| comm.rank());
        let groups = dealt.then(|| GroupSums::new(self.dealing, number, self.trainers));
        let ends = Endpoints {
            comm: comm.as_deref(),
            groups,
            post,
            replica,
            workers,
            steps: Some(self.steps),
            poll: settings.poll,
            counters: self.counters,
            track: self.track,
            watch: self.watch,
        };
        let alpha = settings.alpha;
        match (settings.rounds.algorithm, blocks) {
            (Algorithm::Elastic, _) => {
                let pair = settings.pair;
                drive(&mut ElasticTrainer::new(&mut staging, center, alpha, pair), ends)
            }
            (Algorithm::BlockMomentum, Some((global, momentum))) => {
                let state = BlockState { global, momentum };
                let blocks = settings.blocks;
                drive(
                    &mut BlockMomentum::new(&mut staging, alpha, intake, blocks, state, parameters),
                    ends,
                )
            }
            (Algorithm::DivideShuffle, _) => {
                let (mut labels, mut sets) = (vec![0; count], vec![0; Spread::words(count)]);
                let spread = Spread::new(self.dealing, &mut labels, &mut sets);
                drive(&mut DivideShuffle::new(&mut staging, alpha, intake, spread), ends)
            }
            _ => drive(&mut ModelAverage::new(&mut staging, alpha, intake), ends),
        }
    }
}

/// What the thread of a slice of the center works with.
struct CenterEnd<'a> {
    settings: Settings,
    trainers: usize,
    post: &'a mut Post,
    values: &'a mut [f32],
    track: Track<'a>,
    watch: &'a Watch,
}

impl CenterEnd<'_> {
    /// Serves until every trainer has said goodbye.
    fn serve(self, counters: &RoundCounters) -> Result<Gaps, OutOfTurn> {
        let Self { settings: Settings { alpha, pair, poll, .. }, trainers, post, values, .. } =
            self;
        let mut staging = vec![0.0; values.len() + TAIL];
        let ends = Endpoints {
            comm: None,
            groups: None,
            post: Some(post),
            replica: &[],
            workers: Workers::None,
            steps: None,
            poll,
            counters,
            track: self.track,
            watch: self.watch,
        };
        drive(&mut ElasticCenter::new(&mut staging, values, alpha, pair, trainers), ends)
    }
}

/// Makes every trainer's replica the mean of all, bit for bit the same. *Collective over `comm`.*
///
/// # Errors
/// A defect of the protocol.
pub fn average_once(comm: &mut Comm, replica: &[AtomicU32]) -> Result<(), Error> {
    // Workers wait for it: it may have their cores.
    comm.set_poll(None);
    let mut staging = vec![0.0; replica.len() + TAIL];
    let ends = Endpoints {
        comm: Some(comm),
        groups: None,
        post: None,
        replica,
        workers: Workers::None,
        steps: None,
        poll: Duration::ZERO,
        counters: &RoundCounters::default(),
        track: Track::of(None, ""),
        watch: comm.watch(),
    };
    let averaged = drive(&mut ModelAverage::once(&mut staging), ends);
    averaged.map(drop).map_err(|error| Error::Failure(error.to_string()))
}

impl Settings {
    /// The settings of a method that has rounds.
    pub(crate) fn new(config: &config::Config) -> Option<Self> {
        let sync = &config.sync;
        let rounds = sync.method.rounds()?;
        let single = |x: Option<f64>| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "settings are computed with in f32"
            )]
            let x = x.unwrap_or_default() as f32;
            x
        };
        Some(Self {
            rounds,
            every: sync.every.unwrap_or(1),
            alpha: single(sync.alpha),
            pair: match sync.pair {
                config::Pair::Sequential => sync::Pair::Sequential,
                config::Pair::Same => sync::Pair::Same,
            },
            delta: sync.intake == config::Intake::Delta,
            blocks: Blocks {
                rate: single(Some(sync.block_rate)),
                momentum: single(sync.block_momentum),
                nesterov: sync.nesterov,
            },
            pace: Pace {
                interval: Nanos(sync.min_interval_us.saturating_mul(1000)),
                bytes_per_second: sync.max_bytes_per_s,
                // A whole core is no bound.
                core_share: sync.core_share.filter(|share| *share < 1.0).unwrap_or(0.0),
            },
            poll: Duration::from_micros(sync.poll_us),
            schedule: sync.schedule,
            group_size: sync.group_size.unwrap_or(1),
            seed: config.seed,
        })
    }

    /// The schedule of groups; `nodes` is what `"nodes"` means here.
    pub(crate) fn dealing<'a>(&self, nodes: Dealing<'a>) -> Dealing<'a> {
        let size = self.group_size;
        match self.schedule {
            Schedule::Grid => Dealing::Grid { columns: size },
            Schedule::Nodes => nodes,
            Schedule::Hypercube => Dealing::Hypercube { base: size },
            Schedule::Ring => Dealing::Ring,
            Schedule::Random => Dealing::Random { group: size, seed: self.seed },
        }
    }
}
