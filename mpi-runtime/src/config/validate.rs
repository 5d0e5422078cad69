//! What no single key can tell: keys that must agree with each other.

use super::error::ConfigError;
use super::types::{Config, Layout, ModelKind, OptimKind, OptimSection, Save, SyncMethod};

impl Config {
    /// Checks what keys say about each other. Types and ranges were checked when they were read.
    ///
    /// # Errors
    /// The first contradiction, naming the key to change.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_model()?;
        check_optimizer(&self.optim.dense, DENSE)?;
        check_optimizer(&self.optim.sparse, SPARSE)?;
        self.check_evaluation()?;
        self.check_roles()?;
        if self.run.trace {
            return Err(ConfigError::value(
                "run.trace",
                true,
                "false: traces are not in this version",
            ));
        }
        Ok(())
    }

    fn check_model(&self) -> Result<(), ConfigError> {
        let model = &self.model;
        let refuse = |key, widths: &[usize], expected: String| {
            Err(ConfigError::value(key, format!("{widths:?}"), expected))
        };
        match (model.kind, model.bottom.last()) {
            (ModelKind::Dlrm, Some(&last)) if last != model.embedding_dim => refuse(
                "model.bottom",
                &model.bottom,
                format!(
                    "the last width to equal model.embedding_dim = {}: the interaction multiplies \
                     the two",
                    model.embedding_dim
                ),
            ),
            (ModelKind::DeepFm | ModelKind::Fm | ModelKind::Lr, Some(_)) => refuse(
                "model.bottom",
                &model.bottom,
                "no layers: only model.kind = \"dlrm\" has a bottom MLP".into(),
            ),
            _ => Ok(()),
        }?;
        let plain = matches!(model.kind, ModelKind::Fm | ModelKind::Lr);
        if plain && !model.top.is_empty() {
            return refuse(
                "model.top",
                &model.top,
                "no layers: model.kind = \"fm\" and \"lr\" have no MLP".into(),
            );
        }
        Ok(())
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
        if self.train.eval_every > 0 {
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

    fn check_roles(&self) -> Result<(), ConfigError> {
        let roles = &self.roles;
        if roles.sync_ps != 0 {
            return Err(ConfigError::value(
                "roles.sync_ps",
                roles.sync_ps,
                "0: no method of this version has a sync PS",
            ));
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
            "a method that keeps {trainers} trainers together: \"bsp\", \"local_sgd\" or \"auto\""
        ),
    )
}

/// Names of the keys that a section's messages need.
struct Names {
    kind: &'static str,
    decay_start_step: &'static str,
    decay_steps: &'static str,
    final_lr: &'static str,
    sparse: bool,
}

const DENSE: &Names = &Names {
    kind: "optim.dense.kind",
    decay_start_step: "optim.dense.decay_start_step",
    decay_steps: "optim.dense.decay_steps",
    final_lr: "optim.dense.final_lr",
    sparse: false,
};

const SPARSE: &Names = &Names {
    kind: "optim.sparse.kind",
    decay_start_step: "optim.sparse.decay_start_step",
    decay_steps: "optim.sparse.decay_steps",
    final_lr: "optim.sparse.final_lr",
    sparse: true,
};

fn check_optimizer(section: &OptimSection, names: &Names) -> Result<(), ConfigError> {
    if section.kind == OptimKind::RowwiseAdagrad && !names.sparse {
        return Err(ConfigError::value(
            names.kind,
            "\"rowwise_adagrad\"",
            "\"adagrad\": dense parameters have no rows to share an accumulator",
        ));
    }
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
        (None, None) if section.final_lr != 0.0 => {
            return Err(ConfigError::value(
                names.final_lr,
                section.final_lr,
                format!("{} and {} beside it", names.decay_start_step, names.decay_steps),
            ));
        }
        _ => {}
    }
    Ok(())
}
