//! A synchronization method as data: the one description that the configuration resolves to and
//! that both drivers, the trainers and whoever publishes a model read.
//!
//! | question | answer |
//! | --- | --- |
//! | what does it exchange? | [`Algorithm`] |
//! | how do workers meet its rounds? | [`Rounds`] |
//! | which instances run where? | [`Instances`](super::Instances) |
//! | what is it lent? | [`Method::sizes`], [`Scratch`], [`Memory`] |
//! | who builds its protocols? | [`Method::trainer`], [`Method::center`] |
//! | which model does a run end with? | [`Method::published`] |

use core::ops::Range;

use super::block_momentum::{BlockMomentum, BlockState, Blocks};
use super::divide_shuffle::{DivideShuffle, Spread};
use super::elastic::{ElasticCenter, ElasticTrainer, Pair};
use super::groups::Dealing;
use super::instances::Instances;
use super::model_average::{Intake, ModelAverage};
use super::pace::Pace;
use super::protocol::{Action, Completion, OutOfTurn, Protocol};
use super::reduction::TAIL;
use super::server::{Dispatcher, Relay, ServerWorker, Serving, Shard};
use super::slow_groups::SlowGroups;
use super::step_sum::StepSum;

/// How the replicas of trainers stay together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Method<'a> {
    /// What is exchanged.
    pub algorithm: Algorithm<'a>,
    /// How workers meet rounds.
    pub rounds: Rounds,
    /// Share of the way that a round moves a replica.
    pub alpha: f32,
    /// Averages of all are of what replicas have over the model that they last moved towards, not
    /// of replicas: what matters of that is little.
    pub differences: bool,
}

/// What trainers exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm<'a> {
    /// Nothing.
    None,
    /// Gradients, summed every step (`step_sum.rs`).
    StepSum,
    /// Replicas, which move towards their mean (`model_average.rs`).
    Average {
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// The same with momentum from round to round (`block_momentum.rs`).
    BlockMomentum {
        /// How the global model follows the mean.
        blocks: Blocks,
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// Replicas, within groups that change from round to round (`divide_shuffle.rs`).
    DivideShuffle {
        /// How they are dealt.
        dealing: Dealing<'a>,
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// The same with momentum from round to round (`slow_groups.rs`).
    SlowGroups {
        /// How they are dealt.
        dealing: Dealing<'a>,
        /// How a trainer follows the mean of its group.
        blocks: Blocks,
        /// A round keeps what workers did meanwhile.
        delta: bool,
    },
    /// Each replica with a center (`elastic.rs`).
    Elastic {
        /// Which values the two sides see.
        pair: Pair,
        /// Slices of the replica, each with a center of its own; 0 is 1.
        slices: usize,
    },
    /// Gradients, with servers that own the parameters (`server/`).
    Server(Serving),
}

/// How the workers of a trainer meet rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rounds {
    /// There are none.
    Never,
    /// At the end of every step, all workers together.
    EveryStep,
    /// They stand still during rounds.
    Gated {
        /// Steps of a worker between two rounds.
        every: u64,
        /// Who stands still together.
        gate: GateOf,
    },
    /// They train on.
    Background(Pace),
    /// There are none: each worker trains the batches that the method hands it.
    Handed,
}

impl Rounds {
    /// Those of one of `slices` of a trainer's replica.
    #[must_use]
    pub const fn of_slice(self, slices: usize) -> Self {
        match self {
            Self::Background(pace) => Self::Background(pace.of_slice(slices)),
            other => other,
        }
    }
}

/// Who meets a foreground round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateOf {
    /// The workers of a trainer, all together.
    #[default]
    Trainer,
    /// Each worker by itself, while the others train on: the published baseline of arXiv
    /// 2003.03477, where every worker exchanges after so many of its own steps.
    Worker,
}

/// The model that is evaluated and saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The replica of any trainer: all are alike, or there is one.
    Replica,
    /// The first trainer's replica.
    First,
    /// The mean of all replicas.
    Mean,
    /// The center.
    Center,
}

/// What an instance needs for a stretch of training. Lent, and of no value between two.
#[derive(Debug)]
pub struct Scratch<'a> {
    /// `[slice + TAIL]`; empty where gradients are exchanged.
    pub staging: &'a mut [f32],
    /// `[slice]` if a round keeps what workers did meanwhile, else `[0]`.
    pub loaded: &'a mut [f32],
    /// `[trainers]` where groups are dealt, else `[0]`.
    pub labels: &'a mut [usize],
    /// `[Spread::words(trainers)]` where groups are dealt, else `[0]`.
    pub sets: &'a mut [u64],
}

/// What an instance remembers from round to round and from stretch to stretch. Lent.
#[derive(Debug)]
pub struct Memory<'a> {
    /// The number of the next round.
    pub round: &'a mut u64,
    /// Block momentum, and averages of differences: the global model; a center: its values.
    /// `[slice]`, else `[0]`
    pub global: &'a mut [f32],
    /// Block momentum: its velocity, 0 at first. `[slice]`, else `[0]`
    pub velocity: &'a mut [f32],
}

/// Lengths of [`Scratch`] and [`Memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Sizes {
    pub staging: usize,
    pub loaded: usize,
    pub labels: usize,
    pub sets: usize,
    pub global: usize,
    pub velocity: usize,
}

impl<'a> Method<'a> {
    /// Trainers that share nothing but the rows.
    pub const NONE: Self =
        Self { algorithm: Algorithm::None, rounds: Rounds::Never, alpha: 0.0, differences: false };

    /// The same on a machine with these nodes, which is what [`Dealing::Nodes`] means there: the
    /// node of every trainer, and its number on it. `[trainers]` each.
    #[must_use]
    pub const fn with_nodes<'b>(&self, node: &'b [usize], place: &'b [usize]) -> Method<'b>
    where
        'a: 'b,
    {
        let algorithm = match self.algorithm {
            Algorithm::DivideShuffle { dealing: Dealing::Nodes { .. }, delta } => {
                Algorithm::DivideShuffle { dealing: Dealing::Nodes { node, place }, delta }
            }
            Algorithm::SlowGroups { dealing: Dealing::Nodes { .. }, blocks, delta } => {
                Algorithm::SlowGroups { dealing: Dealing::Nodes { node, place }, blocks, delta }
            }
            other => other,
        };
        let Self { rounds, alpha, differences, .. } = *self;
        Method { algorithm, rounds, alpha, differences }
    }

    /// Slices of the replica that are synchronized on their own.
    #[must_use]
    pub const fn slices(&self) -> usize {
        match self.algorithm {
            Algorithm::Elastic { slices, .. } if slices > 0 => slices,
            Algorithm::Server(serving) => serving.servers(),
            _ => 1,
        }
    }

    /// Slice `number` of a replica of `elements`.
    #[must_use]
    pub const fn slice(&self, number: usize, elements: usize) -> Range<usize> {
        let slices = self.slices();
        elements * number / slices..elements * (number + 1) / slices
    }

    /// Each slice has a center.
    #[must_use]
    pub const fn has_centers(&self) -> bool {
        matches!(self.algorithm, Algorithm::Elastic { .. } | Algorithm::Server(_))
    }

    /// Gates of a trainer with so many workers.
    #[must_use]
    pub const fn gates(&self, workers: usize) -> usize {
        match self.rounds {
            Rounds::Gated { gate: GateOf::Worker, .. } | Rounds::Handed => workers,
            _ => 1,
        }
    }

    /// Its instances on `trainers` of so many workers each.
    #[must_use]
    pub const fn instances(&self, trainers: usize, workers: usize) -> Instances {
        let slices = self.slices();
        if let Algorithm::Server(_) = self.algorithm {
            // A worker talks to all servers; relays and the dispatcher come behind them.
            let centers = slices + self.relays() + 1;
            return Instances { trainers, slices: 1, gates: workers, centers };
        }
        Instances {
            trainers: if matches!(self.algorithm, Algorithm::None) { 0 } else { trainers },
            slices,
            gates: self.gates(workers),
            centers: if self.has_centers() { slices } else { 0 },
        }
    }

    /// How its groups are dealt, if it has any.
    #[must_use]
    pub const fn dealing(&self) -> Option<Dealing<'a>> {
        match self.algorithm {
            Algorithm::DivideShuffle { dealing, .. } | Algorithm::SlowGroups { dealing, .. } => {
                Some(dealing)
            }
            _ => None,
        }
    }

    /// Replicas are averaged, with all others or in groups.
    #[must_use]
    pub const fn averages(&self) -> bool {
        match self.algorithm {
            Algorithm::Average { .. }
            | Algorithm::BlockMomentum { .. }
            | Algorithm::DivideShuffle { .. }
            | Algorithm::SlowGroups { .. } => true,
            Algorithm::None
            | Algorithm::StepSum
            | Algorithm::Elastic { .. }
            | Algorithm::Server(_) => false,
        }
    }

    /// How a model follows the mean with momentum from round to round, if one does.
    #[must_use]
    pub const fn blocks(&self) -> Option<Blocks> {
        match self.algorithm {
            Algorithm::BlockMomentum { blocks, .. } | Algorithm::SlowGroups { blocks, .. } => {
                Some(blocks)
            }
            _ => None,
        }
    }

    /// A round keeps what workers did meanwhile.
    #[must_use]
    pub const fn delta(&self) -> bool {
        match self.algorithm {
            Algorithm::Average { delta }
            | Algorithm::BlockMomentum { delta, .. }
            | Algorithm::DivideShuffle { delta, .. }
            | Algorithm::SlowGroups { delta, .. } => delta,
            Algorithm::Elastic { pair, .. } => matches!(pair, Pair::Same),
            Algorithm::None | Algorithm::StepSum | Algorithm::Server(_) => false,
        }
    }

    /// Which model a run of so many trainers ends with.
    #[must_use]
    pub const fn published(&self, trainers: usize) -> Published {
        match self.algorithm {
            Algorithm::Elastic { .. } | Algorithm::Server(_) => Published::Center,
            _ if trainers <= 1 => Published::Replica,
            Algorithm::None => Published::First,
            Algorithm::StepSum => Published::Replica,
            Algorithm::Average { .. }
            | Algorithm::BlockMomentum { .. }
            | Algorithm::DivideShuffle { .. }
            | Algorithm::SlowGroups { .. } => Published::Mean,
        }
    }

    /// What an instance of a trainer is lent, for a slice of `len` elements.
    #[must_use]
    pub const fn sizes(&self, len: usize, trainers: usize) -> Sizes {
        let blocks = self.blocks().is_some();
        let averages = matches!(self.algorithm, Algorithm::Average { .. });
        let global = blocks || (averages && self.differences);
        let dealt = if self.dealing().is_some() { trainers } else { 0 };
        let sums = matches!(self.algorithm, Algorithm::StepSum);
        Sizes {
            staging: if sums { 0 } else { len + TAIL },
            loaded: if self.delta() { len } else { 0 },
            labels: dealt,
            sets: Spread::words(dealt),
            global: if global { len } else { 0 },
            velocity: if blocks { len } else { 0 },
        }
    }

    /// What the instance of a center is lent, for a slice of `len` elements.
    #[must_use]
    pub const fn center_sizes(&self, len: usize) -> Sizes {
        let (loaded, labels, sets, velocity) = (0, 0, 0, 0);
        Sizes { staging: len + TAIL, loaded, labels, sets, global: len, velocity }
    }

    /// The protocol of an instance of a trainer; `None` where a method has none. `center`: the
    /// instance that serves its slice; `parameters`: elements of the slice that are no running
    /// statistics.
    #[must_use]
    pub fn trainer<'m>(
        &self,
        scratch: Scratch<'m>,
        memory: Memory<'m>,
        center: usize,
        parameters: usize,
    ) -> Option<Machine<'m>>
    where
        'a: 'm,
    {
        let Scratch { staging, loaded, labels, sets } = scratch;
        let Memory { round, global, velocity } = memory;
        let alpha = self.alpha;
        let intake = if self.delta() {
            let parameters = parameters.min(loaded.len());
            Intake::Delta { loaded: &mut loaded[..parameters] }
        } else {
            Intake::Interpolate
        };
        Some(match self.algorithm {
            Algorithm::None | Algorithm::Server(_) => return None,
            Algorithm::StepSum => Machine::StepSum(StepSum::default()),
            Algorithm::Average { .. } if self.differences => {
                Machine::Average(ModelAverage::of_differences(staging, alpha, intake, global))
            }
            Algorithm::Average { .. } => {
                Machine::Average(ModelAverage::new(staging, alpha, intake))
            }
            Algorithm::BlockMomentum { blocks, .. } => {
                let parameters = parameters.min(global.len());
                let state = BlockState { global, momentum: velocity };
                let machine = BlockMomentum::new(staging, alpha, intake, blocks, state, parameters);
                Machine::BlockMomentum(if self.differences {
                    machine.of_differences()
                } else {
                    machine
                })
            }
            Algorithm::DivideShuffle { dealing, .. } => {
                let spread = Spread::new(dealing, labels, sets);
                Machine::DivideShuffle(DivideShuffle::new(staging, alpha, intake, spread, round))
            }
            Algorithm::SlowGroups { dealing, blocks, .. } => {
                let parameters = parameters.min(global.len());
                let spread = Spread::new(dealing, labels, sets);
                let state = BlockState { global, momentum: velocity };
                let (lent, moves) = ((staging, round), (alpha, intake));
                let machine = SlowGroups::new(lent, moves, spread, blocks, state, parameters);
                Machine::SlowGroups(machine)
            }
            Algorithm::Elastic { .. } => {
                Machine::Elastic(ElasticTrainer::new(staging, center, alpha, intake))
            }
        })
    }

    /// The protocol of a center, which serves so many `clients`; `None` where a method has none.
    #[must_use]
    pub fn center<'m>(
        &self,
        scratch: Scratch<'m>,
        memory: Memory<'m>,
        clients: usize,
    ) -> Option<Machine<'m>> {
        let Algorithm::Elastic { pair, .. } = self.algorithm else { return None };
        let (staging, global) = (scratch.staging, memory.global);
        Some(Machine::Center(ElasticCenter::new(staging, global, self.alpha, pair, clients)))
    }
}

/// The protocol of any method.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Machine<'a> {
    StepSum(StepSum),
    Average(ModelAverage<'a>),
    BlockMomentum(BlockMomentum<'a>),
    DivideShuffle(DivideShuffle<'a>),
    SlowGroups(SlowGroups<'a>),
    Elastic(ElasticTrainer<'a>),
    Center(ElasticCenter<'a>),
    Worker(ServerWorker<'a>),
    Shard(Shard<'a>),
    Relay(Relay),
    Dispatcher(Dispatcher<'a>),
}

impl<'a> Machine<'a> {
    fn protocol(&mut self) -> &mut (dyn Protocol + 'a) {
        match self {
            Self::StepSum(it) => it,
            Self::Average(it) => it,
            Self::BlockMomentum(it) => it,
            Self::DivideShuffle(it) => it,
            Self::SlowGroups(it) => it,
            Self::Elastic(it) => it,
            Self::Center(it) => it,
            Self::Worker(it) => it,
            Self::Shard(it) => it,
            Self::Relay(it) => it,
            Self::Dispatcher(it) => it,
        }
    }
}

impl Protocol for Machine<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        self.protocol().step(last)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.protocol().staging()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slice_has_a_machine_for_each_gate_and_a_center() {
        let rounds = Rounds::Gated { every: 1, gate: GateOf::Worker };
        let algorithm = Algorithm::Elastic { pair: Pair::Same, slices: 2 };
        let method = Method { algorithm, rounds, ..Method::NONE };
        let all = Instances { trainers: 3, slices: 2, gates: 4, centers: 2 };
        assert_eq!(method.instances(3, 4), all);
        assert!(Method::NONE.instances(3, 4).is_empty());
    }

    #[test]
    fn slices_cover_the_replica() {
        let algorithm = Algorithm::Elastic { pair: Pair::Same, slices: 3 };
        let method = Method { algorithm, ..Method::NONE };
        let ends: [Range<usize>; 3] = core::array::from_fn(|i| method.slice(i, 10));
        assert_eq!(ends, [0..3, 3..6, 6..10]);
    }

    /// Of a slice of three elements the last is a running statistic: it is not moved by a
    /// difference, whichever method has it.
    #[test]
    fn running_statistics_are_not_added_to() {
        let same = Algorithm::Elastic { pair: Pair::Same, slices: 1 };
        for algorithm in [Algorithm::Average { delta: true }, same] {
            let method = Method { algorithm, alpha: 0.5, ..Method::NONE };
            let (mut staging, mut loaded, mut round) = ([0.0; 3 + TAIL], [0.0; 3], 0);
            let (labels, sets) = (&mut [], &mut []);
            let scratch = Scratch { staging: &mut staging, loaded: &mut loaded, labels, sets };
            let memory = Memory { round: &mut round, global: &mut [], velocity: &mut [] };
            let mut machine = method.trainer(scratch, memory, 1, 2).unwrap();
            let mut step = |completion| machine.step(completion).unwrap();
            assert_eq!(step(Completion::Start), Action::Load);
            let added = match step(Completion::Loaded { finite: true, last: false }) {
                Action::Send { word, .. } => {
                    step(Completion::Done);
                    step(Completion::Received { from: 1, word, elements: 3 })
                }
                _ => step(Completion::Reduced { weight: 2.0, silent: 0 }),
            };
            assert_eq!(added, Action::Add { alpha: 0.5, parameters: 2 }, "{algorithm:?}");
        }
    }
}
