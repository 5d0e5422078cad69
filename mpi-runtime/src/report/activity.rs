//! `trace.json` in short: what every thread of a run did, for how long, and when.
//!
//! Invariants: the file is read line by line, an event each, and what is kept does not grow with
//! it. A thread's time is cut into [`BINS`] stretches of the same length for all threads.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

/// What the threads of a run did.
#[derive(Debug, Serialize)]
pub struct Activity {
    /// Length of a stretch.
    pub bin_seconds: f64,
    /// Thread by thread, those that did something.
    pub threads: Vec<Thread>,
}

/// What one thread did.
#[derive(Debug, Default, Serialize)]
pub struct Thread {
    /// Its rank and host.
    pub rank: String,
    /// Its job.
    pub name: String,
    /// By name of what was done.
    pub kinds: BTreeMap<String, Kind>,
}

/// One kind of things that a thread did.
#[derive(Debug, Default, Serialize)]
pub struct Kind {
    /// How many.
    pub count: u64,
    /// For how long, all together.
    pub seconds: f64,
    /// The share of each stretch.
    pub shares: Vec<f64>,
}

/// An event of the trace.
#[derive(Deserialize)]
struct Event {
    ph: String,
    pid: u64,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Arguments,
}

#[derive(Default, Deserialize)]
struct Arguments {
    #[serde(default)]
    name: String,
}

/// Stretches that a trace is cut into, at most.
const BINS: usize = 240;

impl Activity {
    /// Reads a trace; `None` of one without events.
    pub(super) fn read(lines: impl BufRead) -> Option<Self> {
        let mut ranks: BTreeMap<u64, String> = BTreeMap::new();
        let mut threads: BTreeMap<(u64, u64), Thread> = BTreeMap::new();
        let mut bin = 1e-3;
        for line in lines.lines().map_while(Result::ok) {
            let event = line.trim().trim_end_matches(',');
            let Ok(event) = serde_json::from_str::<Event>(event) else { continue };
            let thread = threads.entry((event.pid, event.tid)).or_default();
            match (event.ph.as_str(), event.name.as_str()) {
                ("M", "process_name") => drop(ranks.insert(event.pid, event.args.name)),
                ("M", "thread_name") => thread.name = event.args.name,
                ("X", _) => {
                    let (start, took) = (event.ts.max(0.0) / 1e6, event.dur.max(0.0) / 1e6);
                    while start + took >= bin * BINS as f64 && (start + took).is_finite() {
                        bin *= 2.0;
                        for kind in threads.values_mut().flat_map(|it| it.kinds.values_mut()) {
                            kind.halve();
                        }
                    }
                    let thread = threads.entry((event.pid, event.tid)).or_default();
                    thread.kinds.entry(event.name).or_default().add(start, took, bin);
                }
                _ => {}
            }
        }
        threads.retain(|_, thread| !thread.kinds.is_empty());
        let threads: Vec<Thread> = threads
            .into_iter()
            .map(|((pid, _), mut thread)| {
                thread.rank = ranks.get(&pid).cloned().unwrap_or_else(|| format!("rank {pid}"));
                thread.kinds.values_mut().for_each(|kind| kind.finish(bin));
                thread
            })
            .collect();
        (!threads.is_empty()).then_some(Self { bin_seconds: bin, threads })
    }
}

impl Kind {
    /// Adds something that began at `start` and `took` so long; seconds in bins of `bin`.
    fn add(&mut self, start: f64, took: f64, bin: f64) {
        self.count += 1;
        self.seconds += took;
        let end = start + took;
        #[expect(clippy::cast_possible_truncation, reason = "start is at least 0, below all bins")]
        let mut index = (start / bin) as usize;
        while (index as f64) * bin < end && index < BINS {
            if self.shares.len() <= index {
                self.shares.resize(index + 1, 0.0);
            }
            let (from, to) = ((index as f64) * bin, (index + 1) as f64 * bin);
            self.shares[index] += end.min(to) - start.max(from);
            index += 1;
        }
    }

    /// For bins of twice the length.
    fn halve(&mut self) {
        self.shares = self.shares.chunks(2).map(|pair| pair.iter().sum()).collect();
    }

    /// Seconds to shares.
    fn finish(&mut self, bin: f64) {
        self.shares.iter_mut().for_each(|it| *it = (*it / bin * 100.0).round() / 100.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_becomes_shares_of_stretches() {
        let text = r#"[
{"args":{"name":"rank 0 on host"},"name":"process_name","ph":"M","pid":0},
{"args":{"name":"worker 0"},"name":"thread_name","ph":"M","pid":0,"tid":0},
{"dur":500000,"name":"step","ph":"X","pid":0,"tid":0,"ts":0},
{"dur":100000,"name":"gate","ph":"X","pid":0,"tid":0,"ts":500000},
{"dur":1000000,"name":"step","ph":"X","pid":0,"tid":0,"ts":1000000},
{"args":{"name":"idle"},"name":"thread_name","ph":"M","pid":0,"tid":1},
{"dur":100,"name":"st"#;
        let activity = Activity::read(text.as_bytes()).unwrap();
        assert_eq!(activity.threads.len(), 1);
        let thread = &activity.threads[0];
        assert_eq!((thread.rank.as_str(), thread.name.as_str()), ("rank 0 on host", "worker 0"));
        let step = &thread.kinds["step"];
        assert_eq!((step.count, step.seconds), (2, 1.5));
        // Two seconds in bins of 16 ms.
        assert!((activity.bin_seconds - 0.016).abs() < 1e-12);
        assert_eq!((step.shares[10], step.shares[40], step.shares[100]), (1.0, 0.0, 1.0));
        assert!(step.shares.len() <= BINS);
        let total = step.shares.iter().sum::<f64>() * 0.016;
        assert!((total - 1.5).abs() < 0.01, "{total}");
        assert!(Activity::read("[\n]\n".as_bytes()).is_none());
    }
}
