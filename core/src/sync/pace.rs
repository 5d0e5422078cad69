//! How often a background synchronization may begin: back to back, or held back.
//!
//! arXiv 2003.03477 synchronizes back to back. Where cores or links are shared that can cost the
//! workers more than it gives, so a round may also be held back by an interval, by bytes per second
//! and by the share of a core that the synchronizing thread may take.
//!
//! Invariant: pure arithmetic on the caller's clock; both drivers use it.

use crate::units::Nanos;

/// Bounds on a thread that synchronizes in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Least time from the start of a round to the start of the next.
    pub interval: Nanos,
    /// Most bytes sent per second, on average; 0 for no bound.
    pub bytes_per_second: u64,
    /// Largest share of a core, on average; 0 for no bound.
    pub core_share: f64,
    /// The share of a core holds a round back for no longer than this; 0 for no bound. Others may
    /// wait for it.
    pub longest_rest: Nanos,
}

/// What a round took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundCost {
    /// When it began.
    pub began: Nanos,
    /// Bytes it sent.
    pub bytes: u64,
    /// Time for which the synchronizing thread had a core.
    pub busy: Nanos,
}

impl Pace {
    /// That of one of `slices`, which share what a trainer and its thread may take.
    #[must_use]
    pub const fn of_slice(self, slices: usize) -> Self {
        let bytes_per_second = self.bytes_per_second.div_ceil(slices as u64);
        Self { bytes_per_second, core_share: self.core_share / slices as f64, ..self }
    }

    /// When the round after `last` may begin.
    #[must_use]
    pub fn next(&self, last: RoundCost) -> Nanos {
        let by_bytes = match self.bytes_per_second {
            0 => 0.0,
            rate => last.bytes as f64 / rate as f64 * 1e9,
        };
        let rest = match self.longest_rest.0 {
            0 => f64::INFINITY,
            longest => longest as f64,
        };
        let by_core = match self.core_share {
            share if share > 0.0 => (last.busy.0 as f64 / share).min(rest),
            _ => 0.0,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let after = (by_bytes.max(by_core) as u64).max(self.interval.0);
        Nanos(last.began.0.saturating_add(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_bound_counts() {
        let last = RoundCost { began: Nanos(1000), bytes: 500, busy: Nanos(30) };
        let free = Pace::default();
        assert_eq!(free.next(last), Nanos(1000), "back to back");
        assert_eq!(Pace { interval: Nanos(70), ..free }.next(last), Nanos(1070));
        assert_eq!(Pace { bytes_per_second: 1_000_000_000, ..free }.next(last), Nanos(1500));
        let all = Pace { bytes_per_second: 1_000_000_000, core_share: 0.05, ..free };
        assert_eq!(all.next(last), Nanos(1600));
        let rested = Pace { longest_rest: Nanos(550), ..all };
        assert_eq!(rested.next(last), Nanos(1550));
    }
}
