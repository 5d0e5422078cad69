//! What every thread did when: a Chrome trace of a run, all ranks on one clock.
//!
//! "Trace Event Format" (Chromium): complete events, `ph: "X"`, with microseconds. One process per
//! rank, one thread per track. `chrome://tracing` and Perfetto read it.
//!
//! The clocks of two machines differ, and so the first rank's counts. A barrier bounds the
//! difference: nobody leaves it before everybody has come, so by one clock's count a coming is
//! never later than another's leaving. Many barriers leave a narrow interval, and its middle is
//! taken (`skew`).
//!
//! Invariants: a track is written by one thread and costs nothing when tracing is off; a track that
//! is full keeps what it has and says how much it left out.

use core::time::Duration;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::comm::Comm;
use crate::comm::reduce::combine;
use crate::comm::watch::Lost;
use crate::error::Error;

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

/// One thing that was done: its name, when it began by this machine's clock, what it took,
/// nanoseconds.
type Span = (&'static str, u64, u64);

/// Spans a track can hold.
const SPANS_MAX: usize = 1 << 18;

impl Trace {
    /// The track of what a run does between stretches of training.
    pub const RUN: &str = "run";

    /// A trace with one track per name.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self { tracks: names.into_iter().map(|name| (name, Mutex::default())).collect() }
    }

    /// The same with a track for each of these that has none.
    #[must_use]
    pub fn with(mut self, names: impl IntoIterator<Item = String>) -> Self {
        for name in names {
            if self.tracks.iter().all(|(known, _)| *known != name) {
                self.tracks.push((name, Mutex::default()));
            }
        }
        self
    }
}

impl Trace {
    /// Writes the spans of all ranks to `path` on the first. Every rank says its own, a piece at a
    /// time, and the first writes what it hears. Nothing draws meanwhile. *Collective; `path` on
    /// the first rank.*
    ///
    /// # Errors
    /// When the file can't be written; on the first rank.
    pub fn write(&self, control: &Comm, host: &str, path: Option<&Path>) -> Result<(), Error> {
        let skew = skew(control)?;
        let begins = self.tracks.iter().filter_map(|(_, spans)| begin(spans, skew));
        let mut start = [begins.min().unwrap_or(u64::MAX)];
        combine(control, &mut start, |to, from| to[0] = to[0].min(from[0]), WHAT)?;
        let own = Own { rank: control.rank(), host, clock: (skew, start[0]), trace: self };
        let Some(path) = path else {
            let mut first = control.tell_first(WHAT);
            let said = own.write(&mut first);
            said.map_err(|error| Error::Failure(format!("{WHAT}: {error}")))?;
            return Ok(first.finish()?);
        };
        let wrong = |doing| move |error| Error::file(path, doing, error);
        let mut file = std::fs::File::create(path).map(BufWriter::new).map_err(wrong("create it"));
        let mut put = |write: &dyn Fn(&mut BufWriter<std::fs::File>) -> std::io::Result<()>| {
            // A rank is heard to its end, whatever became of the file.
            if let Ok(open) = &mut file
                && let Err(error) = write(open)
            {
                file = Err(wrong("write to it")(error));
            }
        };
        put(&|file| own.write(file));
        for rank in 1..control.size() {
            control.hear(rank, WHAT, |bytes| put(&|file| file.write_all(bytes)))?;
        }
        put(&|file| writeln!(file, "\n]").and_then(|()| file.flush()));
        file.map(drop)
    }
}

/// What waits say they are waiting for.
const WHAT: &str = "the trace of the run";

/// When the first span of a track begins, on the first rank's clock.
fn begin(spans: &Mutex<Spans>, skew: i64) -> Option<u64> {
    let spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
    spans.kept.iter().map(|span| on_first_clock(span.1, skew)).min()
}

const fn on_first_clock(time: u64, skew: i64) -> u64 {
    time.saturating_add_signed(skew.saturating_neg())
}

/// A rank's part of the file.
struct Own<'a> {
    rank: usize,
    host: &'a str,
    /// This machine's clock less the first rank's, and when the first span of any rank begins on
    /// that one, where time begins.
    clock: (i64, u64),
    trace: &'a Trace,
}

impl Own<'_> {
    /// One event a line.
    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let Self { rank, host, clock: (skew, start), trace } = self;
        let microseconds = |ns: u64| ns as f64 / 1e3;
        let mut separator = if *rank == 0 { "[\n" } else { ",\n" };
        let mut event = |event: serde_json::Value| {
            let before = core::mem::replace(&mut separator, ",\n");
            write!(out, "{before}{event}")
        };
        let name = json!({ "name": format!("rank {rank} on {host}") });
        event(json!({ "name": "process_name", "ph": "M", "pid": rank, "args": name }))?;
        for (thread, (track, spans)) in trace.tracks.iter().enumerate() {
            let spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
            let mut name = track.clone();
            if spans.left_out > 0 {
                name = format!("{name} ({} later spans left out)", spans.left_out);
            }
            let name = json!({ "name": name });
            event(json!({
                "name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": name
            }))?;
            for (name, begin, took) in &spans.kept {
                let begin = on_first_clock(*begin, *skew);
                let (ts, dur) = (microseconds(begin - start), microseconds(*took));
                event(json!({
                    "name": name, "ph": "X", "pid": rank, "tid": thread, "ts": ts, "dur": dur
                }))?;
            }
        }
        Ok(())
    }
}

/// This machine's clock less the first rank's, nanoseconds. *Collective.*
fn skew(control: &Comm) -> Result<i64, Lost> {
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    for _ in 0..BARRIERS {
        let came = clock();
        control.barrier("the comparison of clocks", false)?;
        let left = clock();
        let mut all = vec![0; 2 * control.size()];
        control.all_gather(&[came, left], &mut all, "the comparison of clocks")?;
        low = low.max(came.cast_signed() - all[1].cast_signed());
        high = high.min(left.cast_signed() - all[0].cast_signed());
    }
    Ok(between(low, high))
}

/// The middle of an interval; 0, one clock for both, if that is in it.
const fn between(low: i64, high: i64) -> i64 {
    if low <= 0 && high >= 0 { 0 } else { low + (high - low) / 2 }
}

/// Barriers that narrow the difference of two clocks down.
const BARRIERS: usize = 32;

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
        spans.kept.push((name, clock().saturating_sub(took), took));
    }
}

/// This machine's clock, nanoseconds; equal on all ranks of a machine.
fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn spans_become_events_from_the_first_on() {
        let trace = Trace::new(["worker 0".to_owned(), "idle".to_owned()]);
        let track = Track::of(Some(&trace), "worker 0");
        track.span("step", Duration::from_micros(3));
        track.span("gate", Duration::from_micros(2));
        Track::of(Some(&trace), "stranger").span("nothing", Duration::ZERO);
        Track::of(None, "worker 0").span("nothing", Duration::ZERO);
        // The second rank's clock is a millisecond ahead of the first's.
        let begins = |skew| begin(&trace.tracks[0].1, skew);
        let start = begins(0).min(begins(1_000_000)).unwrap();
        let mut text = vec![];
        for (rank, host, skew) in [(0, "a", 0), (1, "b", 1_000_000)] {
            let own = Own { rank, host, clock: (skew, start), trace: &trace };
            own.write(&mut text).unwrap();
        }
        text.extend(b"\n]\n");
        let events: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans.len(), 4);
        assert_eq!((&spans[0]["name"], spans[0]["dur"].as_f64()), (&json!("step"), Some(3.0)));
        let begin = |index: usize| spans[index]["ts"].as_f64().unwrap();
        // What the first rank did begins a millisecond after what the second did on its fast clock.
        assert_eq!((begin(2), begin(0)), (0.0, 1000.0));
        assert_eq!(events.iter().filter(|event| event["ph"] == "M").count(), 6);
    }

    #[test]
    fn a_full_track_says_what_it_left_out() {
        let trace = Trace::new(["worker 0".to_owned()]);
        let track = Track::of(Some(&trace), "worker 0");
        (0..SPANS_MAX + 3).for_each(|_| track.span("step", Duration::ZERO));
        let mut text = vec![];
        let own = Own { rank: 0, host: "a", clock: (0, 0), trace: &trace };
        own.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches("\"ph\":\"X\"").count(), SPANS_MAX);
        assert!(text.contains("worker 0 (3 later spans left out)"));
    }

    #[test]
    fn one_clock_for_both_is_taken_where_it_may_be() {
        assert_eq!(between(-5, 900), 0);
        assert_eq!(between(700, 900), 800);
        assert_eq!(between(-900, -700), -800);
    }
}
