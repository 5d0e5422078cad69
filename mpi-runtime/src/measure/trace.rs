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
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::comm::Comm;
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

/// A track as it travels to the first rank.
#[derive(Debug, Serialize, Deserialize)]
struct Sent {
    track: String,
    /// On the first rank's clock.
    spans: Vec<(String, u64, u64)>,
    left_out: u64,
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

impl Trace {
    /// Writes the spans of all ranks to `path` on the first. Nothing draws meanwhile. *Collective.*
    ///
    /// # Errors
    /// When the file can't be written; on the first rank.
    pub fn write(&self, control: &Comm, host: &str, path: Option<&Path>) -> Result<(), Error> {
        let skew = skew(control)?;
        let sent: Vec<Sent> =
            self.tracks.iter().map(|(name, spans)| sent(name, spans, skew)).collect();
        let failure = |error: serde_json::Error| Error::Failure(format!("the trace: {error}"));
        let own = serde_json::to_vec(&(host, sent)).map_err(failure)?;
        let ranks = control.all_gather_varied(&own, "the trace of the run")?;
        let Some(path) = path else { return Ok(()) };
        let ranks: Vec<(String, Vec<Sent>)> = ranks
            .iter()
            .map(|bytes| serde_json::from_slice(bytes))
            .collect::<Result<_, _>>()
            .map_err(failure)?;
        let file = std::fs::File::create(path);
        let mut file = BufWriter::new(file.map_err(|e| Error::file(path, "create it", e))?);
        let written = events(&mut file, &ranks).and_then(|()| file.flush());
        written.map_err(|error| Error::file(path, "write to it", error))
    }
}

/// The spans of a track, on the first rank's clock.
fn sent(track: &str, spans: &Mutex<Spans>, skew: i64) -> Sent {
    let spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
    let moved = |(name, begin, took): &Span| {
        (String::from(*name), begin.saturating_add_signed(skew.saturating_neg()), *took)
    };
    Sent {
        track: track.into(),
        spans: spans.kept.iter().map(moved).collect(),
        left_out: spans.left_out,
    }
}

/// One event a line; time begins with the first span of any rank.
fn events(out: &mut impl Write, ranks: &[(String, Vec<Sent>)]) -> std::io::Result<()> {
    let tracks = || ranks.iter().flat_map(|(_, tracks)| tracks);
    let start = tracks().flat_map(|track| &track.spans).map(|span| span.1).min().unwrap_or(0);
    let microseconds = |ns: u64| ns as f64 / 1e3;
    let mut separator = "[\n";
    let mut event = |out: &mut dyn Write, event: serde_json::Value| {
        let before = core::mem::replace(&mut separator, ",\n");
        write!(out, "{before}{event}")
    };
    for (rank, (host, tracks)) in ranks.iter().enumerate() {
        let name = json!({ "name": format!("rank {rank} on {host}") });
        let process = json!({ "name": "process_name", "ph": "M", "pid": rank, "args": name });
        event(out, process)?;
        for (thread, track) in tracks.iter().enumerate() {
            let mut name = track.track.clone();
            if track.left_out > 0 {
                name = format!("{name} ({} later spans left out)", track.left_out);
            }
            let name = json!({ "name": name });
            let of = json!({ "name": "thread_name", "ph": "M", "pid": rank, "tid": thread, "args": name });
            event(out, of)?;
            for (name, begin, took) in &track.spans {
                let (ts, dur) = (microseconds(begin - start), microseconds(*took));
                let span = json!({ "name": name, "ph": "X", "pid": rank, "tid": thread, "ts": ts, "dur": dur });
                event(out, span)?;
            }
        }
    }
    writeln!(out, "\n]")
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
        let of = |skew| trace.tracks.iter().map(|(name, spans)| sent(name, spans, skew)).collect();
        // The second rank's clock is a millisecond ahead of the first's.
        let ranks: Vec<(String, Vec<Sent>)> =
            vec![("a".into(), of(0)), ("b".into(), of(1_000_000))];
        let mut text = vec![];
        events(&mut text, &ranks).unwrap();
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
        let sent = sent("worker 0", &trace.tracks[0].1, 0);
        assert_eq!((sent.spans.len(), sent.left_out), (SPANS_MAX, 3));
    }

    #[test]
    fn one_clock_for_both_is_taken_where_it_may_be() {
        assert_eq!(between(-5, 900), 0);
        assert_eq!(between(700, 900), 800);
        assert_eq!(between(-900, -700), -800);
    }
}
