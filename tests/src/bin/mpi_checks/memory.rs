//! What a rank holds while it does something, counted by its allocator; what a trace and an
//! evaluation hold. What the MPI library allocates for itself does not count.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use std::alloc::System;
use std::sync::Arc;

use umbra_core::metrics::Scored;
use umbra_core::rng::{Purpose, Stream};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::launch::world::World;
use umbra_mpi::measure::trace::{Trace, Track};
use umbra_mpi::score::figures::Scores;
use umbra_mpi::score::memory::figures_bytes;

/// The system's allocator, counting bytes.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn more(bytes: usize) {
    PEAK.fetch_max(LIVE.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

#[expect(unsafe_code, reason = "an allocator is")]
// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Most bytes held at a time while `work` works, beyond those held before.
fn held<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (PEAK.load(Relaxed).saturating_sub(before), result)
}

/// A trace is written piece by piece: no rank holds its text, let alone everybody's.
pub(super) fn trace(_: &World, _: &Arc<Watch>, control: &Comm) {
    const SPANS: usize = 50_000;
    let trace = Trace::new(["worker 0".to_owned()]);
    let track = Track::of(Some(&trace), "worker 0");
    (0..SPANS).for_each(|_| track.span("step", Duration::from_micros(1)));
    let path = std::env::current_dir().unwrap().join("trace.json");
    let own = (control.rank() == 0).then_some(path.as_path());
    let (bytes, written) = held(|| trace.write(control, "host", own));
    written.unwrap();
    assert!(bytes < 300_000, "{bytes} bytes held for {SPANS} spans");
    if control.rank() == 0 {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("[\n{") && text.ends_with("}\n]\n"));
        for rank in 0..control.size() {
            let spans = text.matches(&format!("\"ph\":\"X\",\"pid\":{rank},")).count();
            assert_eq!(spans, SPANS, "rank {rank}");
        }
        assert_eq!(text.matches("\n{").count(), control.size() * (SPANS + 2));
    }
    // A file that cannot be written is the first rank's error, after it has heard all.
    let nowhere = path.with_file_name("none").join("trace.json");
    let nowhere = (control.rank() == 0).then_some(nowhere.as_path());
    assert_eq!(trace.write(control, "host", nowhere).is_err(), control.rank() == 0);
}

/// An evaluation holds what was predicted.
pub(super) fn evaluation(_: &World, _: &Arc<Watch>, control: &Comm) {
    const ROWS: u64 = 100_000;
    let stream = Stream::new(control.rank() as u64, Purpose::Test(11));
    let mut scores = Scores::default();
    for i in 0..ROWS {
        let label = stream.uniform(2 * i).round();
        scores.scored.push(Scored { score: stream.normal(2 * i + 1), label, weight: 1.0 });
        scores.group.push(i % 997);
        scores.row.push(i);
    }
    let (bytes, figures) = held(|| scores.figures(control));
    assert_eq!(figures.unwrap().examples, ROWS * control.size() as u64);
    let collected = ROWS as f64 * (size_of::<Scored>() + 16) as f64;
    let predicted = figures_bytes(ROWS, control.size() as u64, true) as f64;
    let share = (bytes as f64 + collected) / predicted;
    assert!((0.5..1.02).contains(&share), "{share} of what was predicted");
}
