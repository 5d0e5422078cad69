//! Where a row lives.
//!
//! Row number `g` is in partition `g mod P` at index `g / P`, so any number of ranks finds any row
//! with no table of its own. What numbers a table's rows have decides who holds them:
//!
//! | placement | numbers of table t | partitions |
//! | --- | --- | --- |
//! | rows | one after the other, from where table t - 1 ends | equal sizes (±1 row), neighbouring ids part |
//! | tables | `index * P + p`, index after index in its partition p | as even as the tables allow; all values of a bag are in one |

use core::fmt;

/// The numbers of a table's rows: id i has `first + i * step`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Of id 0.
    pub first: u32,
    /// From one id to the next: 1, or as many as there are partitions.
    pub step: u32,
    /// Rows of the table.
    pub rows: u32,
}

impl Numbers {
    /// The number of an id.
    #[must_use]
    pub const fn row(&self, id: u32) -> u32 {
        self.first + id * self.step
    }

    /// The id that has this number, if it is of this table.
    #[must_use]
    pub const fn id(&self, row: u32) -> Option<u32> {
        let Some(after) = row.checked_sub(self.first) else { return None };
        // Most tables go one by one: no division there.
        let (id, rest) =
            if self.step == 1 { (after, 0) } else { (after / self.step, after % self.step) };
        if rest == 0 && id < self.rows { Some(id) } else { None }
    }
}

/// Row numbers of all tables, one for each field.
#[derive(Clone, Copy, Debug)]
pub struct Numbering<'a> {
    tables: &'a [Numbers],
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
    /// A numbering of these tables. `[fields]`
    #[must_use]
    pub const fn new(tables: &'a [Numbers]) -> Self {
        Self { tables }
    }

    /// Numbers the rows of tables of these `cardinality` one after the other, so that every table
    /// is dealt to all partitions. `tables: [fields]`
    ///
    /// # Errors
    /// When the tables have more than `u32::MAX` rows together.
    pub fn deal(cardinality: &[u64], tables: &mut [Numbers]) -> Result<(), NumberingError> {
        let error = NumberingError { rows: sum(cardinality.iter()) };
        let mut next = 0;
        for (table, rows) in tables.iter_mut().zip(cardinality) {
            let first = u32::try_from(next).map_err(|_| error)?;
            *table = Numbers { first, step: 1, rows: u32::try_from(*rows).map_err(|_| error)? };
            next += rows;
        }
        u32::try_from(next).map(drop).map_err(|_| error)
    }

    /// Numbers them so that each is whole in its partition of `partitions`. `owners: [fields]`,
    /// `tables: [fields]`
    ///
    /// # Errors
    /// When a partition gets more rows than there are numbers for it.
    pub fn place(
        cardinality: &[u64],
        partitions: u32,
        owners: &[u32],
        tables: &mut [Numbers],
    ) -> Result<(), NumberingError> {
        for (field, (rows, owner)) in cardinality.iter().zip(owners).enumerate() {
            let before = cardinality[..field].iter().zip(owners);
            let before = sum(before.filter(|(_, other)| *other == owner).map(|(rows, _)| rows));
            let number = |index: u64| {
                let number = index.checked_mul(u64::from(partitions))? + u64::from(*owner);
                u32::try_from(number).ok()
            };
            let error = NumberingError { rows: sum(cardinality.iter()) };
            // One behind the last, so that no sum of a number and a step passes the end.
            let end = before.saturating_add(*rows);
            number(end).ok_or(error)?;
            let (first, rows) = (number(before).ok_or(error)?, u32::try_from(*rows));
            tables[field] = Numbers { first, step: partitions, rows: rows.map_err(|_| error)? };
        }
        Ok(())
    }

    /// Number of fields.
    #[must_use]
    pub const fn fields(&self) -> usize {
        self.tables.len()
    }

    /// The numbers of the table of `field`.
    #[must_use]
    pub const fn of(&self, field: usize) -> Numbers {
        self.tables[field]
    }

    /// Rows of all tables.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.tables.iter().map(|table| table.rows).sum()
    }

    /// Field and id of row number `row`.
    ///
    /// # Panics
    /// When no table has it.
    #[must_use]
    pub fn locate(&self, row: u32) -> (usize, u32) {
        let mut ids = self.tables.iter().map(|table| table.id(row)).enumerate();
        let found = ids.find_map(|(field, id)| Some((field, id?)));
        found.expect("a row of one of the tables")
    }

    /// Rows of the table of `field`.
    #[must_use]
    pub const fn cardinality(&self, field: usize) -> u32 {
        self.tables[field].rows
    }

    /// How many rows of the table of `field` are in a partition.
    #[must_use]
    pub const fn rows_in(&self, field: usize, partitioning: Partitioning, partition: u32) -> u32 {
        let Numbers { first, step, rows } = self.tables[field];
        if step == 1 {
            let before = partitioning.rows_of(partition, first);
            return partitioning.rows_of(partition, first + rows) - before;
        }
        if partitioning.partition(first) == partition { rows } else { 0 }
    }
}

fn sum<'a>(rows: impl Iterator<Item = &'a u64>) -> u64 {
    rows.fold(0, |sum, rows| sum.saturating_add(*rows))
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
        let mut tables = [Numbers::default(); 3];
        Numbering::deal(&[3, 1, 5], &mut tables).unwrap();
        let numbering = Numbering::new(&tables);
        assert_eq!(numbering.rows(), 9);
        assert_eq!(
            [0, 2, 3, 4, 8].map(|row| numbering.locate(row)),
            [(0, 0), (0, 2), (1, 0), (2, 0), (2, 4)]
        );
        let too_many = Numbering::deal(&[u64::from(u32::MAX), 1, 0], &mut tables);
        assert_eq!(too_many, Err(NumberingError { rows: 1 << 32 }));
    }

    /// Every row has a place of its own, whole tables one after the other in theirs.
    #[test]
    fn tables_stay_whole_where_they_are_placed() {
        let (cardinality, owners) = ([3, 1, 5, 0, 4], [2, 0, 2, 1, 0]);
        let dealt = Partitioning { partitions: 3 };
        let mut tables = [Numbers::default(); 5];
        Numbering::place(&cardinality, 3, &owners, &mut tables).unwrap();
        let numbering = Numbering::new(&tables);
        let mut next = [0; 3];
        for (field, owner) in owners.into_iter().enumerate() {
            for id in 0..numbering.cardinality(field) {
                let row = numbering.of(field).row(id);
                let place = (dealt.partition(row), dealt.index(row));
                assert_eq!(place, (owner, next[owner as usize]));
                assert_eq!(numbering.locate(row), (field, id));
                next[owner as usize] += 1;
            }
            let held = [0, 1, 2].map(|p| numbering.rows_in(field, dealt, p));
            assert_eq!(held[owner as usize], numbering.cardinality(field));
            assert_eq!(held.iter().sum::<u32>(), numbering.cardinality(field));
        }
        assert_eq!(next, [5, 0, 8]);
        let half = u64::from(u32::MAX) / 2;
        for rows in [half + 1, half + 2] {
            assert!(Numbering::place(&[rows], 2, &[0], &mut tables[..1]).is_err(), "{rows}");
        }
        assert!(Numbering::place(&[half], 2, &[1], &mut tables[..1]).is_ok());
    }
}
