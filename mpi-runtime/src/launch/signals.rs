//! Signals as flags: what a batch system sends, read at a step boundary.
//!
//! Nothing happens in a handler but setting a flag; heartbeats tell the other ranks, and what must
//! stop together agrees on it. The exceptions are a second SIGTERM or SIGINT, which leaves at once
//! with 128 + its number.
//!
//! And the end nobody asked for: a panic is one line that names rank and host, then the whole job
//! ends, since the other ranks would wait for this one for ever.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;

use crate::comm::loss;

/// What has been asked of this process. Cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct Signals {
    /// Number of the last stopping signal, 0 for none.
    stop: Arc<AtomicUsize>,
    status: Arc<AtomicBool>,
    /// Training is to change its method.
    change: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers: SIGTERM, SIGINT and SIGUSR1 ask for a stop, SIGUSR2 for a status
    /// line.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn install() -> io::Result<Self> {
        let signals = Self::none();
        for signal in [SIGTERM, SIGINT] {
            let again = Arc::new(AtomicBool::new(false));
            // Order matters: the second signal finds the flag that the first one sets after this.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            flag::register(signal, again)?;
        }
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            let number = usize::try_from(signal).unwrap_or_default();
            flag::register_usize(signal, Arc::clone(&signals.stop), number)?;
        }
        flag::register(SIGUSR2, Arc::clone(&signals.status))?;
        Ok(signals)
    }

    /// Flags that no signal sets.
    #[must_use]
    pub fn none() -> Self {
        Self { stop: Arc::default(), status: Arc::default(), change: Arc::default() }
    }

    /// The signal that asked for a stop, if one did.
    #[must_use]
    pub fn stop_requested(&self) -> Option<i32> {
        match self.stop.load(Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }

    /// Another rank was asked to stop by `signal`: so is this one, unless it was asked already.
    pub fn request_stop(&self, signal: i32) {
        let number = usize::try_from(signal).unwrap_or_default();
        // A failure is a signal of its own that came first.
        let _ = self.stop.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Training is to change its method at the next step that all agree on.
    pub fn request_change(&self) {
        self.change.store(true, Ordering::Relaxed);
    }

    /// Whether the stretch of training is to end, for a stop or for a change.
    #[must_use]
    pub fn ends_stretch(&self) -> bool {
        self.change.load(Ordering::Relaxed) || self.stop_requested().is_some()
    }

    /// Whether a change was asked for since the last call.
    #[must_use]
    pub fn take_change_request(&self) -> bool {
        self.change.swap(false, Ordering::Relaxed)
    }

    /// Whether a status line was asked for since the last call.
    #[must_use]
    pub fn take_status_request(&self) -> bool {
        self.status.swap(false, Ordering::Relaxed)
    }
}

/// From now on a panic on any thread calls `abort_saying` with exit code 1 and one line. Not
/// collective.
pub fn install_panic_hook(rank: usize, size: usize, host: &str, abort_saying: fn(i32, &str) -> !) {
    let place = if size > 1 { format!("[{rank}/{size} {host}] ") } else { String::new() };
    std::panic::set_hook(Box::new(move |panic| {
        if loss::is_survived() {
            // It follows from the loss: a thread found another one gone, and is gone now itself.
            return;
        }
        let payload = panic.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let at = panic.location().map_or_else(String::new, |at| format!(" at {at}"));
        let line = format!("umbra: {place}panic{at}: {}\n", message.replace('\n', " "));
        abort_saying(1, &line)
    }));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use signal_hook::low_level::raise;

    use super::*;

    /// Runs a test of this program again, as a child that takes its `CHILD` branch.
    fn child(test: &str) -> std::process::Output {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("launch::signals::tests::{test}"), "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap()
    }

    const CHILD: &str = "UMBRA_TEST_CHILD";

    #[test]
    fn a_second_sigterm_leaves_at_once() {
        if std::env::var_os(CHILD).is_some() {
            let signals = Signals::install().unwrap();
            raise(SIGINT).unwrap();
            raise(SIGUSR1).unwrap();
            raise(SIGTERM).unwrap();
            assert_eq!(signals.stop_requested(), Some(SIGTERM));
            raise(SIGTERM).unwrap();
            unreachable!("the second SIGTERM ends the process");
        }
        assert_eq!(child("a_second_sigterm_leaves_at_once").status.code(), Some(143));
    }

    #[test]
    fn a_panic_on_any_thread_is_one_line_and_ends_the_job() {
        if std::env::var_os(CHILD).is_some() {
            install_panic_hook(3, 4, "node1", |code, line| {
                eprint!("{line}");
                std::process::exit(code + 40)
            });
            let worker = std::thread::spawn(|| panic!("first\nsecond"));
            let _ = worker.join();
            unreachable!("the panic ends the process");
        }
        let output = child("a_panic_on_any_thread_is_one_line_and_ends_the_job");
        assert_eq!(output.status.code(), Some(41));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.starts_with("umbra: [3/4 node1] panic at "), "{stderr}");
        assert!(stderr.ends_with(": first second\n"), "{stderr}");
    }

    #[test]
    fn what_another_rank_was_told_holds_unless_this_one_was_told_first() {
        let signals = Signals::none();
        signals.request_stop(SIGUSR1);
        signals.request_stop(SIGTERM);
        assert_eq!(signals.stop_requested(), Some(SIGUSR1));
    }

    #[test]
    fn signals_only_set_flags() {
        let signals = Signals::install().unwrap();
        assert_eq!((signals.stop_requested(), signals.take_status_request()), (None, false));
        raise(SIGUSR2).unwrap();
        assert!(signals.take_status_request() && !signals.take_status_request());
        raise(SIGUSR1).unwrap();
        assert_eq!(signals.stop_requested(), Some(SIGUSR1));
        raise(SIGTERM).unwrap();
        assert_eq!(signals.clone().stop_requested(), Some(SIGTERM));
    }
}
