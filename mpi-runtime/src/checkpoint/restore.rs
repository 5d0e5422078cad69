//! Reading the model of a checkpoint into the memory of all ranks: every tensor is read by one.
//!
//! The first rank reads the dense tensors and tells all, a block at a time. Those of rows are dealt
//! to the ranks that hold rows, to the owner itself where a tensor's rows have one; a reader sends
//! every row to its owner in rounds of bounded size, in which all ranks take part.
//!
//! Invariants: together the ranks read every byte of the model once, and each tensor's reader
//! checks its sum. Who cannot read on takes part in the rounds with nothing, and all agree at the
//! end.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::collections::VecDeque;

use umbra_core::model::Model;
use umbra_core::sparse::{Numbering, Numbers, Partitioning};

use super::contents::{self, DenseTensor};
use super::error::CheckpointError;
use super::manifest::Manifest;
use super::part::PartReader;
use super::read::Checkpoint;
use super::rows::RowReader;
use crate::comm::Comm;
use crate::comm::reduce::combine;
use crate::comm::watch::Lost;
use crate::error::Error;
use crate::rows::tables::{Partition, TableLayout};

/// A replica and its optimizer state. Both are empty on a rank that has none.
#[derive(Clone, Copy)]
pub struct Dense<'a> {
    /// The model they belong to.
    pub model: &'a Model,
    /// `[replica_len]`
    pub replica: &'a [AtomicU32],
    /// `[planes * parameters_len]`
    pub state: &'a [AtomicU32],
}

/// Where a model is read to on this rank.
pub struct Target<'a> {
    /// Replica and optimizer state; empty on a rank that has none.
    pub dense: Dense<'a>,
    /// How rows are laid out.
    pub layout: &'a TableLayout,
    /// Partitions of this rank; all ranks' together are all there are.
    pub partitions: &'a [Partition],
}

/// Bytes that this rank read, or why it could not read on.
type ReadBytes = Result<u64, CheckpointError>;

impl Checkpoint {
    /// Reads the model: replica, optimizer state and rows, into `target`. Returns the bytes that
    /// this rank read. *Collective over `control`.*
    ///
    /// # Errors
    /// When it does not fit or is damaged: on every rank, of whom one has the message.
    pub fn read(&self, control: &Comm, target: &Target<'_>) -> Result<u64, Error> {
        control.agree(self.fits_rows(target.layout).map_err(Error::from))?;
        self.read_model(control, target, None)
    }

    /// Reads the model for a run of its own, into tables that may have grown at their ends: what is
    /// written stays by field and id, what is new stays as it is. Without `state` optimizer state
    /// stays as it is, too. Returns the bytes that this rank read. *Collective over `control`.*
    ///
    /// # Errors
    /// When it does not fit or is damaged: on every rank, of whom one has the message.
    pub fn read_grown(
        &self,
        control: &Comm,
        target: &Target<'_>,
        state: bool,
    ) -> Result<u64, Error> {
        control.agree(self.fits_grown(target.layout, state).map_err(Error::from))?;
        let Manifest { row_width, row_state_len, .. } = &self.manifest;
        let words = row_width + if state { *row_state_len } else { 0 };
        let dense = Dense { state: if state { target.dense.state } else { &[] }, ..target.dense };
        self.read_model(control, &Target { dense, ..*target }, Some(words))
    }

    /// Reads the rows of the partitions `lost` alone, whoever holds them now. Returns the bytes
    /// that this rank read. *Collective over `control`; `lost` equal on all ranks.*
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_lost(
        &self,
        control: &Comm,
        target: &Target<'_>,
        lost: &[u32],
    ) -> Result<u64, Error> {
        control.agree(self.fits_rows(target.layout).map_err(Error::from))?;
        let rows = self.read_rows(control, target, None, Some(lost))?;
        control.barrier(WHAT, true)?;
        control.agree(rows.map_err(Error::from))
    }

    /// Reads the replica and the optimizer state of an image that this rank has written itself.
    /// `alone` is this rank's own communicator. *Not collective.*
    ///
    /// # Errors
    /// When it does not fit or is damaged.
    pub fn read_own_dense(&self, alone: &Comm, dense: Dense<'_>) -> Result<u64, Error> {
        Ok(self.read_dense(alone, dense)??)
    }

    fn read_model(
        &self,
        control: &Comm,
        target: &Target<'_>,
        grown: Option<usize>,
    ) -> Result<u64, Error> {
        let dense = self.read_dense(control, target.dense)?;
        let dense = control.agree(dense.map_err(Error::from))?;
        let rows = self.read_rows(control, target, grown, None)?;
        // Own files take as long as they take.
        control.barrier(WHAT, true)?;
        Ok(dense + control.agree(rows.map_err(Error::from))?)
    }

    fn fits_rows(&self, layout: &TableLayout) -> Result<(), CheckpointError> {
        let manifest = &self.manifest;
        self.same("width of a row", layout.width, manifest.row_width)?;
        self.same("length of a row's state", layout.state_len, manifest.row_state_len)?;
        self.numbers()?;
        self.same_sharing(layout)?;
        self.same("number of rows", u64::from(layout.numbering().rows()), manifest.rows())?;
        if layout.owners().is_some()
            || manifest.owners.is_some()
            || !layout.table_of().is_empty()
            || !layout.strips().is_empty()
        {
            let (here, written) = (layout.numbering(), self.numbers()?);
            self.same("number of tables", here.fields(), written.len())?;
            for (table, written) in written.iter().enumerate() {
                self.same("number of rows of a table", here.cardinality(table), written.rows)?;
            }
        }
        Ok(())
    }

    /// The same fields use each other's tables, and these are as wide.
    fn same_sharing(&self, layout: &TableLayout) -> Result<(), CheckpointError> {
        let list = |table_of: &[u32]| format!("{table_of:?}");
        let (here, written) = (layout.as_strips(), self.manifest.strips.clone());
        let [here, written] = [here, written].map(|it| list(&it.unwrap_or_default().of_field));
        let what = "list of strips of every field's table (embedding.dims, embedding.columns)";
        self.same(what, here, written)?;
        let written = self.manifest.table_of.as_deref().unwrap_or_default();
        let what = "list of whose table every field uses (embedding.shared)";
        self.same(what, list(layout.table_of()), list(written))
    }

    /// Tables of `layout` can take its rows over.
    ///
    /// # Errors
    /// When they have fewer rows, or rows of another size.
    pub fn fits_grown(&self, layout: &TableLayout, state: bool) -> Result<(), CheckpointError> {
        let (manifest, numbering) = (&self.manifest, layout.numbering());
        self.same("width of a row", layout.width, manifest.row_width)?;
        if state {
            self.same("length of a row's state", layout.state_len, manifest.row_state_len)?;
        }
        let fields = layout.fields();
        self.same("number of fields", fields, manifest.cardinality.len())?;
        self.same_sharing(layout)?;
        for (field, written) in manifest.cardinality.iter().enumerate() {
            let here = u64::from(numbering.cardinality(layout.tables_of(field).start));
            if *written > here {
                let name = manifest.sparse_names.get(field).map_or("", String::as_str);
                return Err(CheckpointError::Shrunk {
                    path: self.dir().to_owned(),
                    field,
                    name: name.to_owned(),
                    here,
                    written: *written,
                });
            }
        }
        self.numbers().map(drop)
    }

    /// The tensors of the model that is evaluated, in the order of files.
    fn open_dense(&self, model: &Model, planes: usize) -> Result<Chain, CheckpointError> {
        let tensors = contents::values(model).chain(contents::states(model, planes));
        let open = |DenseTensor { name, shape, .. }: DenseTensor| {
            let shape = shape.map(|extent| extent as u64);
            self.has_shape(&name, &shape)?;
            self.reader(&name, (shape.iter().product(), 1))
        };
        Ok(Chain { parts: tensors.map(open).collect::<Result<_, _>>()?, bytes: 0 })
    }

    /// The first rank reads, all ranks store. The outer error is that not all came in time.
    fn read_dense(&self, control: &Comm, dense: Dense<'_>) -> Result<ReadBytes, Lost> {
        let Dense { model, replica, state } = dense;
        let parameters = model.parameters_len();
        let planes = [state.len().checked_div(parameters).unwrap_or(0) as u64];
        let mut all = vec![0; control.size()];
        // Ranks without a replica learn of the state here.
        control.all_gather(&planes, &mut all, WHAT)?;
        let planes = usize::try_from(all.into_iter().max().unwrap_or(0)).unwrap_or(0);
        let mut chain = (control.rank() == 0).then(|| self.open_dense(model, planes));
        let replica = model.places().take(replica.len()).map(|place| &replica[place]);
        let planes_here = state.chunks_exact(parameters.max(1));
        let state = planes_here
            .flat_map(|plane| model.places().take(plane.len()).map(move |place| &plane[place]));
        let mut words = replica.chain(state);
        let mut left = model.replica_len() + planes * parameters;
        let mut block = vec![0u32; left.min(BLOCK_BYTES / 4)];
        while left > 0 {
            let block_len = left.min(block.len());
            let block = &mut block[..block_len];
            if let Some(Ok(open)) = &mut chain
                && let Err(error) = open.read(block)
            {
                chain = Some(Err(error));
            }
            control.broadcast(block, WHAT, true)?;
            // The block first: it ends, and must not take a word with it.
            block.iter().zip(&mut words).for_each(|(x, word)| word.store(*x, Relaxed));
            left -= block_len;
        }
        Ok(chain.map_or(Ok(0), |chain| chain.map(|chain| chain.bytes)))
    }

    /// `grown`: words of a record that are kept, of tables that may have grown. The outer error is
    /// that not all came in time.
    fn read_rows(
        &self,
        control: &Comm,
        target: &Target<'_>,
        grown: Option<usize>,
        only: Option<&[u32]>,
    ) -> Result<ReadBytes, Lost> {
        let Target { layout, partitions, .. } = target;
        let (here, numbering) = (layout.partitioning, layout.numbering());
        let owners = owners(control, here, partitions)?;
        let Manifest { row_width, row_state_len, partitions: written, .. } = &self.manifest;
        let record_len = row_width + row_state_len;
        let kept = grown.unwrap_or(record_len);
        // Whether it fits has been looked at.
        let numbers = self.manifest.numbers().unwrap_or_default();
        let (written, numbers) = (Partitioning { partitions: *written }, &numbers[..]);
        let placed = (layout.owners(), self.manifest.owners.as_deref());
        let moved =
            grown.is_some() || placed.0 != placed.1 || (placed.0.is_some() && written != here);
        let plan = Files::new((written, numbers, record_len), here, &owners, moved);
        let plan = plan.of_partitions(here, only);
        let row_here = |row| {
            if !moved {
                return row;
            }
            let (field, id) = Numbering::new(numbers).locate(row);
            numbering.of(field).row(id)
        };
        let wanted = |owner: u32| only.is_none_or(|only| only.contains(&owner));
        let mut source = plan.source(self, control.rank());
        let store = |row: u32, record: &[u32]| {
            let owner = here.partition(row);
            if let Some(partition) = partitions.iter().find(|p| p.number == owner) {
                let (values, state) = bytemuck::cast_slice(record).split_at(layout.width);
                partition.table().write(here.index(row) as usize, values, state);
            }
        };
        let mut outgoing = vec![vec![]; control.size()];
        for _ in 0..plan.rounds() {
            outgoing.iter_mut().for_each(Vec::clear);
            source.next_block(|row, record| {
                let row = row_here(row);
                let record = &record[..kept];
                if !wanted(here.partition(row)) {
                    return;
                }
                let owner = owners[here.partition(row) as usize];
                if owner == control.rank() {
                    store(row, record);
                } else {
                    outgoing[owner].push(row);
                    outgoing[owner].extend_from_slice(record);
                }
            });
            if !plan.stay {
                let lists: Vec<&[u32]> = outgoing.iter().map(Vec::as_slice).collect();
                for words in control.exchange(&lists, "rows of a checkpoint")? {
                    for record in words.chunks_exact(1 + kept) {
                        store(record[0], &record[1..]);
                    }
                }
            }
        }
        Ok(source.ended)
    }
}

/// Tensors read one after the other, as if they were one.
struct Chain {
    parts: VecDeque<PartReader>,
    /// Of the parts that have been read.
    bytes: u64,
}

impl Chain {
    /// The next words; what is left of a part is checked as soon as it is read.
    fn read(&mut self, mut out: &mut [u32]) -> Result<(), CheckpointError> {
        while let (false, Some(part)) = (out.is_empty(), self.parts.front_mut()) {
            let length = part.words_left().min(out.len());
            let (now, later) = out.split_at_mut(length);
            self.bytes += part.read(now)?;
            out = later;
            if part.words_left() == 0
                && let Some(part) = self.parts.pop_front()
            {
                part.finish()?;
            }
        }
        Ok(())
    }
}

/// The rank that holds each partition. *Collective.*
fn owners(
    control: &Comm,
    dealt: Partitioning,
    partitions: &[Partition],
) -> Result<Vec<usize>, Lost> {
    let mut owners = vec![0u64; dealt.partitions as usize];
    for partition in partitions {
        owners[partition.number as usize] = control.rank() as u64;
    }
    let greater = |to: &mut [u64], from: &[u64]| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = (*to).max(*from));
    };
    combine(control, &mut owners, greater, WHAT)?;
    Ok(owners.into_iter().map(|owner| usize::try_from(owner).unwrap_or(usize::MAX)).collect())
}

/// Who reads which files of rows: the same on every rank.
struct Files<'a> {
    /// Partitions of the run that wrote them.
    written: Partitioning,
    /// And its row numbers.
    numbers: &'a [Numbers],
    /// By file; `None` of files that nobody needs.
    readers: Vec<Option<usize>>,
    record_len: usize,
    /// Whether every row belongs to its reader.
    stay: bool,
}

impl<'a> Files<'a> {
    /// Of tables with such numbers in so many partitions, which have others here if they are
    /// `moved`.
    fn new(
        (written, numbers, record_len): (Partitioning, &'a [Numbers], usize),
        here: Partitioning,
        owners: &[usize],
        moved: bool,
    ) -> Self {
        // Rows P, P + written, … are in one partition if its number is the same for all of them.
        let stay = written.partitions.is_multiple_of(here.partitions) && !moved;
        let mut holders = owners.to_vec();
        holders.sort_unstable();
        holders.dedup();
        let reader = |file: u32| {
            if stay {
                owners[here.partition(file) as usize]
            } else {
                holders[file as usize % holders.len()]
            }
        };
        let readers = (0..written.partitions).map(|file| Some(reader(file))).collect();
        Self { written, numbers, readers, record_len, stay }
    }

    /// Those of them that have rows of the partitions `only`.
    fn of_partitions(mut self, here: Partitioning, only: Option<&[u32]>) -> Self {
        if let (true, Some(only)) = (self.stay, only) {
            for (file, reader) in (0..).zip(&mut self.readers) {
                *reader = reader.filter(|_| only.contains(&here.partition(file)));
            }
        }
        self
    }

    /// Records read at a time.
    fn block(&self) -> u32 {
        u32::try_from(BLOCK_BYTES / (4 * self.record_len)).unwrap_or(u32::MAX).max(1)
    }

    fn records(&self, file: u32) -> u32 {
        let numbering = Numbering::new(self.numbers);
        let tables = 0..numbering.fields();
        tables.map(|table| numbering.rows_in(table, self.written, file)).sum()
    }

    /// Blocks of a file: an empty one has one, in which its sum is checked.
    fn blocks(&self, file: u32) -> u64 {
        u64::from(self.records(file).div_ceil(self.block()).max(1))
    }

    /// Blocks of the reader that has most.
    fn rounds(&self) -> u64 {
        let mut blocks = std::collections::BTreeMap::<usize, u64>::new();
        for (file, reader) in (0..).zip(&self.readers) {
            if let Some(reader) = reader {
                *blocks.entry(*reader).or_default() += self.blocks(file);
            }
        }
        blocks.into_values().max().unwrap_or(0)
    }

    fn source<'b>(&'b self, checkpoint: &'b Checkpoint, rank: usize) -> Source<'b> {
        let files = (0..).zip(&self.readers).filter(|(_, reader)| **reader == Some(rank));
        let mut files: Vec<u32> = files.map(|(file, _)| file).collect();
        files.reverse();
        Source { plan: self, checkpoint, files, open: None, block: vec![], ended: Ok(0) }
    }
}

/// The files of a reader, block by block.
struct Source<'a> {
    plan: &'a Files<'a>,
    checkpoint: &'a Checkpoint,
    /// The next last.
    files: Vec<u32>,
    /// A file under way: its number, and how many of its records have been read.
    open: Option<(RowReader, u32, u32)>,
    block: Vec<u32>,
    /// Bytes read so far, or why no more will be.
    ended: ReadBytes,
}

impl Source<'_> {
    /// Hands the next block's records to `take`, with their row numbers; nothing after the last, or
    /// once something was wrong.
    fn next_block(&mut self, take: impl FnMut(u32, &[u32])) {
        if let Ok(bytes) = &self.ended {
            let bytes = *bytes;
            self.ended = self.read(take).map(|more| bytes + more);
        }
    }

    /// Returns the bytes of a file that has been read to its end.
    fn read(&mut self, mut take: impl FnMut(u32, &[u32])) -> Result<u64, CheckpointError> {
        let (mut file, number, from) = match self.open.take() {
            Some(open) => open,
            None => match self.files.pop() {
                Some(number) => {
                    let (count, record) = (self.plan.records(number), self.plan.record_len);
                    (self.checkpoint.rows(number, u64::from(count), record)?, number, 0)
                }
                None => return Ok(0),
            },
        };
        let Files { written, record_len, .. } = self.plan;
        let to = from.saturating_add(self.plan.block()).min(self.plan.records(number));
        self.block.resize((to - from) as usize * record_len, 0);
        let bytes = file.read(&mut self.block)?;
        for (index, record) in (from..to).zip(self.block.chunks_exact(*record_len)) {
            take(written.row(number, index), record);
        }
        if to == self.plan.records(number) {
            file.finish()?;
        } else {
            self.open = Some((file, number, to));
        }
        Ok(bytes)
    }
}

/// What waits say they are waiting for.
const WHAT: &str = "reading of a checkpoint";

/// Bytes read at a time, about; what a rank sends in a round.
const BLOCK_BYTES: usize = 1 << 20;
