//! Workers and background synchronization on one dense replica, in every order that the memory
//! model allows.
//!
//! The kernels of shared words (`core/src/kernel/`) are vector instructions, which no checker can
//! take apart, so what is checked is a twin: it reads a vector word by word, computes, and writes
//! it word by word, on any kind of word. On plain atomics the twin gives the bits of the real
//! functions; on loom's it meets every order. What must come out is found by an oracle that
//! interleaves whole reads and whole writes of one word.
#![allow(clippy::unwrap_used, clippy::std_instead_of_core, clippy::alloc_instead_of_core)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, atomic};

use loom::sync::Arc as LoomArc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use umbra_core::dense::replica;
use umbra_core::optim::{Optimizer, OptimizerKind, StepSize};

/// A word of shared memory, read and written with relaxed order.
trait Word {
    fn read(&self) -> f32;
    fn write(&self, x: f32);
}

impl Word for AtomicU32 {
    fn read(&self) -> f32 {
        f32::from_bits(self.load(Ordering::Relaxed))
    }

    fn write(&self, x: f32) {
        self.store(x.to_bits(), Ordering::Relaxed);
    }
}

/// A word of loom's whose reads take turns. Loom takes a store for independent of the loads before
/// it, and would not try it ahead of them; turns depend on each other, so it tries them in every
/// order, and they order nothing else.
struct Turned {
    word: AtomicU32,
    turns: LoomArc<AtomicU32>,
}

impl Word for Turned {
    fn read(&self) -> f32 {
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.word.read()
    }

    fn write(&self, x: f32) {
        self.word.write(x);
    }
}

impl Word for atomic::AtomicU32 {
    fn read(&self) -> f32 {
        f32::from_bits(self.load(atomic::Ordering::Relaxed))
    }

    fn write(&self, x: f32) {
        self.store(x.to_bits(), atomic::Ordering::Relaxed);
    }
}

/// What a thread does to all words at once.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A worker's step of gradient descent.
    Update { rate: f32, gradient: f32 },
    /// Synchronization towards a mean.
    Interpolate { alpha: f32, value: f32 },
    /// Synchronization by a difference.
    Add { alpha: f32, value: f32 },
}

impl Op {
    fn of(self, now: f32) -> f32 {
        match self {
            Self::Update { rate, gradient } => now - rate * gradient,
            Self::Interpolate { alpha, value } => now + alpha * (value - now),
            Self::Add { alpha, value } => now + alpha * value,
        }
    }

    /// The twin: one vector of words.
    fn twin(self, words: &[impl Word]) {
        let now: Vec<f32> = words.iter().map(Word::read).collect();
        words.iter().zip(now).for_each(|(word, now)| word.write(self.of(now)));
    }

    fn real(self, words: &[atomic::AtomicU32]) {
        let all = |x| vec![x; words.len()];
        match self {
            Self::Update { rate, gradient } => {
                let optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
                let step = StepSize { rate, count: 1 };
                replica::update(&optimizer, step, words, &[], &all(gradient));
            }
            Self::Interpolate { alpha, value } => replica::interpolate(words, alpha, &all(value)),
            Self::Add { alpha, value } => replica::add(words, alpha, &all(value)),
        }
    }
}

/// Numbers with many digits: halves of two of them make a third.
const START: f32 = 1.2345679;
const A: Op = Op::Update { rate: 0.1, gradient: 0.7654321 };
const B: Op = Op::Update { rate: 0.3, gradient: -1.1 };
const TOWARDS: Op = Op::Interpolate { alpha: 0.6, value: -2.7 };
const BY: Op = Op::Add { alpha: 0.4, value: 2.7182817 };

#[test]
fn the_twin_is_the_code() {
    for (op, n) in [A, B, TOWARDS, BY].into_iter().flat_map(|op| [1, 2, 16, 21].map(|n| (op, n))) {
        let words = || -> Vec<_> {
            (0..n).map(|i| atomic::AtomicU32::new((START + i as f32).to_bits())).collect()
        };
        let (twin, real) = (words(), words());
        op.twin(&twin);
        op.real(&real);
        let bits = |words: Vec<atomic::AtomicU32>| -> Vec<u32> {
            words.into_iter().map(atomic::AtomicU32::into_inner).collect()
        };
        assert_eq!(bits(twin), bits(real), "{op:?} of {n} words");
    }
}

/// What a word can be after these programs, one per thread, when every operation is a whole read,
/// then a whole write.
fn oracle(programs: &[&[Op]]) -> BTreeSet<u32> {
    /// By thread: operations done, and what the one under way has read.
    type Threads = Vec<(usize, Option<f32>)>;
    fn go(programs: &[&[Op]], word: f32, threads: &Threads, ends: &mut BTreeSet<u32>) {
        let mut all_done = true;
        for (i, program) in programs.iter().enumerate() {
            let (done, read) = threads[i];
            let Some(op) = program.get(done) else { continue };
            all_done = false;
            let mut after = threads.clone();
            let (state, word) = match read {
                None => ((done, Some(word)), word),
                Some(read) => ((done + 1, None), op.of(read)),
            };
            after[i] = state;
            go(programs, word, &after, ends);
        }
        if all_done {
            ends.insert(word.to_bits());
        }
    }
    let mut ends = BTreeSet::new();
    go(programs, START, &vec![(0, None); programs.len()], &mut ends);
    ends
}

/// Times that a thread is interrupted, at most: all results of the programs below need no more, as
/// the oracle knows.
const PREEMPTIONS: usize = 2;

/// What `words` words can be after these programs, in every order.
fn ends(words: usize, programs: &'static [&'static [Op]]) -> BTreeSet<Vec<u32>> {
    let ends = Arc::new(Mutex::new(BTreeSet::new()));
    let found = Arc::clone(&ends);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(move || {
        let turns = LoomArc::new(AtomicU32::new(0));
        let start =
            |_| Turned { word: AtomicU32::new(START.to_bits()), turns: LoomArc::clone(&turns) };
        let replica: LoomArc<Vec<_>> = LoomArc::new((0..words).map(start).collect());
        let run = |program: &'static [Op]| {
            let replica = LoomArc::clone(&replica);
            thread::spawn(move || program.iter().for_each(|op| op.twin(&replica)))
        };
        let threads: Vec<_> = programs.iter().map(|program| run(program)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let end = replica.iter().map(|word| word.read().to_bits()).collect();
        found.lock().unwrap().insert(end);
    });
    ends.lock().unwrap().clone()
}

/// Updates may be lost; no word is ever anything but the result of whole reads and writes, and all
/// those results do occur.
#[test]
fn a_word_is_always_the_result_of_whole_operations() {
    let programs: [&'static [&'static [Op]]; 4] = [
        &[&[A, B], &[TOWARDS]],
        &[&[A, A], &[BY]],
        &[&[A], &[B], &[TOWARDS]],
        &[&[A], &[B], &[BY]],
    ];
    for programs in programs {
        let expected = oracle(programs);
        let found: BTreeSet<u32> = ends(1, programs).into_iter().map(|end| end[0]).collect();
        assert!(expected.len() > 2, "{programs:?}");
        assert_eq!(found, expected, "{programs:?}");
    }
}

/// The words of a vector go their ways alone: each is a result of whole operations, and a
/// synchronization that meets an update half done leaves one word with it and another without.
#[test]
fn words_of_a_vector_are_whole_each() {
    let programs: [&'static [&'static [Op]]; 2] = [&[&[A], &[TOWARDS]], &[&[A], &[BY]]];
    for programs in programs {
        let (expected, found) = (oracle(programs), ends(2, programs));
        for word in 0..2 {
            let of_word: BTreeSet<u32> = found.iter().map(|end| end[word]).collect();
            assert_eq!(of_word, expected, "word {word} after {programs:?}");
        }
        assert!(found.iter().any(|end| end[0] != end[1]), "{programs:?} were never mixed");
    }
}

/// Two workers train a word each, and the flag goes up after both; the background thread loads
/// until it is told to stop, and then looks once more. Returns whether that look always saw all
/// updates.
fn stop_sees_all_updates(up: Ordering, look: Ordering) -> bool {
    let missed = Arc::new(atomic::AtomicBool::new(false));
    let (seen, last) = (Arc::clone(&missed), A.of(START));
    loom::model(move || {
        let start = || AtomicU32::new(START.to_bits());
        let words = LoomArc::new([start(), start()]);
        let ended = LoomArc::new(AtomicBool::new(false));
        let shadow = {
            let (words, ended, missed) =
                (LoomArc::clone(&words), LoomArc::clone(&ended), Arc::clone(&seen));
            thread::spawn(move || {
                while !ended.load(look) {
                    // A round: any part of the training may be seen, and nothing else.
                    assert!(words.iter().all(|word| [START, last].contains(&word.read())));
                    thread::yield_now();
                }
                if words.iter().any(|word| word.read() != last) {
                    missed.store(true, atomic::Ordering::Relaxed);
                }
            })
        };
        let other_worker = {
            let words = LoomArc::clone(&words);
            thread::spawn(move || A.twin(&words[..1]))
        };
        A.twin(&words[1..]);
        other_worker.join().unwrap();
        ended.store(true, up);
        shadow.join().unwrap();
        // The load of a checkpoint, after all threads.
        assert!(words.iter().all(|word| word.read() == last));
    });
    !missed.load(atomic::Ordering::Relaxed)
}

/// In no order does the background thread go on for ever, and once told to stop it sees what
/// workers did last. The relaxed flag shows that the search would find an order in which it does
/// not.
#[test]
fn the_end_of_the_workers_is_never_missed() {
    assert!(stop_sees_all_updates(Ordering::Release, Ordering::Acquire));
    assert!(!stop_sees_all_updates(Ordering::Relaxed, Ordering::Relaxed));
}
