//! Bags that a worker pools from a table it shares, without a copy of their rows, and whose rows it
//! updates without a gradient for each: where bags have several values, copies are much of what a
//! step moves. What is learnt has the same bits, signs of zeros aside.

use umbra_core::batch::Jagged;
use umbra_core::model::Pooling;
use umbra_core::optim::SparseOptimizer;
use umbra_core::sparse::{
    DirectBags, DirectUpdate, GroupScratch, Groups, Numbering, Spread, Table, Use, buckets,
    row_numbers,
};

/// Values of a bag, in the mean of a batch, from which on its bags are pooled so: with fewer there
/// are about as many vectors as rows, and nothing is saved. Where it begins to pay is not measured.
const VALUES_PER_BAG: usize = 2;

/// Words of a page. Where more of them are mapped as one here, a host may not do so below.
const PAGE: usize = 1024;

/// The bags of a batch.
#[derive(Debug, Default)]
pub struct Direct {
    /// Start of every bag among those with values, and the end of the last one: bags of one value
    /// or none. `[bags + 1]`
    pub offsets: Vec<u32>,
    /// Whose vector each value of those is: their own. `[bags with values]`
    pub vectors: Vec<u32>,
    /// Row of each value. `[values]`
    pub rows: Vec<u32>,
}

/// Memory of an update.
#[derive(Debug, Default)]
pub struct DirectScratch {
    /// Rows and their uses, bucket after bucket. `[values]`
    dealt: Vec<(u32, Use)>,
    /// Which of the distinct rows those of a bucket are. `[values]`
    slot: Vec<u32>,
    /// Where buckets end.
    bucket_ends: Vec<u32>,
    /// The distinct rows, and where the uses of each of them end. `[values]`
    rows: Vec<u32>,
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
    /// Prepares the bags of a batch, and returns how many have values.
    pub fn prepare(&mut self, bags: Jagged<'_>, numbering: Numbering<'_>) -> usize {
        let Self { offsets, vectors, rows, .. } = self;
        rows.resize(bags.values.len(), 0);
        row_numbers(bags, numbering, rows);
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

    /// Updates the distinct rows with the gradients of the bags' vectors. `gradients: [bags with
    /// values, width]`, `heads: [heads_len(values)]` or more, scratch
    pub fn update(
        &self,
        (bags, pooling): (Jagged<'_>, Pooling),
        (table, width): (&Table<'_>, usize),
        (optimizer, rate): (&SparseOptimizer, f32),
        gradients: &[f32],
        (scratch, heads): (&mut DirectScratch, &mut [u32]),
    ) {
        let DirectScratch { dealt, slot, bucket_ends, rows, ends, uses, gradient } = scratch;
        let values = self.rows.len();
        for words in [&mut *slot, &mut *rows, &mut *ends] {
            words.resize(values, 0);
        }
        dealt.resize(values, (0, Use::default()));
        uses.resize(values, Use::default());
        bucket_ends.resize(buckets(values), 0);
        gradient.resize(width, 0.0);
        let (scratch, groups) =
            (GroupScratch { dealt, slot, heads, ends: bucket_ends }, Groups { rows, ends, uses });
        let bags = DirectBags { bags, pooling };
        let page = (PAGE / table.record_len()).max(1);
        let of = Spread { rows: &self.rows, end: table.rows(), page };
        let found = bags.group_uses(of, scratch, groups);
        let (rows, ends) = (&rows[..found], &ends[..found]);
        DirectUpdate { optimizer, rate, rows, ends, uses, gradients }.apply(table, gradient);
    }
}
