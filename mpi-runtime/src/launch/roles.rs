//! Which rank does what.
//!
//! Everything that is dealt out (rows, shards of data, slices of the center) is dealt to numbers
//! within a role; a [`View`] says which rank has which number now. A rank that leaves takes its
//! number along, and those behind it move up: so whoever keeps a rank keeps it for an epoch only.
//!
//! Invariant: roles are equal on every rank of an epoch.

use core::ops::Range;
use std::sync::Arc;

use umbra_core::model::PartOf;

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

    /// The view of the next epoch, in which only the ranks `left` are left: the n-th of them is
    /// rank n.
    fn of_those(&self, left: &[usize]) -> Self {
        let stays = |(_, rank): &(usize, &usize)| self.contains(**rank);
        let ranks = left.iter().enumerate().filter(stays).map(|(now, _)| now);
        Self { epoch: self.epoch + 1, ranks: ranks.collect() }
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
    /// Ranks, one after the other, that the layers of a dense replica are dealt to.
    pub dense_partitions: usize,
    /// Partitions of the tables over all ranks.
    pub partitions: u32,
    /// The rank that holds each of them.
    holders: Arc<[usize]>,
}

impl Roles {
    /// Every rank trains and holds rows; the first `sync_ps` also hold the center.
    #[must_use]
    pub fn collocated(size: usize, sync_ps: usize, partitions_per_rank: usize) -> Self {
        let (trainers, sync_ps) = (View::new(0..size), View::new(0..sync_ps));
        Self::new(trainers, View::new(0..size), sync_ps, partitions_per_rank)
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
        let sync_ps = View::new(servers..servers + sync_ps);
        let (trainers, embedding_ps) = (View::new(0..trainers), View::new(trainers..servers));
        Self::new(trainers, embedding_ps, sync_ps, partitions_per_rank)
    }

    fn new(trainers: View, embedding_ps: View, sync_ps: View, partitions_per_rank: usize) -> Self {
        let count = embedding_ps.len() * partitions_per_rank;
        let holders =
            (0..count).map(|partition| embedding_ps.rank_of(partition % embedding_ps.len()));
        let holders: Arc<[usize]> = holders.collect();
        let partitions = u32::try_from(count).unwrap_or(u32::MAX);
        Self { trainers, embedding_ps, sync_ps, dense_partitions: 1, partitions, holders }
    }

    /// The same with `parts` ranks for every dense replica: a divisor of the trainers.
    #[must_use]
    pub const fn with_dense_partitions(mut self, parts: usize) -> Self {
        self.dense_partitions = parts;
        self
    }

    /// Dense replicas that are trained, each on its own share of the data: as many as trainers
    /// where layers are not split.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.trainers.len() / self.dense_partitions
    }

    /// The number of the replica that a rank trains.
    #[must_use]
    pub fn replica_of(&self, rank: usize) -> Option<usize> {
        self.trainers.number_of(rank).map(|number| number / self.dense_partitions)
    }

    /// The part of it.
    #[must_use]
    pub fn part_of(&self, rank: usize) -> Option<PartOf> {
        let parts = self.dense_partitions;
        self.trainers.number_of(rank).map(|number| PartOf { part: number % parts, parts })
    }

    /// The rank that trains this part of a replica.
    ///
    /// # Panics
    /// When there are fewer.
    #[must_use]
    pub fn trainer_of(&self, replica: usize, part: usize) -> usize {
        self.trainers.rank_of(replica * self.dense_partitions + part)
    }

    /// The roles of the next epoch, in which only the ranks `left` are left, ascending: the n-th of
    /// them is rank n. `None` when nobody of them trains or holds rows. Whoever is left keeps its
    /// partitions, and those of the others are dealt to whoever has fewest; as many ranks hold the
    /// center as before, while there are so many.
    #[must_use]
    pub fn of_those(&self, left: &[usize]) -> Option<Self> {
        let [trainers, embedding_ps, mut sync_ps] =
            [&self.trainers, &self.embedding_ps, &self.sync_ps].map(|view| view.of_those(left));
        if trainers.is_empty() || embedding_ps.is_empty() {
            return None;
        }
        let missing = self.sync_ps.len() - sync_ps.len();
        let others = (0..left.len()).filter(|rank| !sync_ps.contains(*rank)).take(missing);
        let mut holds: Vec<usize> = others.chain(sync_ps.ranks().iter().copied()).collect();
        holds.sort_unstable();
        sync_ps.ranks = holds.into();
        let mut held = vec![0; left.len()];
        let stay = self.holders.iter().map(|holder| left.binary_search(holder).ok());
        let mut holders: Vec<Option<usize>> = stay.collect();
        holders.iter().flatten().for_each(|holder| held[*holder] += 1);
        for lost in holders.iter_mut().filter(|holder| holder.is_none()) {
            let fewest = embedding_ps.ranks().iter().copied().min_by_key(|rank| held[*rank])?;
            held[fewest] += 1;
            *lost = Some(fewest);
        }
        let holders = holders.into_iter().flatten().collect();
        let (partitions, dense_partitions) = (self.partitions, self.dense_partitions);
        Some(Self { trainers, embedding_ps, sync_ps, dense_partitions, partitions, holders })
    }

    /// The rank that holds a partition.
    #[must_use]
    pub fn rank_of(&self, partition: u32) -> usize {
        self.holders[partition as usize]
    }

    /// The partitions that a rank holds, ascending.
    pub fn partitions_of(&self, rank: usize) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(self.holders.iter()).filter(move |(_, holder)| **holder == rank).map(|it| it.0)
    }
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
                let left: Vec<usize> = (0..size).filter(|rank| *rank != lost).collect();
                let Some(now) = roles.of_those(&left) else {
                    assert_eq!(size, 1);
                    continue;
                };
                one_to_one(&now, size - 1);
                assert_eq!(now.partitions, roles.partitions);
                assert_eq!((now.trainers.epoch(), now.sync_ps.epoch()), (1, 1));
                assert_eq!(now.sync_ps.len(), roles.sync_ps.len(), "a center is replaced");
                let trains = usize::from(roles.trainers.contains(lost));
                assert_eq!(now.trainers.len(), roles.trainers.len() - trains);
                for (rank, before) in left.iter().enumerate() {
                    let [had, has]: [Vec<u32>; 2] =
                        [roles.partitions_of(*before).collect(), now.partitions_of(rank).collect()];
                    assert!(
                        had.iter().all(|partition| has.contains(partition)),
                        "it keeps its own"
                    );
                }
            }
        }
    }

    #[test]
    fn those_behind_a_rank_that_left_move_up() {
        let roles = Roles::separate(3, 2, 1, 2).of_those(&[0, 2, 3, 4, 5]).unwrap();
        assert_eq!((roles.trainers.ranks(), roles.trainers.epoch()), (&[0, 1][..], 1));
        assert_eq!(roles.embedding_ps.ranks(), [2, 3]);
        // The first of those with rows, and the center.
        let roles = roles.of_those(&[0, 1, 3]).unwrap();
        assert_eq!((roles.embedding_ps.ranks(), roles.sync_ps.ranks()), (&[2][..], &[0][..]));
        assert_eq!(roles.partitions_of(2).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(roles.of_those(&[0, 1]), None, "nobody holds rows");
    }

    #[test]
    fn partitions_of_a_lost_rank_go_to_who_has_fewest() {
        let roles = Roles::collocated(4, 0, 3).of_those(&[0, 1, 3]).unwrap();
        let held = [0, 1, 2].map(|rank| roles.partitions_of(rank).collect::<Vec<_>>());
        assert_eq!(held, [vec![0, 2, 4, 8], vec![1, 5, 6, 9], vec![3, 7, 10, 11]]);
    }
}
