//! The summary of a run that came to no orderly end, written by whoever notices: a rank that ends
//! the job, or who supervises it.
//!
//! Invariants: an orderly summary stays as it is. The first reason stays, unless it is a request to
//! stop, which only says what may have led to the end. Best effort, at a moment when everything may
//! be broken: what can't be written is not, and nobody is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::summary::{NAME, Status, Summary};
use super::write_by_way_of;

/// The run in `folder` has ended for that reason, if it says that it runs.
pub fn fail(folder: &Path, reason: &str) {
    amend(folder, reason, |summary| {
        let asked = || summary.reason.as_ref().is_some_and(|why| why.starts_with(TOLD_TO_STOP));
        summary.status == Status::Running || summary.status == Status::Failed && asked()
    });
}

/// The run in `folder` was told to stop by `signal`, and has not stopped yet. Who told it may not
/// wait: `mpirun` kills a job a second after SIGTERM.
pub fn told_to_stop(folder: &Path, signal: i32) {
    let reason = if signal == libc::SIGALRM {
        format!("{TOLD_TO_STOP} before its time was over, and ended before it could save")
    } else {
        format!("{TOLD_TO_STOP} by signal {signal}, and ended before it could save")
    };
    amend(folder, &reason, |summary| summary.status == Status::Running);
}

fn amend(folder: &Path, reason: &str, open: impl Fn(&Summary) -> bool) {
    let path = folder.join(NAME);
    let summary: Option<Summary> =
        fs::read(&path).ok().and_then(|json| serde_json::from_slice(&json).ok());
    let Some(summary) = summary.filter(open) else { return };
    let failed = Summary { status: Status::Failed, reason: Some(reason.to_owned()), ..summary };
    if let Ok(json) = failed.to_json() {
        // Several ranks may write at a time.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let temporary = format!("{TEMPORARY}{}-{now}.tmp", std::process::id());
        let _ = write_by_way_of(&path, &path.with_file_name(temporary), json.as_bytes());
    }
}

/// Whether the run in `folder` has come to its end.
#[must_use]
pub fn is_done(folder: &Path) -> bool {
    let json = fs::read(folder.join(NAME)).unwrap_or_default();
    serde_json::from_slice(&json).is_ok_and(|summary: Summary| summary.status == Status::Done)
}

/// Whether the run in `folder` has come to an end in order: it is done, or has stopped.
#[must_use]
pub fn has_ended(folder: &Path) -> bool {
    let json = fs::read(folder.join(NAME)).unwrap_or_default();
    let ended = |it: Summary| matches!(it.status, Status::Done | Status::Stopped);
    serde_json::from_slice(&json).is_ok_and(ended)
}

/// Writes the path of the run folder to the file that `umbra launch` has named, if it did.
pub(super) fn tell_supervisor(folder: &Path) {
    if let (Some(note), Ok(folder)) = (std::env::var_os(NOTE), folder.canonicalize()) {
        let _ = fs::write(PathBuf::from(note), folder.as_os_str().as_encoded_bytes());
    }
}

/// The environment variable with the path of a file that the first rank writes its run folder's
/// path to.
pub const NOTE: &str = "UMBRA_LAUNCH_NOTE";

/// Begins the reason of a run that was told to stop.
const TOLD_TO_STOP: &str = "told to stop";

/// Begins the names of files that were not finished.
pub(super) const TEMPORARY: &str = ".summary.json.";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::record::LEAST;

    fn written(folder: &Path, status: Status) -> Summary {
        let job = Config::load(None, &LEAST.map(String::from)).unwrap().resolve(1, 1, 1).unwrap();
        let summary = Summary { status, ..Summary::new(&job, 1).unwrap() };
        summary.write(&folder.join(NAME)).unwrap();
        summary
    }

    fn read(folder: &Path) -> Summary {
        serde_json::from_slice(&fs::read(folder.join(NAME)).unwrap()).unwrap()
    }

    #[test]
    fn the_first_reason_stays_but_for_a_request_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let begun = written(folder, Status::Running);
        told_to_stop(folder, 15);
        let reason = |reason: &str| Summary {
            status: Status::Failed,
            reason: Some(reason.into()),
            ..begun.clone()
        };
        let told = "told to stop by signal 15, and ended before it could save";
        assert_eq!(read(folder), reason(told));
        fail(folder, "killed by signal 9");
        assert_eq!(read(folder), reason("killed by signal 9"));
        fail(folder, "another");
        told_to_stop(folder, 15);
        assert_eq!(read(folder), reason("killed by signal 9"));
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn an_orderly_end_stays() {
        let folder = tempfile::tempdir().unwrap();
        for status in [Status::Done, Status::Stopped, Status::Failed] {
            let orderly = written(folder.path(), status);
            fail(folder.path(), "late");
            told_to_stop(folder.path(), 15);
            assert_eq!(read(folder.path()), orderly);
            assert_eq!(is_done(folder.path()), status == Status::Done);
        }
        fs::write(folder.path().join(NAME), "{").unwrap();
        fail(folder.path(), "late");
        assert_eq!(fs::read_to_string(folder.path().join(NAME)).unwrap(), "{");
    }
}
