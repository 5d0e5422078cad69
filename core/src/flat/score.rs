//! Logits of a batch, from bytes.
//!
//! The replica is copied once into lent memory, since kernels read numbers on boundaries; rows are
//! copied as a batch asks for them. What scores is [`Model::forward`], so bits are the runtime's on
//! the same instruction set.

use core::fmt;
use core::sync::atomic::AtomicU32;

use super::Flat;
use crate::batch::Batch;
use crate::kernel::shared;
use crate::model::{Input, Model, Workspace};

/// Memory lent to a [`Scorer`]. Its contents do not matter.
#[derive(Debug)]
pub struct Memory<'a> {
    /// `[Flat::single_len]` or more.
    pub single: &'a mut [f32],
    /// `[Model::workspace_f64_len]` or more.
    pub double: &'a mut [f64],
    /// As long as the most ids of a batch.
    pub slot: &'a mut [u32],
}

/// Why a batch is not scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreError {
    /// A part of the batch, or of what is lent for it, has another length.
    Length {
        /// Which.
        what: &'static str,
        /// Elements of a batch of so many examples; of lent memory at least.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// A bag ends before it begins, or behind the last id.
    Bag {
        /// Its number, from 0.
        bag: usize,
    },
    /// An id that the table does not have.
    Id {
        /// Example, from 0.
        example: usize,
        /// Field, from 0.
        field: usize,
        /// Rows of the field's table: ids are below.
        expected: u64,
        /// The id.
        got: u32,
    },
}

impl fmt::Display for ScoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Length { what, expected, got } => {
                write!(f, "{what}: expected {expected}, got {got}")
            }
            Self::Bag { bag } => write!(f, "the ids of bag {bag} are not among those given"),
            Self::Id { example, field, expected, got } => write!(
                f,
                "example {example}, field {field}: expected ids below {expected}, got {got}"
            ),
        }
    }
}

impl core::error::Error for ScoreError {}

/// A model that scores.
#[derive(Debug)]
pub struct Scorer<'a, 'm> {
    flat: Flat<'a>,
    replica: &'m [AtomicU32],
    /// Rows of a batch, then workspace.
    single: &'m mut [f32],
    double: &'m mut [f64],
    /// The number of every place: ids of a batch have a row each.
    slot: &'m mut [u32],
}

impl<'a> Flat<'a> {
    /// f32s of memory for batches of up to `batch_max` examples and `ids_max` ids.
    #[must_use]
    pub fn single_len(&self, batch_max: usize, ids_max: usize) -> usize {
        let model = self.model();
        model.replica_len() + ids_max * model.row_width() + scratch_len(model, batch_max)
    }

    /// A scorer in lent memory.
    ///
    /// # Errors
    /// When it is too short for any batch.
    pub fn scorer<'m>(&self, memory: Memory<'m>) -> Result<Scorer<'a, 'm>, ScoreError> {
        let Memory { single, double, slot } = memory;
        at_least("f64s of memory", self.model().workspace_f64_len(), double.len())?;
        at_least("f32s of memory", self.model().replica_len(), single.len())?;
        let (replica, single) = single.split_at_mut(self.model().replica_len());
        replica.iter_mut().zip(self.replica()).for_each(|(to, value)| *to = value);
        slot.iter_mut().zip(0..).for_each(|(slot, place)| *slot = place);
        Ok(Scorer { flat: *self, replica: shared(replica), single, double, slot })
    }
}

impl Scorer<'_, '_> {
    /// Writes the logit of every example: `logits: [n]`. Labels and their weights do not matter.
    ///
    /// # Errors
    /// When the batch does not fit the model, or memory the batch.
    pub fn score(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<(), ScoreError> {
        let (n, model) = (batch.len(), self.flat.model());
        exactly("logits", n, logits.len())?;
        exactly("dense features", n.saturating_mul(model.dense_features()), batch.dense.len())?;
        let offsets = n.saturating_mul(model.fields()).saturating_add(1);
        exactly("offsets of bags", offsets, batch.bags.offsets.len())?;
        exactly("row numbers", n, batch.row.len())?;
        if !batch.weight.is_empty() {
            exactly("weights", n, batch.weight.len())?;
        }
        let (ids, width) = (batch.bags.values.len(), model.row_width());
        if !batch.bags.weights.is_empty() {
            exactly("weights of ids", ids, batch.bags.weights.len())?;
        }
        at_least("slots of memory", ids, self.slot.len())?;
        let row_values = ids.saturating_mul(width);
        let needed = row_values.saturating_add(scratch_len(model, n));
        at_least("f32s of memory behind the replica", needed, self.single.len())?;
        let (rows, scratch) = self.single.split_at_mut(row_values);
        gather(&self.flat, batch, rows)?;
        let input =
            Input { batch: *batch, rows, slot: &self.slot[..ids], strips: &[], named_once: false };
        let workspace = &mut Workspace { single: scratch, double: &mut *self.double };
        model.forward(self.replica, &input, workspace, logits);
        Ok(())
    }
}

/// Copies the row of every id to the id's own place in `rows` `[ids, row_width]`.
fn gather(flat: &Flat<'_>, batch: &Batch<'_>, rows: &mut [f32]) -> Result<(), ScoreError> {
    let (fields, width) = (flat.model().fields(), flat.model().row_width());
    // Bags are example by example, and the tables begin anew with each.
    let tables = flat.cardinality().scan(0, |next, rows| {
        let first: u64 = *next;
        *next += rows;
        Some((first, rows))
    });
    for ((bag, ends), (first, cardinality)) in
        batch.bags.offsets.windows(2).enumerate().zip(tables.cycle())
    {
        let places = ends[0] as usize..ends[1] as usize;
        let Some(ids) = batch.bags.values.get(places.clone()) else {
            return Err(ScoreError::Bag { bag });
        };
        for (id, place) in ids.iter().zip(places) {
            let row = Some(first + u64::from(*id)).filter(|_| u64::from(*id) < cardinality);
            let row = row.and_then(|row| flat.row(u32::try_from(row).ok()?));
            let Some(row) = row else {
                let (example, field) = (bag / fields, bag % fields);
                return Err(ScoreError::Id { example, field, expected: cardinality, got: *id });
            };
            let to = &mut rows[place * width..][..width];
            to.iter_mut().zip(row).for_each(|(to, value)| *to = value);
        }
    }
    Ok(())
}

/// f32s of workspace: an evaluation goes tile by tile.
fn scratch_len(model: &Model, batch_max: usize) -> usize {
    model.workspace_len(model.tile_len(batch_max, true), 0)
}

const fn exactly(what: &'static str, expected: usize, got: usize) -> Result<(), ScoreError> {
    if got == expected { Ok(()) } else { Err(ScoreError::Length { what, expected, got }) }
}

const fn at_least(what: &'static str, expected: usize, got: usize) -> Result<(), ScoreError> {
    if got >= expected { Ok(()) } else { Err(ScoreError::Length { what, expected, got }) }
}
