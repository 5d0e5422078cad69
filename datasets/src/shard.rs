//! Which row goes to which worker at which step: pure functions of the seed and the shapes.
//!
//! The rows of a dataset are cut into `L` *lanes*, contiguous ranges of equal length ±1. Every
//! global batch of `G` examples takes `G / L` rows of every lane, and a worker owns consecutive
//! lanes, so the examples of a global batch, and their order over the workers, are the same for
//! every number of workers that divides `L`.
//!
//! Within a lane rows are shuffled in two levels, so that memory is bounded and reading stays
//! sequential inside a chunk: the chunks of the lane are permuted, consecutive chunks form a
//! *window*, and the rows of a window are permuted. Both permutations are Fisher-Yates on
//! `Stream(seed, Shuffle(epoch))`, indexed by the lane.

use core::ops::Range;

use umbra_core::rng::{Purpose, Stream};

use crate::DatasetError;

/// Rows of the largest piece that is read at once.
pub const PIECE_ROWS_MAX: u64 = 8192;
/// Chunks smaller than this are read together.
pub const PIECE_ROWS_MIN: u64 = 256;
/// Pieces in a window.
pub const WINDOW_PIECES: usize = 16;
/// Rows in a window at most, unless a single piece holds more.
pub const WINDOW_ROWS_MAX: u64 = 65_536;

/// How the rows of a dataset are dealt to the workers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainOrder {
    /// Key of all permutations.
    pub seed: u64,
    /// Workers over all ranks.
    pub workers_total: usize,
    /// Lanes; replaced by `workers_total` when that does not divide it.
    pub lanes: usize,
    /// Examples of one worker in one step.
    pub batch_size: usize,
    /// Shuffle, or keep the order of the file within every lane.
    pub shuffle: bool,
}

impl TrainOrder {
    /// Lanes in use.
    #[must_use]
    pub fn lanes_used(&self) -> usize {
        if self.lanes > 0 && self.lanes.is_multiple_of(self.workers_total) {
            self.lanes
        } else {
            self.workers_total
        }
    }

    /// The lanes of worker number `worker`.
    #[must_use]
    pub fn lanes_of(&self, worker: usize) -> Range<usize> {
        let each = self.lanes_used() / self.workers_total;
        worker * each..(worker + 1) * each
    }

    /// Rows of lane `lane` that the steps before `step` take, were the lane endless.
    ///
    /// `G = batch_size · workers_total` rows a step over `L` lanes: `q = ⌊G / L⌋` each, and the
    /// `r = G mod L` left over go to lanes spread evenly (⌊(j+1)r/L⌋ − ⌊jr/L⌋ for lane `j`) and
    /// moved by one lane every step. Consecutive `L / workers_total` lanes then give exactly
    /// `batch_size` rows, because `r / workers_total` is whole.
    #[must_use]
    pub fn taken(&self, lane: usize, step: u64) -> u64 {
        let lanes = self.lanes_used() as u128;
        let global = self.batch_size as u128 * self.workers_total as u128;
        let (each, rest) = (global / lanes, global % lanes);
        let (lane, step) = (lane as u128, u128::from(step));
        let taken = step * each + (lane + step) * rest / lanes - lane * rest / lanes;
        u64::try_from(taken).unwrap_or(u64::MAX)
    }

    /// The numbers make sense together.
    ///
    /// # Errors
    /// When there are no workers, or batches are empty.
    pub fn check(&self) -> Result<(), DatasetError> {
        let positive = |what, got: usize| {
            if got > 0 {
                return Ok(());
            }
            Err(DatasetError::Order { what, expected: "1 or more".into(), got: 0 })
        };
        positive("workers", self.workers_total)?;
        positive("batch size", self.batch_size)
    }
}

/// Steps that all workers make in one pass over `rows` rows: until the longest lane is used up.
#[must_use]
pub fn steps_per_epoch(rows: u64, order: &TrainOrder) -> u64 {
    let lanes = order.lanes_used();
    (0..lanes).map(|lane| lane_steps(lane_rows(rows, lanes, lane), lane, order)).max().unwrap_or(0)
}

/// Least steps that take all of `range` from lane `lane`.
fn lane_steps(range: Range<u64>, lane: usize, order: &TrainOrder) -> u64 {
    let rows = range.end - range.start;
    // A lane gives at least one row in every L steps.
    let (mut low, mut high) = (0u64, rows.saturating_mul(order.lanes_used() as u64));
    while low < high {
        let middle = low + (high - low) / 2;
        if order.taken(lane, middle) >= rows {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The rows of part `part` of `parts` equal contiguous parts, ±1 row.
#[must_use]
pub fn lane_rows(rows: u64, parts: usize, part: usize) -> Range<u64> {
    let bound = |part: usize| {
        let bound = u128::from(rows) * part as u128 / parts as u128;
        u64::try_from(bound).unwrap_or(rows)
    };
    bound(part)..bound(part + 1)
}

/// Where a file lies in the rows of its dataset, and how it is chunked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// First row of the file, counted over the list of files.
    pub first: u64,
    /// Rows of the file.
    pub rows: u64,
    /// Rows in a chunk.
    pub chunk_rows: u64,
}

/// Consecutive rows of one file that are read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First row, counted over the list of files.
    pub first: u64,
    /// Rows.
    pub rows: u64,
}

/// Cuts the rows `range` at the chunks of the files: groups of pieces, one group per chunk.
///
/// Chunks below [`PIECE_ROWS_MIN`] are joined; a chunk above [`PIECE_ROWS_MAX`] becomes a group of
/// several pieces, which stay together so that it is decompressed once.
#[must_use]
pub fn cut(range: Range<u64>, files: &[Grid]) -> Vec<Vec<Piece>> {
    let mut groups = Vec::new();
    for file in files {
        let from = range.start.max(file.first);
        let to = range.end.min(file.first + file.rows);
        let unit = file.chunk_rows.max(1) * PIECE_ROWS_MIN.div_ceil(file.chunk_rows.max(1));
        let mut start = from;
        while start < to {
            let end = to.min(file.first + ((start - file.first) / unit + 1) * unit);
            let pieces = (start..end)
                .step_by(usize::try_from(PIECE_ROWS_MAX).unwrap_or(usize::MAX))
                .map(|first| Piece { first, rows: PIECE_ROWS_MAX.min(end - first) });
            groups.push(pieces.collect());
            start = end;
        }
    }
    groups
}

/// Key of the permutations of one lane in one epoch.
#[derive(Clone, Copy, Debug)]
pub struct LaneKey {
    /// Of the run.
    pub seed: u64,
    /// Pass over the data.
    pub epoch: u32,
    /// Lane.
    pub lane: usize,
}

impl LaneKey {
    /// The stream of the epoch, and the lane's own words in it: 2^40, the upper half for rows.
    fn stream(&self) -> (Stream, u64) {
        (Stream::new(self.seed, Purpose::Shuffle(self.epoch)), (self.lane as u64) << 40)
    }
}

/// Pieces of a lane in the order of reading, and the windows that rows are shuffled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanePlan {
    /// In order of reading.
    pub pieces: Vec<Piece>,
    /// Pieces of every window, in order.
    pub windows: Vec<Range<usize>>,
}

impl LanePlan {
    /// Plans one epoch of a lane cut into `groups`.
    #[must_use]
    pub fn new(groups: &[Vec<Piece>], key: LaneKey, shuffle: bool) -> Self {
        let mut order: Vec<usize> = (0..groups.len()).collect();
        if shuffle {
            let (stream, words) = key.stream();
            stream.shuffle(words, &mut order);
        }
        let pieces: Vec<Piece> = order.iter().flat_map(|&g| groups[g].iter().copied()).collect();
        let pieces_max = if shuffle { WINDOW_PIECES } else { 1 };
        let mut windows = Vec::new();
        let (mut start, mut rows) = (0, 0);
        for (i, piece) in pieces.iter().enumerate() {
            let full = i - start == pieces_max || rows + piece.rows > WINDOW_ROWS_MAX;
            if full && i > start {
                windows.push(start..i);
                (start, rows) = (i, 0);
            }
            rows += piece.rows;
        }
        if start < pieces.len() {
            windows.push(start..pieces.len());
        }
        Self { pieces, windows }
    }

    /// Rows of window `window`.
    #[must_use]
    pub fn window_rows(&self, window: usize) -> u64 {
        self.pieces[self.windows[window].clone()].iter().map(|p| p.rows).sum()
    }
}

/// The order of the `rows` rows of a window that begins `position` rows into its lane: fills
/// `order` with `0..rows`, permuted when `shuffle`.
pub fn window_order(key: LaneKey, position: u64, rows: u32, shuffle: bool, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..rows);
    if shuffle {
        let (stream, words) = key.stream();
        stream.shuffle(words + (1 << 39) + position, order);
    }
}
