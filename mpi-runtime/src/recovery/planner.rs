//! How saves should be spaced and who goes back, said with its reason.

use core::fmt;

use umbra_core::recovery::overhead::{Choice, Job, Outlook, Recovery};

use super::spacing::Spacing;
use crate::config::{Config, Priority, RecoveryConfig, RecoveryMode};
use crate::rows::usage::{By, SaveFirst};

/// What a job does about failures.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryPlan {
    /// As failures see the job.
    pub job: Job,
    /// The ways to recover.
    pub choice: Choice,
    /// Which of them it takes.
    pub taken: Outlook,
}

impl RecoveryPlan {
    /// What `mode` takes, with a portion of lost samples of at most `pls_target` in the mean.
    #[must_use]
    pub fn new(job: Job, mode: RecoveryMode, pls_target: f64) -> Self {
        let choice = job.choose(pls_target);
        let taken = match mode {
            RecoveryMode::Full => choice.full,
            RecoveryMode::Partial => choice.partial,
            RecoveryMode::Cpr => choice.chosen,
        };
        Self { job, choice, taken }
    }
}

/// Which rows `config` has saved first, of tables with these `cardinality`; `None`: all at once.
#[must_use]
pub fn save_first(config: &RecoveryConfig, cardinality: &[u64]) -> Option<SaveFirst> {
    let by = match config.priority {
        Priority::None => return None,
        Priority::Scar => By::Change,
        Priority::Mfu => By::Updates,
        Priority::Ssu => By::Sample,
    };
    let (tables, share) = (config.priority_tables, config.priority_share);
    Some(SaveFirst::of_the_largest(by, cardinality, tables, share))
}

impl Config {
    /// How far apart checkpoints are, where what they take decides that, or what may be lost of the
    /// rows on one of `shards` ranks.
    #[must_use]
    pub fn spacing(&self, shards: usize) -> Option<Spacing> {
        let RecoveryConfig { mode, mtbf_s, save_s, pls_target, .. } = self.recovery;
        let real = mode.is_some() && self.recovery.inject.failures.is_none();
        let shards = u32::try_from(shards).unwrap_or(u32::MAX);
        let pls = (mode == Some(RecoveryMode::Cpr)).then_some((pls_target, shards));
        let rows_first = self.recovery.priority != Priority::None;
        let share = if rows_first { self.recovery.priority_share } else { 1.0 };
        mtbf_s.filter(|_| real).map(|mtbf| Spacing::new(mtbf, save_s, pls, share))
    }
}

/// The way taken, and what the others would cost.
impl fmt::Display for RecoveryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, choice, taken } = self;
        let who = match taken.recovery {
            Recovery::Full => "everybody goes back",
            Recovery::Partial => "lost rows go back",
        };
        write!(
            f,
            "{who}, a save every {}: {:.2} % of the time",
            Span(taken.interval),
            100.0 * taken.overhead
        )?;
        if taken.recovery == Recovery::Partial {
            write!(f, ", {:.4} of the samples lost", taken.loss)?;
        }
        write!(
            f,
            " (a failure every {}, {} shards; everybody back, a save every {}: {:.2} %; lost rows \
             back, a save every {}: {:.2} %)",
            Span(job.mtbf),
            job.shards,
            Span(choice.full.interval),
            100.0 * choice.full.overhead,
            Span(choice.allowed.interval),
            100.0 * choice.allowed.overhead
        )
    }
}

/// A length of time in seconds, for people.
pub struct Span(pub f64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds @ 0.0..1.0 => write!(f, "{:.1} ms", seconds * 1e3),
            seconds @ 1.0..120.0 => write!(f, "{seconds:.1} s"),
            seconds @ 120.0..7200.0 => write!(f, "{:.1} min", seconds / 60.0),
            seconds => write!(f, "{:.1} h", seconds / 3600.0),
        }
    }
}
