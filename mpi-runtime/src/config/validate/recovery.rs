//! What keys of checkpoints, lost ranks and injected faults say about each other.

use crate::config::{Config, ConfigError, FailureTimes, Priority, RecoveryConfig, RecoveryMode};

impl Config {
    pub(super) fn check_checkpoints(&self) -> Result<(), ConfigError> {
        let checkpoint = &self.checkpoint;
        if checkpoint.warm_start.is_none() && !checkpoint.warm_state {
            return Err(ConfigError::Missing {
                key: "checkpoint.warm_start",
                expected: "the model whose optimizer state is left, as checkpoint.warm_state says"
                    .into(),
            });
        }
        match (&checkpoint.local_dir, checkpoint.local_every) {
            (Some(_), None) => {
                return Err(ConfigError::Missing {
                    key: "checkpoint.local_every",
                    expected: "what lies between two images in checkpoint.local_dir".into(),
                });
            }
            (None, Some(_)) => {
                return Err(ConfigError::Missing {
                    key: "checkpoint.local_dir",
                    expected: "a folder of the node, beside checkpoint.local_every".into(),
                });
            }
            _ => {}
        }
        if checkpoint.full_every > 1 && !checkpoint.background {
            return Err(ConfigError::value(
                "checkpoint.full_every",
                checkpoint.full_every,
                "1 with checkpoint.background = false: what has changed is seen against the copy \
                 of the last checkpoint",
            ));
        }
        Ok(())
    }

    pub(super) fn check_recovery(&self) -> Result<(), ConfigError> {
        let recovery = &self.recovery;
        let inject = &recovery.inject;
        let missing =
            |key, expected: &str| Err(ConfigError::Missing { key, expected: expected.into() });
        let Some(failures) = inject.failures else {
            // What only played failures use.
            let plain = RecoveryConfig::default();
            for (key, set) in [
                ("recovery.load_s", recovery.load_s.is_some()),
                ("recovery.reschedule_s", recovery.reschedule_s.is_some()),
                ("recovery.inject.job_s", inject.job_s.is_some()),
                ("recovery.inject.shards", inject.shards.is_some()),
                ("recovery.inject.lost_shards", inject.lost_shards != plain.inject.lost_shards),
                ("recovery.inject.failure_shape", inject.failure_shape.is_some()),
                ("recovery.inject.failure_steps", !inject.failure_steps.is_empty()),
            ] {
                if set {
                    let expected =
                        format!("which failures the run is to play, since {key} is given");
                    return missing("recovery.inject.failures", &expected);
                }
            }
            self.check_row_saves()?;
            return self.check_spacing();
        };
        for (key, is_there, expected) in [
            ("recovery.mode", recovery.mode.is_some(), "\"full\", \"partial\" or \"cpr\""),
            ("recovery.mtbf_s", recovery.mtbf_s.is_some(), "mean seconds between failures"),
            ("recovery.save_s", recovery.save_s.is_some(), "seconds of a save"),
            ("recovery.load_s", recovery.load_s.is_some(), "seconds of reading a save"),
            (
                "recovery.reschedule_s",
                recovery.reschedule_s.is_some(),
                "seconds until a lost process is replaced",
            ),
            ("recovery.inject.job_s", inject.job_s.is_some(), "seconds that the run stands for"),
        ] {
            if !is_there {
                return missing(key, &format!("{expected}, as the run plays failures"));
            }
        }
        if inject.shards.is_some_and(|shards| inject.lost_shards > shards) {
            return Err(ConfigError::value(
                "recovery.inject.lost_shards",
                inject.lost_shards,
                "no more than recovery.inject.shards",
            ));
        }
        match failures {
            FailureTimes::Gamma if inject.failure_shape.is_none() => {
                missing("recovery.inject.failure_shape", "the shape of the gamma distribution")
            }
            FailureTimes::Steps if inject.failure_steps.is_empty() => {
                missing("recovery.inject.failure_steps", "the steps after which rows are lost")
            }
            _ => self.check_priority(),
        }
    }

    fn check_priority(&self) -> Result<(), ConfigError> {
        let RecoveryConfig { mode, priority, .. } = self.recovery;
        if priority == Priority::None || mode != Some(RecoveryMode::Full) {
            return Ok(());
        }
        Err(ConfigError::value(
            "recovery.priority",
            "set",
            "none with recovery.mode = \"full\": everybody goes back to one moment, and rows that \
             were saved first are of another",
        ))
    }

    /// A run that plays no failures and saves some rows first.
    fn check_row_saves(&self) -> Result<(), ConfigError> {
        if self.recovery.priority == Priority::None {
            return Ok(());
        }
        if self.checkpoint.every.is_none() && self.recovery.mtbf_s.is_none() {
            return Err(ConfigError::Missing {
                key: "checkpoint.every",
                expected: "what lies between two checkpoints, since recovery.priority is given: \
                           rows that come first are saved between them"
                    .into(),
            });
        }
        if !self.checkpoint.background {
            return Err(ConfigError::value(
                "recovery.priority",
                "set",
                "none with checkpoint.background = false: rows that come first are saved from the \
                 copy of the last checkpoint",
            ));
        }
        self.check_priority()
    }

    /// A run that plays no failures and says what it does about them.
    fn check_spacing(&self) -> Result<(), ConfigError> {
        let RecoveryConfig { mode, mtbf_s, save_s, .. } = self.recovery;
        if mode.is_none() {
            let given = mtbf_s.map(|_| "recovery.mtbf_s").or(save_s.map(|_| "recovery.save_s"));
            return given.map_or(Ok(()), |given| {
                let expected = format!(
                    "\"full\", \"partial\" or \"cpr\", what is done about failures, beside {given}"
                );
                Err(ConfigError::Missing { key: "recovery.mode", expected })
            });
        }
        match (mtbf_s, self.checkpoint.every) {
            (Some(_), Some(every)) => Err(ConfigError::value(
                "checkpoint.every",
                every,
                "none with recovery.mtbf_s, which says how far apart checkpoints are",
            )),
            (None, _) if save_s.is_some() => Err(ConfigError::Missing {
                key: "recovery.mtbf_s",
                expected: "mean seconds between failures, beside recovery.save_s".into(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn check_inject(&self) -> Result<(), ConfigError> {
        let inject = &self.recovery.inject;
        let alone =
            |key, expected: &str| Err(ConfigError::Missing { key, expected: expected.into() });
        match (inject.nan_trainer, inject.nan_step) {
            (Some(_), None) => alone("recovery.inject.nan_step", "the step of the fault")?,
            (None, Some(_)) => alone("recovery.inject.nan_trainer", "the trainer with the fault")?,
            _ => {}
        }
        match (inject.panic_trainer, inject.panic_step) {
            (Some(_), None) => alone("recovery.inject.panic_step", "the step of the fault")?,
            (None, Some(_)) => {
                alone("recovery.inject.panic_trainer", "the trainer with the fault")?
            }
            _ => {}
        }
        match (inject.kill_trainer, inject.kill_step) {
            (Some(_), None) => alone("recovery.inject.kill_step", "the step of the fault")?,
            (None, Some(_)) => alone("recovery.inject.kill_trainer", "the trainer with the fault")?,
            _ => {}
        }
        if inject.slow_trainer.is_some() && inject.slow_factor.is_none() {
            alone("recovery.inject.slow_factor", "how slow it is")?;
        }
        match (inject.short_trainer, inject.short_share) {
            (Some(_), None) => alone("recovery.inject.short_share", "its share of the data"),
            (None, Some(_)) => alone("recovery.inject.short_trainer", "the trainer with less data"),
            _ => Ok(()),
        }
    }
}
