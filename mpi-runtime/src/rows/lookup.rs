//! A batch on its way through the tables: its rows, or the vectors of its bags.

use core::ops::Range;

use umbra_core::batch::Jagged;
use umbra_core::model::Input;
use umbra_core::sparse::{Partitioning, Places, TilePlan, plan_tiles};
use umbra_datasets::BatchBuffer;

use crate::memory::Lines;
use crate::rows::bags::Bags;
use crate::rows::direct::Direct;
use crate::rows::strips::CutBags;

/// A batch and its rows.
#[derive(Default)]
pub struct Lookup {
    /// The examples.
    pub batch: BatchBuffer,
    /// The bags of its tables' strips.
    pub(super) cut: CutBags,
    /// Index into the rows, for every value of the [input](Self::input)'s bags.
    pub(super) slot: Vec<u32>,
    /// Values of the distinct rows, or the vectors of bags; complete once taken, unless a step
    /// reads them. `[rows, width]`
    pub rows: Lines,
    /// Row numbers of the distinct rows. `[rows]`
    pub(super) unique: Vec<u32>,
    /// Places in `unique`, partition after partition. `[rows]`
    places: Vec<u32>,
    /// Where a partition's places begin and end. `[partitions + 1]`
    bounds: Vec<u32>,
    /// Where those who hold rows pool: the bags.
    pub(super) bags: Option<Bags>,
    /// Memory for bags that are pooled from a table here.
    pub(super) direct: Direct,
    /// Whether those of this batch are.
    pub(super) is_direct: bool,
    /// Where a step reads rows and updates them, tile by tile.
    pub(super) tiles: Option<Tiles>,
    /// By destination: rows that its answer has before this lookup's.
    pub(super) before: Vec<u32>,
    pub(super) clock: u32,
    /// Asked for together with the other workers of the rank.
    pub(super) joint: bool,
    /// Destinations that have not answered yet.
    pub(super) awaited: usize,
}

/// Where the rows of a batch stand as its tiles pass.
#[derive(Debug, Default)]
pub struct Tiles {
    /// Place of every distinct row. `[rows]`
    place: Vec<u32>,
    /// Where those end that a tile is the first to name. `[tiles]`
    ends: Vec<u32>,
    places: Places,
}

impl Lookup {
    /// Prepares a step in tiles of `length` examples, if it is to read the rows and to update them:
    /// once for a lookup. Returns the places that their copies take, and their gradients.
    pub fn prepare_tiles(&mut self, length: usize) -> Option<usize> {
        let Self { batch, cut, slot, unique, tiles, .. } = self;
        let Tiles { place, ends, places } = tiles.as_mut()?;
        let (examples, bags) = (batch.len(), cut.instead(batch.batch().bags));
        let fields = (bags.offsets.len() - 1) / examples.max(1);
        place.resize(unique.len(), 0);
        ends.resize(examples.div_ceil(length.max(1)), 0);
        *places = plan_tiles((bags.offsets, length * fields), slot, place, ends);
        Some(places.len)
    }

    /// The rows as a step reads and updates them.
    pub(super) fn tile_plan(&self) -> Option<TilePlan<'_>> {
        let Tiles { place, ends, places } = self.tiles.as_ref()?;
        Some(TilePlan { rows: &self.unique, place, ends, places: *places })
    }

    /// Rows that are looked up: the batch's distinct ones; where bags are pooled from the table,
    /// that of every value.
    #[must_use]
    pub fn rows_len(&self) -> usize {
        if self.is_direct { self.direct.rows.len() } else { self.unique.len() }
    }

    /// What a model computes with. Where bags were pooled before, each has one value or none.
    #[must_use]
    pub fn input(&self) -> Input<'_> {
        let (mut batch, strips) = (self.batch.batch(), self.cut.strips());
        batch.bags = self.cut.instead(batch.bags);
        if self.is_direct {
            let Direct { offsets, vectors, .. } = &self.direct;
            batch.bags = Jagged { values: vectors, offsets, weights: &[] };
            return Input { batch, rows: &self.rows, slot: vectors, strips, named_once: true };
        }
        if let Some(bags) = &self.bags {
            batch.bags = Jagged { values: &self.slot, offsets: &bags.offsets, weights: &[] };
        }
        Input { batch, rows: &self.rows, slot: &self.slot, strips, named_once: false }
    }

    /// Sorts the places of the rows by partition: a counting sort.
    pub(super) fn deal(&mut self, partitioning: Partitioning) {
        let Self { unique, places, bounds, .. } = self;
        bounds.clear();
        bounds.resize(partitioning.partitions as usize + 2, 0);
        for row in &*unique {
            bounds[partitioning.partition(*row) as usize + 2] += 1;
        }
        for at in 1..bounds.len() {
            bounds[at] += bounds[at - 1];
        }
        places.resize(unique.len(), 0);
        // Entry p + 1 is where the next row of p goes: in the end, where p ends.
        for (place, row) in (0u32..).zip(&*unique) {
            let next = &mut bounds[partitioning.partition(*row) as usize + 1];
            places[*next as usize] = place;
            *next += 1;
        }
        bounds.pop();
    }

    fn range(&self, partition: u32) -> Range<usize> {
        let partition = partition as usize;
        self.bounds[partition] as usize..self.bounds[partition + 1] as usize
    }

    pub(super) fn places(&self, partition: u32) -> &[u32] {
        &self.places[self.range(partition)]
    }

    /// A partition's places, the numbers of all rows, and their values to be filled in.
    pub(super) fn split(&mut self, partition: u32) -> (&[u32], &[u32], &mut [f32]) {
        let range = self.range(partition);
        (&self.places[range], &self.unique, &mut self.rows)
    }

    pub(super) fn count(&self, partition: u32) -> u32 {
        self.bounds[partition as usize + 1] - self.bounds[partition as usize]
    }
}
