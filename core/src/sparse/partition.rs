//! Where a row lives.
//!
//! Row number `g` is in partition `g mod P` at index `g / P`, so any number of ranks finds any row
//! with no table of its own. What numbers a table's rows have decides who holds them:
//!
//! | placement | numbers of table t | partitions |
//! | --- | --- | --- |
//! | rows | one after the other, from where table t - 1 ends | equal sizes (±1 row), neighbouring ids part |
//! | tables | `index * P + p`, index after index in its partition p | as even as the tables allow; all values of a bag are in one |
//!
//! Fields may share a table: it belongs to the first of them, the others have its numbers and no
//! rows of their own. An id is one row, whatever fields it comes from: it travels once, and its
//! gradients are summed before one update.

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
    /// It is an earlier field's table, which counts its rows.
    pub shared: bool,
}

impl Numbers {
    /// Rows that are this field's own.
    #[must_use]
    pub const fn own(&self) -> u32 {
        if self.shared { 0 } else { self.rows }
    }

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
    /// is dealt to all partitions. `table_of` names the field whose table a field uses, itself or
    /// an earlier one with a table of its own and as many rows; empty: each its own.
    /// `tables: [fields]`
    ///
    /// # Errors
    /// When the tables have more than `u32::MAX` rows together.
    pub fn deal(
        cardinality: &[u64],
        table_of: &[u32],
        tables: &mut [Numbers],
    ) -> Result<(), NumberingError> {
        let own = |field| owner(table_of, field) == field;
        let error = NumberingError { rows: sum(own_rows(cardinality, table_of)) };
        let mut next = 0;
        for (field, rows) in cardinality.iter().enumerate() {
            if !own(field) {
                tables[field] = Numbers { shared: true, ..tables[owner(table_of, field)] };
                continue;
            }
            let first = u32::try_from(next).map_err(|_| error)?;
            let rows_here = u32::try_from(*rows).map_err(|_| error)?;
            tables[field] = Numbers { first, step: 1, rows: rows_here, shared: false };
            next += rows;
        }
        u32::try_from(next).map(drop).map_err(|_| error)
    }

    /// Numbers them so that each is whole in its partition of `partitions`. `owners: [fields]`, of
    /// which those of shared tables say nothing; `tables: [fields]`
    ///
    /// # Errors
    /// When a partition gets more rows than there are numbers for it.
    pub fn place(
        cardinality: &[u64],
        table_of: &[u32],
        (partitions, owners): (u32, &[u32]),
        tables: &mut [Numbers],
    ) -> Result<(), NumberingError> {
        let error = NumberingError { rows: sum(own_rows(cardinality, table_of)) };
        for (field, (rows, partition)) in cardinality.iter().zip(owners).enumerate() {
            if owner(table_of, field) != field {
                tables[field] = Numbers { shared: true, ..tables[owner(table_of, field)] };
                continue;
            }
            let before = own_rows(&cardinality[..field], table_of).zip(owners);
            let before = sum(before.filter(|(_, other)| *other == partition).map(|(rows, _)| rows));
            let number = |index: u64| {
                let number = index.checked_mul(u64::from(partitions))? + u64::from(*partition);
                u32::try_from(number).ok()
            };
            // One behind the last, so that no sum of a number and a step passes the end.
            let end = before.saturating_add(*rows);
            number(end).ok_or(error)?;
            let (first, rows) = (number(before).ok_or(error)?, u32::try_from(*rows));
            let rows = rows.map_err(|_| error)?;
            tables[field] = Numbers { first, step: partitions, rows, shared: false };
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

    /// The first field that uses the table of `field`.
    #[must_use]
    pub fn owner(&self, field: usize) -> usize {
        let table = self.tables[field];
        let owns = |other: &Numbers| !other.shared && other.first == table.first;
        if table.shared { self.tables.iter().position(owns).unwrap_or(field) } else { field }
    }

    /// Rows of all tables.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.tables.iter().map(Numbers::own).sum()
    }

    /// Field and id of row number `row`; of fields that share a table the first.
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

    /// How many rows that are the own ones of `field` are in a partition.
    #[must_use]
    pub const fn rows_in(&self, field: usize, partitioning: Partitioning, partition: u32) -> u32 {
        let Numbers { first, step, rows, shared } = self.tables[field];
        if shared {
            return 0;
        }
        if step == 1 {
            let before = partitioning.rows_of(partition, first);
            return partitioning.rows_of(partition, first + rows) - before;
        }
        if partitioning.partition(first) == partition { rows } else { 0 }
    }
}

/// The field whose table `field` uses.
fn owner(table_of: &[u32], field: usize) -> usize {
    table_of.get(field).map_or(field, |owner| *owner as usize)
}

/// Rows of every field that are its own.
fn own_rows<'a>(cardinality: &'a [u64], table_of: &'a [u32]) -> impl Iterator<Item = u64> + 'a {
    let fields = cardinality.iter().enumerate();
    fields.map(move |(field, rows)| if owner(table_of, field) == field { *rows } else { 0 })
}

fn sum(rows: impl Iterator<Item = u64>) -> u64 {
    rows.fold(0, u64::saturating_add)
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
        Numbering::deal(&[3, 1, 5], &[], &mut tables).unwrap();
        let numbering = Numbering::new(&tables);
        assert_eq!(numbering.rows(), 9);
        assert_eq!(
            [0, 2, 3, 4, 8].map(|row| numbering.locate(row)),
            [(0, 0), (0, 2), (1, 0), (2, 0), (2, 4)]
        );
        let too_many = Numbering::deal(&[u64::from(u32::MAX), 1, 0], &[], &mut tables);
        assert_eq!(too_many, Err(NumberingError { rows: 1 << 32 }));
    }

    /// Every row has a place of its own, whole tables one after the other in theirs.
    #[test]
    fn tables_stay_whole_where_they_are_placed() {
        let (cardinality, owners) = ([3, 1, 5, 0, 4], [2, 0, 2, 1, 0]);
        let dealt = Partitioning { partitions: 3 };
        let mut tables = [Numbers::default(); 5];
        Numbering::place(&cardinality, &[], (3, &owners), &mut tables).unwrap();
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
            assert!(Numbering::place(&[rows], &[], (2, &[0]), &mut tables[..1]).is_err(), "{rows}");
        }
        assert!(Numbering::place(&[half], &[], (2, &[1]), &mut tables[..1]).is_ok());
    }

    /// A shared table has one set of rows, whose ids are the same rows for all its fields.
    #[test]
    fn fields_that_share_a_table_have_one_set_of_rows() {
        let (cardinality, table_of, dealt) =
            ([3, 4, 3, 2, 3], [0, 1, 0, 3, 0], Partitioning { partitions: 2 });
        let mut tables = [[Numbers::default(); 5]; 2];
        Numbering::deal(&cardinality, &table_of, &mut tables[0]).unwrap();
        let owners = (2, &[1, 0, 0, 1, 1][..]);
        Numbering::place(&cardinality, &table_of, owners, &mut tables[1]).unwrap();
        for tables in &tables {
            let numbering = Numbering::new(tables);
            assert_eq!(numbering.rows(), 9);
            let held = |field: usize| [0, 1].map(|p| numbering.rows_in(field, dealt, p));
            let all: u32 = (0..5).flat_map(held).sum();
            assert_eq!(all, 9);
            assert_eq!([held(2), held(4)], [[0, 0]; 2]);
            for field in [0, 2, 4] {
                assert_eq!(numbering.cardinality(field), 3);
                for id in 0..3 {
                    let row = numbering.of(field).row(id);
                    assert_eq!(row, numbering.of(0).row(id));
                    assert_eq!(numbering.locate(row), (0, id));
                }
            }
            // No row of one table is another's.
            let mut seen: std::vec::Vec<u32> = [0, 1, 3]
                .into_iter()
                .flat_map(|field| (0..numbering.cardinality(field)).map(move |id| (field, id)))
                .map(|(field, id)| numbering.of(field).row(id))
                .collect();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 9);
        }
    }
}
