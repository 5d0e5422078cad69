//! The sum that ends a step of bulk-synchronous training: the gradients of all trainers become one.
//!
//! L. G. Valiant, "A bridging model for parallel computation", CACM 33 (1990); synchronous SGD.
//!
//! Invariants: a step is Take, ReduceSum, Give, in this order. All trainers make equally many
//! steps, and each has the same bits of the sum, which workers scale by themselves (the gradient of
//! a step is that of the mean over the global batch already).

use super::protocol::{Action, Completion, Group, OutOfTurn, Protocol};

/// The steps of one trainer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSum {
    outstanding: Option<Action>,
}

impl Protocol for StepSum {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _) => Action::Finish,
            (None, Completion::Start) | (Some(Action::Give), Completion::Done) => Action::Take,
            (Some(Action::Take), Completion::Taken) => Action::ReduceSum { group: Group::All },
            (Some(Action::Take), Completion::Stop) => Action::Finish,
            (Some(Action::ReduceSum { .. }), Completion::Done) => Action::Give,
            (expected, got) => return Err(OutOfTurn { expected, got }),
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        &mut []
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_taken_summed_and_given_back() {
        let mut it = StepSum::default();
        assert_eq!(it.step(Completion::Start), Ok(Action::Take));
        let wrong = OutOfTurn { expected: Some(Action::Take), got: Completion::Done };
        assert_eq!(it.step(Completion::Done), Err(wrong));
        for _ in 0..2 {
            let sum = Action::ReduceSum { group: Group::All };
            assert_eq!(it.step(Completion::Taken), Ok(sum));
            assert_eq!(it.step(Completion::Done), Ok(Action::Give));
            assert_eq!(it.step(Completion::Done), Ok(Action::Take));
        }
        assert_eq!(it.step(Completion::Stop), Ok(Action::Finish));
        assert_eq!(it.step(Completion::Taken), Ok(Action::Finish));
    }
}
