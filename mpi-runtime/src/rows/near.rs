//! Rows of this rank and of others on its node: workers read and update them in place, without a
//! message and without a thread, as the workers of one rank alone do.
//!
//! That is for methods whose pushes are applied as they come: nobody keeps step by them, and what
//! two make of a row at the same moment may be one update instead of two, as it may between workers
//! of a rank. Ranks on one node are those on the same system, under one name, that see each other's
//! processes; whether the memory of one can be seen from another is tried, and where it can't,
//! messages go as they go to other nodes: it is no error.
//!
//! Invariant: of a rank all partitions are near, or none.

use core::fmt::Write as _;
use std::collections::BTreeMap;

use crate::comm::Comm;
use crate::comm::watch::Lost;
use crate::memory::Whereabouts;
use crate::rows::lookup::Lookup;
use crate::rows::tables::{Partition, TableLayout};

/// How far workers reach for rows themselves.
#[derive(Clone, Copy)]
pub enum Reach<'a> {
    /// Nowhere: the partitions' threads do it.
    Nowhere,
    /// To those of their own rank.
    Rank,
    /// To those of all ranks on their node, which meet over this, and what the node is called.
    Node(&'a Comm, &'a str),
}

/// The partitions near a rank.
#[derive(Clone, Debug, Default)]
pub struct Near {
    /// By their numbers.
    partitions: BTreeMap<u32, Partition>,
}

impl Near {
    /// Finds the partitions within reach of a rank with these of its `own`, in a run of this
    /// `seed`. To the node: tells all ranks where they are. *Collective over its communicator, main
    /// thread only.*
    ///
    /// # Errors
    /// When not all ranks come.
    pub fn find(
        reach: Reach<'_>,
        (layout, seed): (&TableLayout, u64),
        own: &[Partition],
    ) -> Result<Self, Lost> {
        let (control, host) = match reach {
            Reach::Nowhere => return Ok(Self::default()),
            Reach::Rank => return Ok(Self::of(own)),
            Reach::Node(control, host) => (control, host),
        };
        let system = system(host);
        let said = say(&system, own);
        let all = control.all_gather_varied(said.as_bytes(), "ranks of this node")?;
        let mut near = Self::of(own);
        for (rank, said) in all.iter().enumerate() {
            let Some(found) = hear(&system, said).filter(|_| rank != control.rank()) else {
                continue;
            };
            let borrow = |(number, from): (u32, Whereabouts)| {
                let found = Partition::borrowed(number, layout, seed, &from).ok()?;
                Some((number, found))
            };
            let borrowed: Option<Vec<_>> = found.into_iter().map(borrow).collect();
            near.partitions.extend(borrowed.into_iter().flatten());
        }
        Ok(near)
    }

    fn of(own: &[Partition]) -> Self {
        let own = own.iter().map(|partition| (partition.number, partition.clone()));
        Self { partitions: own.collect() }
    }

    /// Whether a partition is near.
    #[must_use]
    pub fn has(&self, partition: u32) -> bool {
        self.partitions.contains_key(&partition)
    }

    /// Copies what of a lookup's rows is near into its place.
    pub(super) fn read(&self, lookup: &mut Lookup, layout: &TableLayout) {
        for (number, partition) in &self.partitions {
            let (places, unique, rows) = lookup.split(*number);
            partition.table().read_to(placed(places, unique, layout), rows);
        }
    }

    /// Updates what of a lookup's rows is near, for `worker`. `gradients: [rows, width]`
    pub(super) fn update(
        &self,
        lookup: &Lookup,
        layout: &TableLayout,
        (worker, rate): (u32, f32),
        gradients: &[f32],
    ) {
        for (number, partition) in &self.partitions {
            let rows = placed(lookup.places(*number), &lookup.unique, layout);
            let table = partition.table().at(lookup.clock, worker);
            table.update_from(&layout.optimizer, rate, rows, gradients);
        }
    }
}

/// Index in their partition and place in the lookup.
fn placed<'a>(
    places: &'a [u32],
    unique: &'a [u32],
    layout: &TableLayout,
) -> impl Iterator<Item = (usize, usize)> + Clone + use<'a> {
    let partitioning = layout.partitioning;
    places.iter().map(move |place| {
        let place = *place as usize;
        (partitioning.index(unique[place]) as usize, place)
    })
}

/// What ranks that see each other's processes have alike: a start of a system, a name on it, and a
/// view of processes.
fn system(host: &str) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{host} {} {}", boot.trim_end(), processes.display())
}

/// Line by line: the system, and every partition that can be seen.
fn say(system: &str, own: &[Partition]) -> String {
    let mut said = system.to_owned();
    let lent: Option<Vec<_>> =
        own.iter().map(|partition| Some((partition.number, partition.whereabouts()?))).collect();
    for (number, from) in lent.into_iter().flatten() {
        let Whereabouts { process, descriptor, device, inode } = from;
        // Writing to a string does not fail.
        let _ = write!(said, "\n{number} {process} {descriptor} {device} {inode}");
    }
    said
}

/// What another rank of the same system said.
fn hear(system: &str, said: &[u8]) -> Option<Vec<(u32, Whereabouts)>> {
    let (its, rest) = str::from_utf8(said).ok()?.split_once('\n')?;
    if its != system {
        return None;
    }
    let partition = |line: &str| {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let mut narrow = || u32::try_from(next()?).ok();
        let (number, process, descriptor) = (narrow()?, narrow()?, narrow()?);
        let (device, inode) = (next()?, next()?);
        Some((number, Whereabouts { process, descriptor, device, inode }))
    };
    rest.lines().map(partition).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use umbra_core::model::{Cross, Model, ModelConfig, ModelKind, Pooling};
    use umbra_core::optim::{Optimizer, OptimizerKind, SparseOptimizer};

    use super::*;

    fn partitions(lent: bool) -> (TableLayout, Vec<Partition>) {
        let sgd = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
        let optimizer = SparseOptimizer::Elementwise(sgd);
        let mut layout = TableLayout::new(&[20], 3, 5, optimizer).unwrap();
        layout.lent = lent;
        let model = Model::new(&ModelConfig {
            kind: ModelKind::Fm,
            dense_features: 0,
            fields: 1,
            embedding_dim: 4,
            pooling: Pooling::Sum,
            bottom: &[],
            top: &[],
            batch_norm: false,
            batch_norm_momentum: 0.1,
            dropout: 0.0,
            cross: Cross::NONE,
        });
        let model = model.unwrap();
        let own = [0, 2].map(|number| Partition::initialized(number, &layout, &model, 1).unwrap());
        (layout, own.into())
    }

    #[test]
    fn what_is_said_is_heard_on_the_same_system_alone() {
        let (layout, own) = partitions(true);
        let said = say("here", &own);
        let heard = hear("here", said.as_bytes()).unwrap();
        let lent = own.iter().map(|it| (it.number, it.whereabouts().unwrap()));
        assert_eq!(heard, lent.collect::<Vec<_>>());
        assert_eq!(hear("there", said.as_bytes()), None);
        let cut = said.rsplit_once(' ').unwrap().0;
        assert_eq!(hear("here", cut.as_bytes()), None);
        let found = Partition::borrowed(heard[1].0, &layout, 1, &heard[1].1).unwrap();
        let bits = |partition: &Partition| {
            let words = partition.words().iter();
            words.map(|word| word.load(core::sync::atomic::Ordering::Relaxed)).collect::<Vec<_>>()
        };
        assert_eq!(bits(&found), bits(&own[1]));
    }

    #[test]
    fn memory_that_nobody_else_sees_is_not_told_of() {
        let (_, own) = partitions(false);
        assert_eq!(say("here", &own), "here");
        let lent: Vec<Partition> = own.iter().cloned().map(Partition::to_lend).collect();
        assert_eq!(hear("here", say("here", &lent).as_bytes()).unwrap().len(), 2);
        for (own, lent) in own.iter().zip(&lent) {
            let same = own.words().iter().zip(lent.words());
            let relaxed = core::sync::atomic::Ordering::Relaxed;
            assert!(same.clone().all(|(a, b)| a.load(relaxed) == b.load(relaxed)));
        }
    }
}
