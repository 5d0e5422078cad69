//! A worker's side of bags that embedding PSs pool.
//!
//! Each rank that holds rows of a bag answers with the sum of those; the worker adds the ranks'
//! sums up, in the order of ranks, and trains with bags of one value of weight 1, which is that
//! vector. The gradient of a vector goes back to every rank that has a part in it, at the
//! positions that the rank has sent.

use std::sync::Arc;

use umbra_core::batch::Jagged;
use umbra_core::compress::{Malformed, Mask, Values, add, gather, mask_len, read_mask};
use umbra_core::model::Pooling;
use umbra_core::sparse::{Numbering, Partitioning};

use crate::rows::bag_wire::{BagList, byte_sections, write_bag_push};
use crate::rows::outbox::Outbox;
use crate::rows::wire::Kind;

/// How bags that are pooled elsewhere come and go.
pub struct Pooled {
    /// How a bag becomes a vector.
    pub pooling: Pooling,
    /// What gradients are sent as.
    pub values: Values,
    /// Destination of every partition.
    pub destination: Vec<usize>,
}

impl Pooled {
    /// From the partitions that `outbox` leads to.
    #[must_use]
    pub fn new(pooling: Pooling, values: Values, outbox: &Outbox) -> Self {
        let destinations = outbox.destinations();
        let partitions: usize = destinations.iter().map(|to| to.partitions.len()).sum();
        let mut destination = vec![0; partitions];
        for (to, held) in destinations.iter().enumerate() {
            held.partitions.iter().for_each(|partition| destination[*partition as usize] = to);
        }
        Self { pooling, values, destination }
    }
}

/// The bags of a batch, by the ranks that have a part in them.
#[derive(Debug, Default)]
pub struct Bags {
    /// Start of every bag among those with values, and the end of the last one: bags of one value
    /// or none. `[bags + 1]`
    pub offsets: Vec<u32>,
    /// By destination.
    parts: Vec<Part>,
    /// Values of the bag in hand, by destination.
    here: Vec<u32>,
}

/// What one rank has of them.
#[derive(Debug, Default)]
struct Part {
    list: BagList,
    /// Place of each bag among those with values.
    places: Vec<u32>,
    answer: Option<Arc<Vec<u32>>>,
    /// Which elements came.
    mask: Vec<u32>,
}

/// Where rows are.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// Row numbers of all tables.
    pub numbering: Numbering<'a>,
    /// How rows are dealt to partitions.
    pub partitioning: Partitioning,
    /// The destination of each partition.
    pub destination: &'a [usize],
    /// How many destinations there are.
    pub destinations: usize,
}

/// Memory for vectors on their way.
#[derive(Debug, Default)]
pub struct BagScratch {
    vectors: Vec<f32>,
    bytes: Vec<u8>,
}

impl Bags {
    /// Deals the values of `bags` to the ranks that hold their rows. Returns how many bags have
    /// values.
    pub fn deal(&mut self, bags: Jagged<'_>, pooling: Pooling, places: &Places<'_>) -> usize {
        let Self { offsets, parts, here } = self;
        parts.resize_with(places.destinations, Part::default);
        for Part { list, places, answer, .. } in &mut *parts {
            list.clear();
            places.clear();
            *answer = None;
        }
        here.clear();
        here.resize(places.destinations, 0);
        offsets.clear();
        offsets.push(0);
        let mut touched = 0;
        let fields = (0..places.numbering.fields()).cycle();
        for ((bag, ends), field) in (0u32..).zip(bags.offsets.windows(2)).zip(fields) {
            let range = ends[0] as usize..ends[1] as usize;
            let table = places.numbering.of(field);
            let weights = if bags.weights.is_empty() { &[] } else { &bags.weights[range.clone()] };
            for (at, value) in bags.values[range.clone()].iter().enumerate() {
                let row = table.row(*value);
                let to = places.destination[places.partitioning.partition(row) as usize];
                here[to] += 1;
                parts[to].list.rows.push(row);
                parts[to].list.weights.extend(weights.get(at));
            }
            if !range.is_empty() {
                let scale = pooling.scale_of(range.len(), weights);
                for (part, count) in parts.iter_mut().zip(&mut *here).filter(|(_, n)| **n > 0) {
                    part.list.add(bag, core::mem::take(count));
                    part.places.push(touched);
                    if pooling == Pooling::Mean {
                        part.list.scales.push(scale);
                    }
                }
                touched += 1;
            }
            offsets.push(touched);
        }
        for Part { list, .. } in parts {
            if list.scales.iter().all(|scale| *scale == 1.0) {
                list.scales.clear();
            }
        }
        touched as usize
    }

    /// Bags that destination `to` has a part in.
    #[must_use]
    pub fn at(&self, to: usize) -> u32 {
        self.parts[to].list.bags()
    }

    /// Adds what is wanted of `to` to a lookup.
    pub fn write_lookup(&self, words: &mut Vec<u32>, to: usize, worker: u32) {
        if self.at(to) > 0 {
            self.parts[to].list.write(words, worker);
        }
    }

    /// Keeps the answer of `to`.
    pub fn came(&mut self, to: usize, words: Arc<Vec<u32>>) {
        self.parts[to].answer = Some(words);
    }

    /// Adds up what has come for `worker` as the vectors of all bags with values. Buffers that
    /// nobody needs any more go to `spent`. `vectors`: `[bags with values, width]`
    ///
    /// # Errors
    /// When a rank has answered something else than was asked for.
    pub fn add_up(
        &mut self,
        vectors: &mut [f32],
        width: usize,
        worker: u32,
        scratch: &mut BagScratch,
        mut spent: impl FnMut(Vec<u32>),
    ) -> Result<(), Malformed> {
        vectors.fill(0.0);
        for Part { places, answer, mask, .. } in &mut self.parts {
            if places.is_empty() {
                continue;
            }
            let words = answer.take().ok_or(Malformed)?;
            let mut sections = byte_sections(&words, Kind::Pooled);
            let own = sections.find(|section| section.worker == worker).ok_or(Malformed)?;
            let sums = &mut scratch.vectors;
            sums.clear();
            sums.resize(places.len() * width, 0.0);
            add(own.bytes, sums)?;
            mask.resize(mask_len(sums.len()), 0);
            read_mask(own.bytes, sums.len(), mask)?;
            for (place, sum) in places.iter().zip(sums.chunks_exact(width)) {
                let vector = &mut vectors[*place as usize * width..][..width];
                vector.iter_mut().zip(sum).for_each(|(sum, x)| *sum += x);
            }
            if let Some(words) = Arc::into_inner(words) {
                spent(words);
            }
        }
        Ok(())
    }

    /// Adds the gradients of the vectors that `to` has a part in to a push.
    /// `gradients`: `[bags with values, width]`
    pub fn write_push(
        &self,
        words: &mut Vec<u32>,
        to: usize,
        (worker, rate): (u32, f32),
        (gradients, width): (&[f32], usize),
        values: Values,
        scratch: &mut BagScratch,
    ) {
        let Part { places, mask, .. } = &self.parts[to];
        if places.is_empty() {
            return;
        }
        let BagScratch { vectors, bytes } = scratch;
        vectors.clear();
        for place in places {
            vectors.extend_from_slice(&gradients[*place as usize * width..][..width]);
        }
        bytes.resize(bytes.len().max(vectors.len() * values as usize), 0);
        let mask = Mask::told(&mask[..mask_len(vectors.len())]);
        let length = gather(vectors, &mask, values, bytes);
        write_bag_push(words, (worker, rate), &bytes[..length], values as u32);
    }
}
