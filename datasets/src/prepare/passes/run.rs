//! The two passes over the text: count the keys, then encode the rows.
//!
//! Threads: one reads and decompresses, the pool parses blocks in parallel. The caller's thread
//! takes the results in order, has the pool filter and write them, and reports progress. Every
//! channel is bounded, so beside the vocabulary there are only a few blocks per thread in memory.
//! Results do not depend on the number of threads: blocks are taken in the order of the text, and
//! counts are sums.
//!
//! Counting goes field by field, not block by block: one map per field, filled by one thread at a
//! time, needs no merging and stays in cache better than all maps at once.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::plan::Plan;
use super::slots::{Slots, encode_ahead, read_ahead};
use crate::Writer;
use crate::prepare::error::PrepareError;
use crate::prepare::formats::parsed::{Block, Parsed};
use crate::prepare::keys::vocabulary::{Counter, Encoder};
use crate::prepare::options::{BAD_ROWS_SHOWN, BadRow, Progress};

/// What a pass has seen.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) rows: u64,
    pub(crate) rows_bad: u64,
    pub(crate) lines_skipped: u64,
    pub(crate) label_sum: f64,
    pub(crate) bad_rows: Vec<BadRow>,
    /// Lines of the current file before the current block.
    lines_before: u64,
}

/// Which pass this is, and whom to tell.
pub(crate) struct Reporter<'a> {
    pub(crate) pass: u32,
    pub(crate) passes: u32,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

/// Ids written, and how many of them stand for keys that have none. One per field.
#[derive(Clone, Debug, Default)]
pub(crate) struct EncodedTotals {
    pub(crate) values: Vec<u64>,
    pub(crate) unknown: Vec<u64>,
}

/// Counts the keys of every field.
///
/// # Errors
/// Unreadable input, or more malformed rows than allowed.
pub(crate) fn count(
    plan: &Plan,
    pool: &ThreadPool,
    reporter: &mut Reporter<'_>,
) -> Result<(Vec<Counter>, Totals), PrepareError> {
    let spelling = plan.layout.spelling;
    let format = plan.layout.key_format.as_ref().unwrap_or(&plan.layout.format);
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
            reporter.report(plan, &bytes_read, totals.rows)?;
        }
        Ok(())
    })
    .map(|()| (counters, totals))
}

/// Encodes and writes every row.
///
/// # Errors
/// Unreadable input, more malformed rows than allowed, or a file that cannot be written.
pub(crate) fn encode(
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
            reporter.report(plan, &bytes_read, totals.rows)?;
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
        if block.starts_file() {
            self.lines_before = 0;
        }
        for bad in &parsed.bad {
            let is_past_limit = self.rows_bad == plan.max_bad_rows;
            self.rows_bad += 1;
            if is_past_limit || self.bad_rows.len() < BAD_ROWS_SHOWN {
                let row = BadRow {
                    file: plan.inputs[block.file()].clone(),
                    line: self.lines_before + bad.line + 1,
                    reason: plan.layout.format.defect(block, bad),
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
    pub(crate) fn check_rows(&self, plan: &Plan) -> Result<(), PrepareError> {
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
    /// Says how far the work is; an error when it is to end here.
    fn report(
        &mut self,
        plan: &Plan,
        bytes_read: &AtomicU64,
        rows: u64,
    ) -> Result<(), PrepareError> {
        if plan.stop.load(Ordering::Relaxed) {
            return Err(PrepareError::Interrupted);
        }
        (self.progress)(Progress {
            pass: self.pass,
            passes: self.passes,
            // The reader is ahead, but never beyond the end.
            bytes_read: bytes_read.load(Ordering::Relaxed).min(plan.input_bytes),
            bytes_total: plan.input_bytes,
            rows,
        });
        Ok(())
    }
}
