//! Reads one lane, window after window, over all its epochs.
//!
//! Two windows are in memory: rows are taken from one while the next is read, a piece at a time
//! and in step with what is taken, so that no batch waits for a whole window.

use core::ops::Range;

use crate::dataset::{Dataset, DatasetReader};
use crate::hdf5::RowBuffer;
use crate::order::{LaneKey, LanePlan, Piece, cut, window_order};
use crate::{BatchBuffer, DatasetError};

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
    block: RowBuffer,
    /// Number in the dataset of every row. `[n]`
    row: Vec<u64>,
    pieces: Vec<Piece>,
    /// Pieces already in `block`.
    pieces_read: usize,
    /// `[n]`
    order: Vec<u32>,
    /// Rows already taken.
    taken: usize,
}

impl LaneReader {
    /// The rows `range`, in `order`, once for each of `epochs`.
    pub(crate) fn new(
        dataset: &Dataset,
        range: Range<u64>,
        order: LaneOrder,
        epochs: Range<u32>,
    ) -> Self {
        let window = || Window {
            block: RowBuffer { bags: !dataset.one_hot(), ..RowBuffer::default() },
            ..Window::default()
        };
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
            current: window(),
            next: window(),
        }
    }

    /// Leaves out the next `rows` rows of the first epoch, without reading the windows that lie
    /// wholly among them. To be called before anything is taken.
    pub(crate) fn skip(
        &mut self,
        mut rows: u64,
        files: &mut DatasetReader,
    ) -> Result<(), DatasetError> {
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
            self.next.clear();
            rows -= length;
        }
        Ok(())
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
        while self.next.pieces_read * length < taken * self.next.pieces.len() {
            self.next.read_piece(files)?;
        }
        Ok(())
    }

    /// Makes the next window the current one, wholly read.
    fn advance(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        while self.next.pieces_read < self.next.pieces.len() {
            self.next.read_piece(files)?;
        }
        core::mem::swap(&mut self.current, &mut self.next);
        self.next.clear();
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
    /// Empties the window; its memory stays.
    fn clear(&mut self) {
        self.block.clear();
        self.row.clear();
        self.pieces.clear();
        self.order.clear();
        (self.pieces_read, self.taken) = (0, 0);
    }

    fn read_piece(&mut self, files: &mut DatasetReader) -> Result<(), DatasetError> {
        let piece = self.pieces[self.pieces_read];
        let rows = piece.first..piece.first + piece.rows;
        files.append(rows.clone(), &mut self.block)?;
        self.row.extend(rows);
        self.pieces_read += 1;
        Ok(())
    }

    /// Appends the rows at `positions` of the order to `batch`.
    #[expect(clippy::cast_possible_truncation, reason = "values of one batch, counted in u32")]
    fn give(&self, positions: Range<usize>, fields: usize, dense: usize, batch: &mut BatchBuffer) {
        let block = &self.block;
        for &row in &self.order[positions] {
            let row = row as usize;
            batch.label.push(block.label[row]);
            batch.row.push(self.row[row]);
            batch.dense.extend_from_slice(&block.dense[row * dense..(row + 1) * dense]);
            if let Some(&weight) = block.weight.get(row) {
                batch.weight.push(weight);
            }
            if let Some(&group) = block.group.get(row) {
                batch.group.push(group);
            }
            let end = batch.values.len() as u32;
            if block.bags {
                let bags = row * fields..(row + 1) * fields;
                let start = if row == 0 { 0 } else { block.ends[bags.start - 1] };
                let ends = &block.ends[bags];
                batch.offsets.extend(ends.iter().map(|&e| end + (e - start) as u32));
                batch.values.extend_from_slice(&block.values[start..ends[fields - 1]]);
            } else {
                batch.offsets.extend((1..=fields as u32).map(|field| end + field));
                batch.values.extend_from_slice(&block.values[row * fields..(row + 1) * fields]);
            }
        }
    }
}
