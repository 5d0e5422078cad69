//! A synchronization method on a cluster: which protocols run where.
//!
//! | method | trainers | centers |
//! | --- | --- | --- |
//! | none | nothing | |
//! | model averaging, block momentum, divide and shuffle | one instance each | |
//! | elastic averaging | an instance per slice | one per slice: on the sync PSs in turn, or on the first trainers when there are none |

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicU32;

use super::cluster::Cluster;
use super::instance::{Duty, Instance, Step};
use super::outcome::{Outcome, SimError};
use super::run::run;
use crate::dense::replica::load;
use crate::sync::reduction::TAIL;
use crate::sync::{
    BlockMomentum, BlockState, Blocks, Dealing, DivideShuffle, ElasticCenter, ElasticTrainer,
    Intake, ModelAverage, Pace, Pair, Protocol, Spread,
};

/// How the replicas of a cluster stay together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method {
    /// The protocol.
    pub algorithm: Algorithm,
    /// Share of the way that a round moves a replica.
    pub alpha: f32,
    /// When rounds are.
    pub rounds: Rounds,
    /// Bytes of a replica, all of which a round moves.
    pub replica_bytes: u64,
    /// Elements that are parameters; running statistics follow them. Not used where only time is
    /// simulated.
    pub parameters: usize,
}

/// The protocol of a method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// Trainers share the rows and nothing else.
    None,
    /// Model averaging.
    Average {
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// Block momentum.
    BlockMomentum {
        /// How the global model follows the mean.
        blocks: Blocks,
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// Averaging in groups.
    DivideShuffle {
        /// How they are dealt.
        dealing: Dealing<'static>,
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// Elastic averaging.
    Elastic {
        /// Which values the two sides see.
        pair: Pair,
        /// Slices of the replica, each with a center of its own; 0 is 1.
        slices: usize,
    },
}

/// When the rounds of a method are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounds {
    /// In the background.
    Background(Pace),
    /// With the workers gated, after every so many steps.
    Gated {
        /// Steps of a worker between two rounds.
        every: u64,
    },
}

/// A run of a method.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Its figures.
    pub outcome: Outcome,
    /// The center as it ended, all slices; empty without one and where only time is simulated.
    pub center: Vec<f32>,
}

/// What one instance of a trainer works on.
#[derive(Default)]
struct Buffers {
    staging: Vec<f32>,
    loaded: Vec<f32>,
    global: Vec<f32>,
    momentum: Vec<f32>,
    labels: Vec<usize>,
    sets: Vec<u64>,
}

/// Runs a method until every worker has made its steps; the arguments are those of [`run`].
///
/// # Errors
/// As [`run`].
pub fn simulate(
    cluster: &Cluster,
    method: &Method,
    replicas: &[&[AtomicU32]],
    step: &mut dyn FnMut(Step<'_>),
    trace: bool,
) -> Result<Simulated, SimError> {
    let elements = replicas.first().map_or(0, |replica| replica.len());
    let slices = method.slices();
    let pieces: Vec<Range<usize>> =
        (0..slices).map(|i| part(elements, i, slices)..part(elements, i + 1, slices)).collect();
    let trainers = cluster.trainers.len();
    let synchronized = if method.algorithm == Algorithm::None { 0 } else { trainers };
    let mut buffers: Vec<Buffers> = (0..synchronized)
        .flat_map(|trainer| pieces.iter().map(move |piece| (trainer, piece.clone())))
        .map(|(trainer, piece)| method.buffers(replicas.get(trainer).copied(), piece, trainers))
        .collect();
    let elastic = match method.algorithm {
        Algorithm::Elastic { pair, .. } => Some(pair),
        _ => None,
    };
    let centers = if elastic.is_some() { slices } else { 0 };
    let mut center: Vec<Buffers> = (0..centers)
        .map(|slice| Method::center(replicas.first().copied(), &pieces[slice]))
        .collect();
    let mut protocols: Vec<Box<dyn Protocol + '_>> = Vec::with_capacity(buffers.len() + centers);
    for (number, buffers) in buffers.iter_mut().enumerate() {
        protocols.push(method.protocol(buffers, synchronized * slices + number % slices));
    }
    if let Some(pair) = elastic {
        for Buffers { staging, global, .. } in &mut center {
            let served = ElasticCenter::new(staging, global, method.alpha, pair, trainers);
            protocols.push(Box::new(served));
        }
    }
    let duty = |number: usize| match method.rounds {
        _ if number >= synchronized * slices => {
            let slice = number % slices;
            let sync_ps = cluster.sync_ps.len();
            let node = if sync_ps == 0 { slice % trainers } else { trainers + slice % sync_ps };
            Duty::Center { node }
        }
        Rounds::Background(pace) => Duty::Shadow { trainer: number / slices, pace },
        Rounds::Gated { every } => Duty::Gated { trainer: number / slices, every },
    };
    let instances: Vec<Instance<'_>> = protocols
        .iter_mut()
        .enumerate()
        .map(|(number, protocol)| {
            let slice = number % slices;
            Instance {
                protocol: &mut **protocol,
                duty: duty(number),
                #[expect(clippy::cast_possible_truncation, reason = "slices are few")]
                channel: slice as u32,
                dealing: match method.algorithm {
                    Algorithm::DivideShuffle { dealing, .. } => Some(dealing),
                    _ => None,
                },
                slice: pieces[slice].clone(),
                bytes: method.bytes(slice, slices),
            }
        })
        .collect();
    let outcome = run(cluster, instances, replicas, step, trace)?;
    drop(protocols);
    let center = center.into_iter().flat_map(|slice| slice.global).collect();
    Ok(Simulated { outcome, center })
}

impl Method {
    /// Slices that are synchronized on their own.
    const fn slices(&self) -> usize {
        match self.algorithm {
            Algorithm::Elastic { slices, .. } if slices > 0 => slices,
            _ => 1,
        }
    }

    /// Whether a round keeps what workers did meanwhile.
    const fn delta(&self) -> bool {
        match self.algorithm {
            Algorithm::Average { delta }
            | Algorithm::BlockMomentum { delta, .. }
            | Algorithm::DivideShuffle { delta, .. } => delta,
            Algorithm::None | Algorithm::Elastic { .. } => false,
        }
    }

    fn bytes(&self, slice: usize, slices: usize) -> u64 {
        let at = |i: usize| self.replica_bytes * i as u64 / slices as u64;
        at(slice + 1) - at(slice)
    }

    fn buffers(
        &self,
        replica: Option<&[AtomicU32]>,
        piece: Range<usize>,
        trainers: usize,
    ) -> Buffers {
        let len = piece.len();
        let block = matches!(self.algorithm, Algorithm::BlockMomentum { .. });
        let dealt = matches!(self.algorithm, Algorithm::DivideShuffle { .. });
        let ranks = if dealt { trainers } else { 0 };
        Buffers {
            staging: alloc::vec![0.0; len + TAIL],
            loaded: alloc::vec![0.0; if self.delta() { len } else { 0 }],
            global: if block { values(replica, &piece) } else { Vec::new() },
            momentum: alloc::vec![0.0; if block { len } else { 0 }],
            labels: alloc::vec![0; ranks],
            sets: alloc::vec![0; Spread::words(ranks)],
        }
    }

    fn center(replica: Option<&[AtomicU32]>, piece: &Range<usize>) -> Buffers {
        Buffers {
            staging: alloc::vec![0.0; piece.len() + TAIL],
            global: values(replica, piece),
            ..Buffers::default()
        }
    }

    /// The protocol of a trainer; `center` is the instance that serves its slice.
    fn protocol<'a>(&self, buffers: &'a mut Buffers, center: usize) -> Box<dyn Protocol + 'a> {
        let Buffers { staging, loaded, global, momentum, labels, sets } = buffers;
        let intake = if self.delta() { Intake::Delta { loaded } } else { Intake::Interpolate };
        match self.algorithm {
            Algorithm::None => Box::new(ModelAverage::once(staging)),
            Algorithm::Average { .. } => Box::new(ModelAverage::new(staging, self.alpha, intake)),
            Algorithm::BlockMomentum { blocks, .. } => {
                let parameters = self.parameters.min(global.len());
                let state = BlockState { global, momentum };
                Box::new(BlockMomentum::new(staging, self.alpha, intake, blocks, state, parameters))
            }
            Algorithm::DivideShuffle { dealing, .. } => {
                let spread = Spread::new(dealing, labels, sets);
                Box::new(DivideShuffle::new(staging, self.alpha, intake, spread))
            }
            Algorithm::Elastic { pair, .. } => {
                Box::new(ElasticTrainer::new(staging, center, self.alpha, pair))
            }
        }
    }
}

/// Where slice `i` of `slices` begins.
const fn part(elements: usize, i: usize, slices: usize) -> usize {
    elements * i / slices
}

fn values(replica: Option<&[AtomicU32]>, piece: &Range<usize>) -> Vec<f32> {
    let mut values = alloc::vec![0.0; piece.len()];
    if let Some(replica) = replica {
        load(&replica[piece.clone()], &mut values);
    }
    values
}
