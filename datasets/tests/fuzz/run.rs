//! Many cases of one thing: panics are counted, and a case that takes too long is told.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::fs;
use std::panic::{catch_unwind, set_hook};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::mutate::{Dice, Pool};
use super::targets::named;

/// What came of many cases.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) cases: u64,
    /// Had a row, or were a schema.
    pub(crate) accepted: u64,
    /// What went wrong, with the file that has the case.
    pub(crate) failures: Vec<String>,
}

/// The case that a thread is at.
struct Current {
    began: Instant,
    text: Vec<u8>,
    /// Of the thread's cases, from 1; 0: none any more.
    number: u64,
}

/// The words of the last panic, of whatever thread.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Panics of this process say nothing by themselves any more, until the hook is taken away again;
/// [`fuzz`] tells of them.
pub(crate) fn quiet_panics() {
    set_hook(Box::new(|panic| {
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    }));
}

/// Reads `cases` texts of `name` with `threads` threads. Failures are kept in `folder`.
pub(crate) fn fuzz(name: &str, folder: &Path, seed: u64, cases: u64, threads: u32) -> Outcome {
    let total = Mutex::new(Outcome::default());
    let ended = AtomicU64::new(0);
    let currents: Vec<_> = (0..threads)
        .map(|_| Arc::new(Mutex::new(Current { began: Instant::now(), text: vec![], number: 0 })))
        .collect();
    std::thread::scope(|scope| {
        for (thread, current) in (0..threads).zip(&currents) {
            let (total, ended) = (&total, &ended);
            let cases = cases / u64::from(threads);
            scope.spawn(move || {
                let own = folder.join(format!("{name}-{thread}"));
                let outcome = one_thread(name, &own, (seed, thread), cases, current);
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                total.cases += outcome.cases;
                total.accepted += outcome.accepted;
                total.failures.extend(outcome.failures);
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        while ended.load(Ordering::Relaxed) < u64::from(threads) {
            std::thread::sleep(Duration::from_millis(20));
            for current in &currents {
                let current = current.lock().unwrap_or_else(PoisonError::into_inner);
                if current.number > 0 && current.began.elapsed() > HANG {
                    // Nobody can end a thread of their own.
                    let kept = keep(folder, name, "hang", &current.text);
                    println!("fuzz_{name}_failures 1\nhang: {kept}");
                    std::process::exit(1);
                }
            }
        }
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn one_thread(
    name: &str,
    folder: &Path,
    (seed, thread): (u64, u32),
    cases: u64,
    current: &Mutex<Current>,
) -> Outcome {
    let mut dice = Dice::new(seed, thread);
    let mut fuzzed = named(name, folder);
    let mut pool = Pool::new(core::mem::take(&mut fuzzed.good));
    let (mut outcome, mut text) = (Outcome::default(), Vec::new());
    for number in 1..=cases {
        pool.draw(&mut dice, &mut text);
        {
            let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
            current.text.clone_from(&text);
            (current.began, current.number) = (Instant::now(), number);
        }
        let read = &mut fuzzed.read;
        let failure = match catch_unwind(AssertUnwindSafe(|| read(&text, &mut dice))) {
            Ok(Ok(accepted)) => {
                outcome.accepted += u64::from(accepted);
                if accepted && dice.below(8) == 0 {
                    pool.keep(&text, &mut dice);
                }
                None
            }
            Ok(Err(wrong)) => Some(wrong),
            Err(_) => {
                // What it was at may be half done.
                fuzzed.read = named(name, folder).read;
                let words = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
                Some(format!("panic: {words}"))
            }
        };
        if let Some(words) = failure {
            let kept = keep(folder, name, &outcome.failures.len().to_string(), &text);
            if outcome.failures.len() < FAILURES_TOLD_MAX {
                outcome.failures.push(format!("{kept}: {words}"));
            }
        }
        outcome.cases += 1;
    }
    current.lock().unwrap_or_else(PoisonError::into_inner).number = 0;
    outcome
}

/// Writes a case that failed; returns its file.
fn keep(folder: &Path, name: &str, what: &str, text: &[u8]) -> String {
    let path = folder.join(format!("failed-{name}-{what}"));
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// No case takes that long.
const HANG: Duration = Duration::from_secs(5);

/// More of them would be the same again.
const FAILURES_TOLD_MAX: usize = 1000;
