//! The end of a process: its last words, and who else hears them.
//!
//! Invariant: the end does not wait for them for long. What they go to, a file system perhaps, may
//! be the very thing that is gone.

use core::time::Duration;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use super::raw;

/// What is done with last words.
type Hearer = Box<dyn FnOnce(&str) + Send>;

static HEARER: Mutex<Option<Hearer>> = Mutex::new(None);

/// From now on `hearer` is told why, should this process end its job. Once; takes the place of one
/// before. *Not collective.*
pub fn on_end(hearer: impl FnOnce(&str) + Send + 'static) {
    *HEARER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hearer));
}

/// The job ends, and this is why: says so to who wants to hear it, if anybody does. *Not
/// collective, from any thread.*
pub fn hand_on(why: &str) {
    let hearer = HEARER.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(hearer) = hearer else { return };
    let (why, (done, heard)) = (why.to_owned(), crossbeam_channel::bounded::<()>(1));
    let hearing = std::thread::Builder::new().name("last words".into()).spawn(move || {
        hearer(&why);
        drop(done);
    });
    if hearing.is_ok() {
        // Nothing is sent: the other side goes when it is done.
        let _ = heard.recv_timeout(PATIENCE);
    }
}

/// Ends the job on every rank with this exit code. *Not collective, from any thread.*
pub fn abort(code: i32) -> ! {
    raw::abort(code)
}

/// Ends this process alone and at once, with last words on stderr, without a call of MPI: the
/// library may be what does not answer. *Not collective, from any thread.*
pub(crate) fn exit_saying(code: i32, line: &str) -> ! {
    raw::end_soon(code);
    let _ = std::io::stderr().write_all(line.as_bytes());
    hand_on(reason(line));
    raw::exit(code)
}

/// Ends this process alone and at once, without a call of MPI: where ranks were lost, its end may
/// wait for them. *Not collective, main thread.*
pub(crate) fn leave(code: u8) -> ! {
    // Nobody is left to tell.
    let _ = std::io::stdout().flush();
    raw::exit(i32::from(code))
}

/// As [`abort`], with last words on stderr. The process ends even where nobody takes them: a
/// launcher that stands still leaves a pipe that is full. *Not collective, from any thread.*
pub fn abort_saying(code: i32, line: &str) -> ! {
    raw::end_soon(code);
    // In one piece, since other ranks may speak at the same time; nobody is left to tell if it
    // can't be written.
    let _ = std::io::stderr().write_all(line.as_bytes());
    hand_on(reason(line));
    raw::abort(code)
}

/// The reason in last words: without the program's name and the line's end.
fn reason(line: &str) -> &str {
    line.trim_end().trim_start_matches("umbra: ")
}

/// A small file takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// One test, since a process has one hearer.
    #[test]
    fn they_are_heard_once_and_nobody_waits_for_a_hearer_that_hangs() {
        hand_on("to nobody");
        let (told, heard) = crossbeam_channel::unbounded();
        on_end(move |why| told.send(why.to_owned()).unwrap());
        hand_on("first");
        hand_on("second");
        assert_eq!(heard.iter().collect::<Vec<_>>(), ["first"]);
        let (hold, held) = crossbeam_channel::bounded::<()>(0);
        on_end(move |_| {
            let _ = held.recv();
        });
        let begun = Instant::now();
        hand_on("third");
        assert!(begun.elapsed() >= PATIENCE);
        drop(hold);
    }
}
