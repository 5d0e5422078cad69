//! Which rank does what.
//!
//! Everything that is dealt out (rows, shards of data, slices of the center) is dealt to numbers
//! within a role; a [`View`] says which rank has which number now. A rank that leaves takes its
//! number along, and those behind it move up: so whoever keeps a rank keeps it for an epoch only.
//!
//! Invariant: roles are equal on every rank of an epoch.

use core::ops::Range;
use std::sync::Arc;

/// The ranks of a role at one time of a run, by their numbers in the role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    epoch: u64,
    /// Ascending.
    ranks: Arc<[usize]>,
}

impl View {
    /// The ranks of `range` at the start of a run.
    #[must_use]
    pub fn new(range: Range<usize>) -> Self {
        Self { epoch: 0, ranks: range.collect() }
    }

    /// How often ranks have left.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The ranks, in the order of their numbers.
    #[must_use]
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// How many ranks have the role.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether nobody has the role.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Whether `rank` has the role.
    #[must_use]
    pub fn contains(&self, rank: usize) -> bool {
        self.number_of(rank).is_some()
    }

    /// The number of `rank` in the role; `None` if it has another.
    #[must_use]
    pub fn number_of(&self, rank: usize) -> Option<usize> {
        self.ranks.binary_search(&rank).ok()
    }

    /// The rank with this number.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn rank_of(&self, number: usize) -> usize {
        self.ranks[number]
    }

    /// The view of the next epoch, after the ranks of `lost` have left.
    #[must_use]
    pub fn without(&self, lost: &[usize]) -> Self {
        let left = self.ranks.iter().copied().filter(|rank| !lost.contains(rank));
        Self { epoch: self.epoch + 1, ranks: left.collect() }
    }
}

/// Roles of the ranks of a run; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Ranks that train.
    pub trainers: View,
    /// Ranks that hold embedding rows.
    pub embedding_ps: View,
    /// Ranks that hold a slice each of the center of elastic averaging.
    pub sync_ps: View,
    /// Partitions of the tables over all ranks.
    pub partitions: u32,
}

impl Roles {
    /// Every rank trains and holds rows; the first `sync_ps` also hold the center.
    #[must_use]
    pub fn collocated(size: usize, sync_ps: usize, partitions_per_rank: usize) -> Self {
        Self {
            trainers: View::new(0..size),
            embedding_ps: View::new(0..size),
            sync_ps: View::new(0..sync_ps),
            partitions: partitions(size, partitions_per_rank),
        }
    }

    /// The first `trainers` ranks train, the `embedding_ps` ranks after them hold rows, the
    /// `sync_ps` ranks after those the center.
    #[must_use]
    pub fn separate(
        trainers: usize,
        embedding_ps: usize,
        sync_ps: usize,
        partitions_per_rank: usize,
    ) -> Self {
        let servers = trainers + embedding_ps;
        Self {
            trainers: View::new(0..trainers),
            embedding_ps: View::new(trainers..servers),
            sync_ps: View::new(servers..servers + sync_ps),
            partitions: partitions(embedding_ps, partitions_per_rank),
        }
    }

    /// The roles of the next epoch, after the ranks of `lost` have left; `None` when nobody is left
    /// who trains or holds rows. There are as many partitions as before, dealt to those left.
    #[must_use]
    pub fn without(&self, lost: &[usize]) -> Option<Self> {
        let roles = Self {
            trainers: self.trainers.without(lost),
            embedding_ps: self.embedding_ps.without(lost),
            sync_ps: self.sync_ps.without(lost),
            partitions: self.partitions,
        };
        (!roles.trainers.is_empty() && !roles.embedding_ps.is_empty()).then_some(roles)
    }

    /// The rank that holds a partition.
    #[must_use]
    pub fn rank_of(&self, partition: u32) -> usize {
        self.embedding_ps.rank_of(partition as usize % self.embedding_ps.len())
    }

    /// The partitions that a rank holds.
    pub fn partitions_of(&self, rank: usize) -> impl Iterator<Item = u32> + '_ {
        let number = self.embedding_ps.number_of(rank);
        let holds = move |partition: &u32| {
            number.is_some_and(|number| *partition as usize % self.embedding_ps.len() == number)
        };
        (0..self.partitions).filter(holds)
    }
}

fn partitions(ranks: usize, per_rank: usize) -> u32 {
    u32::try_from(ranks * per_rank).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Every partition has one rank that holds rows, and every trainer a number of its own without
    /// gaps.
    fn one_to_one(roles: &Roles, size: usize) {
        let holds = |partition: &u32, rank: usize| {
            assert_eq!(roles.rank_of(*partition), rank, "{roles:?}");
            assert!(roles.embedding_ps.contains(rank), "{roles:?}");
        };
        let held = (0..size).flat_map(|rank| {
            roles.partitions_of(rank).inspect(move |partition| holds(partition, rank))
        });
        let mut held: Vec<u32> = held.collect();
        held.sort_unstable();
        assert_eq!(held, (0..roles.partitions).collect::<Vec<_>>());
        let numbers: Vec<usize> =
            (0..size).filter_map(|rank| roles.trainers.number_of(rank)).collect();
        assert_eq!(numbers, (0..roles.trainers.len()).collect::<Vec<_>>());
        for number in numbers {
            assert_eq!(roles.trainers.number_of(roles.trainers.rank_of(number)), Some(number));
        }
    }

    #[test]
    fn partitions_and_trainers_map_one_to_one_whoever_has_left() {
        for (roles, size) in [
            (Roles::collocated(1, 0, 2), 1),
            (Roles::collocated(4, 1, 2), 4),
            (Roles::separate(3, 2, 1, 3), 6),
        ] {
            one_to_one(&roles, size);
            for lost in 0..size {
                let Some(left) = roles.without(&[lost]) else {
                    assert_eq!(size, 1);
                    continue;
                };
                one_to_one(&left, size);
                assert_eq!(left.partitions, roles.partitions);
                assert_eq!((left.trainers.epoch(), left.sync_ps.epoch()), (1, 1));
                let had: usize = [&roles.trainers, &roles.embedding_ps, &roles.sync_ps]
                    .map(|view| usize::from(view.contains(lost)))
                    .iter()
                    .sum();
                let count = |roles: &Roles| {
                    roles.trainers.len() + roles.embedding_ps.len() + roles.sync_ps.len()
                };
                assert_eq!(count(&left), count(&roles) - had, "rank {lost} of {roles:?}");
            }
        }
    }

    #[test]
    fn those_behind_a_rank_that_left_move_up() {
        let roles = Roles::separate(3, 2, 1, 2).without(&[1]).unwrap().without(&[3]).unwrap();
        assert_eq!((roles.trainers.ranks(), roles.trainers.epoch()), (&[0, 2][..], 2));
        assert_eq!(roles.trainers.number_of(2), Some(1));
        assert_eq!(roles.trainers.number_of(1), None);
        assert_eq!(roles.partitions_of(4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(roles.without(&[4]), None, "nobody holds rows");
    }
}
