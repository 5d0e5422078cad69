//! What a partition of rows does with the pushes that come to it.
//!
//! - *at once*: a push is applied when it comes, lookups see whatever is there (Hogwild; Persia's
//!   asynchronous embedding side);
//! - *lockstep* (`bsp`): the pushes of a step are kept until every contributor's is here, summed
//!   per row as a binary tree over the workers and applied once; a lookup for step t waits until
//!   the updates of step t − 1 are in.
//!
//! A *contributor* sends one push per step and partition; a push has a part for each of its workers
//! that has rows there. Contributors are trainers, and how workers are dealt to them changes no
//! bit: the tree is over the workers' numbers (see [`crate::sync::reduction`]).
//!
//! Invariants: in lockstep the sums depend on the contents of the pushes, never on the order they
//! came in. A push that does not fit is refused and changes nothing.

use core::fmt;

use super::row_sums::{Defect, Entry, RowSums};

/// Gradients of a worker's rows in a partition.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The worker's number over all trainers.
    pub worker: u32,
    /// Learning rate. One that differs from the others' is 0: the worker dropped its step, and
    /// is heard without being added.
    pub rate: f32,
    /// Distinct row numbers.
    pub rows: &'a [u32],
    /// Where [`Push::gradient`] finds the first row's gradient; the next is `width` further.
    pub at: u32,
}

/// A push as it is kept until its step is complete.
pub trait Push {
    /// What it has for this partition.
    fn parts(&self) -> impl Iterator<Item = Part<'_>>;

    /// The gradient at `at` (see [`Part::at`]). `[width]`
    fn gradient(&self, at: u32, width: usize) -> &[f32];
}

/// How a partition takes pushes of type `P`.
#[derive(Debug)]
pub enum Intake<'a, P> {
    /// As they come.
    AtOnce,
    /// All of a step together.
    Lockstep(Lockstep<'a, P>),
}

/// The pushes of the step in hand.
#[derive(Debug)]
pub struct Lockstep<'a, P> {
    /// The step whose pushes are being collected; lookups up to it are answered.
    step: u32,
    /// Workers over all contributors.
    workers: u32,
    /// The push of every contributor. `[contributors]`
    pushes: &'a mut [Option<P>],
    arrived: usize,
}

/// What becomes of a push.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<P> {
    /// To be applied as it is, now.
    Apply(P),
    /// Kept; others of its step are missing.
    Kept,
    /// Kept; it was the last of its step: [`Lockstep::sum`], then [`Lockstep::advance`].
    Complete,
    /// Of a later step: to be offered again after the next [`Lockstep::advance`].
    Early(P),
}

/// A push or a step that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refused {
    /// From nobody who contributes.
    Contributor {
        /// Its number.
        got: usize,
        /// How many there are.
        contributors: usize,
    },
    /// A second push of a contributor for one step.
    Second {
        /// Its number.
        contributor: usize,
        /// The step.
        step: u32,
    },
    /// A push for a step that is over.
    Past {
        /// Who pushed.
        contributor: usize,
        /// The step it pushed for.
        got: u32,
        /// The step in hand.
        open: u32,
    },
    /// A step to be ended before all its pushes are here.
    Incomplete {
        /// The step.
        step: u32,
        /// Pushes that are here.
        arrived: usize,
        /// Pushes that must be.
        contributors: usize,
    },
    /// A part of a worker that does not exist.
    Worker {
        /// Its number.
        got: u32,
        /// How many there are.
        workers: u32,
    },
    /// Two gradients of one worker for one row.
    RowTwice {
        /// The row.
        row: u32,
        /// The worker.
        worker: u32,
    },
    /// Workers that disagree on the learning rate of a step.
    Rates {
        /// The step.
        step: u32,
        /// Two of them.
        rates: [f32; 2],
    },
    /// Scratch that is too short for the step.
    Scratch {
        /// Elements lent.
        got: usize,
        /// Elements needed.
        needed: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contributor { got, contributors } => {
                write!(f, "a push of contributor {got}; there are {contributors}")
            }
            Self::Second { contributor, step } => {
                write!(f, "a second push of contributor {contributor} for step {step}")
            }
            Self::Past { contributor, got, open } => write!(
                f,
                "a push of contributor {contributor} for step {got}, which is over: step {open} is \
                 in hand"
            ),
            Self::Incomplete { step, arrived, contributors } => {
                write!(f, "step {step} ended with {arrived} of {contributors} pushes")
            }
            Self::Worker { got, workers } => {
                write!(f, "gradients of worker {got}; there are {workers}")
            }
            Self::RowTwice { row, worker } => {
                write!(f, "two gradients of worker {worker} for row {row} in one step")
            }
            Self::Rates { step, rates: [one, other] } => {
                write!(f, "learning rates {one} and {other} for rows in step {step}")
            }
            Self::Scratch { got, needed } => write!(f, "scratch of {got}, {needed} are needed"),
        }
    }
}

impl core::error::Error for Refused {}

impl From<Defect> for Refused {
    fn from(defect: Defect) -> Self {
        match defect {
            Defect::Scratch { got, needed } => Self::Scratch { got, needed },
            Defect::RowTwice { row, term: worker } => Self::RowTwice { row, worker },
        }
    }
}

impl<P> Intake<'_, P> {
    /// Whether a lookup for `step` is answered now; else it waits for the next
    /// [`Lockstep::advance`].
    #[must_use]
    pub const fn serves(&self, step: u32) -> bool {
        match self {
            Self::AtOnce => true,
            Self::Lockstep(lockstep) => step <= lockstep.step,
        }
    }

    /// Takes the push of a contributor for `step`.
    ///
    /// # Errors
    /// When it does not fit the step in hand.
    pub fn push(&mut self, contributor: usize, step: u32, push: P) -> Result<Taken<P>, Refused> {
        match self {
            Self::AtOnce => Ok(Taken::Apply(push)),
            Self::Lockstep(lockstep) => lockstep.push(contributor, step, push),
        }
    }
}

impl<'a, P> Lockstep<'a, P> {
    /// Before step `step`: 0, or where a run goes on. `pushes: [contributors]` is its memory;
    /// `workers` counts those of all.
    #[must_use]
    pub fn new(pushes: &'a mut [Option<P>], workers: u32, step: u32) -> Self {
        pushes.iter_mut().for_each(|push| *push = None);
        Self { step, workers, pushes, arrived: 0 }
    }

    /// The step whose pushes are being collected.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    fn push(&mut self, contributor: usize, step: u32, push: P) -> Result<Taken<P>, Refused> {
        let (open, contributors) = (self.step, self.pushes.len());
        let Some(place) = self.pushes.get_mut(contributor) else {
            return Err(Refused::Contributor { got: contributor, contributors });
        };
        match step {
            _ if step < open => return Err(Refused::Past { contributor, got: step, open }),
            // Comes early where a contributor looks up no rows and so waits for nobody.
            _ if step > open => return Ok(Taken::Early(push)),
            _ if place.is_some() => return Err(Refused::Second { contributor, step }),
            _ => *place = Some(push),
        }
        self.arrived += 1;
        Ok(if self.arrived == contributors { Taken::Complete } else { Taken::Kept })
    }

    /// Opens the next step, and hands every push back in the order of the contributors.
    ///
    /// # Errors
    /// When a push of the step in hand is missing.
    pub fn advance(&mut self, used: impl FnMut(P)) -> Result<(), Refused> {
        self.check_complete()?;
        self.pushes.iter_mut().filter_map(Option::take).for_each(used);
        self.arrived = 0;
        self.step += 1;
        Ok(())
    }

    const fn check_complete(&self) -> Result<(), Refused> {
        let (step, arrived, contributors) = (self.step, self.arrived, self.pushes.len());
        if arrived == contributors {
            Ok(())
        } else {
            Err(Refused::Incomplete { step, arrived, contributors })
        }
    }
}

impl<P: Push> Lockstep<'_, P> {
    /// Elements of `entries` that [`Self::sum`] needs now.
    #[must_use]
    pub fn entries_len(&self) -> usize {
        self.parts().map(|(_, part)| part.rows.len()).sum()
    }

    fn parts(&self) -> impl Iterator<Item = (u32, Part<'_>)> {
        let pushes = (0u32..).zip(self.pushes.iter());
        pushes.flat_map(|(contributor, push)| {
            push.iter().flat_map(Push::parts).map(move |part| (contributor, part))
        })
    }

    /// The learning rate of the step: all parts have it, but for dropped ones.
    fn rate(&self) -> Result<f32, Refused> {
        let mut rates = self.parts().map(|(_, part)| part.rate).filter(|rate| *rate != 0.0);
        let Some(rate) = rates.next() else { return Ok(0.0) };
        match rates.find(|other| other.to_bits() != rate.to_bits()) {
            Some(other) => Err(Refused::Rates { step: self.step, rates: [rate, other] }),
            None => Ok(rate),
        }
    }

    /// Sums the pushes of the step in hand per row and hands each row, in ascending order, with
    /// the rate and its sum to `apply`. `entries: [entries_len]` or more and
    /// `sums: [sums_len(workers, width)]` are scratch.
    ///
    /// # Errors
    /// When a push is missing, or pushes contradict each other; rows before the contradiction have
    /// then been applied.
    pub fn sum(
        &self,
        width: usize,
        entries: &mut [Entry],
        sums: &mut [f32],
        mut apply: impl FnMut(u32, f32, &[f32]),
    ) -> Result<(), Refused> {
        self.check_complete()?;
        let rate = self.rate()?;
        let mut rows = RowSums::new((entries, sums), self.entries_len(), self.workers, width)?;
        for (contributor, Part { worker, rate: own, rows: of_part, at }) in self.parts() {
            if worker >= self.workers {
                return Err(Refused::Worker { got: worker, workers: self.workers });
            }
            if own != 0.0 || rate == 0.0 {
                rows.list(contributor, worker, of_part, at);
            }
        }
        let leaf = |contributor: u32, at, out: &mut [f32]| {
            if let Some(push) = &self.pushes[contributor as usize] {
                out.copy_from_slice(push.gradient(at, width));
            }
        };
        Ok(rows.each(leaf, |row, _, sum| apply(row, rate, sum))?)
    }
}

#[cfg(test)]
mod tests;
