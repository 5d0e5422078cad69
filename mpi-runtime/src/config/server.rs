//! `[sync.server]`: training on parameter servers.

use serde::{Deserialize, Serialize};
use umbra_core::rows::tokens::RowDivisor as CoreRowDivisor;
use umbra_core::sync::Divisor as CoreDivisor;
use umbra_core::sync::server::Updates;
use umbra_core::sync::token::{Admission, Decay as CoreDecay, Rule};
use umbra_core::sync::{Method, Rounds, Serving};
use umbra_core::units::Nanos;

use super::convert;
use super::error::ConfigError;
use super::sync::SyncMethod;
use super::types::Config;

/// `[sync.server]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// `gba`: gradients of a global batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<u32>,
    /// `gba`: what old gradients weigh.
    pub decay: Decay,
    /// `gba`, hard decay: global batches that a gradient may be late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<u64>,
    /// `gba`, decay by powers: the factor for each global batch that a gradient is late.
    pub decay_factor: f64,
    /// `gba`: what the sum of a global batch's gradients is divided by.
    pub divisor: Divisor,
    /// `gba`: what the gradient of an embedding row is divided by.
    pub row_divisor: RowDivisor,
    /// `hop_bs`: batches that a worker may be ahead of the slowest.
    pub bound: u64,
    /// `hop_bw`: workers that nobody waits for.
    pub backup_workers: u32,
    /// Seconds after which a batch that did not come back is handed out again; 0: never.
    pub reissue_s: f64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            members: None,
            decay: Decay::Hard,
            tolerance: None,
            decay_factor: 0.5,
            divisor: Divisor::Members,
            row_divisor: RowDivisor::Global,
            bound: 3,
            backup_workers: 1,
            reissue_s: 60.0,
        }
    }
}

/// What old gradients weigh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// All or nothing.
    #[default]
    Hard,
    /// Less with every global batch.
    Power,
}

/// What a sum of gradients is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Divisor {
    /// Their number.
    #[default]
    Members,
    /// The sum of their weights.
    Weights,
}

/// What the gradient of an embedding row is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowDivisor {
    /// As that of dense parameters.
    #[default]
    Global,
    /// The number of gradients that have the row.
    OwnCount,
}

impl SyncMethod {
    /// Trains on parameter servers.
    #[must_use]
    pub const fn is_served(self) -> bool {
        matches!(self, Self::AsyncPs | Self::BspPs | Self::HopBs | Self::HopBw | Self::Gba)
    }
}

impl Config {
    /// Fills in what depends on the number of trainers and of their workers, all together.
    ///
    /// # Errors
    /// When no worker would be waited for, or two methods would have other global batches.
    pub(super) fn complete_server(
        &mut self,
        trainers: usize,
        workers: usize,
    ) -> Result<(), ConfigError> {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let (gba, uses_backups) =
            (self.sync.uses(SyncMethod::Gba), self.sync.uses(SyncMethod::HopBw));
        let sums = self.sync.uses(SyncMethod::Bsp);
        let others_served = self.sync.methods().filter(|method| method.is_served()).count() > 1;
        let server = &mut self.sync.server;
        if uses_backups && server.backup_workers >= workers {
            return Err(ConfigError::value(
                "sync.server.backup_workers",
                server.backup_workers,
                format!("fewer than the workers of all trainers, of whom there are {workers}"),
            ));
        }
        if gba {
            let members = *server.members.get_or_insert(workers);
            let refuse =
                |expected| Err(ConfigError::value("sync.server.members", members, expected));
            if others_served && members != workers {
                return refuse(format!(
                    "as many as the workers of all trainers, {workers}, where the other method \
                     has parameter servers too: the global batch stays"
                ));
            }
            if sums && !(members as usize).is_multiple_of(trainers) {
                return refuse(format!(
                    "a multiple of the {trainers} trainers, who share the global batch under bsp"
                ));
            }
            if server.decay == Decay::Hard {
                // A worker up to five times slower than the others is in time.
                server.tolerance.get_or_insert(4 * u64::from(workers.div_ceil(members)));
            }
        }
        Ok(())
    }

    /// The parameter server of a resolved configuration under `method`, for so many workers of all
    /// trainers and `servers`; `None` where the method has none.
    #[must_use]
    pub fn served(
        &self,
        method: SyncMethod,
        workers: usize,
        servers: usize,
    ) -> Option<Method<'static>> {
        let server = &self.sync.server;
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let none = CoreDecay::None;
        let (members, admission, decay, late_takes_place) = match method {
            SyncMethod::AsyncPs => (1, Admission::Free, none, true),
            SyncMethod::BspPs => (workers, Admission::OnePerVersion, none, true),
            SyncMethod::HopBs => (1, Admission::Within { steps: server.bound }, none, true),
            SyncMethod::HopBw => {
                let members = workers.saturating_sub(server.backup_workers);
                (members, Admission::OnePerVersion, CoreDecay::Hard { tolerance: 0 }, false)
            }
            SyncMethod::Gba => {
                let members = server.members.unwrap_or(workers);
                (members, Admission::Free, server.decay(), true)
            }
            _ => return None,
        };
        // The data of a global batch: that of the synchronous run.
        let streams = u32::try_from(self.batches_per_step(workers as usize)).unwrap_or(u32::MAX);
        let reissue_after = match server.reissue_s {
            0.0 => Nanos(u64::MAX),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates, and is not negative"
            )]
            seconds => Nanos((seconds * 1e9) as u64),
        };
        let rule = Rule { members, admission, decay, late_takes_place, reissue_after };
        let updates = Updates {
            optimizer: convert::dense_optimizer(&self.optim.dense)?,
            rate: convert::rate(&self.optim.dense),
            members_of: (members, streams),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "settings are computed with in f32"
            )]
            statistics_momentum: self.model.batch_norm_momentum as f32,
            divisor: match server.divisor {
                Divisor::Members => CoreDivisor::Members,
                Divisor::Weights => CoreDivisor::Weights,
            },
        };
        let relays = self.roles.embedding_ps.unwrap_or(0);
        let serving =
            Serving { rule, servers, updates, window: WINDOW, relays, streams: streams as usize };
        let algorithm = umbra_core::sync::Algorithm::Server(serving);
        Some(Method { algorithm, rounds: Rounds::Handed, alpha: 1.0, differences: false })
    }
}

impl Config {
    /// Gradients of a global batch for so many workers of all trainers: those of all, or as many
    /// as `gba` is told, also while a run that changes its method trains by another.
    #[must_use]
    pub fn batches_per_step(&self, workers: usize) -> usize {
        let members = self.sync.server.members.filter(|_| self.sync.uses(SyncMethod::Gba));
        members.map_or(workers, |members| members as usize)
    }
}

impl ServerConfig {
    /// What the gradient of a row is divided by.
    #[must_use]
    pub const fn rows(&self) -> CoreRowDivisor {
        match (self.row_divisor, self.divisor) {
            (RowDivisor::OwnCount, _) => CoreRowDivisor::OwnCount,
            (RowDivisor::Global, Divisor::Members) => CoreRowDivisor::Global(CoreDivisor::Members),
            (RowDivisor::Global, Divisor::Weights) => CoreRowDivisor::Global(CoreDivisor::Weights),
        }
    }

    fn decay(&self) -> CoreDecay {
        match self.decay {
            Decay::Hard => CoreDecay::Hard { tolerance: self.tolerance.unwrap_or(u64::MAX) },
            #[expect(
                clippy::cast_possible_truncation,
                reason = "settings are computed with in f32"
            )]
            Decay::Power => CoreDecay::Power { rho: self.decay_factor as f32 },
        }
    }
}

/// Steps that a worker's own data may be ahead of another's: as far as a fast worker goes before it
/// takes a slow one's.
const WINDOW: u64 = 64;
