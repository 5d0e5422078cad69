//! Bags that a worker pools from a table it shares, without a copy of their rows, and whose rows it
//! updates without a gradient for each: where bags have several values, copies are much of what a
//! step moves. What is learnt has the same bits, signs of zeros aside.

use umbra_core::batch::Jagged;
use umbra_core::model::Pooling;
use umbra_core::optim::SparseOptimizer;
use umbra_core::sparse::{
    ByTable, DirectBags, DirectUpdate, GroupScratch, Groups, NextOfTable, Numbering, Spread, Table,
    Use, buckets,
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
    /// Whose vector each value of those is. `[bags with values]`
    pub vectors: Vec<u32>,
    /// Row of each value, table after table. `[values]`
    pub rows: Vec<u32>,
    /// Its weight; empty where values have none. `[values]`
    weights: Vec<f32>,
    /// Where the bags of those begin, and the last one ends. `[bags with values + 1]`
    starts: Vec<u32>,
    /// Where the bags of each table end. `[fields]`
    tables: Vec<u32>,
    /// Where the next bag of a table goes. `[fields]`
    next: Vec<NextOfTable>,
}

/// Memory of an update.
#[derive(Debug, Default)]
pub struct DirectScratch {
    /// Rows and their uses, bucket after bucket. `[values]`
    dealt: Vec<(u32, Use)>,
    /// Which of the distinct rows those of a table are. `[values]`
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
        let Self { offsets, vectors, rows, weights, starts, tables, next } = self;
        offsets.clear();
        offsets.push(0);
        let mut with_values = 0;
        offsets.extend(bags.offsets.windows(2).map(|ends| {
            with_values += u32::from(ends[0] < ends[1]);
            with_values
        }));
        rows.resize(bags.values.len(), 0);
        weights.resize(bags.weights.len(), 0.0);
        vectors.resize(with_values as usize, 0);
        starts.resize(vectors.len() + 1, 0);
        tables.resize(numbering.fields(), 0);
        next.resize(numbering.fields(), NextOfTable::default());
        let by_table = ByTable { rows, weights, offsets: starts, place: &mut *vectors, tables };
        by_table.fill(bags, numbering, next);
        vectors.len()
    }

    /// The bags, whose ids are the rows, table after table.
    fn bags(&self, pooling: Pooling) -> DirectBags<'_> {
        let Self { rows, weights, starts, .. } = self;
        DirectBags { bags: Jagged { values: rows, offsets: starts, weights }, pooling }
    }

    /// The vectors of the bags. `vectors: [bags with values, width]`
    pub fn pool(&self, pooling: Pooling, table: &Table<'_>, vectors: &mut [f32]) {
        self.bags(pooling).pool(table, vectors);
    }

    /// Updates the distinct rows with the gradients of the bags' vectors. `gradients: [bags with
    /// values, width]`, `heads: [heads_len(values)]` or more, scratch
    pub fn update(
        &self,
        pooling: Pooling,
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
        bucket_ends.resize(buckets(values, table.rows()), 0);
        gradient.resize(width, 0.0);
        let (scratch, groups) =
            (GroupScratch { dealt, slot, heads, ends: bucket_ends }, Groups { rows, ends, uses });
        let page = (PAGE / table.record_len()).max(1);
        let of = Spread { end: table.rows(), tables: &self.tables, page };
        let found = self.bags(pooling).group_uses(of, scratch, groups);
        let (rows, ends) = (&rows[..found], &ends[..found]);
        DirectUpdate { optimizer, rate, rows, ends, uses, gradients }.apply(table, gradient);
    }
}
