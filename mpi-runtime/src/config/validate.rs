//! What no single key can tell: keys that must agree with each other. That somebody has a use for
//! each is checked by the table of keys, in `users.rs`.

mod recovery;

use super::error::ConfigError;
use super::{
    CompressConfig, Config, Layout, ModelKind, OptimSection, Placement, PoolAt, Save, Schedule,
    SyncMethod,
};

impl Config {
    /// Checks what keys say about each other. Types and ranges were checked when they were read;
    /// whether anybody uses them is checked apart, in `users.rs`.
    ///
    /// # Errors
    /// The first contradiction, naming the key to change.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_model()?;
        check_optimizer(&self.optim.dense, DENSE)?;
        check_optimizer(&self.optim.sparse, SPARSE)?;
        self.check_evaluation()?;
        self.check_roles()?;
        self.check_partitions()?;
        self.check_sync()?;
        self.check_compression()?;
        self.check_checkpoints()?;
        self.check_recovery()?;
        self.check_inject()
    }

    /// What the method makes impossible; keys that it would ignore `check_unused` refuses.
    fn check_sync(&self) -> Result<(), ConfigError> {
        let sync = &self.sync;
        sync.check_switch()?;
        if !sync.switch.is_off() && self.run.step_losses {
            let expected = "false where methods change: only bsp knows them (sync.switch)";
            return Err(ConfigError::value("run.step_losses", true, expected));
        }
        match (sync.schedule, sync.group_size) {
            (Schedule::Ring | Schedule::Nodes, Some(size)) => Err(ConfigError::value(
                "sync.group_size",
                size,
                "no group_size: with sync.schedule = \"ring\" groups are pairs, with \"nodes\" \
                 they are nodes",
            )),
            (Schedule::Hypercube, Some(1)) => Err(ConfigError::value(
                "sync.group_size",
                1,
                "at least 2 with sync.schedule = \"hypercube\": trainers' numbers are written in \
                 this base",
            )),
            _ => Ok(()),
        }
    }

    /// What is compressed is sent.
    fn check_compression(&self) -> Result<(), ConfigError> {
        let (compress, plain) = (&self.compress, CompressConfig::default());
        let sends_none =
            |method: &SyncMethod| matches!(method, SyncMethod::None | SyncMethod::Independent);
        match compress.dp_keep {
            Some(keep) if let Some(method) = self.sync.methods().find(sends_none) => {
                Err(ConfigError::value(
                    "compress.dp_keep",
                    keep,
                    format!(
                        "none with sync.method = \"{}\": trainers send each other nothing",
                        method.name()
                    ),
                ))
            }
            None if compress.auto || (compress.mp_keep.is_none() && *compress != plain) => {
                Err(ConfigError::Missing {
                    key: "compress.dp_keep",
                    expected:
                        "the share of the elements that are sent, or compress.mp_keep, that of \
                           pooled vectors, beside the others of [compress]"
                            .into(),
                })
            }
            _ => Ok(()),
        }
    }

    fn check_model(&self) -> Result<(), ConfigError> {
        let model = &self.model;
        match model.bottom.last() {
            Some(&last) if model.kind == ModelKind::Dlrm && last != model.embedding_dim => {
                Err(ConfigError::value(
                    "model.bottom",
                    format!("{:?}", model.bottom),
                    format!(
                        "the last width to equal model.embedding_dim = {}: the interaction \
                         multiplies the two",
                        model.embedding_dim
                    ),
                ))
            }
            _ if model.kind == ModelKind::DcnV2 && model.cross_layers == 0 => {
                let expected = "at least 1: model.kind = \"dcn_v2\" is made of cross layers";
                Err(ConfigError::value("model.cross_layers", 0, expected))
            }
            _ => Ok(()),
        }
    }

    fn check_evaluation(&self) -> Result<(), ConfigError> {
        let needs = |key, got: String| {
            Err(ConfigError::value(
                key,
                got,
                "data.valid to be given: there is nothing to evaluate",
            ))
        };
        if !self.data.valid.is_empty() {
            return Ok(());
        }
        if self.train.eval_every > 0 && !self.train.progressive {
            return needs("train.eval_every", self.train.eval_every.to_string());
        }
        if let Some(stop) = &self.train.early_stop {
            return needs("train.early_stop.patience", stop.patience.to_string());
        }
        if self.checkpoint.save == Save::Best {
            return needs("checkpoint.save", "\"best\"".into());
        }
        Ok(())
    }

    /// What layers that are split do not go together with yet.
    fn check_partitions(&self) -> Result<(), ConfigError> {
        let parts = self.roles.dense_partitions;
        if parts == 1 {
            return Ok(());
        }
        let sums = |method: SyncMethod| matches!(method, SyncMethod::Auto | SyncMethod::Bsp);
        let others = [
            (!self.sync.methods().all(sums), "sync.method is \"bsp\""),
            (self.roles.layout != Layout::Collocated, "roles.layout is \"collocated\""),
            (
                self.train.worker_threads.is_some_and(|threads| threads > 1),
                "train.worker_threads is 1",
            ),
            (self.compress.dp_keep.is_some(), "compress.dp_keep is left out"),
            (self.embedding.pool_at == PoolAt::Ps, "embedding.pool_at is \"trainer\""),
            (self.embedding.placement != Placement::Rows, "embedding.placement is \"rows\""),
            (!self.embedding.dims.is_empty(), "embedding.dims is left out"),
            (self.embedding.columns > 0, "embedding.columns is left out"),
            (self.recovery.mode.is_some(), "recovery.mode is left out"),
        ];
        match others.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, unless)) => Err(ConfigError::value(
                "roles.dense_partitions",
                parts,
                format!("1, unless {unless}"),
            )),
            None => Ok(()),
        }
    }

    fn check_roles(&self) -> Result<(), ConfigError> {
        let roles = &self.roles;
        let has_centers = self.sync.methods().any(|method| method.shape().has_centers());
        match roles.sync_ps {
            Some(n @ 1..) if !has_centers => {
                let method = self.sync.method.name();
                return Err(ConfigError::value(
                    "roles.sync_ps",
                    n,
                    format!("0: sync.method = \"{method}\" has no center and no server"),
                ));
            }
            Some(0) if has_centers => {
                return Err(ConfigError::value(
                    "roles.sync_ps",
                    0,
                    "at least 1: elastic averaging has a center, and dense parameters a server",
                ));
            }
            _ => {}
        }
        match roles.layout {
            Layout::Separate if roles.trainers.is_none() => Err(ConfigError::Missing {
                key: "roles.trainers",
                expected: "the number of ranks that train, since roles.layout = \"separate\""
                    .into(),
            }),
            Layout::Separate if roles.embedding_ps.is_none() => Err(ConfigError::Missing {
                key: "roles.embedding_ps",
                expected: "the number of ranks that hold embedding rows, since roles.layout = \
                           \"separate\""
                    .into(),
            }),
            Layout::Collocated if roles.embedding_ps.is_some_and(|n| Some(n) != roles.trainers) => {
                Err(ConfigError::value(
                    "roles.embedding_ps",
                    roles.embedding_ps.unwrap_or_default(),
                    "the same as roles.trainers, or roles.layout = \"separate\": collocated ranks \
                     are trainer and embedding PS at once",
                ))
            }
            _ => Ok(()),
        }?;
        match (self.sync.method, roles.trainers) {
            (SyncMethod::None, Some(trainers @ 2..)) => Err(one_trainer(trainers)),
            _ => Ok(()),
        }
    }
}

/// `sync.method = "none"` with several trainers.
pub(super) fn one_trainer(trainers: usize) -> ConfigError {
    ConfigError::value(
        "sync.method",
        "\"none\"",
        format!(
            "a method that keeps {trainers} trainers together: \"auto\", \"bsp\", \"local_sgd\", \
             \"ds_sync\", a \
             shadow_* or foreground_* one; or \"independent\", which keeps them apart"
        ),
    )
}

/// Names of the keys that a section's messages need.
struct Names {
    decay_start_step: &'static str,
    decay_steps: &'static str,
}

const DENSE: &Names = &Names {
    decay_start_step: "optim.dense.decay_start_step",
    decay_steps: "optim.dense.decay_steps",
};

const SPARSE: &Names = &Names {
    decay_start_step: "optim.sparse.decay_start_step",
    decay_steps: "optim.sparse.decay_steps",
};

fn check_optimizer(section: &OptimSection, names: &Names) -> Result<(), ConfigError> {
    match (section.decay_start_step, section.decay_steps) {
        (Some(start), None) => {
            return Err(ConfigError::value(
                names.decay_start_step,
                start,
                format!("{} beside it: the steps the decay takes", names.decay_steps),
            ));
        }
        (None, Some(steps)) => {
            return Err(ConfigError::value(
                names.decay_steps,
                steps,
                format!("{} beside it: the step the decay begins at", names.decay_start_step),
            ));
        }
        (Some(start), Some(_)) if start < section.warmup_steps => {
            return Err(ConfigError::value(
                names.decay_start_step,
                start,
                format!("no decay before the warm-up of {} steps ends", section.warmup_steps),
            ));
        }
        _ => {}
    }
    Ok(())
}
