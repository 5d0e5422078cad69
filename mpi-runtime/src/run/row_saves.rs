//! Saving the rows that come first, between two checkpoints.
//!
//! "CPR: understanding and improving failure tolerant training for deep learning recommendation
//! with partial recovery", arXiv 2011.02999: a share of the rows of the large tables, those that
//! were updated most or have changed most, is saved so much more often. Here a checkpoint that
//! everybody can go back to has all rows, since rows of different moments are good for those that
//! are lost alone; row saves stand between two of them, and are read over the older one.
//!
//! Invariants: main threads of all ranks order the same row saves at the same steps, one at a time
//! and none beside a checkpoint. Rows are chosen, copied and written by the checkpoint thread;
//! training goes on.

use std::time::Instant;

use super::Run;
use super::saves::manifest;
use super::session::Session;
use crate::checkpoint::{Checkpoint, Folders, Manifest};
use crate::comm::Comm;
use crate::config::{Config, Every, Priority};
use crate::error::Error;

impl Config {
    /// What lies between two row saves, of a run with `checkpoints` so often.
    #[must_use]
    pub fn rows_every(&self, checkpoints: Option<Every>) -> Option<Every> {
        let recovery = &self.recovery;
        let none = recovery.priority == Priority::None || recovery.inject.failures.is_some();
        checkpoints.filter(|_| !none).map(|every| every.share(recovery.priority_share))
    }
}

impl Run<'_> {
    /// Lets the rows be saved that come first, while training goes on. False where there is nothing
    /// that they could be read over. The save before must have ended.
    fn save_rows_behind(&mut self, folders: &Folders, manifest: Manifest) -> bool {
        let (layout, partitions) = (&self.plan.layout, &self.services.partitions);
        match (&mut self.saver, &layout.save_first) {
            (Some(saver), Some(rule)) => {
                saver.begin_rows(folders, manifest, (rule, layout), partitions)
            }
            _ => false,
        }
    }
}

impl Session<'_> {
    /// Saves the rows that come first.
    pub(super) fn save_rows(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        self.finish_save();
        let manifest = manifest(&self.run)?;
        if self.run.save_rows_behind(&self.folders, manifest) {
            self.begun = self.run.state.step;
        }
        self.rows_due.saved();
        self.expose(start);
        Ok(())
    }
}

/// `checkpoint` as lost rows are read from it: with its row saves up to step `last`. *Collective
/// over `control`.*
///
/// # Errors
/// When it can't be read again, on every rank.
pub(super) fn with_row_saves(
    control: &Comm,
    checkpoint: &Checkpoint,
    last: u64,
) -> Result<Checkpoint, Error> {
    let again = || checkpoint.again()?.with_row_saves(last);
    let opened = (control.rank() == 0).then(again).transpose();
    let opened = control.agree(opened.map_err(Error::from))?;
    Checkpoint::tell(control, opened)
}
