//! How far apart the checkpoints of a real run are, from what they are measured to take.
//!
//! Where everybody goes back to the last one after a failure, Young's interval is the best one;
//! where lost rows alone go back, they may be as far apart as the allowed portion of lost samples
//! permits (`umbra_core::recovery::overhead`). What a save costs is what training waits for it; one
//! that is written meanwhile costs the file system as well, so the next begins when it has rested
//! for a while. Invariant: fed with times that all ranks agree on, it says the same on all.

use umbra_core::recovery::overhead::{Costs, Job};

/// The time between two checkpoints.
#[derive(Clone, Copy, Debug)]
pub struct Spacing {
    mtbf: f64,
    /// As far apart as that, at least.
    allowed: f64,
    /// Of an interval the file system is busy for one of so many parts with it, at most.
    rest: f64,
    interval: f64,
}

impl Spacing {
    /// Of a job that fails every `mtbf` seconds in the mean; a save is believed to take `save`
    /// seconds, until one has been measured. Where a failure takes back the rows of one of `shards`
    /// alone, a portion of `pls` of the samples may be lost. Between two, saves of a `share` of the
    /// rows follow each other.
    #[must_use]
    pub fn new(mtbf: f64, save: Option<f64>, pls: Option<(f64, u32)>, share: f64) -> Self {
        let allowed = pls.map_or(0.0, |(pls, shards)| {
            let costs = Costs { save: 0.0, load: 0.0, reschedule: 0.0 };
            Job { length: f64::INFINITY, mtbf, shards, part: 1.0, costs }.interval_for_loss(pls)
        });
        let first = if allowed > 0.0 { allowed } else { FIRST };
        let interval = save.map_or(first, |save| young(mtbf, save)).min(mtbf).max(allowed);
        // A row save does not wait for the end of a checkpoint.
        Self { mtbf, allowed, rest: REST.max(1.0 / share), interval }
    }

    /// Seconds from one to the next.
    #[must_use]
    pub const fn interval(&self) -> f64 {
        self.interval
    }

    /// Mean seconds between failures.
    #[must_use]
    pub const fn mtbf(&self) -> f64 {
        self.mtbf
    }

    /// A save has kept training for `waited` seconds, and another was `written` for so many, if
    /// one was. True when the interval becomes another one.
    pub fn measured(&mut self, waited: f64, written: f64) -> bool {
        let interval =
            young(self.mtbf, waited).max(self.rest * written).clamp(LEAST, self.mtbf.max(LEAST));
        let interval = interval.max(self.allowed);
        let other = (interval / self.interval).ln().abs() > NEARLY.ln();
        if other {
            self.interval = interval;
        }
        other
    }
}

fn young(mtbf: f64, save: f64) -> f64 {
    let costs = Costs { save, load: 0.0, reschedule: 0.0 };
    Job { length: mtbf, mtbf, shards: 1, part: 1.0, costs }.young_interval()
}

/// Seconds until the first one, which is measured.
const FIRST: f64 = 60.0;
/// Seconds between two, at least.
const LEAST: f64 = 1.0;
/// Of an interval the file system is busy with a checkpoint for one of so many parts, at most.
const REST: f64 = 4.0;
/// Intervals that differ less are the same one.
const NEARLY: f64 = 1.25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_follow_what_saves_take() {
        let hour = 3600.0;
        assert!(
            (Spacing::new(28.0 * hour, Some(336.0), None, 1.0).interval() - 8230.0).abs() < 1.0
        );
        let mut spacing = Spacing::new(8.0 * hour, None, None, 1.0);
        assert_eq!(spacing.interval(), FIRST);
        // √(2 × .5 s × 8 h), and the same again.
        assert!(spacing.measured(0.5, 2.0) && !spacing.measured(0.51, 2.0));
        assert!((spacing.interval() - 169.7).abs() < 0.1);
        // What is written in the background for long is written less often.
        assert!(spacing.measured(0.5, 120.0));
        assert_eq!(spacing.interval(), 480.0);
        // Before an eighth of the interval has passed, where rows are saved then.
        let mut often = Spacing::new(8.0 * hour, None, None, 0.125);
        assert!(often.measured(0.5, 120.0));
        assert_eq!(often.interval(), 960.0);
        // However dear: once in the time in which a failure comes.
        assert!(spacing.measured(1e6, 1e6));
        assert_eq!(spacing.interval(), 8.0 * hour);
    }
    #[test]
    fn lost_rows_alone_may_be_older() {
        // 2 × .02 × 18 × 28 h.
        let mut spacing = Spacing::new(28.0, Some(0.1), Some((0.02, 18)), 1.0);
        assert!((spacing.interval() - 20.16).abs() < 1e-9);
        assert!(!spacing.measured(0.1, 0.1), "what it takes decides nothing");
        // Unless saving is dearer than what is lost.
        assert!(spacing.measured(14.0, 0.1));
        assert_eq!(spacing.interval(), 28.0);
    }
}
