//! Rows of a batch that goes through a model in tiles, from a table at hand: read when the first
//! tile comes that names them, updated when the last has gone.
//!
//! A row is far away, and so is a copy of it that was made for a whole batch. Read tile by tile
//! there are copies and gradients of one tile at a time, which stay in the cache; and a row that no
//! other tile names is updated while it still is near, from a gradient that is. Rows that several
//! tiles name are *carried*: their copies and the sums of their gradients are kept to the end of
//! the batch.
//!
//! Invariant: where nobody else writes to the table, rows have the same bits after it as after
//! reading all of them before the batch and updating them behind it, signs of zeros aside. So a
//! tile sees nothing of what another has learnt.

use core::ops::Range;

use super::Table;
use crate::kernel::words::all_finite;
use crate::optim::SparseOptimizer;

/// Places of copies and gradients: those of rows that one tile names, from 0 on in every tile, and
/// behind them those of carried rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The first place of a carried row: as many as a tile is the first to name, at most.
    pub carried: usize,
    /// How many there are.
    pub len: usize,
}

/// Where the distinct rows of a batch stand.
#[derive(Clone, Copy, Debug)]
pub struct TilePlan<'a> {
    /// Index in the table, tile after tile. `[U]`
    pub rows: &'a [u32],
    /// Place of each. `[U]`
    pub place: &'a [u32],
    /// Where those end that a tile is the first to name. `[tiles]`
    pub ends: &'a [u32],
    /// All places.
    pub places: Places,
}

/// Gives the distinct rows of a batch their places, where tiles have `length` bags. `slot`: of
/// every value, the index of its row among them in the order of their first appearance
/// ([`coalesce`](super::coalesce)); afterwards its place. `[values]`; `place: [U]`; `ends: [tiles]`
///
/// # Panics
/// When a length is not as told.
pub fn plan_tiles(
    (offsets, length): (&[u32], usize),
    slot: &mut [u32],
    place: &mut [u32],
    ends: &mut [u32],
) -> Places {
    place.fill(OWN);
    let bags = offsets.len() - 1;
    let value = |bag: usize| offsets[bag.min(bags)] as usize;
    let (mut named, mut carried) = (0, 0);
    for (tile, end) in ends.iter_mut().enumerate() {
        let before = named;
        for row in &slot[value(tile * length)..value((tile + 1) * length)] {
            if *row < before {
                place[*row as usize] = CARRIED;
            } else if *row == named {
                named += 1;
            }
        }
        *end = named;
        carried = carried.max(named - before);
    }
    assert_eq!(named as usize, place.len(), "distinct rows");
    let (mut start, mut next) = (0, carried);
    for end in &*ends {
        let mut own = 0;
        for place in &mut place[start..*end as usize] {
            let free = if *place == CARRIED { &mut next } else { &mut own };
            *place = *free;
            *free += 1;
        }
        start = *end as usize;
    }
    let values = value(0)..value(bags);
    slot[values].iter_mut().for_each(|row| *row = place[*row as usize]);
    Places { carried: carried as usize, len: next as usize }
}

/// What a row is before it has a place.
const OWN: u32 = 0;
const CARRIED: u32 = 1;

/// The rows of a batch on their way through its tiles.
#[derive(Debug)]
pub struct TiledRows<'a> {
    /// Has them all.
    pub table: Table<'a>,
    /// How they are updated.
    pub optimizer: &'a SparseOptimizer,
    /// The learning rate.
    pub rate: f32,
    /// Where they stand.
    pub plan: TilePlan<'a>,
    /// Copies of their values. `[places, width]`
    pub copies: &'a mut [f32],
    /// Whether a gradient was not finite: from there on no row was updated.
    pub spoilt: bool,
}

impl TiledRows<'_> {
    /// The rows that tile `tile` is the first to name.
    fn named_by(&self, tile: usize) -> Range<usize> {
        let end = |tile: usize| self.plan.ends[tile] as usize;
        if tile == 0 { 0..end(0) } else { end(tile - 1)..end(tile) }
    }

    /// Reads the rows that tile `tile` is the first to name. Returns all copies, and how many were
    /// read.
    pub(crate) fn read(&mut self, tile: usize) -> (&[f32], usize) {
        let named = self.named_by(tile);
        self.table.read_to(self.plan.at(named.clone()), self.copies);
        (self.copies, named.len())
    }

    /// Updates the rows that tile `tile` alone names, if all their gradients are finite. The last
    /// come first: where the addresses of all do not stay in the processor's table of pages, those
    /// of the last do. Asks for the rows of the next tile meanwhile. `gradients: [places, width]`
    pub(crate) fn update(&mut self, tile: usize, gradients: &[f32]) {
        let (carried, named) = (self.plan.places.carried, self.named_by(tile));
        self.spoilt |= !all_finite(&gradients[..named.len() * self.table.width()]);
        if self.spoilt {
            return;
        }
        let own = self.plan.at(named).rev().filter(move |(_, place)| *place < carried);
        let after = if tile + 1 < self.plan.ends.len() { self.named_by(tile + 1) } else { 0..0 };
        let rows = (own, self.plan.at(after).map(|(row, _)| row));
        self.table.update_before(self.optimizer, self.rate, rows, gradients);
    }

    /// Updates the carried rows, if all their gradients are finite. `gradients: [places, width]`
    pub(crate) fn update_carried(&mut self, gradients: &[f32]) {
        let Places { carried, len } = self.plan.places;
        if carried == len {
            return;
        }
        self.spoilt |= !all_finite(&gradients[carried * self.table.width()..]);
        if !self.spoilt {
            let all = self.plan.at(0..self.plan.rows.len());
            let rows = all.filter(move |(_, place)| *place >= carried);
            let _ = self.table.update_from(self.optimizer, self.rate, rows, gradients);
        }
    }
}

impl<'a> TilePlan<'a> {
    /// Index in the table and place of these of the distinct rows.
    fn at(
        &self,
        rows: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (usize, usize)> + Clone + use<'a> {
        let places = self.place[rows.clone()].iter();
        self.rows[rows].iter().zip(places).map(|(row, place)| (*row as usize, *place as usize))
    }
}
