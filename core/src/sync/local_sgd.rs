//! Local SGD: train apart for k steps, then average.
//!
//! S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, algorithm 1.
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | x^k | the dense replica, running statistics included | `[replica_len]` f32 |
//! | K | trainers in [`Group::All`] | ranks |
//! | H | rounds are gated by the driver, `sync.every` steps apart | steps |
//!
//! Invariants: a round is Load, ReduceMean, Store(1), in this order; after it all replicas are equal
//! bit for bit (the reduction's order is fixed). Every trainer joins every round; the embedding
//! tables are a single copy and take no part.

use super::protocol::{Action, Completion, Group, OutOfTurn, Protocol};
use crate::units::Nanos;

/// The averaging rounds of one trainer.
#[derive(Debug)]
pub struct LocalSgd<'a> {
    staging: &'a mut [f32],
    outstanding: Option<Action>,
}

impl<'a> LocalSgd<'a> {
    /// Rounds over `staging: [replica_len]`.
    #[must_use]
    pub const fn new(staging: &'a mut [f32]) -> Self {
        Self { staging, outstanding: None }
    }
}

impl Protocol for LocalSgd<'_> {
    fn step(&mut self, _now: Nanos, last: Completion) -> Result<Action, OutOfTurn> {
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _) => Action::Finish,
            (None, Completion::Start) | (Some(Action::Store { .. }), Completion::Done) => {
                Action::Load
            }
            (Some(Action::Load), Completion::Done) => Action::ReduceMean { group: Group::All },
            (Some(Action::ReduceMean { .. }), Completion::Done) => Action::Store { alpha: 1.0 },
            // Between rounds nothing is owed to anyone; inside one the others wait for us.
            (None | Some(Action::Load | Action::Store { .. }), Completion::Stop) => Action::Finish,
            (Some(Action::ReduceMean { .. }), Completion::Stop) => Action::Store { alpha: 1.0 },
            (expected, got) => return Err(OutOfTurn { expected, got }),
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        self.staging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_loads_averages_and_stores() {
        let mut staging = [0.0; 2];
        let mut protocol = LocalSgd::new(&mut staging);
        let mut last = Completion::Start;
        let mut seen = [Action::Finish; 6];
        for action in &mut seen {
            *action = protocol.step(Nanos(0), last).unwrap();
            last = Completion::Done;
        }
        let round =
            [Action::Load, Action::ReduceMean { group: Group::All }, Action::Store { alpha: 1.0 }];
        assert_eq!((&seen[..3], &seen[3..]), (&round[..], &round[..]));
        assert_eq!(protocol.step(Nanos(0), Completion::Stop), Ok(Action::Finish));
        assert_eq!(protocol.step(Nanos(0), Completion::Done), Ok(Action::Finish));
    }

    #[test]
    fn a_wrong_completion_changes_nothing() {
        let mut staging = [0.0; 1];
        let mut protocol = LocalSgd::new(&mut staging);
        let received = Completion::Received { from: 1, word: 2 };
        let refused = Err(OutOfTurn { expected: None, got: received });
        assert_eq!(protocol.step(Nanos(0), received), refused);
        assert_eq!(protocol.step(Nanos(0), Completion::Start), Ok(Action::Load));
    }
}
