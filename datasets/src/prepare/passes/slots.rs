//! Blocks on their way through a pass: read ahead, parsed and encoded on the pool.

use core::iter::repeat_n;
use core::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::plan::Plan;
use crate::RowBlock;
use crate::prepare::error::PrepareError;
use crate::prepare::formats::parsed::{Block, Parsed, RowFormat};
use crate::prepare::keys::encoder::Encoder;

/// A block on its way: text, columns, ids. Its buffers are used again and again.
pub(super) struct Slot {
    pub(super) block: Block,
    pub(super) parsed: Parsed,
    /// `[n, S]`, or the ids of all bags, row by row.
    ids: Vec<u32>,
    /// Of the ids, or empty.
    weights: Vec<f32>,
    /// Empty for one id per field, else `[n * S + 1]`.
    offsets: Vec<u32>,
    /// Ids of each field, where there are bags. `[S]`
    field_ids: Vec<Vec<u32>>,
    /// `[S]`
    pub(super) unknown: Vec<u64>,
}

impl Slot {
    pub(super) fn parse(&mut self, format: &RowFormat) {
        self.parsed.parse(format, &self.block);
    }

    fn encode(&mut self, plan: &Plan, encoders: &[Encoder]) -> Result<(), PrepareError> {
        self.unknown.clear();
        self.unknown.resize(encoders.len(), 0);
        self.offsets.clear();
        self.weights.clear();
        if plan.layout.is_bag {
            return self.encode_bags(plan, encoders);
        }
        let Self { parsed, ids, unknown, .. } = self;
        let stride = encoders.len();
        // Every place is written.
        ids.resize(parsed.rows * stride, 0);
        // Some rows of all fields at a time: their ids stay in the first cache until all are there.
        for start in (0..parsed.rows).step_by(ROWS_ENCODED_AT_ONCE) {
            let range = start..parsed.rows.min(start + ROWS_ENCODED_AT_ONCE);
            for (field, (encoder, keys)) in encoders.iter().zip(&parsed.keys).enumerate() {
                let places = &mut ids[start * stride + field..];
                unknown[field] += encoder.encode(keys, range.clone(), places, stride);
            }
        }
        Ok(())
    }

    /// Encodes field by field, then brings the bags of a row together.
    fn encode_bags(&mut self, plan: &Plan, encoders: &[Encoder]) -> Result<(), PrepareError> {
        let Self { block, parsed, ids, offsets, field_ids, unknown, .. } = self;
        field_ids.resize(encoders.len(), Vec::new());
        for (field, (encoder, keys)) in encoders.iter().zip(&parsed.keys).enumerate() {
            // Every place is written.
            let (values, stride) = (parsed.values(field), encoder.ids_per_key());
            field_ids[field].resize(values * stride, 0);
            unknown[field] = encoder.encode(keys, 0..values, &mut field_ids[field], stride);
        }
        ids.clear();
        offsets.push(0);
        for row in 0..parsed.rows {
            let fields = encoders.iter().zip(field_ids.iter()).zip(&parsed.bag_ends);
            for ((encoder, field_ids), ends) in fields {
                let of_a_key = encoder.ids_per_key();
                let bag = bag(ends.as_deref(), row);
                ids.extend_from_slice(&field_ids[bag.start * of_a_key..bag.end * of_a_key]);
                offsets.push(u32::try_from(ids.len()).map_err(|_| {
                    PrepareError::TooManyValues { path: plan.inputs[block.file()].path.clone() }
                })?);
            }
        }
        if plan.layout.has_value_weights {
            self.weigh(encoders);
        }
        Ok(())
    }

    /// The weights of all ids, row by row: those of their keys, or 1.
    fn weigh(&mut self, encoders: &[Encoder]) {
        let Self { parsed, weights, .. } = self;
        for row in 0..parsed.rows {
            let fields = encoders.iter().zip(&parsed.bag_ends).zip(&parsed.bag_weights);
            for ((encoder, ends), of_keys) in fields {
                let of_a_key = encoder.ids_per_key();
                let bag = bag(ends.as_deref(), row);
                match of_keys {
                    None => weights.extend(repeat_n(1.0, bag.len() * of_a_key)),
                    Some(of_keys) => {
                        weights.extend(of_keys[bag].iter().flat_map(|&x| repeat_n(x, of_a_key)))
                    }
                }
            }
        }
    }

    pub(super) fn rows(&self) -> RowBlock<'_> {
        RowBlock {
            rows: self.parsed.rows,
            label: &self.parsed.label,
            weight: &self.parsed.weight,
            dense: &self.parsed.dense,
            values: &self.ids,
            value_weights: &self.weights,
            offsets: &self.offsets,
            group: &self.parsed.group,
        }
    }
}

/// The keys of `row` in a field whose bags have these ends, or one key each.
fn bag(ends: Option<&[usize]>, row: usize) -> Range<usize> {
    match ends {
        Some(ends) => row.checked_sub(1).map_or(0, |before| ends[before])..ends[row],
        None => row..row + 1,
    }
}

/// The blocks that the pool works on at once. Slots beyond the used ones keep their buffers.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    used: usize,
}

impl Slots {
    /// Takes up to one block per thread. False at the end of the text.
    pub(super) fn fill(
        &mut self,
        blocks: &BlocksAhead,
        plan: &Plan,
        pool: &ThreadPool,
    ) -> Result<bool, PrepareError> {
        self.used = 0;
        while self.used < pool.current_num_threads() {
            let Ok(block) = blocks.ready.recv() else { break };
            let block = block?;
            match self.slots.get_mut(self.used) {
                Some(slot) => {
                    if let Some(old) = core::mem::replace(&mut slot.block, block).into_buffer() {
                        // Refused only after the last block.
                        let _ = blocks.spent.send(old);
                    }
                }
                None => self.slots.push(Slot {
                    block,
                    parsed: plan.layout.format.columns(),
                    ids: Vec::new(),
                    weights: Vec::new(),
                    offsets: Vec::new(),
                    field_ids: Vec::new(),
                    unknown: Vec::new(),
                }),
            }
            self.used += 1;
        }
        Ok(self.used > 0)
    }

    pub(super) fn used(&self) -> &[Slot] {
        &self.slots[..self.used]
    }

    pub(super) fn used_mut(&mut self) -> &mut [Slot] {
        &mut self.slots[..self.used]
    }
}

/// Blocks that a thread has read ahead.
pub(super) struct BlocksAhead {
    ready: Receiver<Result<Block, PrepareError>>,
    /// Takes buffers back.
    spent: Sender<Vec<u8>>,
}

/// Starts the thread that reads what `blocks` makes of a way for buffers that come back. It ends
/// when its receiver is gone.
pub(super) fn read_ahead<'scope, B>(
    scope: &'scope thread::Scope<'scope, '_>,
    pool: &ThreadPool,
    blocks: impl FnOnce(Receiver<Vec<u8>>) -> B,
) -> BlocksAhead
where
    B: Iterator<Item = Result<Block, PrepareError>> + Send + 'scope,
{
    let (spent, used_again) = channel();
    let blocks = blocks(used_again);
    let (give, ready) = sync_channel(pool.current_num_threads());
    scope.spawn(move || {
        for block in blocks {
            if give.send(block).is_err() {
                break;
            }
        }
    });
    BlocksAhead { ready, spent }
}

/// Parses and encodes, while the writer writes what came before. `used` brings buffers back.
pub(super) fn encode_ahead(
    plan: &Plan,
    pool: &ThreadPool,
    encoders: &[Encoder],
    blocks: &BlocksAhead,
    used: &Receiver<Slots>,
    give: &SyncSender<Result<Slots, PrepareError>>,
) {
    loop {
        let mut slots = used.try_recv().unwrap_or_default();
        let filled = slots.fill(blocks, plan, pool).and_then(|filled| {
            pool.install(|| {
                slots.used_mut().par_iter_mut().try_for_each(|slot| {
                    slot.parse(&plan.layout.format);
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

/// With 26 fields their ids are 26 kB.
const ROWS_ENCODED_AT_ONCE: usize = 256;
