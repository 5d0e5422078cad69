//! Which partition holds what: `embedding.placement`.
//!
//! Where those who hold rows pool, a bag whose values are dealt to all ranks comes back as a vector
//! from each of them; if its table is whole on one, as a single one. So whole tables save bytes
//! where bags have several values, the more the more ranks there are, and cost evenness: a
//! partition has whole tables or none.
//!
//! Tables are placed by the greedy rule for makespans, the heaviest first, each where least is (R.
//! L. Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969). Its
//! weight is the greater of its shares of all records and of all rows that a step touches, which
//! the first batches say (`first_batches.rs`).
//!
//! Invariant: all ranks have the placement of the first.

use core::fmt;

use serde::Serialize;

use crate::comm::Comm;
use crate::config::{Placement, PoolAt};
use crate::error::Error;
use crate::run::first_batches::FirstBatches;
use crate::run::plan::Plan;

/// Where tables are, and what was expected of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// The partition of every table; none where rows are dealt. `[fields]`
    pub owners: Vec<u32>,
    /// Records of the partition that has most, over the mean's.
    pub records_max: f64,
    /// Rows that a step touches in the partition with most of them, over the mean's.
    pub touched_max: f64,
    /// Where it was chosen: bytes that all ranks send each other for rows in a step, dealt and
    /// whole.
    pub bytes: Option<[f64; 2]>,
}

/// The most that the heaviest partition may have over the mean where it is chosen: what waits for
/// it waits as much longer.
const UNEVEN_MAX: f64 = 1.25;

/// Whole tables in so many partitions, by what each has of all records and of the rows of a step.
/// `records: [fields]`, `touched: [fields]`
fn place(records: &[f64], touched: &[f64], partitions: u32) -> Placed {
    let share = |of: &[f64]| -> Vec<f64> {
        let all: f64 = of.iter().sum();
        of.iter().map(|part| part / all.max(f64::MIN_POSITIVE)).collect()
    };
    let (records, touched) = (share(records), share(touched));
    let weight = |table: usize| records[table].max(touched[table]);
    let mut order: Vec<usize> = (0..records.len()).collect();
    order.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)));
    let mut held = vec![[0.0; 2]; partitions as usize];
    let mut owners = vec![0; records.len()];
    for table in order {
        let own = [records[table], touched[table]];
        let with = |held: &[f64; 2]| (held[0] + own[0]).max(held[1] + own[1]);
        let least = (0u32..).zip(&held).min_by(|a, b| with(a.1).total_cmp(&with(b.1)));
        let owner = least.map_or(0, |(partition, _)| partition);
        owners[table] = owner;
        held[owner as usize].iter_mut().zip(own).for_each(|(held, own)| *held += own);
    }
    let most = |which: usize| {
        held.iter().map(|held| held[which]).fold(0.0, f64::max) * f64::from(partitions)
    };
    Placed { owners, records_max: most(0), touched_max: most(1), bytes: None }
}

impl Placed {
    /// What it came to.
    #[must_use]
    pub const fn chosen(&self) -> Placement {
        if self.owners.is_empty() { Placement::Rows } else { Placement::Tables }
    }

    /// Whole tables are fewer bytes, and even enough.
    fn pays(&self) -> bool {
        self.bytes.is_some_and(|[dealt, whole]| whole < dealt)
            && self.records_max.max(self.touched_max) <= UNEVEN_MAX
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records_max, touched_max, bytes, .. } = self;
        if let Some([dealt, whole]) = bytes {
            write!(
                f,
                "all ranks send {:.1} KiB a step where rows are dealt, {:.1} KiB where tables are \
                 whole, expected: ",
                dealt / 1024.0,
                whole / 1024.0
            )?;
        }
        let name = if self.chosen() == Placement::Rows { "rows" } else { "tables" };
        write!(
            f,
            "it is \"{name}\"; of whole tables the fullest partition has {records_max:.2} times \
             the mean, the busiest {touched_max:.2} times"
        )
    }
}

impl Plan {
    /// Places tables, if that is wanted, for a run on `ranks` ranks. The first rank reads the first
    /// batches of the training data. *Collective over `control`, main thread only.*
    ///
    /// # Errors
    /// When the data can't be read, row numbers do not suffice or not all ranks come, on every
    /// rank.
    pub fn place_tables(&mut self, control: &Comm, ranks: usize) -> Result<(), Error> {
        let wanted = self.job.config.embedding.placement;
        if wanted == Placement::Rows || ranks == 1 {
            return Ok(());
        }
        let first = control.rank() == 0;
        let placed = first.then(|| self.placement(control, ranks, wanted)).transpose();
        let placed = control.agree(placed)?;
        let owners = placed.as_ref().map_or(&[][..], |placed| &placed.owners);
        let owners = control.all_gather_varied(owners, "where tables are")?.swap_remove(0);
        self.placed = placed;
        if owners.is_empty() {
            return Ok(());
        }
        let layout = self.layout.placed(&owners);
        self.layout = control.agree(layout.map_err(|error| Error::Data(error.to_string())))?;
        Ok(())
    }

    /// *Not collective.*
    fn placement(
        &mut self,
        control: &Comm,
        ranks: usize,
        wanted: Placement,
    ) -> Result<Placed, Error> {
        let counted = FirstBatches::count(self, None, control.watch())?;
        let own = self.layout.own_rows();
        let records: Vec<f64> = own.iter().map(|rows| *rows as f64).collect();
        let mut placed = place(&records, &counted.tables, self.roles.partitions);
        if wanted == Placement::Tables {
            return Ok(placed);
        }
        let whole = self.layout.placed(&placed.owners);
        let Ok(whole) = whole else { return Ok(Placed { owners: vec![], ..placed }) };
        let dealt = self.expected_bytes(control, ranks)?;
        let before = core::mem::replace(&mut self.layout, whole);
        let whole = self.expected_bytes(control, ranks);
        self.layout = before;
        placed.bytes = Some([dealt, whole?]);
        let pays = placed.pays();
        Ok(if pays { placed } else { Placed { owners: vec![], ..placed } })
    }

    /// Bytes of a step, whoever pools. *Not collective.*
    fn expected_bytes(&self, control: &Comm, ranks: usize) -> Result<f64, Error> {
        let [rows, vectors] = self.bytes_of_pooling(ranks, control.watch())?;
        let config = &self.job.config;
        Ok(if config.pooled().is_some() {
            vectors
        } else if config.embedding.pool_at == PoolAt::Auto {
            rows.min(vectors)
        } else {
            rows
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_go_first_and_each_where_least_is() {
        let placed = place(&[1.0, 5.0, 4.0, 3.0, 2.0, 1.0], &[1.0; 6], 2);
        // By records 5 | 4, 3 | 4 and then by what is touched: three on each side.
        assert_eq!(placed.owners.iter().filter(|owner| **owner == 0).count(), 3);
        assert!((placed.records_max - 1.0).abs() < 0.01, "{placed:?}");
        assert!((placed.touched_max - 1.0).abs() < 1e-9, "{placed:?}");
        // Nothing to place, and more partitions than tables.
        assert_eq!(place(&[], &[], 4).owners, [0u32; 0]);
        let few = place(&[3.0, 3.0], &[1.0, 1.0], 4);
        assert_ne!(few.owners[0], few.owners[1]);
        assert!((few.records_max - 2.0).abs() < 1e-9, "{few:?}");
    }

    #[test]
    fn whole_tables_are_chosen_where_they_are_fewer_bytes_and_even() {
        let placed = |bytes, records_max| Placed {
            owners: vec![0],
            records_max,
            touched_max: 1.0,
            bytes: Some(bytes),
        };
        assert!(placed([2.0, 1.0], 1.2).pays());
        assert!(!placed([2.0, 1.0], 1.3).pays());
        assert!(!placed([1.0, 1.0], 1.0).pays());
        let told = Placed { owners: vec![], ..placed([2048.0, 1024.0], 1.5) }.to_string();
        assert!(told.contains("2.0 KiB") && told.contains("it is \"rows\""), "{told}");
    }
}
