//! Which rank does what.

use core::ops::Range;

/// Roles of the ranks of a run; the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Ranks that train.
    pub trainers: Range<usize>,
    /// Ranks that hold embedding rows.
    pub embedding_ps: Range<usize>,
    /// Ranks that hold a slice each of the center of elastic averaging.
    pub sync_ps: Range<usize>,
    /// Partitions of the tables over all ranks.
    pub partitions: u32,
}

impl Roles {
    /// Every rank trains and holds rows; the first `sync_ps` also hold the center.
    #[must_use]
    pub fn collocated(size: usize, sync_ps: usize, partitions_per_rank: usize) -> Self {
        Self {
            trainers: 0..size,
            embedding_ps: 0..size,
            sync_ps: 0..sync_ps,
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
            trainers: 0..trainers,
            embedding_ps: trainers..servers,
            sync_ps: servers..servers + sync_ps,
            partitions: partitions(embedding_ps, partitions_per_rank),
        }
    }

    /// The rank that holds a partition.
    #[must_use]
    pub fn rank_of(&self, partition: u32) -> usize {
        self.embedding_ps.start + partition as usize % self.embedding_ps.len()
    }

    /// The partitions that a rank holds.
    pub fn partitions_of(&self, rank: usize) -> impl Iterator<Item = u32> + '_ {
        let holds = move |partition: &u32| self.rank_of(*partition) == rank;
        (0..self.partitions).filter(move |p| self.embedding_ps.contains(&rank) && holds(p))
    }
}

fn partitions(ranks: usize, per_rank: usize) -> u32 {
    u32::try_from(ranks * per_rank).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_one_rank_that_holds_rows() {
        let layouts =
            [Roles::collocated(1, 0, 2), Roles::collocated(4, 1, 2), Roles::separate(3, 2, 1, 3)];
        for roles in layouts {
            let size = roles.trainers.end.max(roles.embedding_ps.end);
            let mut held: Vec<u32> = (0..size).flat_map(|rank| roles.partitions_of(rank)).collect();
            held.sort_unstable();
            assert_eq!(held, (0..roles.partitions).collect::<Vec<_>>());
        }
    }
}
