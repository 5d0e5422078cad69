//! Runs side by side: what `umbra report` reads of their folders, and the page it writes.
//!
//! Map: `find.rs` which folders are runs, and their names · `run.rs` the records of one, from
//! `points.rs` (metrics.jsonl) and `activity.rs` (trace.json) · `differing.rs` what of the
//! configurations is not the same · `page.rs` all of it as one HTML file, from the templates in
//! `page/` and the charts in `vendor/`.
//!
//! Invariants: a run of any version is read, with whatever fields it has; what is damaged or cut
//! short is a note of its run, never an error; nothing is written to a run folder.

mod activity;
mod differing;
mod find;
mod page;
mod points;
mod run;

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

pub use activity::{Activity, Kind, Thread};
pub use differing::Differing;
pub use points::Points;
pub use run::Run;

use crate::error::Error;

/// Runs side by side.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The program that has read them.
    program: &'static str,
    /// When it did, seconds since 1970.
    written: u64,
    /// The runs, in the order they were named; of one folder by name.
    pub runs: Vec<Run>,
    /// What is not the same in all of them.
    pub differing: Vec<Differing>,
}

impl Report {
    /// Reads the runs in `paths`: run folders, and folders that hold some.
    ///
    /// # Errors
    /// A path in which there is no run ([`Error::Usage`]).
    pub fn read(paths: &[PathBuf], program: &'static str) -> Result<Self, Error> {
        let folders = find::run_folders(paths)?;
        let count = folders.len();
        let read = |found: find::Found| Run::read(found.name, &found.path, count);
        let runs: Vec<Run> = folders.into_iter().map(read).collect();
        let differing = differing::between(&runs);
        let written = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        Ok(Self { program, written, runs, differing })
    }

    /// The page. `table` is what it shows where scripts are not run.
    ///
    /// # Errors
    /// Records that cannot be written as JSON.
    pub fn page(&self, table: &str) -> Result<String, Error> {
        page::html(self, table)
    }
}
