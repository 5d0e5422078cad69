//! The embedding tables of a run: numbering, partitions, and the records this rank holds.
//!
//! Where tables are cut into strips (`umbra_core::sparse::cut`), a strip is a table in all that
//! follows, unless it says of fields.
//!
//! Records are `[values | optimizer state]` (`umbra_core::sparse::Table`). Initial values are a
//! function of (seed, table, row), so they do not depend on how rows are partitioned; nor does how
//! they are rounded, where values are bf16s.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use std::io;
use std::sync::Arc;

use rayon::prelude::*;
use umbra_core::kernel::Precision;
use umbra_core::model::Model;
use umbra_core::optim::SparseOptimizer;
use umbra_core::sparse::{
    Numbering, NumberingError, Numbers, Partitioning, Record, Rounding, Table,
};

use crate::memory::{Whereabouts, Words};
use crate::rows::strips::Strips;
use crate::rows::usage::{SaveFirst, UsageMemory};

/// How rows are laid out, the same on every rank.
#[derive(Clone, Debug)]
pub struct TableLayout {
    /// Row numbers of every table. `[tables]`
    numbers: Arc<[Numbers]>,
    /// The partition of every table, where tables are whole. `[tables]`
    owners: Option<Arc<[u32]>>,
    /// The field whose table every field uses; empty: each has its own. `[fields]`
    table_of: Arc<[u32]>,
    /// The first strip of every field and the end of the last; empty: a table each. `[fields + 1]`
    strips: Arc<[u32]>,
    /// Columns of a record before those of its strip: the first-order parameter's.
    first_order: usize,
    /// How rows are dealt to partitions.
    pub partitioning: Partitioning,
    /// f32s of a row's values.
    pub width: usize,
    /// f32s of a row's optimizer state.
    pub state_len: usize,
    /// What values are in memory.
    pub precision: Precision,
    /// What updates rows.
    pub optimizer: SparseOptimizer,
    /// Which rows are saved before others; `None`: all at once.
    pub save_first: Option<SaveFirst>,
    /// New partitions stand in memory that other processes of the node can see, where the system
    /// has such.
    pub lent: bool,
}

impl TableLayout {
    /// Tables of these `cardinality`, one per field, in `partitions` partitions over all ranks.
    ///
    /// # Errors
    /// When the tables have more rows together than there are row numbers.
    pub fn new(
        cardinality: &[u64],
        partitions: u32,
        width: usize,
        optimizer: SparseOptimizer,
    ) -> Result<Self, NumberingError> {
        let mut numbers = vec![Numbers::default(); cardinality.len()];
        Numbering::deal(cardinality, &[], &mut numbers)?;
        Ok(Self {
            numbers: numbers.into(),
            owners: None,
            table_of: Arc::new([]),
            strips: Arc::new([]),
            first_order: 0,
            partitioning: Partitioning { partitions },
            width,
            state_len: optimizer.state_len(width),
            precision: Precision::F32,
            optimizer,
            save_first: None,
            lent: false,
        })
    }

    /// The same tables, whose values are so in memory.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The tables of the same fields, each in so many strips, whose records begin with
    /// `first_order` columns that are not the strip's. `counts`: empty, for one each, or `[fields]`
    ///
    /// # Errors
    /// When the strips have more rows together than there are row numbers.
    pub fn in_strips(self, counts: &[usize], first_order: usize) -> Result<Self, NumberingError> {
        let fields = self.numbers.iter().map(|table| u64::from(table.rows));
        let cardinality: Vec<u64> =
            fields.zip(counts).flat_map(|(rows, count)| vec![rows; *count]).collect();
        if counts.is_empty() {
            return Ok(self);
        }
        let mut numbers = vec![Numbers::default(); cardinality.len()];
        Numbering::deal(&cardinality, &[], &mut numbers)?;
        Ok(Self { numbers: numbers.into(), strips: starts(counts), first_order, ..self })
    }

    /// Tables of the same fields, of which some use another's: `table_of` names the field whose
    /// table a field uses, itself or an earlier one; empty: each its own. `[fields]`
    ///
    /// # Errors
    /// When the tables have more rows together than there are row numbers.
    pub fn sharing(self, table_of: Vec<u32>) -> Result<Self, NumberingError> {
        Self { table_of: table_of.into(), ..self }.dealt()
    }

    /// The same tables in `partitions`, their rows dealt.
    ///
    /// # Errors
    /// When the tables have more rows together than there are row numbers.
    pub fn dealt_to(&self, partitions: u32) -> Result<Self, NumberingError> {
        let (partitioning, lent) = (Partitioning { partitions }, false);
        Self { partitioning, lent, ..self.clone() }.dealt()
    }

    fn dealt(self) -> Result<Self, NumberingError> {
        let mut numbers = vec![Numbers::default(); self.numbers.len()];
        let table_of = strips_of_tables(&self.table_of, &self.strips);
        Numbering::deal(&self.cardinality(), &table_of, &mut numbers)?;
        Ok(Self { numbers: numbers.into(), owners: None, ..self })
    }

    /// The same tables, each whole in the partition that `owners` has for it. `[tables]`
    ///
    /// # Errors
    /// When a partition gets more rows than there are numbers for it.
    pub fn placed(&self, owners: &[u32]) -> Result<Self, NumberingError> {
        let mut numbers = vec![Numbers::default(); owners.len()];
        let partitions = self.partitioning.partitions;
        let placed = (partitions, owners);
        let table_of = strips_of_tables(&self.table_of, &self.strips);
        Numbering::place(&self.cardinality(), &table_of, placed, &mut numbers)?;
        Ok(Self { numbers: numbers.into(), owners: Some(owners.into()), ..self.clone() })
    }

    /// Rows of every table. `[tables]`
    fn cardinality(&self) -> Vec<u64> {
        self.numbers.iter().map(|table| table.rows.into()).collect()
    }

    /// Rows of every table, 0 of one that is another field's. `[tables]`
    #[must_use]
    pub fn own_rows(&self) -> Vec<u64> {
        self.numbers.iter().map(|table| table.own().into()).collect()
    }

    /// Rows of every field's table, in all its strips, 0 of one that is another field's. `[fields]`
    #[must_use]
    pub fn own_rows_of_fields(&self) -> Vec<u64> {
        let of = |field| self.numbers[self.tables_of(field)].iter();
        (0..self.fields())
            .map(|field| of(field).map(|table| u64::from(table.own())).sum())
            .collect()
    }

    /// Tables, each counted once.
    #[must_use]
    pub fn own_tables(&self) -> usize {
        self.numbers.iter().filter(|table| !table.shared).count()
    }

    /// The field whose table every field uses; empty: each its own. `[fields]`
    #[must_use]
    pub fn table_of(&self) -> &[u32] {
        &self.table_of
    }

    /// The first strip of every field and the end of the last; empty where a table is one.
    #[must_use]
    pub const fn strips(&self) -> &Arc<[u32]> {
        &self.strips
    }

    /// How tables are cut; `None` where they are not.
    #[must_use]
    pub fn as_strips(&self) -> Option<Strips> {
        let of_field: Vec<u32> = self.strips.windows(2).map(|ends| ends[1] - ends[0]).collect();
        let strips = Strips { of_field, first_order: self.first_order };
        (!self.strips.is_empty()).then_some(strips)
    }

    /// Fields of the data.
    #[must_use]
    pub fn fields(&self) -> usize {
        if self.strips.is_empty() { self.numbers.len() } else { self.strips.len() - 1 }
    }

    /// The tables of a field: its strips.
    #[must_use]
    pub fn tables_of(&self, field: usize) -> Range<usize> {
        match self.strips.get(field..field + 2) {
            Some([start, end]) => *start as usize..*end as usize,
            _ => field..field + 1,
        }
    }

    /// Field and number in it of strip `table`.
    fn strip(&self, table: usize) -> (usize, usize) {
        if self.strips.is_empty() {
            return (table, 0);
        }
        let field = self.strips.partition_point(|start| *start as usize <= table) - 1;
        (field, table - self.strips[field] as usize)
    }

    /// What `table` is called, of fields with these names.
    #[must_use]
    pub fn name_of(&self, table: usize, names: &[String]) -> String {
        let (field, strip) = self.strip(table);
        let name = names.get(field).map_or("", String::as_str);
        match self.strips.get(field..field + 2) {
            Some([start, end]) if end - start > 1 => {
                let width = self.width - self.first_order;
                format!("{name}[{}..{}]", strip * width, (strip + 1) * width)
            }
            _ => name.to_owned(),
        }
    }

    /// Writes the first values of a row of `table`, as those of a table that is not cut.
    /// `out: [width]`
    fn initialize(&self, (model, seed): (&Model, u64), (table, id): (usize, u64), out: &mut [f32]) {
        let (field, strip) = self.strip(table);
        let (first, width) = (self.first_order, self.width - self.first_order);
        let whole = first + self.tables_of(field).len() * width;
        let cardinality = self.numbers[table].rows.into();
        let number = u32::try_from(field).unwrap_or(u32::MAX);
        // Only the first strip uses what is before its columns.
        let (unused, own, from) = match strip {
            0 => (&mut [][..], out, 0),
            _ => {
                let (unused, own) = out.split_at_mut(first);
                (unused, own, first + strip * width)
            }
        };
        unused.fill(0.0);
        model.initialize_columns(seed, number, cardinality, id, (whole, from), own);
    }

    /// The partition of every table, where tables are whole. `[tables]`
    #[must_use]
    pub fn owners(&self) -> Option<&[u32]> {
        self.owners.as_deref()
    }

    /// Row numbers of the tables.
    #[must_use]
    pub fn numbering(&self) -> Numbering<'_> {
        Numbering::new(&self.numbers)
    }

    /// What a record is.
    #[must_use]
    pub const fn record(&self) -> Record {
        Record { width: self.width, state_len: self.state_len, precision: self.precision }
    }

    /// Rows of a partition.
    #[must_use]
    pub fn rows_of(&self, partition: u32) -> u32 {
        let numbering = self.numbering();
        let tables = 0..numbering.fields();
        tables.map(|table| numbering.rows_in(table, self.partitioning, partition)).sum()
    }

    /// A number behind those of a partition's rows.
    #[must_use]
    pub fn row_end_of(&self, partition: u32) -> u64 {
        u64::from(self.rows_of(partition)) * u64::from(self.partitioning.partitions)
    }

    /// Places of a table's rows in a partition.
    #[must_use]
    pub fn range_of(&self, partition: u32, table: usize) -> Range<u32> {
        let numbering = self.numbering();
        let rows = |table| numbering.rows_in(table, self.partitioning, partition);
        let start = (0..table).map(rows).sum();
        start..start + rows(table)
    }

    /// Words of a partition's records.
    #[must_use]
    pub fn len_of(&self, partition: u32) -> usize {
        self.rows_of(partition) as usize * self.record().words()
    }

    /// Bytes of a partition's records.
    #[must_use]
    pub fn bytes_of(&self, partition: u32) -> u64 {
        4 * self.len_of(partition) as u64
    }
}

/// Where the strips of every field begin, and the end. `counts: [fields]`
pub(crate) fn starts(counts: &[usize]) -> Arc<[u32]> {
    let mut end = 0;
    let ends = counts.iter().map(|count| {
        end += u32::try_from(*count).unwrap_or(u32::MAX);
        end
    });
    core::iter::once(0).chain(ends).collect()
}

/// The table that every strip of a field uses: that of its place among those of the field whose
/// table the field uses.
pub(crate) fn strips_of_tables(table_of: &[u32], strips: &[u32]) -> Vec<u32> {
    if table_of.is_empty() || strips.is_empty() {
        return table_of.to_vec();
    }
    let fields = strips.windows(2).zip(table_of);
    let of = |(ends, owner): (&[u32], &u32)| {
        let first = strips[*owner as usize];
        first..first + (ends[1] - ends[0])
    };
    fields.flat_map(of).collect()
}

/// The records of one partition.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Its number over all ranks.
    pub number: u32,
    words: Arc<Words>,
    record: Record,
    rounding: Rounding,
    usage: Option<Arc<UsageMemory>>,
}

impl Partition {
    /// The partition with its rows' initial values.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn initialized(
        number: u32,
        layout: &TableLayout,
        model: &Model,
        seed: u64,
    ) -> io::Result<Self> {
        let (record, length) = (layout.record(), layout.len_of(number));
        let lent = layout.lent.then(|| Words::to_lend(length).ok()).flatten();
        let words = lent.map_or_else(|| Words::new(length), Ok)?;
        let rounding = Rounding::new(seed, layout.partitioning, number);
        let table = Table::of(&words, record, rounding);
        let mut state = vec![0.0; layout.state_len];
        layout.optimizer.initialize(&mut state);
        for of in 0..layout.numbering().fields() {
            let numbers = layout.numbering().of(of);
            layout.range_of(number, of).into_par_iter().for_each_init(
                || vec![0.0; layout.width],
                |values, index| {
                    let row = layout.partitioning.row(number, index);
                    let Some(id) = numbers.id(row) else { unreachable!("a place of the table") };
                    layout.initialize((model, seed), (of, id.into()), values);
                    table.write(index as usize, values, &state);
                },
            );
        }
        let words = Arc::new(words);
        let usage = UsageMemory::new(layout, number)?.map(Arc::new);
        Ok(Self { number, words, record, rounding, usage })
    }

    /// The same records in memory that others can see, if the system has such.
    #[must_use]
    pub fn to_lend(self) -> Self {
        if !matches!(self.words.whereabouts(), Ok(None)) {
            return self;
        }
        let Ok(words) = Words::to_lend(self.words.len()) else { return self };
        let both = words.par_iter().zip(self.words.par_iter());
        both.for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        Self { words: Arc::new(words), ..self }
    }

    /// Where others find the records; `None` where they can't.
    #[must_use]
    pub fn whereabouts(&self) -> Option<Whereabouts> {
        self.words.whereabouts().ok().flatten()
    }

    /// Partition `number` of another process, in a run of this `seed`. What is remembered of
    /// updates is not there.
    ///
    /// # Errors
    /// When this process may not see it.
    pub fn borrowed(
        number: u32,
        layout: &TableLayout,
        seed: u64,
        from: &Whereabouts,
    ) -> io::Result<Self> {
        let words = Arc::new(Words::borrow(from, layout.len_of(number))?);
        let rounding = Rounding::new(seed, layout.partitioning, number);
        Ok(Self { number, words, record: layout.record(), rounding, usage: None })
    }

    /// The records.
    #[must_use]
    pub fn table(&self) -> Table<'_> {
        let usage = self.usage.as_ref().map(|usage| usage.usage());
        Table::of(&self.words, self.record, self.rounding).counted(usage.unwrap_or_default())
    }

    /// What is remembered of updates.
    #[must_use]
    pub fn usage(&self) -> Option<&UsageMemory> {
        self.usage.as_deref()
    }

    /// The words of all records, for checkpoints.
    #[must_use]
    pub fn words(&self) -> &[AtomicU32] {
        &self.words
    }
}
