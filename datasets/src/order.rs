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
//!
//! Without shuffling the order is that of the files, as one pass over a stream of clicks needs it:
//! global batch `s` is the rows `s·G..(s+1)·G`, and worker `w` takes the `w`-th of its equal
//! shares, so here too the workers change nothing. The last batch may be short: the last workers
//! then have less, or nothing.

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
    /// Shuffle, or keep the order of the files.
    pub shuffle: bool,
}

impl TrainOrder {
    /// Examples of all workers in one step.
    #[must_use]
    pub const fn global_batch(&self) -> u64 {
        (self.batch_size as u64).saturating_mul(self.workers_total as u64)
    }

    /// Without shuffling: the rows of worker `worker` in step `step` of a pass over `rows` rows.
    #[must_use]
    pub fn in_order(&self, rows: u64, worker: usize, step: u64) -> Range<u64> {
        let bound = |worker: usize| {
            let before = self.batch_size as u64 * worker as u64;
            step.saturating_mul(self.global_batch()).saturating_add(before).min(rows)
        };
        bound(worker)..bound(worker + 1)
    }

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
    if !order.shuffle {
        return rows.div_ceil(order.global_batch());
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The whole order of a lane, straight from the definitions.
    fn sequence(range: Range<u64>, files: &[Grid], key: LaneKey, shuffle: bool) -> Vec<u64> {
        let plan = LanePlan::new(&cut(range, files), key, shuffle);
        let (mut all, mut order, mut position) = (Vec::new(), Vec::new(), 0);
        for (number, window) in plan.windows.iter().enumerate() {
            let rows: Vec<u64> = plan.pieces[window.clone()]
                .iter()
                .flat_map(|p| p.first..p.first + p.rows)
                .collect();
            assert_eq!(rows.len() as u64, plan.window_rows(number));
            window_order(key, position, rows.len() as u32, shuffle, &mut order);
            position += rows.len() as u64;
            all.extend(order.iter().map(|&i| rows[i as usize]));
        }
        all
    }

    /// Rows of every step and worker of one epoch. `[steps][workers][n]`
    fn epoch(files: &[Grid], order: &TrainOrder, epoch: u32) -> Vec<Vec<Vec<u64>>> {
        let rows = files.iter().map(|f| f.rows).sum();
        let lanes = order.lanes_used();
        if !order.shuffle {
            let of_step = |step| {
                let workers = 0..order.workers_total;
                workers.map(|worker| order.in_order(rows, worker, step).collect()).collect()
            };
            return (0..steps_per_epoch(rows, order)).map(of_step).collect();
        }
        let sequences: Vec<Vec<u64>> = (0..lanes)
            .map(|lane| {
                let key = LaneKey { seed: order.seed, epoch, lane };
                sequence(lane_rows(rows, lanes, lane), files, key, order.shuffle)
            })
            .collect();
        let cut = |lane: usize, step| order.taken(lane, step).min(sequences[lane].len() as u64);
        (0..steps_per_epoch(rows, order))
            .map(|step| {
                (0..order.workers_total)
                    .map(|worker| {
                        order
                            .lanes_of(worker)
                            .flat_map(|lane| {
                                let (from, to) = (cut(lane, step), cut(lane, step + 1));
                                sequences[lane][from as usize..to as usize].iter().copied()
                            })
                            .collect()
                    })
                    .collect()
            })
            .collect()
    }

    fn grids() -> impl Strategy<Value = Vec<Grid>> {
        let file = (1u64..3000, prop_oneof![Just(1u64), 2u64..700, Just(1024), Just(20_000)]);
        prop::collection::vec(file, 1..4).prop_map(|files| {
            let mut first = 0;
            files
                .into_iter()
                .map(|(rows, chunk_rows)| {
                    let grid = Grid { first, rows, chunk_rows };
                    first += rows;
                    grid
                })
                .collect()
        })
    }

    fn orders() -> impl Strategy<Value = TrainOrder> {
        (any::<u64>(), 1usize..10, 1usize..20, 1usize..300, any::<bool>()).prop_map(
            |(seed, workers_total, lanes, batch_size, shuffle)| TrainOrder {
                seed,
                workers_total,
                lanes,
                batch_size,
                shuffle,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_row_comes_once_and_batches_are_full_until_the_end(
            files in grids(), order in orders(), number in 0u32..5,
        ) {
            let rows: u64 = files.iter().map(|f| f.rows).sum();
            let steps = epoch(&files, &order, number);
            let mut seen: Vec<u64> = steps.iter().flatten().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..rows));
            for (step, workers) in steps.iter().enumerate() {
                for batch in workers {
                    prop_assert!(batch.len() <= order.batch_size);
                    // Only the last steps, in which some lane has ended, may be short.
                    let shortest = (0..order.lanes_used())
                        .map(|lane| lane_rows(rows, order.lanes_used(), lane))
                        .map(|range| range.end - range.start)
                        .min()
                        .unwrap();
                    let ended = (0..order.lanes_used())
                        .any(|lane| order.taken(lane, step as u64 + 1) > shortest);
                    let ended = if order.shuffle { ended } else { step + 1 == steps.len() };
                    prop_assert!(ended || batch.len() == order.batch_size);
                }
            }
            prop_assert!(steps.last().is_some_and(|s| s.iter().any(|b| !b.is_empty())));
        }

        #[test]
        fn global_batches_do_not_depend_on_the_number_of_workers(
            files in grids(),
            seed in any::<u64>(),
            lanes in prop_oneof![Just(8usize), Just(12), Just(16)],
            global in 1usize..300,
            shuffle in any::<bool>(),
        ) {
            let of = |workers_total: usize| {
                let batch_size = global / workers_total;
                let order = TrainOrder { seed, workers_total, lanes, batch_size, shuffle };
                let steps = epoch(&files, &order, 3);
                steps.into_iter().map(|s| s.concat()).collect::<Vec<Vec<u64>>>()
            };
            let one = of(1);
            for workers in 2..=lanes {
                if lanes.is_multiple_of(workers) && global.is_multiple_of(workers) {
                    prop_assert_eq!(&one, &of(workers), "{} workers", workers);
                }
            }
        }

        #[test]
        fn without_shuffle_global_batches_are_those_of_the_files_in_order(
            rows in 1u64..20_000, order in orders(),
        ) {
            let order = TrainOrder { shuffle: false, ..order };
            let steps = epoch(&[Grid { first: 0, rows, chunk_rows: 1000 }], &order, 0);
            let mut next = 0;
            for (step, workers) in steps.iter().enumerate() {
                let batch: Vec<u64> = workers.concat();
                let end = rows.min((step as u64 + 1) * order.global_batch());
                prop_assert!(batch.into_iter().eq(next..end));
                next = end;
            }
            prop_assert_eq!(next, rows);
        }

        #[test]
        fn rows_of_a_chunk_stay_together_and_pieces_fit(
            files in grids(), from in 0u64..4000, length in 0u64..9000,
        ) {
            let rows: u64 = files.iter().map(|f| f.rows).sum();
            let range = from.min(rows)..(from + length).min(rows);
            let groups = cut(range.clone(), &files);
            let pieces: Vec<Piece> = groups.iter().flatten().copied().collect();
            let all: Vec<u64> = pieces.iter().flat_map(|p| p.first..p.first + p.rows).collect();
            prop_assert!(all.into_iter().eq(range));
            prop_assert!(pieces.iter().all(|p| (1..=PIECE_ROWS_MAX).contains(&p.rows)));
            // No chunk is cut over two groups.
            for pair in groups.windows(2) {
                let at = pair[1][0].first;
                let file = files.iter().rfind(|f| f.first <= at).unwrap();
                prop_assert_eq!((at - file.first) % file.chunk_rows, 0);
            }
        }
    }

    #[test]
    fn the_seed_the_epoch_and_the_lane_are_the_key() {
        let files = [Grid { first: 0, rows: 40_960, chunk_rows: 1024 }];
        let of =
            |seed, epoch, lane| sequence(0..40_960, &files, LaneKey { seed, epoch, lane }, true);
        let first = of(1, 0, 0);
        assert_eq!(first, of(1, 0, 0));
        assert_ne!(first, of(2, 0, 0));
        assert_ne!(first, of(1, 1, 0));
        assert_ne!(first, of(1, 0, 1));
        // Both levels have the whole key, and windows of one lane differ.
        let groups = cut(0..40_960, &files);
        let key = |seed, epoch, lane| LaneKey { seed, epoch, lane };
        let keys = [key(1, 0, 0), key(2, 0, 0), key(1, 1, 0), key(1, 0, 1)];
        let plans = keys.map(|key| LanePlan::new(&groups, key, true));
        let orders: Vec<Vec<u32>> = keys
            .iter()
            .map(|&key| (key, 0))
            .chain([(keys[0], 16_384)])
            .map(|(key, position)| {
                let mut order = Vec::new();
                window_order(key, position, 1000, true, &mut order);
                order
            })
            .collect();
        for i in 1..orders.len() {
            assert_ne!(orders[0], orders[i], "rows {i}");
            assert!(i >= plans.len() || plans[0] != plans[i], "chunks {i}");
        }
        // Windows of 16 chunks: the first 16,384 rows come from 16 chunks, in no order.
        let mut chunks: Vec<u64> = first[..16_384].iter().map(|r| r / 1024).collect();
        let switches = chunks.windows(2).filter(|w| w[0] != w[1]).count();
        assert!(switches > 14_000, "{switches} switches of chunk in 16,384 rows");
        chunks.sort_unstable();
        chunks.dedup();
        assert!(chunks.len() <= 17 && chunks != (0..16).collect::<Vec<_>>(), "{chunks:?}");
    }

    #[test]
    fn without_shuffle_a_lane_keeps_the_order_of_the_file() {
        let files = [Grid { first: 0, rows: 5000, chunk_rows: 100 }];
        let key = LaneKey { seed: 9, epoch: 2, lane: 1 };
        assert!(sequence(1234..4321, &files, key, false).into_iter().eq(1234..4321));
    }

    #[test]
    fn lanes_that_workers_do_not_divide_are_replaced() {
        let order = |workers_total, lanes| TrainOrder {
            seed: 0,
            workers_total,
            lanes,
            batch_size: 1,
            shuffle: true,
        };
        assert_eq!(order(2, 8).lanes_used(), 8);
        assert_eq!(order(3, 8).lanes_used(), 3);
        assert_eq!(order(16, 8).lanes_used(), 16);
        assert_eq!(order(4, 0).lanes_used(), 4);
    }

    #[test]
    fn orders_that_cannot_be_are_refused() {
        let order =
            TrainOrder { seed: 0, workers_total: 1, lanes: 1, batch_size: 0, shuffle: false };
        assert_eq!(
            order.check().unwrap_err().to_string(),
            "order of reading: batch size: expected 1 or more, got 0"
        );
    }
}
