//! Divide and shuffle: every round, trainers average within small groups, and the groups change
//! from round to round.
//!
//! Wang, Zhang, Yang, Chen, Tan, "DS-Sync: addressing network bottlenecks ...", arXiv 2007.03298:
//! parameters are averaged after every local step, optimizer state stays local. In the background,
//! as here with ungated workers, it is this project's own.
//!
//! | paper | here | unit |
//! | --- | --- | --- |
//! | partition of the workers at iteration t | [`Dealing`] at round t | |
//! | parameters of a worker | the slice of the replica, running statistics included | `[slice]` f32 |
//!
//! Invariants: a round is that of model averaging over [`Group::Dealt`]. A group in which nobody
//! but this trainer has a say leaves its replica as it is. Averaging in groups never moves the mean
//! of all replicas that have a say.
//!
//! The agreed end. A trainer knows the last round in which, as far as it has heard, somebody wanted
//! another; what one knows, its group knows after the round. All stop after the first round by
//! which the wish of *any* trainer, uttered in the round after that, would have reached all: had
//! there been one, this trainer would know. Who heard of whom is a pure function of the schedule,
//! so all stop after the same round, and nobody waits for one who has gone.
//!
//! [`Group::Dealt`]: super::Group::Dealt

use super::groups::Dealing;
use super::model_average::{Intake, Round};
use super::protocol::{Action, Completion, OutOfTurn, Protocol};

/// The rounds of one trainer.
#[derive(Debug)]
pub struct DivideShuffle<'a> {
    round: Round<'a>,
}

impl<'a> DivideShuffle<'a> {
    /// Rounds over `staging: [slice + TAIL]` until all trainers have ended, in the groups that
    /// `spread` deals. `number`: of the next round, equal on all trainers; it goes on counting from
    /// one protocol to the next, so that a schedule is seen whole.
    #[must_use]
    pub fn new(
        staging: &'a mut [f32],
        alpha: f32,
        intake: Intake<'a>,
        spread: Spread<'a>,
        number: &'a mut u64,
    ) -> Self {
        Self { round: Round::dealt(staging, alpha, intake, spread, number) }
    }
}

impl Protocol for DivideShuffle<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        self.round.step(last, &mut [], |_, _| {})
    }

    fn staging(&mut self) -> &mut [f32] {
        self.round.staging
    }
}

/// How news spreads through the groups of a schedule.
#[derive(Debug)]
pub struct Spread<'a> {
    dealing: Dealing<'a>,
    labels: &'a mut [usize],
    /// Of whom each rank has heard, a bit each. `[ranks, words of a rank]`
    heard: &'a mut [u64],
    /// The same of each group.
    pooled: &'a mut [u64],
}

impl<'a> Spread<'a> {
    /// Among as many ranks as there are `labels`; `sets: [Spread::words(ranks)]`. Both are
    /// overwritten.
    #[must_use]
    pub fn new(dealing: Dealing<'a>, labels: &'a mut [usize], sets: &'a mut [u64]) -> Self {
        assert_eq!(sets.len(), Self::words(labels.len()), "the length of sets");
        let (heard, pooled) = sets.split_at_mut(sets.len() / 2);
        Self { dealing, labels, heard, pooled }
    }

    /// Words of memory that `ranks` ranks need.
    #[must_use]
    pub const fn words(ranks: usize) -> usize {
        2 * ranks * ranks.div_ceil(64)
    }

    /// Whether what any rank knew before round `first` is known to all that it ever meets after
    /// `rounds` rounds.
    pub fn reaches_all(&mut self, first: u64, rounds: u64) -> bool {
        let ranks = self.labels.len();
        if !self.dealing.meets() || ranks == 1 {
            return rounds > 0;
        }
        let words = ranks.div_ceil(64);
        self.heard.fill(0);
        for rank in 0..ranks {
            self.heard[rank * words + rank / 64] = 1 << (rank % 64);
        }
        for round in first..first + rounds {
            self.dealing.label(round, self.labels);
            self.pooled.fill(0);
            let groups = || self.labels.iter().map(|label| label * words..(label + 1) * words);
            for (heard, group) in self.heard.chunks_exact(words).zip(groups()) {
                self.pooled[group].iter_mut().zip(heard).for_each(|(all, one)| *all |= one);
            }
            for (heard, group) in self.heard.chunks_exact_mut(words).zip(groups()) {
                heard.copy_from_slice(&self.pooled[group]);
            }
            if self.heard.iter().map(|set| set.count_ones() as usize).sum::<usize>()
                == ranks * ranks
            {
                return true;
            }
        }
        false
    }
}
