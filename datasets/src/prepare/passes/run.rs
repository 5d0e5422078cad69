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

use super::outputs::Outputs;
use super::plan::Plan;
use super::slots::{Slots, encode_ahead, read_ahead};
use super::totals::Totals;
use crate::prepare::error::PrepareError;
use crate::prepare::formats::transform::Moments;
use crate::prepare::keys::encoder::Encoder;
use crate::prepare::keys::vocabulary::Counter;
use crate::prepare::options::Progress;

/// Which pass this is, and whom to tell.
pub(crate) struct Reporter<'a> {
    pub(crate) pass: u32,
    pub(crate) passes: u32,
    pub(crate) progress: &'a mut dyn FnMut(Progress),
}

/// What the first pass counts.
#[derive(Default)]
pub(crate) struct Counts {
    /// Of the fields that have a vocabulary. `[S]`
    pub(crate) counters: Vec<Option<Counter>>,
    /// Of the numbers whose mean and deviation are wanted.
    pub(crate) moments: Vec<Moments>,
    pub(crate) totals: Totals,
}

/// Counts the keys of the fields that `counted` says, and the numbers.
///
/// # Errors
/// Unreadable input, or more malformed rows than allowed.
pub(crate) fn count(
    plan: &Plan,
    pool: &ThreadPool,
    counted: &[bool],
    reporter: &mut Reporter<'_>,
) -> Result<Counts, PrepareError> {
    let spelling = plan.layout.spelling;
    let format = plan.layout.key_format.as_ref().unwrap_or(&plan.layout.format);
    let mut counters: Vec<Option<Counter>> =
        counted.iter().map(|&counted| counted.then(|| Counter::new(spelling))).collect();
    let mut moments = vec![Moments::default(); plan.layout.measured.len()];
    let mut totals = Totals::default();
    let bytes_read = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        let blocks = read_ahead(scope, plan, pool, &bytes_read);
        let mut slots = Slots::default();
        while slots.fill(&blocks, plan, pool)? {
            pool.install(|| {
                slots.used_mut().par_iter_mut().for_each(|slot| slot.parse(format));
                counters.par_iter_mut().enumerate().for_each(|(field, counter)| {
                    if let Some(counter) = counter {
                        slots.used().iter().for_each(|slot| counter.add(&slot.parsed.keys[field]));
                    }
                });
                moments.par_iter_mut().enumerate().for_each(|(number, moments)| {
                    slots.used().iter().for_each(|slot| moments.add(&slot.parsed.measured[number]));
                });
            });
            for slot in slots.used() {
                totals.add(plan, slot)?;
            }
            reporter.report(plan, &bytes_read, totals.rows)?;
        }
        Ok(())
    })
    .map(|()| Counts { counters, moments, totals })
}

/// Encodes and writes every row. Returns what it has seen, and of each field the values whose keys
/// are unknown.
///
/// # Errors
/// Unreadable input, more malformed rows than allowed, or a file that cannot be written.
pub(crate) fn encode(
    plan: &Plan,
    pool: &ThreadPool,
    encoders: &[Encoder],
    outputs: &mut Outputs,
    reporter: &mut Reporter<'_>,
) -> Result<(Totals, Vec<u64>), PrepareError> {
    let mut totals = Totals::default();
    let mut unknown = vec![0; encoders.len()];
    let bytes_read = Arc::new(AtomicU64::new(0));
    thread::scope(|scope| {
        let blocks = read_ahead(scope, plan, pool, &bytes_read);
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
            bytes_read: bytes_read.load(Ordering::Relaxed).min(plan.input_bytes),
            bytes_total: plan.input_bytes,
            rows,
        });
        Ok(())
    }
}
