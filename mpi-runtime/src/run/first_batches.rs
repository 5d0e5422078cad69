//! What a worker's step has of rows and bags: counted in the first batches of the training data,
//! before anything starts. Steps of other examples have about as many.

use std::collections::HashSet;

use umbra_core::compress::Coding;
use umbra_core::sparse::{coalesce, heads_len};
use umbra_datasets::{Pipeline, TrainOrder};

use crate::comm::watch::Watch;
use crate::error::Error;
use crate::rows::bags::{Bags, Places};
use crate::rows::pooled_traffic::BagCounts;
use crate::rows::pooling::PoolRules;
use crate::rows::strips::CutBags;
use crate::rows::traffic::{Shape, Steps};
use crate::run::plan::Plan;
use crate::trainer::batches::next_read;

/// Counts of the first batches.
pub(super) struct FirstBatches {
    /// Distinct rows that a step of a worker touches in one partition of each rank that holds rows:
    /// the mean. `[servers]`
    rows: Vec<f64>,
    /// Those of each table, or strip of one, in all partitions. `[tables]`
    pub(super) tables: Vec<f64>,
    /// Its bags, where vectors of them may travel.
    bags: Option<BagCounts>,
    /// How many pages of records steps touch.
    pub(super) pages: Pages,
}

/// Distinct pages ([`PAGE`]) of records that more and more batches touch. New ones come ever more
/// seldom: as words of a text do, by a power of what was read (Heaps' law), which two counts give.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pages {
    /// Batches that were counted, and the pages of the first half of them and of all.
    batches: f64,
    half: f64,
    all: f64,
}

impl Pages {
    /// Those of so many batches.
    pub(super) fn of(&self, batches: f64) -> f64 {
        if self.half == 0.0 {
            return self.all;
        }
        let power = (self.all / self.half).log2().clamp(0.0, 1.0);
        self.all * (batches / self.batches).powf(power)
    }
}

impl FirstBatches {
    /// Of a run of `plan`; with `vectors`, also what bags come to that are pooled where their rows
    /// are, and coded so. `watch` gives the reader its time. *Not collective.*
    ///
    /// # Errors
    /// When the data can't be read.
    pub(super) fn count(
        plan: &Plan,
        vectors: Option<Coding>,
        watch: &Watch,
    ) -> Result<Self, Error> {
        let Plan { roles, layout, model, .. } = plan;
        let servers = roles.embedding_ps.len();
        let server_of = |partition| roles.embedding_ps.number_of(roles.rank_of(partition));
        let server: Vec<usize> = (0..roles.partitions).filter_map(server_of).collect();
        let places = Places {
            numbering: layout.numbering(),
            partitioning: layout.partitioning,
            destination: &server,
            destinations: servers,
        };
        let rules = vectors.map(|coding| PoolRules::new(layout, model, coding));
        let mut counted = rules.map(|rules| BagCounts::new(rules, servers));
        // One worker that reads all lanes in turn: batches as long as any worker's.
        let order = TrainOrder { workers_total: 1, ..plan.order };
        let (pipeline, mut workers) = Pipeline::train(&plan.train, &order, 0..1, 0..1, 4)?;
        let wanted = BATCHES_MIN.max(EXAMPLES_MIN / order.batch_size);
        let (mut batches, mut found, mut bags) = (0, vec![0_u64; servers], Bags::default());
        let mut found_in = vec![0_u64; places.numbering.fields()];
        let (mut heads, mut unique, mut slot) = (vec![], vec![], vec![]);
        let mut cut = CutBags::default();
        let (record_bytes, mut seen) = (4 * layout.record().words(), HashSet::new());
        let mut pages = Pages::default();
        while batches < wanted {
            let Some(batch) = next_read(&mut workers[0], watch)? else { break };
            let of_fields = batch.batch().bags;
            cut.fill(layout.strips(), of_fields);
            let jagged = cut.instead(of_fields);
            let values = jagged.values.len();
            heads.resize(heads_len(values), 0);
            unique.resize(values, 0);
            slot.resize(values, 0);
            let rows = coalesce(jagged, places.numbering, &mut heads, &mut unique, &mut slot);
            for row in &unique[..rows] {
                found[server[places.partitioning.partition(*row) as usize]] += 1;
                found_in[places.numbering.locate(*row).0] += 1;
                let index = places.partitioning.index(*row) as usize;
                seen.insert((places.partitioning.partition(*row), index * record_bytes / PAGE));
            }
            if let Some(counted) = &mut counted {
                let vectors = bags.deal(jagged, model.pooling(), &places);
                counted.add(&bags, vectors);
            }
            batches += 1;
            if batches == wanted / 2 {
                pages.half = seen.len() as f64;
            }
            workers[0].recycle(batch);
        }
        drop(workers);
        pipeline.join();
        (pages.batches, pages.all) = (batches.max(1) as f64, seen.len() as f64);
        if batches < wanted {
            // All of the data: there are no others.
            pages.half = 0.0;
        }
        let each = (batches.max(1) * roles.partitions as usize / servers) as f64;
        let rows = found.into_iter().map(|rows| rows as f64 / each).collect();
        let tables = found_in.into_iter().map(|rows| rows as f64 / batches.max(1) as f64);
        Ok(Self { rows, tables: tables.collect(), bags: counted, pages })
    }

    /// Steps of workers that ask for rows.
    pub(super) fn steps_of_rows(&self, shape: Shape) -> Steps {
        shape.steps(&self.rows)
    }

    /// Steps of workers that ask for vectors, or for rows where those were not counted.
    pub(super) fn steps(&self, shape: Shape) -> Steps {
        match &self.bags {
            Some(bags) => shape.pooled_steps(&self.rows, bags),
            None => self.steps_of_rows(shape),
        }
    }
}

impl Plan {
    /// The layout of its ranks, as what they say to each other about rows depends on it.
    pub(super) fn shape(&self) -> Shape {
        let servers = self.roles.embedding_ps.len();
        Shape {
            trainers: self.roles.trainers.len(),
            servers,
            workers: self.workers_per_trainer(),
            partitions: self.roles.partitions as usize / servers,
            joint: self.synchronous(),
            width: self.layout.width,
            value_words: self.layout.record().value_words(),
            permits: self.job.config.embedding.prefetch + 1,
        }
    }
}

/// Bytes of records that become resident when one of them is touched, at most: where memory of
/// others is there already, Linux maps what lies around a page with it (`fault_around_bytes`).
pub(super) const PAGE: usize = 64 << 10;

/// Batches and examples that are looked at, at least.
const BATCHES_MIN: usize = 64;
const EXAMPLES_MIN: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_more_seldom_by_a_power() {
        let pages = Pages { batches: 64.0, half: 100.0, all: 150.0 };
        assert_eq!((pages.of(64.0), pages.of(32.0)), (150.0, 100.0));
        assert!((pages.of(128.0) - 225.0).abs() < 1e-9);
        // The data had no more batches.
        assert_eq!(Pages { half: 0.0, ..pages }.of(1000.0), 150.0);
    }
}
