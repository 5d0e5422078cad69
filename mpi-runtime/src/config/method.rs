//! From the words of `[sync]` to the method as the core describes it.

use umbra_core::optim::{Optimizer, OptimizerKind, Rate, Schedule as RateSchedule};
use umbra_core::sync::server::Updates;
use umbra_core::sync::token::{Admission, Decay, Rule};
use umbra_core::sync::{
    Algorithm, Blocks, Dealing, Divisor, GateOf, Method, Pace, Pair as CorePair, Rounds, Serving,
};
use umbra_core::units::Nanos;

use super::sync::{Gate, Intake, Pair, Schedule, SyncConfig, SyncMethod};
use super::types::Config;

const GATED: Rounds = Rounds::Gated { every: 1, gate: GateOf::Trainer };
const SHADOW: Rounds = Rounds::Background(Pace {
    interval: Nanos(0),
    bytes_per_second: 0,
    core_share: 0.0,
    longest_rest: Nanos(0),
});

const ELASTIC: Algorithm<'_> = Algorithm::Elastic { pair: CorePair::Sequential, slices: 1 };
const AVERAGE: Algorithm<'_> = Algorithm::Average { delta: false };
const BLOCKS: Algorithm<'_> = Algorithm::BlockMomentum {
    blocks: Blocks { rate: 1.0, momentum: 0.0, nesterov: false },
    delta: false,
};
const GROUPS: Algorithm<'_> = Algorithm::DivideShuffle { dealing: Dealing::Ring, delta: false };

const SLOW_GROUPS: Algorithm<'_> = Algorithm::SlowGroups {
    dealing: Dealing::Ring,
    blocks: Blocks { rate: 1.0, momentum: 0.0, nesterov: false },
    delta: false,
};

const SERVED: Algorithm<'_> = Algorithm::Server(Serving {
    rule: Rule {
        members: 1,
        admission: Admission::Free,
        decay: Decay::None,
        late_takes_place: true,
        reissue_after: Nanos(u64::MAX),
    },
    servers: 1,
    updates: Updates {
        optimizer: Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 },
        rate: Rate { base: 0.0, schedule: RateSchedule::CONSTANT },
        members_of: (1, 1),
        statistics_momentum: 0.0,
        divisor: Divisor::Members,
    },
    window: 1,
    relays: 0,
    streams: 1,
});

impl SyncMethod {
    /// What the method is, whatever its parameters: of `auto`, that of a single trainer.
    #[must_use]
    pub const fn shape(self) -> Method<'static> {
        let (algorithm, rounds) = match self {
            Self::Auto | Self::None | Self::Independent => return Method::NONE,
            Self::Bsp => (Algorithm::StepSum, Rounds::EveryStep),
            Self::LocalSgd | Self::ForegroundMa => (AVERAGE, GATED),
            Self::ForegroundEasgd => (ELASTIC, GATED),
            Self::ForegroundBmuf => (BLOCKS, GATED),
            Self::ShadowEasgd => (ELASTIC, SHADOW),
            Self::ShadowMa => (AVERAGE, SHADOW),
            Self::ShadowBmuf => (BLOCKS, SHADOW),
            Self::DsSync => (GROUPS, GATED),
            Self::ShadowDsSync => (GROUPS, SHADOW),
            Self::DsSlowmo => (SLOW_GROUPS, GATED),
            Self::AsyncPs | Self::BspPs | Self::HopBs | Self::HopBw | Self::Gba => {
                (SERVED, Rounds::Handed)
            }
        };
        Method { algorithm, rounds, alpha: 1.0, differences: false }
    }
}

impl Config {
    /// `method` in a resolved configuration. `slices`: centers of elastic averaging, or servers;
    /// `nodes`: what `sync.schedule = "nodes"` means on these ranks.
    #[must_use]
    pub fn method<'a>(&self, method: SyncMethod, slices: usize, nodes: Dealing<'a>) -> Method<'a> {
        let sync = &self.sync;
        let workers = self.roles.trainers.unwrap_or(1) * self.train.worker_threads.unwrap_or(1);
        if let Some(served) = self.served(method, workers, slices) {
            return served;
        }
        let shape: Method<'a> = method.shape();
        let delta = sync.intake == Intake::Delta;
        let algorithm = match shape.algorithm {
            plain @ (Algorithm::None | Algorithm::StepSum | Algorithm::Server(_)) => plain,
            Algorithm::Average { .. } => Algorithm::Average { delta },
            Algorithm::BlockMomentum { .. } => {
                Algorithm::BlockMomentum { blocks: sync.blocks(), delta }
            }
            Algorithm::DivideShuffle { .. } => {
                Algorithm::DivideShuffle { dealing: sync.dealing(self.seed, nodes), delta }
            }
            Algorithm::SlowGroups { .. } => {
                let dealing = sync.dealing(self.seed, nodes);
                Algorithm::SlowGroups { dealing, blocks: sync.blocks(), delta }
            }
            Algorithm::Elastic { .. } => {
                let pair = match sync.pair {
                    Pair::Sequential => CorePair::Sequential,
                    Pair::Same => CorePair::Same,
                };
                Algorithm::Elastic { pair, slices }
            }
        };
        let rounds = match shape.rounds {
            plain @ (Rounds::Never | Rounds::EveryStep | Rounds::Handed) => plain,
            Rounds::Gated { .. } => Rounds::Gated {
                every: sync.every.unwrap_or(1),
                gate: match sync.gate {
                    Gate::Trainer => GateOf::Trainer,
                    Gate::Worker => GateOf::Worker,
                },
            },
            Rounds::Background(_) => Rounds::Background(sync.pace()),
        };
        let differences = self.differences();
        Method { algorithm, rounds, alpha: single(sync.alpha), differences }
    }
}

impl SyncConfig {
    fn blocks(&self) -> Blocks {
        Blocks {
            rate: single(Some(self.block_rate)),
            momentum: single(self.block_momentum),
            nesterov: self.nesterov,
        }
    }

    fn pace(&self) -> Pace {
        Pace {
            interval: Nanos(self.min_interval_us.saturating_mul(1000)),
            bytes_per_second: self.max_bytes_per_s,
            // A whole core is no bound.
            core_share: self.core_share.filter(|share| *share < 1.0).unwrap_or(0.0),
            longest_rest: Nanos(0),
        }
    }

    fn dealing<'a>(&self, seed: u64, nodes: Dealing<'a>) -> Dealing<'a> {
        let size = self.group_size.unwrap_or(1);
        match self.schedule {
            Schedule::Grid => Dealing::Grid { columns: size },
            Schedule::Nodes => nodes,
            Schedule::Hypercube => Dealing::Hypercube { base: size },
            Schedule::Ring => Dealing::Ring,
            Schedule::Random => Dealing::Random { group: size, seed },
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "settings are computed with in f32")]
fn single(x: Option<f64>) -> f32 {
    x.unwrap_or_default() as f32
}
