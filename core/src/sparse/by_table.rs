//! The bags of a batch, table after table.
//!
//! Rows of one table are on fewer pages than those of all, so what says where the pages are stays
//! near while its bags go by; and what they become, and the gradients of that, are a few hundred
//! kilobytes at a time.
//!
//! Invariant: bags of one table are in their order, whichever of its fields they are of, and so are
//! the values of a bag. So the uses of a row are in the order of the batch.

use super::Numbering;
use super::coalesce::ask_ahead;
use crate::batch::Jagged;

/// Bags with values, table after table.
#[derive(Debug)]
pub struct ByTable<'a> {
    /// Row of every value. `[values]`
    pub rows: &'a mut [u32],
    /// Weight of every value, `[values]`; empty where they have none.
    pub weights: &'a mut [f32],
    /// Where bags begin, and the last one ends. `[bags with values + 1]`
    pub offsets: &'a mut [u32],
    /// Which of them those of the batch are, one after the other. `[bags with values]`
    pub place: &'a mut [u32],
    /// How many there are of each table and those before it; fields without one of their own repeat
    /// the number. `[fields]`
    pub tables: &'a mut [u32],
}

/// Where the next bag of a table goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextOfTable {
    /// The field whose bags are counted here: that of its own table.
    owner: usize,
    bag: u32,
    value: u32,
}

impl ByTable<'_> {
    /// Puts the bags with values there, and their rows. Offsets of `bags` begin with 0; `next:
    /// [fields]`, scratch
    ///
    /// # Panics
    /// When a length is not as told.
    pub fn fill(self, bags: Jagged<'_>, numbering: Numbering<'_>, next: &mut [NextOfTable]) {
        let Self { rows, weights, offsets, place, tables } = self;
        let fields = numbering.fields();
        if fields == 0 {
            offsets.fill(0);
            return;
        }
        for (field, next) in next.iter_mut().enumerate() {
            *next = NextOfTable { owner: numbering.owner(field), bag: 0, value: 0 };
        }
        for examples in bags.offsets.windows(fields + 1).step_by(fields) {
            for (field, ends) in examples.windows(2).enumerate() {
                let own = &mut next[next[field].owner];
                own.bag += u32::from(ends[0] < ends[1]);
                own.value += ends[1] - ends[0];
            }
        }
        let (mut bag, mut value) = (0, 0);
        for next in &mut *next {
            (bag, next.bag) = (bag + next.bag, bag);
            (value, next.value) = (value + next.value, value);
        }
        offsets[bag as usize] = value;

        let mut places = place.iter_mut();
        for (example, all) in bags.offsets.windows(fields + 1).step_by(fields).enumerate() {
            ask_ahead(bags, example * fields..(example + 1) * fields);
            for (field, ends) in all.windows(2).enumerate() {
                let values = ends[0] as usize..ends[1] as usize;
                let (table, own) = (numbering.of(field), &mut next[next[field].owner]);
                if values.is_empty() {
                    continue;
                }
                *places.next().expect("a place for every bag with values") = own.bag;
                offsets[own.bag as usize] = own.value;
                let to = own.value as usize..own.value as usize + values.len();
                for (row, value) in rows[to.clone()].iter_mut().zip(&bags.values[values.clone()]) {
                    *row = table.row(*value);
                }
                if !bags.weights.is_empty() {
                    weights[to].copy_from_slice(&bags.weights[values]);
                }
                own.bag += 1;
                own.value += ends[1] - ends[0];
            }
        }
        tables.iter_mut().zip(next).for_each(|(end, next)| *end = next.bag);
    }
}
