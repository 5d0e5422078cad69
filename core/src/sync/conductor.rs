//! When a round begins: the one place that decides it, for every driver.
//!
//! A foreground round begins when the workers stand at their gate; a background round when its pace
//! allows it and a worker has made a step since the last one began: without a step it would only
//! take memory bandwidth. When the workers have ended there is one more round if they did anything
//! since the last, so that none of it is lost, and then no other.
//!
//! Invariants: pure arithmetic on what the driver sees; it neither waits nor looks at a clock. A
//! driver asks again when what [`Wait`] names may have happened, or the workers have ended.

use super::method::Rounds;
use super::pace::RoundCost;
use crate::units::Nanos;

/// What a driver sees of the workers whose rounds these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The driver's clock.
    pub now: Nanos,
    /// Steps that the workers have made in all. To be read after `ended`.
    pub steps: u64,
    /// They make no step any more.
    pub ended: bool,
    /// They stand at the gate, and the last round is over for all who keep it.
    pub at_gate: bool,
}

/// What is to be done about the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Ask again then.
    Wait(Wait),
    /// It begins now.
    Begin {
        /// The workers have ended, and it takes in all they did.
        last: bool,
        /// Steps that they made since the round before began.
        gap: u64,
    },
    /// There is none: the workers have ended and did nothing since the last.
    Stop,
}

/// What a round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// That time.
    Until(Nanos),
    /// A step of any worker.
    Step,
    /// The workers, to come to the gate.
    Gate,
}

/// The beginnings of the rounds of one slice of a trainer's replica, or of no trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conductor {
    rounds: Rounds,
    /// Steps when the last round began.
    steps: u64,
    /// The pace allows no round before.
    due: Nanos,
}

impl Conductor {
    /// Of a method with these rounds. `steps`: of the workers so far, read before any of them
    /// begins, so that all they do counts.
    #[must_use]
    pub const fn new(rounds: Rounds, steps: u64) -> Self {
        Self { rounds, steps, due: Nanos(0) }
    }

    /// When the pace allows the next round.
    #[must_use]
    pub const fn due(&self) -> Nanos {
        self.due
    }

    /// A round is over and took that.
    pub fn round_ended(&mut self, cost: RoundCost) {
        if let Rounds::Background(pace) = self.rounds {
            self.due = pace.next(cost);
        }
    }

    /// Whether the next round begins.
    #[must_use]
    pub fn next(&mut self, look: Look) -> Decision {
        let gap = look.steps - self.steps;
        match self.rounds {
            _ if look.ended && gap == 0 => return Decision::Stop,
            Rounds::Never | Rounds::EveryStep | Rounds::Handed => {}
            _ if look.ended => {}
            Rounds::Gated { .. } if !look.at_gate => return Decision::Wait(Wait::Gate),
            Rounds::Gated { .. } => {}
            Rounds::Background(_) if look.now < self.due => {
                return Decision::Wait(Wait::Until(self.due));
            }
            Rounds::Background(_) if gap == 0 => return Decision::Wait(Wait::Step),
            Rounds::Background(_) => {}
        }
        self.steps = look.steps;
        Decision::Begin { last: look.ended, gap }
    }
}

#[cfg(test)]
mod tests {
    use super::super::method::GateOf;
    use super::super::pace::Pace;
    use super::*;

    const LOOK: Look = Look { now: Nanos(0), steps: 0, ended: false, at_gate: false };

    #[test]
    fn background_rounds_wait_for_their_pace_and_then_for_a_step() {
        let pace = Pace { interval: Nanos(100), ..Pace::default() };
        let mut it = Conductor::new(Rounds::Background(pace), 7);
        let mut at = |now, steps, ended| {
            let decision = it.next(Look { now: Nanos(now), steps, ended, ..LOOK });
            if let Decision::Begin { .. } = decision {
                it.round_ended(RoundCost { began: Nanos(now), ..RoundCost::default() });
            }
            decision
        };
        assert_eq!(at(0, 7, false), Decision::Wait(Wait::Step), "nothing has changed");
        assert_eq!(at(5, 8, false), Decision::Begin { last: false, gap: 1 });
        assert_eq!(at(90, 9, false), Decision::Wait(Wait::Until(Nanos(105))));
        assert_eq!(at(105, 12, false), Decision::Begin { last: false, gap: 4 });
        assert_eq!(at(106, 13, true), Decision::Begin { last: true, gap: 1 }, "no pace at the end");
        assert_eq!(at(107, 13, true), Decision::Stop);
    }

    #[test]
    fn foreground_rounds_wait_for_the_gate() {
        let rounds = Rounds::Gated { every: 2, gate: GateOf::Trainer };
        let mut it = Conductor::new(rounds, 0);
        assert_eq!(it.next(Look { steps: 3, ..LOOK }), Decision::Wait(Wait::Gate));
        let gate = Look { steps: 4, at_gate: true, ..LOOK };
        assert_eq!(it.next(gate), Decision::Begin { last: false, gap: 4 });
        let rest = Look { steps: 5, ended: true, ..LOOK };
        assert_eq!(it.next(rest), Decision::Begin { last: true, gap: 1 });
        assert_eq!(it.next(rest), Decision::Stop);
    }
}
