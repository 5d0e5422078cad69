//! What the supervisor knows of the job that it has started: what was said on the job's stderr, and
//! the run folder that its first rank has named.
//!
//! A process that is killed says nothing; its launcher says it for it, or the exit code does. That
//! goes to the summary of the run, which would say for ever that it runs.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::record::{self, SAVED};

/// What a job has said.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// That something was saved.
    pub(super) saved: bool,
    /// The first words that a rank ends the job with, or the launcher's about a rank that is gone;
    /// and when.
    pub(super) last_words: Option<(String, Instant)>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        self.saved |= line.starts_with(SAVED);
        if self.last_words.is_none() && is_last_words(line) {
            let words = line.trim_start_matches("umbra: ").trim_end();
            self.last_words = Some((words.to_owned(), Instant::now()));
        }
    }
}

/// Whether a job has ended, or must end, that says this: a rank speaks of itself, "umbra: [1/4
/// node]", when it ends; Open MPI's launchers speak of a rank that was killed.
fn is_last_words(line: &str) -> bool {
    line.starts_with("umbra: [") || line.contains("noticed that process rank")
}

/// Passes lines on to stderr.
pub(super) fn pass_on(from: impl Read, said: &Mutex<Said>) {
    let (mut from, mut line) = (BufReader::new(from), vec![]);
    while from.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        hold(said).hear(&String::from_utf8_lossy(&line));
        // Nobody to tell when stderr is closed.
        let _ = io::stderr().lock().write_all(&line);
        line.clear();
    }
}

/// What was said, for a moment.
pub(super) fn hold(said: &Mutex<Said>) -> std::sync::MutexGuard<'_, Said> {
    said.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file that the first rank writes its run folder's path to.
#[derive(Debug)]
pub(super) struct Note(PathBuf);

impl Note {
    /// A file of this process's.
    pub(super) fn new() -> Self {
        Self(std::env::temp_dir().join(format!("umbra-launch-{}", std::process::id())))
    }

    /// The variable that names it to the job.
    pub(super) fn variable(&self) -> (&'static str, &PathBuf) {
        (record::NOTE, &self.0)
    }

    /// Whether the job's run has come to its end.
    pub(super) fn is_done(&self) -> bool {
        self.folder().is_some_and(|folder| record::is_done(&folder))
    }

    /// Whether the job's run has begun and has come to no end.
    pub(super) fn is_undone(&self) -> bool {
        self.folder().is_some_and(|folder| !record::has_ended(&folder))
    }

    fn folder(&self) -> Option<PathBuf> {
        Some(PathBuf::from(OsString::from_vec(std::fs::read(&self.0).ok()?)))
    }

    /// The job has ended so: its summary says it too, unless it says how already. True when it
    /// says that the run is done.
    pub(super) fn ended(&self, code: u8, said: &Said) -> bool {
        let folder = self.folder();
        // The next start writes it again.
        let _ = std::fs::remove_file(&self.0);
        let Some(folder) = folder else { return false };
        if code != 0 {
            record::fail(&folder, &reason(code, said));
        }
        record::is_done(&folder)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn reason(code: u8, said: &Said) -> String {
    match (&said.last_words, code) {
        (Some((words, _)), _) => words.clone(),
        (None, 129..) => format!("killed by signal {} (exit code {code})", code - 128),
        (None, _) => format!("ended with exit code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_last_words_are_the_reason() {
        let mut said = Said::default();
        said.hear("umbra: saved run/checkpoints/step-5\n");
        assert_eq!(reason(137, &said), "killed by signal 9 (exit code 137)");
        assert_eq!(reason(1, &said), "ended with exit code 1");
        let killed = "mpirun noticed that process rank 1 with PID 12 on node n exited on signal 9";
        for line in ["umbra: going on from x\n", "umbra: [0/2 n] waited\n", killed] {
            said.hear(line);
        }
        assert_eq!(reason(137, &said), "[0/2 n] waited");
        let mut said = Said::default();
        said.hear(&format!("{killed} (Killed).\n"));
        assert_eq!(reason(137, &said), format!("{killed} (Killed)."));
    }
}
