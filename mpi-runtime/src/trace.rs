//! What every thread did when: a Chrome trace of a run, all ranks on one clock.
//!
//! "Trace Event Format" (Chromium): complete events, `ph: "X"`, with microseconds. One process per
//! rank, one thread per track.
//!
//! Invariants: a track is written by one thread and costs nothing when tracing is off; a track that is full
//! keeps what it has and says how much it left out.

use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};

/// The tracks of a rank.
#[derive(Debug)]
pub struct Trace {
    tracks: Vec<(String, Mutex<Spans>)>,
}

/// What one thread did.
#[derive(Debug, Default)]
struct Spans {
    kept: Vec<Span>,
    left_out: u64,
}

/// One thing that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    name: &'static str,
    /// Nanoseconds of this machine's clock.
    begin: u64,
    took: u64,
}

/// Spans a track can hold.
const SPANS_MAX: usize = 1 << 18;

impl Trace {
    /// A trace with one track per name.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { tracks: names.into_iter().map(|name| (name, Mutex::default())).collect() }
    }
}

/// A thread's track; draws nothing when there is no trace.
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    spans: Option<&'a Mutex<Spans>>,
}

impl<'a> Track<'a> {
    /// Track `name` of `trace`.
    #[must_use]
    pub fn of(trace: Option<&'a Trace>, name: &str) -> Self {
        let tracks = trace.into_iter().flat_map(|trace| &trace.tracks);
        let spans = tracks.into_iter().find(|track| track.0 == name).map(|track| &track.1);
        Self { spans }
    }

    /// What was done, from `took` ago until now.
    pub fn span(&self, name: &'static str, took: Duration) {
        let Some(spans) = self.spans else { return };
        let mut spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.kept.len() == SPANS_MAX {
            spans.left_out += 1;
            return;
        }
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        spans.kept.push(Span { name, begin: clock().saturating_sub(took), took });
    }
}

/// This machine's clock, nanoseconds; equal on all ranks of a machine.
fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}
