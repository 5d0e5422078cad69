//! Bags that a worker pools from a table it shares, without a copy of their rows, and whose rows it
//! updates without a gradient for each: where bags have several values, copies are much of what a
//! step moves. What is learnt has the same bits, signs of zeros aside.

use umbra_core::batch::Jagged;
use umbra_core::model::Pooling;
use umbra_core::optim::SparseOptimizer;
use umbra_core::sparse::{DirectBags, DirectUpdate, Table, Use};

/// Values of a bag, in the mean of a batch, from which on its bags are pooled so: with fewer there
/// are about as many vectors as rows, and nothing is saved. Where it begins to pay is not measured.
const VALUES_PER_BAG: usize = 2;

/// The bags of a batch.
#[derive(Debug, Default)]
pub struct Direct {
    /// Start of every bag among those with values, and the end of the last one: bags of one value
    /// or none. `[bags + 1]`
    pub offsets: Vec<u32>,
    /// Whose vector each value of those is: their own. `[bags with values]`
    pub vectors: Vec<u32>,
    /// Which of the distinct rows each value has. `[values]`
    pub slot: Vec<u32>,
    /// Row of each value. `[values]`
    rows: Vec<u32>,
}

/// Memory of an update.
#[derive(Debug, Default)]
pub struct DirectScratch {
    /// Where the uses of each distinct row end. `[rows]`
    ends: Vec<u32>,
    /// Row after row. `[values]`
    uses: Vec<Use>,
    /// Gradient of a row. `[width]`
    gradient: Vec<f32>,
}

/// Whether these are to be pooled so.
#[must_use]
pub fn pays(bags: Jagged<'_>) -> bool {
    bags.values.len() >= VALUES_PER_BAG * (bags.offsets.len() - 1)
}

impl Direct {
    /// Prepares the bags of a batch with these distinct rows, and returns how many have values.
    pub fn prepare(&mut self, bags: Jagged<'_>, unique: &[u32]) -> usize {
        let Self { offsets, vectors, slot, rows, .. } = self;
        rows.clear();
        rows.extend(slot.iter().map(|slot| unique[*slot as usize]));
        offsets.clear();
        offsets.push(0);
        let mut with_values = 0;
        offsets.extend(bags.offsets.windows(2).map(|ends| {
            with_values += u32::from(ends[0] < ends[1]);
            with_values
        }));
        vectors.clear();
        vectors.extend(0..with_values);
        vectors.len()
    }

    /// The vectors of the bags. `vectors: [bags with values, width]`
    pub fn pool(&self, bags: Jagged<'_>, pooling: Pooling, table: &Table<'_>, vectors: &mut [f32]) {
        DirectBags { bags, pooling }.pool(table, &self.rows, vectors);
    }

    /// Updates the distinct rows with the gradients of the bags' vectors.
    /// `gradients: [bags with values, width]`
    pub fn update(
        &self,
        (bags, pooling): (Jagged<'_>, Pooling),
        unique: &[u32],
        (table, width): (&Table<'_>, usize),
        (optimizer, rate): (&SparseOptimizer, f32),
        gradients: &[f32],
        scratch: &mut DirectScratch,
    ) {
        let DirectScratch { ends, uses, gradient } = scratch;
        ends.resize(unique.len(), 0);
        uses.resize(self.slot.len(), Use::default());
        gradient.resize(width, 0.0);
        DirectBags { bags, pooling }.sort_uses(&self.slot, ends, uses);
        let update = DirectUpdate { optimizer, rate, rows: unique, ends, uses, gradients };
        update.apply(table, gradient);
    }
}
