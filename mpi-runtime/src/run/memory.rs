//! What a rank's resident memory comes to at its greatest, before anything is allocated.
//!
//! Sizes of what a run allocates follow from the plan, and how many distinct rows a step touches
//! from the first batches (`first_batches.rs`). What the process itself takes (code, MPI, HDF5,
//! allocator) is a constant, measured of jobs without a model to speak of ([`ALONE`],
//! [`AMONG_OTHERS`]).
//!
//! Memory that is asked for and never touched is not resident and does not count here; how many
//! pages of others' rows a run touches at most follows from those of the first batches, too.

use core::fmt;

use serde::Serialize;
use umbra_core::sparse::heads_len;
use umbra_core::sync::{Part, Rounds, Sizes};
use umbra_datasets::WINDOW_ROWS_MAX;

use crate::error::Error;
use crate::launch::memory_limits::available;
use crate::rows::usage::UsageMemory;
use crate::run::first_batches::{PAGE, Pages};
use crate::run::plan::Plan;
use crate::trainer::buffers::StepBuffers;

/// Bytes of a rank's memory, by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankMemory {
    /// Records of its partitions, with their state, and counts of their updates.
    pub rows_bytes: u64,
    /// Its replica, the optimizer's state, and what its method keeps of them.
    pub dense_bytes: u64,
    /// What its workers compute in.
    pub worker_bytes: u64,
    /// Rows and gradients under way.
    pub under_way_bytes: u64,
    /// Examples that were read ahead.
    pub data_bytes: u64,
    /// Rows of other ranks on the node that its workers use in place, at most.
    pub shared_bytes: u64,
    /// Copies that are written while it trains.
    pub copy_bytes: u64,
    /// Scores of the largest evaluation, at most.
    pub evaluation_bytes: u64,
    /// The process itself.
    pub process_bytes: u64,
}

/// Resident memory of a process that trains next to nothing, alone: measured on Linux with Open MPI
/// 4.1 and HDF5 1.10, release build.
const ALONE: u64 = 33 << 20;

/// The same of several ranks, which also talk.
const AMONG_OTHERS: u64 = 36 << 20;

impl RankMemory {
    /// All of it.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.rows_bytes
            + self.dense_bytes
            + self.worker_bytes
            + self.under_way_bytes
            + self.data_bytes
            + self.shared_bytes
            + self.copy_bytes
            + self.evaluation_bytes
            + self.process_bytes
    }
}

impl fmt::Display for RankMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("rows", self.rows_bytes),
            ("dense", self.dense_bytes),
            ("workers", self.worker_bytes),
            ("under way", self.under_way_bytes),
            ("data", self.data_bytes),
            ("rows of others", self.shared_bytes),
            ("copies", self.copy_bytes),
            ("evaluation", self.evaluation_bytes),
            ("process", self.process_bytes),
        ];
        write!(f, "{:.1} MiB", mebibytes(self.total()))?;
        let mut separator = ": ";
        for (name, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{separator}{name} {:.1}", mebibytes(bytes))?;
            separator = ", ";
        }
        Ok(())
    }
}

impl Plan {
    /// What `rank` of `ranks` holds, where a step of a worker touches so many distinct rows
    /// (`touched`), so much is under way (`held`), steps touch such `pages`, and an evaluation
    /// takes `evaluation` bytes.
    #[must_use]
    pub(super) fn memory_of(
        &self,
        (rank, ranks): (usize, usize),
        (touched, held): (f64, f64),
        pages: Pages,
        evaluation: u64,
    ) -> RankMemory {
        let config = &self.job.config;
        let rows = self.embedding_bytes(rank) + self.usage_bytes(rank);
        let trains = self.roles.trainers.contains(rank);
        let own = if trains { self.own_dense_bytes(rank).unwrap_or(self.dense_bytes()) } else { 0 };
        let dense =
            own + self.served_bytes(rank) + self.coding_bytes(rank) + self.method_bytes(rank);
        let images = u64::from(config.recovery.inject.failures.is_some()) * rows;
        let copies = if self.saves_in_background() { rows + 2 * own } else { 0 };
        let row_bytes = 4.0 * self.layout.width as f64;
        let workers = if trains { self.workers_per_trainer() } else { 0 };
        let worker: u64 = (0..workers).map(|local| self.worker_bytes(local)).sum();
        let row_gradients = in_huge_pages(whole(touched * row_bytes), 4 * self.values_max());
        // Workers that share the tables have one lookup and a spare one.
        let held = if self.local { 2.0 * workers as f64 * touched * row_bytes } else { held };
        let process = if ranks == 1 { ALONE } else { AMONG_OTHERS };
        RankMemory {
            rows_bytes: rows,
            dense_bytes: dense,
            worker_bytes: worker + workers as u64 * row_gradients,
            under_way_bytes: whole(held) + workers as u64 * self.slots_bytes(),
            data_bytes: if trains { self.data_bytes(workers) } else { 0 },
            shared_bytes: if trains { self.shared_bytes(rank, pages) } else { 0 },
            copy_bytes: copies + images,
            evaluation_bytes: if trains { evaluation } else { 0 },
            process_bytes: process,
        }
    }

    /// Whether the rows of this rank's node, where it is known who is on it, and `ranks_on_node`
    /// replicas with what their workers compute in fit in the memory that the node, or the control
    /// group of this process, has left.
    ///
    /// # Errors
    /// When they do not; a node that does not tell its memory is believed to have enough.
    pub fn check_memory(&self, rank: usize, ranks_on_node: usize) -> Result<(), Error> {
        // A run that plays failures has an image of its rows.
        let images = 1 + u64::from(self.job.config.recovery.inject.failures.is_some());
        // Where tables are whole, one rank has more of them than another.
        let node = self.node_of.get(rank);
        let beside = (0..self.node_of.len()).filter(|other| self.node_of.get(*other) == node);
        let rows_of = |rank| self.embedding_bytes(rank) + self.usage_bytes(rank);
        let of_node: u64 = beside.map(rows_of).sum();
        let alone = ranks_on_node as u64 * rows_of(rank);
        let rows = images * if node.is_some() { of_node } else { alone };
        let dense = self.own_dense_bytes(rank)?;
        let dense =
            dense + self.served_bytes(rank) + self.coding_bytes(rank) + self.method_bytes(rank);
        let dense = ranks_on_node as u64 * dense;
        let trains = self.roles.trainers.contains(rank);
        let workers = if trains { self.workers_per_trainer() } else { 0 };
        let workers: u64 = (0..workers).map(|local| self.worker_bytes(local)).sum();
        let state = rows + dense + ranks_on_node as u64 * workers;
        // Trainers' own replicas are in a checkpoint beside the model.
        let copies = rows + 2 * dense;
        let copies = if self.saves_in_background() { copies } else { 0 };
        let Some(available) = available() else { return Ok(()) };
        let free = match available.of_group {
            Some(limit) => format!(
                "{:.1} GiB are left of the {:.1} GiB of this control group (a container's, or a \
                 batch job's: ask for more)",
                gibibytes(available.bytes),
                gibibytes(limit)
            ),
            None => format!("{:.1} GiB are free", gibibytes(available.bytes)),
        };
        let needed = format!(
            "{ranks_on_node} ranks of this node need {:.1} GiB for embedding rows, replicas and \
             workers",
            gibibytes(state)
        );
        if state > available.bytes {
            return Err(Error::Launch(format!(
                "{needed}, and {free}: use more nodes, a smaller model.embedding_dim or an \
                 optim.sparse.kind with less state"
            )));
        }
        if state + copies > available.bytes {
            return Err(Error::Launch(format!(
                "{needed} and {:.1} GiB for a copy while a checkpoint is written, and {free}: use \
                 more nodes, or let training wait for checkpoints (checkpoint.background = false)",
                gibibytes(copies)
            )));
        }
        Ok(())
    }

    /// What a trainer's worker `local` computes in, but for gradients of rows, of which only those
    /// that a batch touches are resident, and for a gradient of the replica where workers update
    /// that in place and a batch is one tile: the last tile's gradients go where they belong.
    #[must_use]
    pub(super) fn worker_bytes(&self, local: usize) -> u64 {
        let all = StepBuffers::bytes(&self.model, self.batch_max(local));
        let hands_on = self.synchronous() || self.job.method.is_served();
        let batch = self.order.batch_size;
        let adds_up = self.model.tile_len(batch, false) < batch;
        let untouched = if hands_on || adds_up { 0 } else { self.model.parameters_len() };
        all - 4 * untouched as u64
    }

    /// Most ids of a batch, times the width of a row.
    fn values_max(&self) -> u64 {
        (self.order.batch_size * self.rows_per_example() * self.layout.width) as u64
    }

    /// Where a worker notes which rows the ids of a batch are (`rows/lookup.rs`): of every lookup
    /// numbers of rows and places among them, the bags of strips, and a hash table.
    fn slots_bytes(&self) -> u64 {
        let batch = self.order.batch_size;
        let values = batch * self.rows_per_example();
        let cut =
            if self.layout.strips().is_empty() { 0 } else { values + batch * self.model.bags() };
        let lookups = if self.local { 2 } else { self.job.config.embedding.prefetch + 2 };
        4 * (lookups * (2 * values + cut) + heads_len(values)) as u64
    }

    /// What the instances of the method on `rank` are lent, and what a model that is published
    /// stands in beside the trainer's own replica.
    fn method_bytes(&self, rank: usize) -> u64 {
        let method = self.method();
        let (instances, elements) = (self.instances(), self.model.replica_len());
        let (own, replicas) = (self.roles.replica_of(rank), self.roles.replicas());
        let lent = |sizes: Sizes| sizes.staging + sizes.loaded + sizes.global + sizes.velocity;
        let of_instance = |number| match instances.part(number) {
            Part::Trainer { trainer, slice, .. } if own == Some(trainer) => {
                lent(method.sizes(method.slice(slice, elements).len(), replicas))
            }
            Part::Center { slice } if self.roles.sync_ps.rank_of(slice) == rank => {
                lent(method.center_sizes(method.slice(slice, elements).len()))
            }
            _ => 0,
        };
        let lent: usize = match method.rounds {
            // Parameter servers have their own sum.
            Rounds::Never | Rounds::EveryStep | Rounds::Handed => return 0,
            Rounds::Gated { .. } | Rounds::Background(_) => {
                (0..instances.len()).map(of_instance).sum()
            }
        };
        let published = if own.is_some() { 2 * elements } else { 0 };
        // Slices on their way to centers and back, and at centers those of every trainer.
        let under_way = if method.has_centers() {
            let slices = (0..method.slices())
                .filter(|slice| self.roles.sync_ps.rank_of(*slice) == rank)
                .map(|slice| method.slice(slice, elements).len());
            let trained = if own.is_some() { 2 * elements } else { 0 };
            trained + 2 * replicas * slices.sum::<usize>()
        } else {
            0
        };
        4 * (lent + published + under_way) as u64
    }

    /// Counts of updates that say which rows are saved first.
    #[must_use]
    pub(super) fn usage_bytes(&self, rank: usize) -> u64 {
        let partitions = self.roles.partitions_of(rank);
        partitions.map(|partition| UsageMemory::bytes_of(&self.layout, partition)).sum()
    }

    /// Examples that a trainer has read: two windows of each of its lanes with the order they are
    /// taken in, and the batches that wait for its `workers` and are with them.
    fn data_bytes(&self, workers: usize) -> u64 {
        let (data, config) = (&self.train, &self.job.config);
        let replicas = self.roles.replicas() as u64;
        let lanes = (config.data.lanes as u64).div_ceil(replicas).max(1);
        let own = data.rows().div_ceil(replicas);
        let of_lane = own.div_ceil(lanes);
        let windows = of_lane.div_ceil(WINDOW_ROWS_MAX) * u64::from(config.train.epochs);
        let read = lanes * of_lane.min(WINDOW_ROWS_MAX) * windows.min(2);
        let waiting = (workers * (config.data.prefetch_batches + 2) * self.order.batch_size) as u64;
        let kept = 4 * (1 + data.dense_features() + data.values_per_row_max()) as u64;
        let bags = data.values_per_row_max() > data.fields();
        let ends = if bags { size_of::<usize>() * data.fields() } else { 0 } as u64;
        // Numbers of rows in 4 bytes, and in a batch in 8; ends of bags in 4.
        let batch = kept + 8 + 4 * data.fields() as u64;
        (kept + ends + 4) * read + batch * waiting
    }

    /// Rows of others on this node that workers of `rank` touch in a run, and what is mapped with
    /// them, at most.
    fn shared_bytes(&self, rank: usize, pages: Pages) -> u64 {
        if !(self.uses_rows_in_place() && self.layout.lent) {
            return 0;
        }
        let node = self.node_of.get(rank).copied();
        let beside = |other: &usize| {
            *other != rank && node.is_some() && self.node_of.get(*other).copied() == node
        };
        let bytes_of = |ranks: &mut dyn Iterator<Item = usize>| -> u64 {
            ranks.map(|other| self.embedding_bytes(other)).sum()
        };
        let others = bytes_of(&mut (0..self.node_of.len()).filter(beside));
        let all = bytes_of(&mut (0..self.node_of.len())).max(1);
        let batches = self.steps as f64 * self.workers_per_trainer() as f64;
        let touched = pages.of(batches) * PAGE as f64 * others as f64 / all as f64;
        others.min(whole(touched))
    }
}

/// Resident bytes of memory for `reserved` of which the first `touched` are used, and which asks
/// for huge pages (`memory.rs`): the last of them is half empty, as its end lies anywhere.
const fn in_huge_pages(touched: u64, reserved: u64) -> u64 {
    const HUGE: u64 = 2 << 20;
    let resident = touched + HUGE / 2;
    if reserved < HUGE {
        touched
    } else if resident < reserved {
        resident
    } else {
        reserved
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes, not below 0")]
const fn whole(bytes: f64) -> u64 {
    bytes as u64
}

fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_and_add_up() {
        let memory =
            RankMemory { rows_bytes: 3 << 20, process_bytes: 33 << 20, ..RankMemory::default() };
        assert_eq!(memory.to_string(), "36.0 MiB: rows 3.0, process 33.0");
        assert_eq!(memory.total(), 36 << 20);
    }
}
