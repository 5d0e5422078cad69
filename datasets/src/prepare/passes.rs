//! The two passes over the text: count the keys, then encode the rows.
//!
//! Threads: one reads and decompresses, the pool parses blocks in parallel, the caller's thread
//! takes their results in order, has the pool filter and write them, and reports. Every channel is bounded, so memory is that of
//! a few blocks per thread beside the vocabulary. Results do not depend on the number of threads:
//! blocks are taken in the order of the text, and counts are sums.
//!
//! Counting goes field by field, not block by block: one map per field, filled by one thread at a
//! time, needs no merging and stays in cache better than all maps at once.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::blocks::{Block, Blocks};
use super::error::PrepareError;
use super::options::{BAD_ROWS_SHOWN, BadRow, Progress};
use super::parsed::{Keys, LineFormat, Parsed};
use super::plan::Plan;
use super::vocabulary::{Counter, Encoder};
use crate::{RowBlock, Writer};

/// What a pass has seen.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) rows: u64,
    pub(super) rows_bad: u64,
    pub(super) lines_skipped: u64,
    pub(super) label_sum: f64,
    pub(super) bad_rows: Vec<BadRow>,
    /// Lines of the current file before the current block.
    lines_before: u64,
}

/// Which pass this is, and whom to tell.
pub(super) struct Reporter<'a> {
    pub(super) pass: u32,
    pub(super) passes: u32,
    pub(super) progress: &'a mut dyn FnMut(Progress),
}

/// Ids written, and how many of them stand for keys that have none. One per field.
#[derive(Clone, Debug, Default)]
pub(super) struct EncodedTotals {
    pub(super) values: Vec<u64>,
    pub(super) unknown: Vec<u64>,
}

/// Counts the keys of every field.
///
/// # Errors
/// Unreadable input, or more malformed rows than allowed.
pub(super) fn count(
    plan: &Plan,
    pool: &ThreadPool,
    reporter: &mut Reporter<'_>,
) -> Result<(Vec<Counter>, Totals), PrepareError> {
    let spelling = plan.layout.spelling;
    let format = plan.layout.key_format.as_ref().unwrap_or(&plan.layout.format).as_ref();
    let mut counters: Vec<Counter> =
        plan.layout.sparse_names.iter().map(|_| Counter::new(spelling)).collect();
    let mut totals = Totals::default();
    let bytes_read = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        let blocks = read_ahead(scope, plan, pool, &bytes_read);
        let mut slots = Slots::default();
        while slots.fill(&blocks, plan, pool)? {
            pool.install(|| {
                slots.used_mut().par_iter_mut().for_each(|slot| slot.parse(format));
                counters.par_iter_mut().enumerate().for_each(|(field, counter)| {
                    for slot in slots.used() {
                        counter.add(&slot.parsed.keys[field]);
                    }
                });
            });
            for slot in slots.used() {
                totals.add(plan, &slot.block, &slot.parsed)?;
            }
            reporter.report(plan, &bytes_read, totals.rows);
        }
        Ok(())
    })
    .map(|()| (counters, totals))
}

/// Encodes and writes every row.
///
/// # Errors
/// Unreadable input, more malformed rows than allowed, or a file that cannot be written.
pub(super) fn encode(
    plan: &Plan,
    pool: &ThreadPool,
    encoders: &[Encoder],
    writer: &mut Writer,
    reporter: &mut Reporter<'_>,
) -> Result<(Totals, EncodedTotals), PrepareError> {
    let fields = encoders.len();
    let mut totals = Totals::default();
    let mut encoded = EncodedTotals { values: vec![0; fields], unknown: vec![0; fields] };
    let bytes_read = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        let blocks = read_ahead(scope, plan, pool, &bytes_read);
        let (give, take) = sync_channel(1);
        let (give_back, take_back) = channel();
        scope.spawn(move || encode_ahead(plan, pool, encoders, &blocks, &take_back, &give));
        for slots in take {
            let slots: Slots = slots?;
            for slot in slots.used() {
                totals.add(plan, &slot.block, &slot.parsed)?;
                // On the pool, which filters the chunks.
                pool.install(|| writer.append(&slot.rows()))?;
                for (field, unknown) in slot.unknown.iter().enumerate() {
                    encoded.values[field] += slot.parsed.keys[field].len() as u64;
                    encoded.unknown[field] += unknown;
                }
            }
            reporter.report(plan, &bytes_read, totals.rows);
            // Refused only after the last block.
            let _ = give_back.send(slots);
        }
        Ok(())
    })
    .map(|()| (totals, encoded))
}

impl Totals {
    /// Adds a block; blocks come in the order of the text.
    fn add(&mut self, plan: &Plan, block: &Block, parsed: &Parsed) -> Result<(), PrepareError> {
        if block.starts_file {
            self.lines_before = 0;
        }
        for bad in &parsed.bad {
            let is_past_limit = self.rows_bad == plan.max_bad_rows;
            self.rows_bad += 1;
            if is_past_limit || self.bad_rows.len() < BAD_ROWS_SHOWN {
                let line = &block.bytes[bad.span.clone()];
                let row = BadRow {
                    file: plan.inputs[block.file].clone(),
                    line: self.lines_before + bad.line + 1,
                    reason: defect(plan.layout.format.as_ref(), line),
                };
                if is_past_limit {
                    let max_bad_rows = plan.max_bad_rows;
                    return Err(PrepareError::BadRows { row, max_bad_rows });
                }
                self.bad_rows.push(row);
            }
        }
        self.rows += parsed.rows as u64;
        self.lines_skipped += parsed.skipped;
        self.lines_before += parsed.lines;
        self.label_sum += parsed.label.iter().map(|&label| f64::from(label)).sum::<f64>();
        Ok(())
    }

    /// A dataset has at least one row.
    pub(super) fn check_rows(&self, plan: &Plan) -> Result<(), PrepareError> {
        if self.rows > 0 {
            return Ok(());
        }
        Err(PrepareError::NoRows {
            path: plan.inputs[0].clone(),
            files: plan.inputs.len(),
            lines_skipped: self.lines_skipped,
            rows_bad: self.rows_bad,
        })
    }
}

impl Reporter<'_> {
    fn report(&mut self, plan: &Plan, bytes_read: &AtomicU64, rows: u64) {
        (self.progress)(Progress {
            pass: self.pass,
            passes: self.passes,
            // The reader is ahead, but never beyond the end.
            bytes_read: bytes_read.load(Ordering::Relaxed).min(plan.input_bytes),
            bytes_total: plan.input_bytes,
            rows,
        });
    }
}

/// A block on its way: text, columns, ids. Its buffers are used again and again.
struct Slot {
    block: Block,
    parsed: Parsed,
    /// `[n, S]`, or the values of a bag.
    ids: Vec<u32>,
    /// Empty for one id per field, else `[n + 1]`.
    offsets: Vec<u32>,
    /// `[S]`
    unknown: Vec<u64>,
}

impl Slot {
    fn parse(&mut self, format: &dyn LineFormat) {
        self.parsed.parse(format, &self.block);
    }

    fn encode(&mut self, plan: &Plan, encoders: &[Encoder]) -> Result<(), PrepareError> {
        let Self { block, parsed, ids, offsets, unknown } = self;
        let stride = encoders.len();
        // Every place is written.
        ids.resize(parsed.keys.iter().map(Keys::len).sum(), 0);
        unknown.clear();
        unknown.resize(stride, 0);
        // Some rows of all fields at a time: their ids stay in the first cache until all are there.
        let all = parsed.keys.first().map_or(0, Keys::len);
        for start in (0..all).step_by(ROWS_ENCODED_AT_ONCE) {
            let range = start..all.min(start + ROWS_ENCODED_AT_ONCE);
            for (field, (encoder, keys)) in encoders.iter().zip(&parsed.keys).enumerate() {
                let places = &mut ids[start * stride + field..];
                unknown[field] += encoder.encode(keys, range.clone(), places, stride);
            }
        }
        offsets.clear();
        if let Some(ends) = &parsed.bag_ends {
            offsets.push(0);
            for &end in ends {
                offsets.push(u32::try_from(end).map_err(|_| PrepareError::TooManyValues {
                    path: plan.inputs[block.file].clone(),
                })?);
            }
        }
        Ok(())
    }

    fn rows(&self) -> RowBlock<'_> {
        RowBlock {
            label: &self.parsed.label,
            weight: &self.parsed.weight,
            dense: &self.parsed.dense,
            values: &self.ids,
            offsets: &self.offsets,
            group: &self.parsed.group,
        }
    }
}

/// The blocks that the pool works on at once. Slots beyond the used ones keep their buffers.
#[derive(Default)]
struct Slots {
    slots: Vec<Slot>,
    used: usize,
}

impl Slots {
    /// Takes up to one block per thread. False at the end of the text.
    fn fill(
        &mut self,
        blocks: &Receiver<Result<Block, PrepareError>>,
        plan: &Plan,
        pool: &ThreadPool,
    ) -> Result<bool, PrepareError> {
        self.used = 0;
        while self.used < pool.current_num_threads() {
            let Ok(block) = blocks.recv() else { break };
            let block = block?;
            match self.slots.get_mut(self.used) {
                Some(slot) => slot.block = block,
                None => self.slots.push(Slot {
                    block,
                    parsed: plan.layout.format.columns(),
                    ids: Vec::new(),
                    offsets: Vec::new(),
                    unknown: Vec::new(),
                }),
            }
            self.used += 1;
        }
        Ok(self.used > 0)
    }

    fn used(&self) -> &[Slot] {
        &self.slots[..self.used]
    }

    fn used_mut(&mut self) -> &mut [Slot] {
        &mut self.slots[..self.used]
    }
}

/// Starts the thread that reads. It ends when its receiver is gone.
fn read_ahead<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    plan: &Plan,
    pool: &ThreadPool,
    bytes_read: &Arc<AtomicU64>,
) -> Receiver<Result<Block, PrepareError>> {
    let blocks = Blocks::new(plan.inputs.clone(), plan.block_bytes, Arc::clone(bytes_read));
    let (give, take) = sync_channel(pool.current_num_threads());
    scope.spawn(move || {
        for block in blocks {
            if give.send(block).is_err() {
                break;
            }
        }
    });
    take
}

/// Parses and encodes, while the writer writes what came before. `used` brings buffers back.
fn encode_ahead(
    plan: &Plan,
    pool: &ThreadPool,
    encoders: &[Encoder],
    blocks: &Receiver<Result<Block, PrepareError>>,
    used: &Receiver<Slots>,
    give: &SyncSender<Result<Slots, PrepareError>>,
) {
    loop {
        let mut slots = used.try_recv().unwrap_or_default();
        let filled = slots.fill(blocks, plan, pool).and_then(|filled| {
            pool.install(|| {
                slots.used_mut().par_iter_mut().try_for_each(|slot| {
                    slot.parse(plan.layout.format.as_ref());
                    slot.encode(plan, encoders)
                })
            })?;
            Ok(filled)
        });
        let (result, is_last) = match filled {
            Ok(false) => return,
            Ok(true) => (Ok(slots), false),
            Err(error) => (Err(error), true),
        };
        // The receiver is gone when writing failed.
        if give.send(result).is_err() || is_last {
            return;
        }
    }
}

/// What is wrong with a line that was found malformed.
fn defect(format: &dyn LineFormat, line: &[u8]) -> String {
    match format.parse_line(line, &mut format.columns()) {
        Err(malformed) => malformed.to_string(),
        // Reading a line depends on nothing but the line.
        Ok(_) => "malformed".into(),
    }
}

/// With 26 fields their ids are 26 kB.
const ROWS_ENCODED_AT_ONCE: usize = 256;
