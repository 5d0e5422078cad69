//! Early stopping and learning rates that fall on a plateau.
//!
//! A pure function of the evaluations, so every rank decides alike.

use crate::config::{EarlyStop, StopMetric};
use crate::score::figures::Figures;

/// What an evaluation means for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The best so far.
    pub improved: bool,
    /// Patience has run out.
    pub stop: bool,
}

/// The evaluations so far.
#[derive(Clone, Debug)]
pub struct Stopper {
    settings: Option<EarlyStop>,
    /// Higher is better; -∞ before the first.
    best: f64,
    without_improvement: u64,
}

impl Stopper {
    /// Starts with no evaluation; without settings it watches the AUC and never stops.
    #[must_use]
    pub const fn new(settings: Option<EarlyStop>) -> Self {
        Self { settings, best: f64::NEG_INFINITY, without_improvement: 0 }
    }

    /// Takes an evaluation. A figure that is not defined is no improvement.
    pub fn observe(&mut self, figures: &Figures) -> Verdict {
        let metric = self.settings.as_ref().map_or(StopMetric::Auc, |settings| settings.metric);
        // Higher is better from here on.
        let value = match metric {
            StopMetric::Auc => figures.auc,
            StopMetric::LogLoss => figures.logloss.map(|loss| -loss),
        };
        let min_delta = self.settings.as_ref().map_or(0.0, |settings| settings.min_delta);
        let better = value.filter(|value| *value > self.best + min_delta);
        if let Some(value) = better {
            self.best = value;
            self.without_improvement = 0;
        } else {
            self.without_improvement += 1;
        }
        let improved = better.is_some();
        let patience = self.settings.as_ref().map(|settings| u64::from(settings.patience));
        Verdict { improved, stop: patience.is_some_and(|most| self.without_improvement >= most) }
    }

    /// What it remembers: the best figure, and the evaluations since.
    pub const fn memory(&mut self) -> (&mut f64, &mut u64) {
        (&mut self.best, &mut self.without_improvement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(metric: StopMetric, values: &[f64]) -> Vec<(bool, bool)> {
        let settings =
            EarlyStop { metric, patience: 2, min_delta: 0.01, lr_factor: 0.1, restore_best: true };
        let mut stopper = Stopper::new(Some(settings));
        let figures = |value: f64| match metric {
            StopMetric::Auc => Figures { auc: Some(value), ..Figures::default() },
            StopMetric::LogLoss => Figures { logloss: Some(value), ..Figures::default() },
        };
        let verdicts = values.iter().map(|value| stopper.observe(&figures(*value)));
        verdicts.map(|verdict| (verdict.improved, verdict.stop)).collect()
    }

    #[test]
    fn stops_after_patience_evaluations_without_improvement() {
        let (yes, no, stop) = ((true, false), (false, false), (false, true));
        assert_eq!(run(StopMetric::Auc, &[0.7, 0.705, 0.75, 0.74, 0.7]), [yes, no, yes, no, stop]);
        assert_eq!(run(StopMetric::LogLoss, &[0.5, 0.4, 0.45, 0.46]), [yes, yes, no, stop]);
        assert_eq!(run(StopMetric::Auc, &[f64::NAN, 0.6, 0.5]), [no, yes, no]);
    }
}
