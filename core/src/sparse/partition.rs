//! Where a row lives.
//!
//! Rows are dealt to partitions like cards: row number `g` is in partition `g mod P` at index
//! `g / P`. Partitions have equal sizes (±1 row), neighbouring ids part, and any number of ranks
//! finds any row with no table of its own.

use core::fmt;

/// Row numbers of all tables: field `s` owns `first[s]..first[s + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct Numbering<'a> {
    first: &'a [u32],
}

/// All tables together have more rows than row numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberingError {
    /// Rows of all tables together.
    pub rows: u64,
}

impl fmt::Display for NumberingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the tables have {} rows together; at most {} are possible", self.rows, u32::MAX)
    }
}

impl core::error::Error for NumberingError {}

impl<'a> Numbering<'a> {
    /// A numbering from its boundaries: `[fields + 1]`, ascending from 0.
    #[must_use]
    pub const fn new(first: &'a [u32]) -> Self {
        Self { first }
    }

    /// Writes the boundaries for tables of these `cardinality` to `first`.
    /// `first: [fields + 1]`
    ///
    /// # Errors
    /// When the tables have more than `u32::MAX` rows together.
    pub fn fill(cardinality: &[u64], first: &mut [u32]) -> Result<(), NumberingError> {
        let rows = cardinality.iter().fold(0u64, |sum, rows| sum.saturating_add(*rows));
        let mut next = 0u64;
        for (boundary, rows_here) in first.iter_mut().zip(cardinality.iter().chain([&0])) {
            *boundary = u32::try_from(next).map_err(|_| NumberingError { rows })?;
            next += rows_here;
        }
        Ok(())
    }

    /// Number of fields.
    #[must_use]
    pub const fn fields(&self) -> usize {
        self.first.len() - 1
    }

    /// Row number of id 0 of `field`.
    #[must_use]
    pub const fn first(&self, field: usize) -> u32 {
        self.first[field]
    }

    /// Rows of all tables.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        self.first[self.first.len() - 1]
    }

    /// Field and id of row number `row`.
    #[must_use]
    pub fn locate(&self, row: u32) -> (usize, u32) {
        let field = self.first.partition_point(|first| *first <= row) - 1;
        (field, row - self.first[field])
    }

    /// Rows of the table of `field`.
    #[must_use]
    pub const fn cardinality(&self, field: usize) -> u32 {
        self.first[field + 1] - self.first[field]
    }
}

/// How rows are dealt to partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitioning {
    /// Number of partitions over all ranks, at least 1.
    pub partitions: u32,
}

impl Partitioning {
    /// Partition of row number `row`.
    #[must_use]
    pub const fn partition(&self, row: u32) -> u32 {
        row % self.partitions
    }

    /// Index of row number `row` in its partition.
    #[must_use]
    pub const fn index(&self, row: u32) -> u32 {
        row / self.partitions
    }

    /// Row number at `index` of `partition`.
    #[must_use]
    pub const fn row(&self, partition: u32, index: u32) -> u32 {
        index * self.partitions + partition
    }

    /// How many of `rows` rows `partition` holds.
    #[must_use]
    pub const fn rows_of(&self, partition: u32, rows: u32) -> u32 {
        rows / self.partitions + if partition < rows % self.partitions { 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_one_place() {
        for (rows, partitions) in [(0, 1), (1, 4), (17, 4), (100, 7)] {
            let dealt = Partitioning { partitions };
            let total: u32 = (0..partitions).map(|p| dealt.rows_of(p, rows)).sum();
            assert_eq!(total, rows);
            for row in 0..rows {
                let (partition, index) = (dealt.partition(row), dealt.index(row));
                assert!(index < dealt.rows_of(partition, rows));
                assert_eq!(dealt.row(partition, index), row);
            }
        }
    }

    #[test]
    fn numbering_finds_field_and_id_and_refuses_too_many_rows() {
        let mut first = [0; 4];
        Numbering::fill(&[3, 1, 5], &mut first).unwrap();
        let numbering = Numbering::new(&first);
        assert_eq!(numbering.rows(), 9);
        assert_eq!(
            [0, 2, 3, 4, 8].map(|row| numbering.locate(row)),
            [(0, 0), (0, 2), (1, 0), (2, 0), (2, 4)]
        );
        let too_many = Numbering::fill(&[u64::from(u32::MAX), 1, 0], &mut first);
        assert_eq!(too_many, Err(NumberingError { rows: 1 << 32 }));
    }
}
