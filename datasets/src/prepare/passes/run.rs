//! The passes: over the text alone where ids are known before, or else first over the text, whose
//! rows are kept with numbers for keys, and then over what was kept.
//!
//! Threads: one reads and decompresses, the pool parses blocks in parallel. The caller's thread
//! takes the results in order, has the pool filter and write them, and reports progress. Every
//! channel is bounded, so beside the vocabulary there are only a few blocks per thread in memory.
//! Results do not depend on the number of threads: blocks are taken in the order of the text, and
//! counts are sums.
//!
//! Numbering goes field by field, not block by block: one map per field, filled by one thread at a
//! time, needs no merging and stays in cache better than all maps at once.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::thread;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::kept_rows::KeptRows;
use super::outputs::Outputs;
use super::plan::Plan;
use super::slots::{Slots, encode_ahead, read_ahead};
use super::totals::Totals;
use crate::prepare::error::PrepareError;
use crate::prepare::formats::parsed::Block;
use crate::prepare::formats::transform::Moments;
use crate::prepare::keys::encoder::Encoder;
use crate::prepare::keys::key_column::Keys;
use crate::prepare::keys::rule::Counting;
use crate::prepare::keys::vocabulary::Numbering;
use crate::prepare::options::Progress;

/// Which pass this is, and whom to tell.
pub(crate) struct Reporter<'a> {
    pub(crate) pass: u32,
    pub(crate) passes: u32,
    /// Of this pass.
    pub(crate) bytes_total: u64,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

/// The keys of a field as numbers.
pub(crate) struct FieldNumbers {
    pub(super) numberer: Numberer,
    /// Of the blocks under way. `[slots]`
    numbers: Vec<Vec<u32>>,
}

/// What makes numbers of keys.
pub(crate) enum Numberer {
    Counted(Numbering, Counting),
    /// Already ids.
    Hashed(Encoder),
}

impl FieldNumbers {
    pub(super) fn new(numberer: Numberer) -> Self {
        Self { numberer, numbers: Vec::new() }
    }

    /// Numbers the keys of all blocks in turn.
    fn add<'a>(&mut self, blocks: impl ExactSizeIterator<Item = &'a Keys>) {
        let Self { numberer, numbers } = self;
        numbers.resize_with(numbers.len().max(blocks.len()), Vec::new);
        for (keys, numbers) in blocks.zip(numbers) {
            match numberer {
                Numberer::Counted(numbering, _) => numbering.add(keys, numbers),
                Numberer::Hashed(encoder) => {
                    let ids_per_key = encoder.ids_per_key();
                    // Every place is written.
                    numbers.resize(keys.len() * ids_per_key, 0);
                    encoder.encode(keys, 0..keys.len(), numbers, ids_per_key);
                }
            }
        }
    }
}

/// Reads every row and keeps it; numbers the keys of every field, and measures what is to be
/// measured. Returns what it has seen.
///
/// # Errors
/// Unreadable input, more malformed rows than allowed, or no room for what is kept.
pub(crate) fn keep(
    plan: &Plan,
    pool: &ThreadPool,
    fields: &mut [FieldNumbers],
    kept: &mut KeptRows,
    reporter: &mut Reporter<'_>,
) -> Result<(Totals, Vec<Moments>), PrepareError> {
    let mut moments = vec![Moments::default(); plan.layout.measured.len()];
    let mut totals = Totals::default();
    let bytes_read = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        let blocks = read_ahead(scope, pool, |spent| plan.blocks(Arc::clone(&bytes_read), spent));
        let mut slots = Slots::default();
        while slots.fill(&blocks, plan, pool)? {
            pool.install(|| {
                let format = &plan.layout.format;
                slots.used_mut().par_iter_mut().for_each(|slot| slot.parse(format));
                fields.par_iter_mut().enumerate().for_each(|(field, numbers)| {
                    numbers.add(slots.used().iter().map(|slot| &slot.parsed.keys[field]));
                });
                moments.par_iter_mut().enumerate().for_each(|(number, moments)| {
                    slots.used().iter().for_each(|slot| moments.add(&slot.parsed.measured[number]));
                });
            });
            for (at, slot) in slots.used().iter().enumerate() {
                totals.add(plan, slot)?;
                kept.push(&slot.parsed, fields.iter().map(|field| &field.numbers[at][..]))?;
            }
            reporter.report(plan, &bytes_read, totals.rows)?;
        }
        Ok(())
    })
    .map(|()| (totals, moments))
}

/// What is written.
pub(crate) enum Rows {
    /// Of the text.
    Read,
    /// Read before.
    Kept(KeptRows),
}

/// Encodes and writes every row. Returns what it has seen, and of each field the values whose keys
/// are unknown.
///
/// # Errors
/// Unreadable input, more malformed rows than allowed, or a file that cannot be written.
pub(crate) fn encode(
    plan: &Plan,
    pool: &ThreadPool,
    rows: Rows,
    encoders: &[Encoder],
    outputs: &mut Outputs,
    reporter: &mut Reporter<'_>,
) -> Result<(Totals, Vec<u64>), PrepareError> {
    let mut totals = Totals::default();
    let mut unknown = vec![0; encoders.len()];
    let bytes_read = Arc::new(AtomicU64::new(0));
    if let Rows::Kept(kept) = &rows {
        reporter.bytes_total = kept.bytes();
    }
    let blocks = |spent: Receiver<Vec<u8>>| -> Box<dyn Iterator<Item = Result<Block, _>> + Send> {
        match rows {
            Rows::Read => plan.blocks(Arc::clone(&bytes_read), spent),
            Rows::Kept(kept) => Box::new(kept.blocks(Arc::clone(&bytes_read), spent)),
        }
    };
    thread::scope(|scope| {
        let blocks = read_ahead(scope, pool, blocks);
        let (give, take) = sync_channel(1);
        let (give_back, take_back) = channel();
        scope.spawn(move || encode_ahead(plan, pool, encoders, &blocks, &take_back, &give));
        for slots in take {
            let slots: Slots = slots?;
            for slot in slots.used() {
                totals.add(plan, slot)?;
                outputs.append(&slot.rows(), pool)?;
                unknown.iter_mut().zip(&slot.unknown).for_each(|(all, some)| *all += some);
            }
            reporter.report(plan, &bytes_read, totals.rows)?;
            // Refused only after the last block.
            let _ = give_back.send(slots);
        }
        Ok(())
    })
    .map(|()| (totals, unknown))
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
            bytes_read: bytes_read.load(Ordering::Relaxed).min(self.bytes_total),
            bytes_total: self.bytes_total,
            rows,
        });
        Ok(())
    }
}
