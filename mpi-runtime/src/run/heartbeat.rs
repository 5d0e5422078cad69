//! Heartbeats: every rank tells the first one how far it is, so that the first can report progress
//! and name a rank that is late.
//!
//! One thread per rank and a communicator of its own; point to point, so that a hung rank hangs
//! nobody's heartbeat. The first rank answers: a rank that nothing is heard of for the length of
//! the deadline ends the job, whichever it is, and whether it was ever heard of: hearts begin to
//! beat within moments of each other, when all ranks have met, before anything that takes long.
//!
//! A stop travels the same way: a beat says which signal asked its rank to stop, if one did; the
//! answer says so to all, also to ranks that wait for nothing that others agree on. Who asked may
//! not wait for the stop, so it is recorded at once; the orderly end is recorded after the last
//! heartbeat.
//!
//! Messages: a beat is a reading (`READING_WORDS` u64), the marks of points that were passed since
//! the last one (`MARK_WORDS` u64 each) and the signal, an answer is the signal; 0 is none.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use crate::comm::watch::{LOOK, Waiting, Watch};
use crate::comm::{Alarm, Comm, Mailbox};
use crate::launch::roles::View;
use crate::launch::signals::Signals;
use crate::measure::counters::{Counters, READING_WORDS, Reading};
use crate::measure::points::{MARK_WORDS, Mark};
use crate::record::told_to_stop;

/// The heartbeat thread of this rank.
pub struct Heartbeat {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// True while trainers train: only then is a rank without new steps late.
    training: Arc<AtomicBool>,
}

/// What the first rank does with what it knows, a few times a second.
pub type Report = Box<dyn FnMut(&Beat<'_>) + Send>;

/// What the first rank knows at a beat.
pub struct Beat<'a> {
    /// What every rank has counted. `[ranks]`
    pub readings: &'a [Reading],
    /// The marks that it has heard since the last one, of a rank in their order, with their ranks.
    pub marks: &'a [(usize, Mark)],
    /// Trainers train now.
    pub training: bool,
    /// Somebody asks for a report now.
    pub status_asked: bool,
}

/// How a rank's heart beats.
pub struct Pulse {
    /// Counters of this rank.
    pub counters: Arc<Counters>,
    /// Trainers of the run: the ranks that make steps.
    pub trainers: View,
    /// The communicator; `None` on one rank.
    pub comm: Option<Comm>,
    /// Deadlines.
    pub watch: Arc<Watch>,
    /// On the first rank: takes all readings.
    pub report: Option<Report>,
    /// Requests to stop, which go to all ranks, and for a status line.
    pub signals: Arc<Signals>,
    /// The run folder, on a rank that records requests to stop there.
    pub folder: Option<PathBuf>,
}

/// What the first rank knows of another.
#[derive(Clone, Copy)]
struct Rank {
    reading: Reading,
    heard: Instant,
    advanced: Instant,
}

impl Heartbeat {
    /// Starts beating. *Not collective; the only user of its communicator.*
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn start(pulse: Pulse) -> io::Result<Self> {
        let (stop, training) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (stopped, trains) = (Arc::clone(&stop), Arc::clone(&training));
        let thread = Builder::new()
            .name("heartbeat".into())
            .spawn(move || beat(pulse, &stopped, &trains))?;
        Ok(Self { thread, stop, training })
    }

    /// Says whether trainers train now.
    pub fn set_training(&self, training: bool) {
        self.training.store(training, Relaxed);
    }

    /// Stops beating.
    pub fn finish(self) {
        self.stop.store(true, Relaxed);
        // A panic of the thread has ended the job already.
        let _ = self.thread.join();
    }
}

fn beat(mut pulse: Pulse, stop: &AtomicBool, training: &AtomicBool) {
    let size = pulse.comm.as_ref().map_or(1, Comm::size);
    let own = pulse.comm.as_ref().map_or(0, Comm::rank);
    let mut mailbox = pulse.comm.take().map(Mailbox::new);
    let begun = Instant::now();
    let silent = Rank { reading: Reading::default(), heard: begun, advanced: begun };
    let mut ranks = vec![silent; size];
    let (mut warned, mut trained) = (false, false);
    let (mut marks, mut told) = (vec![], 0);
    // Time without a word, of the ranks that this one hears: suspended time does not count.
    let heard = if own > 0 { 0..1 } else { 1..size };
    let mut silence: Vec<(usize, Waiting)> = heard.map(|rank| (rank, Waiting::default())).collect();
    let mut looked = Instant::now();
    // A call of MPI that meets what a stopped rank has left half done may not return.
    let alarm = Alarm::set(&pulse.watch, "its own heartbeat".into());
    while !stop.load(Relaxed) {
        if looked.elapsed() > LOOK {
            // This process was suspended, and others perhaps with it: nobody was late meanwhile.
            ranks.iter_mut().for_each(|rank| rank.advanced = Instant::now());
        }
        looked = Instant::now();
        alarm.again();
        let reading = pulse.counters.tell();
        if own > 0 {
            if let Some(mailbox) = &mut mailbox
                && mailbox.sending() == 0
            {
                let mut words = mailbox.buffer();
                words.extend_from_slice(bytemuck::cast_slice(&reading.to_words()));
                let new = pulse.counters.marks(told);
                told += new.len();
                for mark in new {
                    words.extend_from_slice(bytemuck::cast_slice(&mark.to_words()));
                }
                words.push(stop_word(&pulse.signals));
                mailbox.send(0, words);
            }
            while let Some((_, words)) = mailbox.as_mut().and_then(Mailbox::receive) {
                hear_of_stop(&pulse.signals, &words);
                silence[0].1 = Waiting::default();
            }
        } else {
            hear(&mut ranks[0], reading);
            let new = pulse.counters.marks(told);
            told += new.len();
            marks.extend(new.into_iter().map(|mark| (0, mark)));
            while let Some((from, words)) = mailbox.as_mut().and_then(Mailbox::receive) {
                let (heard, signal) = read_beat(&words);
                if let Some((reading, new)) = heard {
                    hear(&mut ranks[from], reading);
                    marks.extend(new.into_iter().map(|mark| (from, mark)));
                    silence[from - 1].1 = Waiting::default();
                }
                hear_of_stop(&pulse.signals, signal);
            }
            if let Some(mailbox) = &mut mailbox {
                // An answer to every rank that takes them, so that they notice when this one falls
                // silent.
                for rank in 1..size {
                    if mailbox.sending_to(rank) == 0 {
                        let mut words = mailbox.buffer();
                        words.push(stop_word(&pulse.signals));
                        mailbox.send(rank, words);
                    }
                }
            }
            let trains = training.load(Relaxed);
            if let Some(report) = &mut pulse.report {
                let readings: Vec<Reading> = ranks.iter().map(|rank| rank.reading).collect();
                let status_asked = pulse.signals.take_status_request();
                let (readings, marks) = (&*readings, &*marks);
                report(&Beat { readings, marks, training: trains, status_asked });
            }
            marks.clear();
            if trains && !trained {
                ranks.iter_mut().for_each(|rank| rank.advanced = Instant::now());
            }
            trained = trains;
            let late = trains
                && pulse.trainers.ranks().iter().all(|rank| {
                    ranks[*rank].advanced.elapsed() > pulse.watch.limit().mul_f32(LATE)
                });
            if late && !warned {
                name_the_late(&ranks, &pulse);
            }
            warned = late;
        }
        if let Some(signal) = pulse.signals.stop_requested()
            && let Some(folder) = pulse.folder.take()
        {
            told_to_stop(&folder, signal);
        }
        for (rank, waiting) in &mut silence {
            let what = format_args!("a sign of life from rank {rank}");
            pulse.watch.or_end(waiting.check(&pulse.watch, &what));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The reading of a beat and its marks, and what is left for its signal.
#[must_use]
pub fn read_beat(words: &[u32]) -> (Option<(Reading, Vec<Mark>)>, &[u32]) {
    let (pairs, signal) = words.as_chunks::<2>();
    let heard = pairs.split_first_chunk::<READING_WORDS>().map(|(reading, rest)| {
        let marks = rest.as_chunks::<MARK_WORDS>().0.iter();
        let marks = marks.map(|pairs| Mark::from_words(pairs.map(bytemuck::cast)));
        (Reading::from_words(reading.map(bytemuck::cast)), marks.collect())
    });
    (heard, signal)
}

/// The signal that asked this rank to stop, as a message says it.
fn stop_word(signals: &Signals) -> u32 {
    signals.stop_requested().map_or(0, i32::unsigned_abs)
}

/// Takes over what a message says of a stop.
fn hear_of_stop(signals: &Signals, word: &[u32]) {
    if let &[signal] = word
        && signal != 0
    {
        signals.request_stop(signal.cast_signed());
    }
}

fn hear(rank: &mut Rank, reading: Reading) {
    rank.heard = Instant::now();
    if reading.steps != rank.reading.steps {
        rank.advanced = rank.heard;
    }
    rank.reading = reading;
}

/// No trainer has made a step for long: says which rank is the furthest behind. One that is not
/// heard of comes first, whatever its role; the others may only be waiting for it.
fn name_the_late(ranks: &[Rank], pulse: &Pulse) {
    let silent = |rank: &usize| ranks[*rank].heard.elapsed() > SILENT;
    let mut order: Vec<usize> =
        (0..ranks.len()).filter(|rank| pulse.trainers.contains(*rank) || silent(rank)).collect();
    order.sort_by_key(|rank| (!silent(rank), ranks[*rank].reading.steps, ranks[*rank].heard));
    let seconds = pulse.watch.limit().mul_f32(LATE).as_secs();
    eprintln!("umbra: no training step on any rank for {seconds} s; the furthest behind first:");
    for rank in order.into_iter().take(8) {
        let Rank { reading, heard, .. } = ranks[rank];
        let heard = heard.elapsed().as_secs();
        eprintln!("umbra:   rank {rank}: {} steps, last heard of {heard} s ago", reading.steps);
    }
}

/// Time between beats.
const INTERVAL: Duration = Duration::from_millis(100);
/// A rank that beats is heard of more often.
const SILENT: Duration = Duration::from_secs(2);
/// Share of the deadline after which the first rank speaks, before the waiting ranks give up.
const LATE: f32 = 0.8;
