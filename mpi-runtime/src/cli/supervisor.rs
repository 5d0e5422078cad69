//! A job started again until it has come to its end: after a stop that saved (exit code 75), and
//! after the loss of a rank.
//!
//! Invariants: nothing is started again after a signal to this process, nor after a mistake that a
//! second start would repeat (exit codes 2 to 5). A job that saves nothing new is started again so
//! many times in a row and no more. A run that is done is done, however its job ends.
//!
//! A job that has lost a rank ends: a launcher that still runs long after a rank's last words waits
//! for a node that does not answer, and all of it here is killed. So is a process that stands still
//! behind a run that is done: nobody in the job misses it any more.
//!
//! The first signal, whichever it is, goes on as SIGUSR1: `mpirun` passes that to all ranks and
//! waits, where after SIGTERM it kills them a second later, in the middle of a save. Any further
//! one goes on as SIGTERM.

use core::time::Duration;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::leftovers::{SharedMemory, kill_all, kill_stopped};
use super::supervised::{Note, Said, hold, pass_on};
use crate::error::REQUEUE;
use crate::record::say;

/// What becomes of a job that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It is over, with this exit code.
    End(u8),
    /// It is started again.
    Again,
    /// It has been started again without anything new too often, and is over with this exit code.
    GiveUp(u8),
}

/// Decides what becomes of a job that ended with `code`, after `fruitless` starts in a row, this
/// one included, that saved nothing new.
const fn next(code: u8, asked_to_stop: bool, fruitless: u32, restarts: u32) -> Next {
    match code {
        0 | 2..=5 => Next::End(code),
        _ if asked_to_stop => Next::End(code),
        // It has saved before it ended.
        REQUEUE => Next::Again,
        _ if fruitless > restarts => Next::GiveUp(code),
        _ => Next::Again,
    }
}

/// Runs `command`, again and again, as [`next`] decides. Returns the last exit code; 128 + n of a
/// command that signal n has ended.
///
/// # Errors
/// When the command can't be started.
pub(super) fn supervise(command: &[String], restarts: u32) -> io::Result<u8> {
    let mut requests = Requests { signals: Signals::new([SIGTERM, SIGINT, SIGUSR1])?, count: 0 };
    let note = Note::new();
    let mut fruitless = 0;
    loop {
        let shared_memory = SharedMemory::look();
        let (status, said) = run(command, &note, &mut requests)?;
        shared_memory.clean();
        let (code, saved) = (exit_code(status), hold(&said).saved);
        // A launcher that survives the loss of ranks may call that a success, whatever came of it.
        let code = if code == 0 && note.is_undone() { 1 } else { code };
        let done = note.ended(code, &hold(&said));
        if done && code != 0 {
            // A rank was lost while MPI ended: started again, the run would be refused.
            say(&format!("umbra: the run was done before the job ended with exit code {code}"));
            return Ok(0);
        }
        fruitless = if saved || code == REQUEUE { 0 } else { fruitless + 1 };
        requests.look();
        match next(code, requests.count > 0, fruitless, restarts) {
            Next::End(code) => return Ok(code),
            Next::GiveUp(code) => {
                say(&format!(
                    "umbra: gave up: {fruitless} starts in a row saved nothing new (exit code \
                     {code})"
                ));
                return Ok(code);
            }
            Next::Again => {
                say(&format!("umbra: starting again after exit code {code}"));
                // What the last job has left, sockets and nodes that are being cleaned, needs time.
                std::thread::sleep(FIRST_REST * (1 << fruitless.min(6)));
            }
        }
    }
}

/// Requests to stop, so far.
struct Requests {
    signals: Signals,
    count: usize,
}

impl Requests {
    /// How many have come since the last look.
    fn look(&mut self) -> usize {
        let new = self.signals.pending().count();
        self.count += new;
        new
    }
}

/// Runs `command` once. Returns how it ended, and what it has said.
fn run(
    command: &[String],
    note: &Note,
    requests: &mut Requests,
) -> io::Result<(ExitStatus, Arc<Mutex<Said>>)> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let (variable, path) = note.variable();
    let mut child = Command::new(program)
        .args(arguments)
        .env(variable, path)
        // A group of its own: a terminal's Ctrl-C reaches it once, through this process.
        .process_group(0)
        .stderr(Stdio::piped())
        .spawn()?;
    let said = Arc::<Mutex<Said>>::default();
    let (stderr, hearing) = (child.stderr.take(), Arc::clone(&said));
    let reader = std::thread::spawn(move || stderr.map(|stderr| pass_on(stderr, &hearing)));
    // A rank that stops when its peers have left MPI already is missed by nobody but its launcher.
    let (mut looked, mut done) = (Instant::now(), None::<Instant>);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if requests.look() > 0
            && let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            let signal = if requests.count == 1 { Signal::USR1 } else { Signal::TERM };
            // It may just have ended.
            let _ = kill_process_group(group, signal);
        }
        let overdue = |(_, since): &(_, Instant)| since.elapsed() > AFTER_LAST_WORDS;
        if hold(&said).last_words.as_ref().is_some_and(overdue) {
            let seconds = AFTER_LAST_WORDS.as_secs();
            say(&format!("umbra: the job still runs {seconds} s after it has lost a rank: killed"));
            kill_all(child.id());
            break child.wait()?;
        }
        if looked.elapsed() > LOOK_DONE {
            looked = Instant::now();
            done = if note.is_done() { done.or(Some(looked)) } else { None };
            let late = done.is_some_and(|since| since.elapsed() > AFTER_LAST_WORDS);
            if late && kill_stopped(child.id()) {
                say("umbra: the run is done, and a process of its job stands still: killed");
            }
        }
        std::thread::sleep(LOOK);
    };
    // A process that the job has left behind may hold the other end for ever.
    let ended = Instant::now();
    while !reader.is_finished() && ended.elapsed() < LAST_LINES {
        std::thread::sleep(LOOK);
    }
    Ok((status, said))
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Between two looks at the command.
const LOOK: Duration = Duration::from_millis(50);
/// Between two at what has become of its run.
const LOOK_DONE: Duration = Duration::from_secs(1);
/// For a launcher to end a job: the ten seconds in which a rank that gives up ends itself
/// (`comm`), and as long as a launcher may take that ends thousands of processes.
const AFTER_LAST_WORDS: Duration = Duration::from_secs(40);
/// For what a job said last, when it has ended.
const LAST_LINES: Duration = Duration::from_secs(5);
/// Before the first start again; doubled with every one that saves nothing new.
const FIRST_REST: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_second_start_would_repeat_is_not_started_again() {
        for code in [0, 2, 3, 4, 5] {
            assert_eq!(next(code, false, 0, 3), Next::End(code));
        }
        for code in [1, 75, 137, 255] {
            assert_eq!(next(code, false, 0, 3), Next::Again, "{code}");
            assert_eq!(next(code, true, 0, 3), Next::End(code), "{code}, and asked to stop");
        }
    }

    #[test]
    fn starts_that_save_nothing_new_are_bounded() {
        assert_eq!(next(137, false, 3, 3), Next::Again);
        assert_eq!(next(137, false, 4, 3), Next::GiveUp(137));
        assert_eq!(next(75, false, 4, 3), Next::Again);
    }
}
