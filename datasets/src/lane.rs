//! Reads one lane, window after window, over all its epochs.
//!
//! Two windows are in memory: rows are taken from one while the next is read, a piece at a time
//! and in step with what is taken, so that no batch waits for a whole window.

use core::ops::Range;

use crate::dataset_reader::{Begun, DatasetReader};
use crate::hdf5::RowBuffer;
use crate::order::{LaneKey, LanePlan, Piece, cut, window_order};
use crate::{BatchBuffer, Dataset, DatasetError};

/// Which lane is read, and in which order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneOrder {
    /// Key of all permutations, with the epoch and the lane.
    pub(crate) seed: u64,
    pub(crate) lane: usize,
    /// Shuffle, or keep the order of the files.
    pub(crate) shuffle: bool,
}

/// One lane of a dataset, read in the order of its plan.
#[derive(Debug)]
pub(crate) struct LaneReader {
    order: LaneOrder,
    fields: usize,
    dense_features: usize,
    groups: Vec<Vec<Piece>>,
    /// Epochs still to be planned.
    epochs: Range<u32>,
    epoch: u32,
    /// The epoch whose windows are being read, and the next of them.
    plan: Option<LanePlan>,
    window: usize,
    /// Rows of the lane before that window.
    position: u64,
    current: Window,
    next: Window,
}

/// Rows in memory, and the order in which they are taken.
#[derive(Debug, Default)]
struct Window {
    pieces: Vec<Piece>,
    /// Rows of the first pieces, on their way. `[pieces begun]`
    begun: Vec<Begun>,
    /// Rows of every piece, once all are here. `[pieces]`
    blocks: Vec<RowBuffer>,
    /// Rows in the order in which they are taken: [`Place`]s, once all are here. `[n]`
    order: Vec<u32>,
    /// Rows already taken.
    taken: usize,
}

/// Number of a piece in its window, and of a row in the piece, in one word.
struct Place;

impl Place {
    /// A piece has at most 8192 rows.
    const ROW_BITS: u32 = 16;

    fn of(piece: usize, row: u32) -> u32 {
        (u32::try_from(piece).unwrap_or(0) << Self::ROW_BITS) | row
    }

    fn split(place: u32) -> (usize, usize) {
        ((place >> Self::ROW_BITS) as usize, (place & ((1 << Self::ROW_BITS) - 1)) as usize)
    }
}

impl LaneReader {
    /// The rows `range`, in `order`, once for each of `epochs`.
    pub(crate) fn new(
        dataset: &Dataset,
        range: Range<u64>,
        order: LaneOrder,
        epochs: Range<u32>,
    ) -> Self {
        Self {
            order,
            fields: dataset.fields(),
            dense_features: dataset.dense_features(),
            groups: cut(range, dataset.grid()),
            epoch: epochs.start,
            epochs,
            plan: None,
            window: 0,
            position: 0,
            current: Window::default(),
            next: Window::default(),
        }
    }

    /// Leaves out the next `rows` rows, without reading the windows that lie wholly among them.
    pub(crate) fn skip(
        &mut self,
        mut rows: u64,
        files: &mut DatasetReader,
    ) -> Result<(), DatasetError> {
        let left = (self.current.order.len() - self.current.taken) as u64;
        if rows <= left {
            self.current.taken += usize::try_from(rows).unwrap_or(0);
            return Ok(());
        }
        rows -= left;
        self.current.taken = self.current.order.len();
        while rows > 0 {
            self.plan_next(files)?;
            let length = self.next.order.len() as u64;
            if length == 0 {
                break;
            }
            if length > rows {
                self.advance(files)?;
                self.current.taken = usize::try_from(rows).unwrap_or(usize::MAX);
                break;
            }
            self.next.leave_out(files)?;
            rows -= length;
        }
        Ok(())
    }

    /// Gives all memory back, and what is on its way.
    pub(crate) fn close(mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        self.current.clear(files);
        self.next.leave_out(files)
    }

    /// Appends the next `count` rows to `batch`.
    pub(crate) fn take(
        &mut self,
        files: &mut DatasetReader,
        mut count: usize,
        batch: &mut BatchBuffer,
    ) -> Result<(), DatasetError> {
        while count > 0 {
            if self.current.taken == self.current.order.len() {
                self.plan_next(files)?;
                self.advance(files)?;
                if self.current.order.is_empty() {
                    return Ok(());
                }
            }
            let from = self.current.taken;
            let to = self.current.order.len().min(from + count);
            self.current.give(from..to, self.fields, self.dense_features, batch);
            self.current.taken = to;
            count -= to - from;
        }
        self.read_ahead(files)
    }

    /// Reads the next window in step with what was taken of the current one.
    fn read_ahead(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        self.plan_next(files)?;
        let (taken, length) = (self.current.taken, self.current.order.len());
        while self.next.begun.len() * length < taken * self.next.pieces.len() {
            self.next.begin_piece(files)?;
        }
        Ok(())
    }

    /// Makes the next window the current one, wholly read.
    fn advance(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        while self.next.begun.len() < self.next.pieces.len() {
            self.next.begin_piece(files)?;
        }
        self.next.finish(files)?;
        core::mem::swap(&mut self.current, &mut self.next);
        self.next.clear(files);
        Ok(())
    }

    /// Plans the next window unless it is planned; leaves it empty after the last epoch.
    fn plan_next(&mut self, files: &DatasetReader) -> Result<(), DatasetError> {
        if !self.next.pieces.is_empty() {
            return Ok(());
        }
        if self.plan.as_ref().is_none_or(|plan| self.window == plan.windows.len()) {
            // After each pass: files are looked at when they are opened, too.
            if self.plan.is_some() {
                files.unchanged()?;
            }
            let Some(epoch) = self.epochs.next() else { return Ok(()) };
            self.epoch = epoch;
            self.plan = Some(LanePlan::new(&self.groups, self.key(), self.order.shuffle));
            (self.window, self.position) = (0, 0);
        }
        let key = self.key();
        let Some(plan) = &self.plan else { return Ok(()) };
        let Some(pieces) = plan.windows.get(self.window) else { return Ok(()) };
        self.next.pieces.extend_from_slice(&plan.pieces[pieces.clone()]);
        let rows = plan.window_rows(self.window);
        // A window holds 16 pieces of at most 8192 rows.
        let count = u32::try_from(rows).unwrap_or(u32::MAX);
        window_order(key, self.position, count, self.order.shuffle, &mut self.next.order);
        self.window += 1;
        self.position += rows;
        Ok(())
    }

    fn key(&self) -> LaneKey {
        LaneKey { seed: self.order.seed, epoch: self.epoch, lane: self.order.lane }
    }
}

impl Window {
    /// Empties a window that may be on its way.
    fn leave_out(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        for begun in self.begun.drain(..) {
            self.blocks.push(files.finish(begun)?);
        }
        self.clear(files);
        Ok(())
    }

    /// Empties a window that is wholly read, or not begun; its memory stays.
    fn clear(&mut self, files: &mut DatasetReader) {
        self.pieces.clear();
        self.blocks.drain(..).for_each(|block| files.recycle(block));
        self.order.clear();
        self.taken = 0;
    }

    fn begin_piece(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        let piece = self.pieces[self.begun.len()];
        self.begun.push(files.begin(piece.first..piece.first + piece.rows)?);
        Ok(())
    }

    /// Waits for the rows of all pieces.
    fn finish(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        for begun in self.begun.drain(..) {
            self.blocks.push(files.finish(begun)?);
        }
        files.places.clear();
        for (number, piece) in self.pieces.iter().enumerate() {
            // A piece has at most 8192 rows.
            let rows = u32::try_from(piece.rows).unwrap_or(0);
            files.places.extend((0..rows).map(|row| Place::of(number, row)));
        }
        self.order.iter_mut().for_each(|row| *row = files.places[*row as usize]);
        Ok(())
    }

    /// Appends the rows at `positions` of the order to `batch`, column by column.
    #[expect(clippy::cast_possible_truncation, reason = "values of one batch, counted in u32")]
    fn give<'a>(
        &'a self,
        positions: Range<usize>,
        fields: usize,
        dense: usize,
        batch: &mut BatchBuffer,
    ) {
        let order = &self.order[positions];
        let rows = || {
            order.iter().map(|&place| {
                let (piece, row) = Place::split(place);
                (&self.blocks[piece], row)
            })
        };
        batch.label.extend(rows().map(|(block, row)| block.label[row]));
        batch.row.extend(order.iter().map(|&place| {
            let (piece, row) = Place::split(place);
            self.pieces[piece].first + row as u64
        }));
        let Some(first) = self.blocks.first() else { return };
        if !first.weight.is_empty() {
            batch.weight.extend(rows().map(|(block, row)| block.weight[row]));
        }
        if !first.group.is_empty() {
            batch.group.extend(rows().map(|(block, row)| block.group[row]));
        }
        let features = |(block, row): (&'a RowBuffer, usize)| &block.dense[row * dense..][..dense];
        rows().map(features).for_each(|row| batch.dense.extend_from_slice(row));
        let end = batch.values.len() as u32;
        if !first.bags {
            batch.offsets.extend((1..=(order.len() * fields) as u32).map(|field| end + field));
            let ids =
                |(block, row): (&'a RowBuffer, usize)| &block.values[row * fields..][..fields];
            rows().map(ids).for_each(|row| batch.values.extend_from_slice(row));
            return;
        }
        for (block, row) in rows() {
            let end = batch.values.len() as u32;
            let bags = row * fields..(row + 1) * fields;
            let start = if row == 0 { 0 } else { block.ends[bags.start - 1] };
            let ends = &block.ends[bags];
            batch.offsets.extend(ends.iter().map(|&e| end + (e - start) as u32));
            let values = start..ends[fields - 1];
            batch.values.extend_from_slice(&block.values[values.clone()]);
            let weights = block.value_weights.get(values).unwrap_or_default();
            batch.value_weights.extend_from_slice(weights);
        }
    }
}
