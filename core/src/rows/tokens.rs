//! A partition under tokens: the pushes of a global batch are applied together.
//!
//! arXiv 2205.11048; which pushes belong together the coordinator says (`sync/token/`), and that
//! alone decides, so all partitions apply the same. A push is of one batch: the rows of one
//! worker's step that are in this partition.
//!
//! Invariants: the update of an aggregate depends on its members, their order and weights. A call
//! that is refused changes nothing.

use core::fmt;

use super::intake::Push;
use super::row_sums::{Defect, Entry, RowSums, sums_len};
use crate::sync::Divisor;
use crate::sync::token::{Aggregate, Arrivals, Came, Member, Misplaced, Place};

/// What the gradient of a row is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowDivisor {
    /// The same for all rows, as for dense parameters: the mean over the global batch.
    Global(Divisor),
    /// The number of members that have the row, without those that are dropped: the paper's, as
    /// implemented here. A rare row then moves as far in a large global batch as in a small one.
    OwnCount,
}

/// The pushes of a partition.
#[derive(Debug)]
pub struct Tokens<'a, P> {
    arrivals: Arrivals<'a, P>,
    divisor: RowDivisor,
    /// Weight and push of the members of the aggregate in hand: the first `count`.
    members: &'a mut [Option<(f32, P)>],
    count: usize,
    /// The aggregate in hand.
    version: u64,
}

/// A call that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refused {
    /// A push or a member is not where it should be.
    Misplaced(Misplaced),
    /// A member or the end of another aggregate than that in hand.
    Version {
        /// Its number.
        got: u64,
        /// That in hand.
        open: u64,
    },
    /// More members than an aggregate has.
    Full {
        /// How many it has.
        members: usize,
    },
    /// Two gradients of one push for one row.
    RowTwice {
        /// The row.
        row: u32,
    },
    /// Scratch that is too short.
    Scratch {
        /// Elements lent.
        got: usize,
        /// Elements needed.
        needed: usize,
    },
}

impl From<Misplaced> for Refused {
    fn from(misplaced: Misplaced) -> Self {
        Self::Misplaced(misplaced)
    }
}

impl From<Defect> for Refused {
    fn from(defect: Defect) -> Self {
        match defect {
            Defect::Scratch { got, needed } => Self::Scratch { got, needed },
            Defect::RowTwice { row, .. } => Self::RowTwice { row },
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misplaced(misplaced) => misplaced.fmt(f),
            Self::Version { got, open } => {
                write!(f, "a part of aggregate {got}, and {open} is in hand")
            }
            Self::Full { members } => write!(f, "more members than {members} in an aggregate"),
            Self::RowTwice { row } => write!(f, "two gradients for row {row} in one push"),
            Self::Scratch { got, needed } => write!(f, "scratch of {got}, {needed} are needed"),
        }
    }
}

impl core::error::Error for Refused {}

impl<'a, P: Push> Tokens<'a, P> {
    /// From the rows of `version` on, with as many `places` as the coordinator has, for aggregates
    /// of up to as many members as `members` has.
    #[must_use]
    pub fn new(
        places: &'a mut [Place<P>],
        members: &'a mut [Option<(f32, P)>],
        divisor: RowDivisor,
        version: u64,
    ) -> Self {
        members.iter_mut().for_each(|member| *member = None);
        Self { arrivals: Arrivals::new(places), divisor, members, count: 0, version }
    }

    /// Aggregates that are applied.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Goes on with the rows of `version`, which somebody has read.
    ///
    /// # Errors
    /// When an aggregate is in hand.
    pub fn begin(&mut self, version: u64) -> Result<(), Refused> {
        if self.count > 0 {
            return Err(Refused::Version { got: version, open: self.version });
        }
        self.version = version;
        Ok(())
    }

    /// Whether a lookup of rows of `version` or later is answered now; else it waits for the
    /// aggregate in hand, whose members are all here.
    #[must_use]
    pub const fn serves(&self, version: u64) -> bool {
        version <= self.version
    }

    /// The push of `batch`.
    ///
    /// # Errors
    /// When there is no such place.
    pub fn push(&mut self, place: usize, batch: u64, push: P) -> Result<Came<P>, Refused> {
        Ok(self.arrivals.push(place, batch, push)?)
    }

    /// The push that waits at a place.
    #[must_use]
    pub fn waiting(&self, place: usize) -> Option<&P> {
        self.arrivals.waiting(place)
    }

    /// The coordinator has counted a push; one that is dropped comes back.
    ///
    /// # Errors
    /// When its push is not here, or it belongs to another aggregate.
    pub fn count(&mut self, member: &Member) -> Result<Option<P>, Refused> {
        let (got, open, count) = (member.version, self.version, self.count);
        if got != open {
            return Err(Refused::Version { got, open });
        }
        if member.weight > 0.0 && count == self.members.len() {
            return Err(Refused::Full { members: count });
        }
        let push = self.arrivals.take(member.place, member.batch)?;
        if member.weight == 0.0 {
            return Ok(Some(push));
        }
        self.members[count] = Some((member.weight, push));
        self.count += 1;
        Ok(None)
    }

    /// Elements of `entries` that [`Self::sum`] needs now.
    #[must_use]
    pub fn entries_len(&self) -> usize {
        let pushes = self.members.iter().flatten();
        pushes.flat_map(|(_, push)| push.parts()).map(|part| part.rows.len()).sum()
    }

    /// Elements of `sums` that [`Self::sum`] needs.
    #[must_use]
    pub const fn sums_len(&self, width: usize) -> usize {
        sums_len(self.terms(), width)
    }

    /// Places in the tree of a sum.
    #[expect(clippy::cast_possible_truncation, reason = "an aggregate counts its members in u32")]
    const fn terms(&self) -> u32 {
        self.members.len() as u32
    }

    /// Hands every row of `aggregate`, in ascending order, with its mean gradient to `apply`.
    /// `entries: [entries_len]` or more and `sums: [sums_len(width)]` are scratch.
    ///
    /// # Errors
    /// When it is not the aggregate in hand, or a push contradicts itself; rows before the
    /// contradiction have then been applied.
    pub fn sum(
        &self,
        aggregate: &Aggregate,
        width: usize,
        entries: &mut [Entry],
        sums: &mut [f32],
        mut apply: impl FnMut(u32, &[f32]),
    ) -> Result<(), Refused> {
        let (got, open) = (aggregate.number, self.version);
        if got != open {
            return Err(Refused::Version { got, open });
        }
        let scratch = (entries, sums);
        let mut rows = RowSums::new(scratch, self.entries_len(), self.terms(), width)?;
        for (term, (_, push)) in (0..).zip(self.members.iter().flatten()) {
            push.parts().for_each(|part| rows.list(term, term, part.rows, part.at));
        }
        let leaf = |member: u32, at, out: &mut [f32]| {
            if let Some((weight, push)) = &self.members[member as usize] {
                let gradient = push.gradient(at, width);
                out.iter_mut().zip(gradient).for_each(|(out, x)| *out = weight * x);
            }
        };
        Ok(rows.each(leaf, |row, members, sum| {
            let factor = match self.divisor {
                RowDivisor::Global(divisor) => divisor.factor(aggregate.members, aggregate.weight),
                RowDivisor::OwnCount => 1.0 / members as f32,
            };
            sum.iter_mut().for_each(|x| *x *= factor);
            apply(row, sum);
        })?)
    }

    /// Ends the aggregate in hand, whose rows are applied, and hands every push back.
    pub fn advance(&mut self, used: impl FnMut(P)) {
        let members = self.members[..self.count].iter_mut().filter_map(Option::take);
        members.map(|(_, push)| push).for_each(used);
        self.count = 0;
        self.version += 1;
    }
}
