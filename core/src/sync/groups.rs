//! Divide and shuffle: who averages with whom in which round.
//!
//! Wang, Zhang, Yang, Chen, Tan, "DS-Sync: addressing network bottlenecks ...", arXiv 2007.03298:
//! workers average in small groups, and the groups change from round to round. The pairs of four
//! workers are the authors' own ([`Dealing::Ring`]); the other schedules are as implemented here.
//!
//! | schedule | round t | replicas that nobody trains |
//! | --- | --- | --- |
//! | `Grid` | even: the rows of a grid, odd: its columns | the mean after 2 rounds, if all rows are full |
//! | `Nodes` | even: the ranks of a node, odd: one rank of each node | the mean after 2 rounds, if nodes have equally many |
//! | `Hypercube` | ranks whose numbers differ in digit t mod k alone | the mean after k rounds, if there are base^k |
//! | `Ring` | even: {0, 1} {2, 3} …, odd: {1, 2} {3, 4} … and the last with the first | the mean after 2 rounds of 4 ranks; else slowly |
//! | `Random` | a permutation, cut | squared distance to the mean × [`contraction`] per round, in expectation |
//!
//! Invariants: a pure function of schedule, ranks and round, so every rank deals for itself and all
//! deal alike; in every round each rank is in exactly one group. Groups of uneven schedules differ
//! in size, and a group of one leaves its replica as it is. Averaging within groups never moves the
//! mean of all.

use crate::rng::{Purpose, Stream};

/// A schedule of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing<'a> {
    /// Ranks in rows of so many; the last row may be shorter.
    Grid {
        /// Ranks of a row, at least 1.
        columns: usize,
    },
    /// The grid of a machine: a row is a node, a column has one rank of each.
    Nodes {
        /// Node of every rank. `[ranks]`
        node: &'a [usize],
        /// Number of every rank on its node. `[ranks]`
        place: &'a [usize],
    },
    /// The digits of a rank's number, one after the other.
    Hypercube {
        /// Ranks of a group, at least 2.
        base: usize,
    },
    /// Neighbours, to one side and then to the other.
    Ring,
    /// Ranks at random, in groups whose sizes differ by at most 1.
    Random {
        /// Ranks of the smallest groups, at least 1.
        group: usize,
        /// Of the run.
        seed: u64,
    },
}

impl Dealing<'_> {
    /// The group of every rank in `round`: equal numbers below the number of ranks, which are
    /// otherwise arbitrary. `labels: [ranks]`, overwritten.
    pub fn label(&self, round: u64, labels: &mut [usize]) {
        let ranks = labels.len();
        let even = round.is_multiple_of(2);
        match *self {
            Self::Grid { columns } => {
                let columns = columns.max(1);
                fill(labels, |rank| if even { rank / columns } else { rank % columns });
            }
            Self::Nodes { node, place } => {
                let line = if even { node } else { place };
                fill(labels, |rank| line[rank]);
            }
            Self::Hypercube { base } => {
                let base = base.max(2);
                let digits = u64::from(digits(ranks, base));
                #[expect(clippy::cast_possible_truncation, reason = "below the digits of a usize")]
                let low = base.pow((round % digits) as u32);
                fill(labels, |rank| rank / (low * base) * low + rank % low);
            }
            Self::Ring => {
                let shift = |rank: usize| if even { rank } else { (rank + ranks - 1) % ranks };
                fill(labels, |rank| shift(rank) / 2);
            }
            Self::Random { group, seed } => {
                let groups = (ranks / group.max(1)).max(1);
                fill(labels, |rank| rank * groups / ranks);
                Stream::new(seed, Purpose::Groups).shuffle(round * ranks as u64, labels);
            }
        }
    }

    /// The group of `rank` in `round`, in ascending order: the first so many of `members`.
    /// `members: [ranks]`, and overwritten.
    pub fn deal<'m>(&self, round: u64, rank: usize, members: &'m mut [usize]) -> &'m [usize] {
        self.label(round, members);
        let (own, mut found) = (members[rank], 0);
        for other in 0..members.len() {
            if members[other] == own {
                members[found] = other;
                found += 1;
            }
        }
        &members[..found]
    }

    /// Whether ranks ever meet; in groups of one they do not.
    #[must_use]
    pub const fn meets(&self) -> bool {
        !matches!(*self, Self::Random { group: 0 | 1, .. })
    }
}

/// What a round of random groups of `group` makes of the squared distance between the replicas of
/// `ranks` and their mean, in expectation: (N − g) / (g (N − 1)), for groups of equal size.
/// Derived: two ranks meet with probability (g − 1) / (N − 1).
#[must_use]
pub fn contraction(ranks: usize, group: usize) -> f64 {
    if ranks <= 1 {
        return 0.0;
    }
    (ranks - group) as f64 / (group * (ranks - 1)) as f64
}

fn fill(labels: &mut [usize], label: impl Fn(usize) -> usize) {
    labels.iter_mut().enumerate().for_each(|(rank, place)| *place = label(rank));
}

/// Digits of the largest rank's number, at least 1.
const fn digits(ranks: usize, base: usize) -> u32 {
    let (mut digits, mut reach) = (1, base);
    while reach < ranks {
        reach = reach.saturating_mul(base);
        digits += 1;
    }
    digits
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// Every schedule that makes sense for so many ranks.
    fn schedules<'a>(node: &'a [usize], place: &'a [usize]) -> Vec<Dealing<'a>> {
        let mut all = vec![Dealing::Ring, Dealing::Nodes { node, place }];
        for size in [1, 2, 3, 4, 7, 8, 16, node.len()] {
            all.push(Dealing::Grid { columns: size });
            all.push(Dealing::Random { group: size, seed: 5 });
            if size > 1 {
                all.push(Dealing::Hypercube { base: size });
            }
        }
        all
    }

    #[test]
    fn every_round_parts_the_ranks() {
        for ranks in 1..=128 {
            let node: Vec<usize> = (0..ranks).map(|rank| rank / 5).collect();
            let place: Vec<usize> = (0..ranks).map(|rank| rank % 5).collect();
            let mut members = vec![0; ranks];
            for dealing in schedules(&node, &place) {
                for round in 0..4 {
                    let mut met = vec![false; ranks];
                    for rank in 0..ranks {
                        let group = dealing.deal(round, rank, &mut members).to_vec();
                        assert!(
                            group.contains(&rank) && group.is_sorted(),
                            "{dealing:?} {group:?}"
                        );
                        // Whoever comes first in a group is in none of those before, and the others
                        // deal alike.
                        if group[0] == rank {
                            for &other in &group {
                                assert!(
                                    !met[other],
                                    "{dealing:?}, {ranks} ranks, {round}: {other} twice"
                                );
                                met[other] = true;
                                assert_eq!(dealing.deal(round, other, &mut members), group);
                            }
                        }
                        if let Dealing::Random { group: least, .. } = dealing {
                            assert!(group.len() >= least.min(ranks) && group.len() < 2 * least);
                        }
                    }
                    assert!(met.iter().all(|met| *met), "{dealing:?}, {ranks} ranks, {round}");
                }
            }
        }
    }

    /// What `rounds` make of one replica that is 1 where all others are 0.
    fn spread(dealing: Dealing<'_>, first: u64, rounds: u64, values: &mut [f64]) {
        let mut members = vec![0; values.len()];
        for round in first..first + rounds {
            let old = values.to_vec();
            for (rank, value) in values.iter_mut().enumerate() {
                let group = dealing.deal(round, rank, &mut members);
                *value = group.iter().map(|other| old[*other]).sum::<f64>() / group.len() as f64;
            }
        }
    }

    #[test]
    fn grids_and_hypercubes_reach_the_mean() {
        let node: Vec<usize> = (0..12).map(|rank| rank % 3).collect();
        let place: Vec<usize> = (0..12).map(|rank| rank / 3).collect();
        for (dealing, ranks, rounds) in [
            (Dealing::Grid { columns: 4 }, 12, 2),
            (Dealing::Grid { columns: 16 }, 256, 2),
            (Dealing::Nodes { node: &node, place: &place }, 12, 2),
            (Dealing::Ring, 4, 2),
            (Dealing::Hypercube { base: 2 }, 128, 7),
            (Dealing::Hypercube { base: 4 }, 64, 3),
        ] {
            for first in 0..3 {
                let mut values = vec![0.0; ranks];
                values[1] = 1.0;
                spread(dealing, first, rounds, &mut values);
                let mean = 1.0 / ranks as f64;
                assert!(values.iter().all(|x| (x - mean).abs() < 1e-12), "{dealing:?}: {values:?}");
            }
        }
    }

    /// Groups of a short row change in size, but no group moves the mean of all.
    #[test]
    fn no_schedule_moves_the_mean() {
        let (node, place) = ([0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 0, 1]);
        for dealing in schedules(&node, &place) {
            let mut values: Vec<f64> = (0..7).map(|rank| f64::from(rank * rank)).collect();
            spread(dealing, 0, 5, &mut values);
            let mean = values.iter().sum::<f64>() / 7.0;
            assert!((mean - 13.0).abs() < 1e-9, "{dealing:?}: {mean}");
        }
    }

    #[test]
    fn random_groups_contract_as_derived() {
        let mut largest: f64 = 0.0;
        for (ranks, group) in [(4, 2), (8, 2), (16, 4), (16, 2), (64, 8)] {
            let dealing = Dealing::Random { group, seed: 11 };
            let (mut before, mut after) = (0.0, 0.0);
            let stream = Stream::new(3, Purpose::Test(1));
            for round in 0..4000u64 {
                let mut values: Vec<f64> =
                    (0..ranks as u64).map(|at| stream.uniform_f64(round * 64 + at)).collect();
                before += distance(&values);
                spread(dealing, round, 1, &mut values);
                after += distance(&values);
            }
            let (measured, derived) = (after / before, contraction(ranks, group));
            largest = largest.max((measured / derived - 1.0).abs());
            assert!(largest < 0.03, "{ranks}, {group}: {measured} {derived}, seeds 3 and 11");
        }
        std::println!("largest deviation of a contraction: {largest}");
    }

    fn distance(values: &[f64]) -> f64 {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        values.iter().map(|x| (x - mean).powi(2)).sum()
    }
}
