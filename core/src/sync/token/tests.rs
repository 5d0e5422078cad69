//! Sentences of the coordinator, in a small world of workers and servers with messages that take
//! any time.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use core::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::vec;
use std::vec::Vec;

use super::*;
use crate::rng::{Purpose, Stream};

const NEVER: Nanos = Nanos(u64::MAX);

fn gba(members: u32, tolerance: u64) -> Rule {
    Rule {
        members,
        admission: Admission::Free,
        decay: Decay::Hard { tolerance },
        late_takes_place: true,
        reissue_after: NEVER,
    }
}

/// What happened to the batches of a run.
#[derive(Debug, Default)]
struct History {
    /// In the order of their reports.
    members: Vec<Member>,
    aggregates: Vec<Aggregate>,
    /// Of every batch the token that it was handed out with first.
    tokens: BTreeMap<u64, u64>,
    /// How often a batch was handed out.
    handed_out: BTreeMap<u64, u32>,
    twins: u32,
    reported: Vec<u64>,
    /// Most that the reports of two workers were apart when one of them was given a batch.
    apart_max: u64,
}

/// Runs `batches`, a third of them of each of three streams, under `rule` until the end.
/// `nanos(worker, step)`: how long a step takes.
fn run(rule: Rule, batches: u64, workers: usize, nanos: impl Fn(usize, u64) -> u64) -> History {
    let (mut all, mut under_way) = (vec![Worker::default(); workers], vec![None; workers]);
    let mut given = [0; 3];
    let streams = Streams::new(&mut given, 0..batches / 3, 2);
    let mut it = Coordinator::new(rule, streams, (0, 0), &mut all, &mut under_way);
    let mut history = History::default();
    // Who reports what and when; who waits.
    let mut events = BinaryHeap::new();
    let mut waiting: Vec<usize> = (0..workers).collect();
    let mut steps = vec![0; workers];
    let mut now = Nanos(0);
    for turn in 0.. {
        assert!(turn < 1_000_000, "no end");
        let mut next = None;
        waiting.retain(|&worker| match it.ask(worker, now).unwrap() {
            Answer::Train(ticket) => {
                let fewest = it.workers().iter().map(|worker| worker.reported).min().unwrap();
                let apart = it.workers()[worker].reported - fewest;
                history.apart_max = history.apart_max.max(apart);
                history.tokens.entry(ticket.batch).or_insert(ticket.token);
                *history.handed_out.entry(ticket.batch).or_default() += 1;
                let end = now.0 + nanos(worker, steps[worker]);
                steps[worker] += 1;
                events.push(Reverse((end, worker, ticket.batch)));
                false
            }
            Answer::Wait { until } => {
                next = next.into_iter().chain(until).min();
                true
            }
            Answer::End => false,
        });
        let report = events.peek().map(|Reverse((time, ..))| *time);
        match (report, next) {
            (Some(time), Some(Nanos(look))) if look < time => now = Nanos(look),
            (Some(time), _) => {
                let Some(Reverse((_, worker, batch))) = events.pop() else { unreachable!() };
                now = Nanos(time);
                match it.report(worker, batch, true).unwrap() {
                    Verdict::Counted(member) | Verdict::Dropped(member) => {
                        history.members.push(member);
                        history.aggregates.extend(member.completes);
                    }
                    Verdict::Twin => history.twins += 1,
                }
                waiting.push(worker);
            }
            (None, _) => break,
        }
    }
    assert!(waiting.is_empty(), "the end came, and {waiting:?} were not told");
    history.aggregates.extend(it.flush().unwrap());
    history.reported = it.workers().iter().map(|worker| worker.reported).collect();
    history
}

/// Each batch is in one aggregate, or dropped, once; aggregates are as large as the rule says.
fn check(rule: Rule, batches: u64, history: &History, case: &str) {
    let mut seen: Vec<u64> = history.members.iter().map(|member| member.batch).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..batches), "{case}: each batch once");
    for (number, aggregate) in history.aggregates.iter().enumerate() {
        assert_eq!(aggregate.number, number as u64, "{case}");
        let of = history.members.iter().filter(|member| member.version == aggregate.number);
        let weight: f32 = of.clone().map(|member| member.weight).sum();
        let takes = |member: &&Member| member.weight > 0.0 || rule.late_takes_place;
        assert_eq!(of.filter(takes).count(), aggregate.members as usize, "{case}");
        assert!((weight - aggregate.weight).abs() < 1e-4, "{case}");
        let is_last = number + 1 == history.aggregates.len();
        assert!(aggregate.members == rule.members || is_last, "{case}: {aggregate:?}");
    }
    let sum: f32 = history.aggregates.iter().map(|aggregate| aggregate.weight).sum();
    let weights: f32 = history.members.iter().map(|member| member.weight).sum();
    assert!((sum - weights).abs() < 1e-3, "{case}: nothing is lost at the end");
}

#[test]
fn every_token_is_handed_out_m_times_and_every_gradient_counts_once() {
    for seed in 0..200 {
        let stream = Stream::new(seed, Purpose::Test(0));
        let pick = |index, bound| stream.below(index, bound);
        let workers = 1 + pick(0, 9) as usize;
        let members = 1 + pick(1, 8) as u32;
        let batches = 3 * pick(2, 40);
        let decays =
            [Decay::None, Decay::Hard { tolerance: pick(3, 3) }, Decay::Power { rho: 0.5 }];
        let admissions = [
            Admission::Free,
            Admission::Free,
            Admission::OnePerVersion,
            Admission::Within { steps: pick(4, 4) },
        ];
        let admission = admissions[pick(5, 4) as usize];
        let rule = Rule {
            // A version with fewer workers than members would never come.
            members: if admission == Admission::OnePerVersion { workers as u32 } else { members },
            admission,
            decay: decays[pick(6, 3) as usize],
            late_takes_place: admission != Admission::OnePerVersion,
            reissue_after: if pick(7, 2) == 0 { NEVER } else { Nanos(300) },
        };
        let nanos = |worker: usize, step: u64| {
            let at = 100 + worker as u64 * 1000 + step;
            if pick(at, 30) == 0 { 1000 } else { 50 + pick(at + 100_000, 100) }
        };
        let history = run(rule, batches, workers, nanos);
        let case = std::format!("seed {seed}: {rule:?}, {workers} workers");
        check(rule, batches, &history, &case);
        if admission != Admission::OnePerVersion {
            for (batch, token) in &history.tokens {
                assert_eq!(*token, batch / u64::from(rule.members), "{case}");
            }
        }
        let reported: u64 = history.reported.iter().sum();
        assert_eq!(reported, batches + u64::from(history.twins), "{case}");
        if rule.reissue_after == NEVER {
            assert_eq!(history.twins, 0, "{case}");
            assert!(history.handed_out.values().all(|times| *times == 1), "{case}");
        }
    }
}

/// Every order in which two workers can ask and report four batches, in aggregates of two.
#[test]
fn in_every_order_of_a_small_case_each_batch_counts_once() {
    fn explore(path: &mut Vec<(usize, bool)>, orders: &mut u32) {
        for worker in 0..2 {
            for asks in [true, false] {
                let (mut all, mut under_way) = ([Worker::default(); 2], [None; 3]);
                let rule = Rule { reissue_after: Nanos(4), ..gba(2, 0) };
                let mut given = [0; 2];
                let streams = Streams::new(&mut given, 0..2, 1);
                let mut it = Coordinator::new(rule, streams, (0, 0), &mut all, &mut under_way);
                let mut held: [Vec<u64>; 2] = [vec![], vec![]];
                let (mut counted, mut aggregates) = (vec![], vec![]);
                path.push((worker, asks));
                let mut moved = false;
                for (now, (worker, asks)) in path.iter().enumerate() {
                    moved = true;
                    if *asks {
                        // Two at most, so that there is an end.
                        let may = held[*worker].len() < 2;
                        match it.ask(*worker, Nanos(now as u64)).unwrap() {
                            Answer::Train(ticket) if may => held[*worker].push(ticket.batch),
                            _ => moved = false,
                        }
                    } else if held[*worker].is_empty() {
                        moved = false;
                    } else {
                        let batch = held[*worker].remove(0);
                        match it.report(*worker, batch, true).unwrap() {
                            Verdict::Counted(member) | Verdict::Dropped(member) => {
                                counted.push(batch);
                                aggregates.extend(member.completes);
                            }
                            Verdict::Twin => assert!(counted.contains(&batch)),
                        }
                    }
                    if !moved {
                        break;
                    }
                }
                if moved && it.under_way() == 0 && it.next() == 4 {
                    counted.sort_unstable();
                    assert_eq!(counted, [0, 1, 2, 3], "{path:?}");
                    assert_eq!(aggregates.len(), 2, "{path:?}");
                    assert_eq!(it.flush(), Ok(None), "{path:?}");
                    *orders += 1;
                } else if moved && path.len() < 9 {
                    explore(path, orders);
                }
                path.pop();
            }
        }
    }
    let mut orders = 0;
    explore(&mut vec![], &mut orders);
    assert!(orders > 100, "{orders}");
}

/// The table of the staleness of workers that are S times slower: (S − 1) N / M.
#[test]
fn a_slow_worker_is_as_stale_as_the_others_are_fast() {
    for (slower, workers, members, expected) in
        [(1, 16, 16, 0.0), (1, 64, 16, 0.0), (5, 16, 16, 4.0), (5, 64, 16, 16.0), (10, 16, 16, 9.0)]
    {
        let stream = Stream::new(7, Purpose::Test(0));
        // A tenth of jitter.
        let nanos = |worker: usize, step: u64| {
            let jitter = stream.normal(worker as u64 * 1_000_000 + step);
            let slower = if worker == 0 { slower } else { 1 };
            (slower as f32 * 1e6 * (1.0 + 0.1 * jitter).max(0.1)) as u64
        };
        let rule = Rule { decay: Decay::None, ..gba(members, 0) };
        let (mut slow, mut lags) = (vec![], vec![]);
        let (mut all, mut under_way) = (vec![Worker::default(); workers], vec![None; workers]);
        let mut given = [0];
        let streams = Streams::new(&mut given, 0..workers as u64 * 400, 1);
        let mut it = Coordinator::new(rule, streams, (0, 0), &mut all, &mut under_way);
        let mut events = BinaryHeap::new();
        let mut steps = vec![0; workers];
        let mut give = |it: &mut Coordinator<'_>, worker: usize, now: u64| {
            if let Answer::Train(ticket) = it.ask(worker, Nanos(now)).unwrap() {
                let time = now + nanos(worker, steps[worker]);
                steps[worker] += 1;
                return Some(Reverse((time, worker, ticket.batch)));
            }
            None
        };
        (0..workers).for_each(|worker| events.extend(give(&mut it, worker, 0)));
        while let Some(Reverse((now, worker, batch))) = events.pop() {
            if let Verdict::Counted(member) = it.report(worker, batch, true).unwrap() {
                lags.push(member.lag as f64);
                if worker == 0 {
                    slow.push(member.staleness as f64);
                }
            }
            events.extend(give(&mut it, worker, now));
        }
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let (staleness, lag) = (mean(&slow), mean(&lags));
        std::println!(
            "{slower} times slower, N = {workers}, M = {members}: staleness {staleness:.2}, lag \
             {lag:.2}"
        );
        let tolerance = 0.1 * expected + 0.5 * workers as f64 / f64::from(members);
        assert!((staleness - expected).abs() < tolerance, "{staleness}, not {expected}");
        let even = workers as f64 / f64::from(members);
        assert!((lag - even).abs() < 0.1 * even + 0.1, "{lag}, not {even}");
    }
}

#[test]
fn a_batch_that_a_worker_keeps_is_handed_out_again_and_counts_once() {
    let rule = Rule { reissue_after: Nanos(1000), ..gba(4, 1) };
    // Worker 0 stands still in its third step.
    let stopped = |worker, step| if worker == 0 && step == 2 { 50_000 } else { 100 };
    let history = run(rule, 399, 4, stopped);
    check(rule, 399, &history, "one stops");
    assert_eq!(history.twins, 1, "its batch came from another, and then from it");
    let even = run(rule, 399, 4, |_, _| 100);
    assert_eq!((even.twins, even.reported), (0, vec![100, 100, 100, 99]));
    // Others take its share: the last aggregate is formed as soon as three can.
    assert!(history.reported[1..].iter().all(|reported| *reported > 100));
}

#[test]
fn one_per_version_is_a_gradient_of_every_worker() {
    let rule =
        Rule { members: 3, admission: Admission::OnePerVersion, decay: Decay::None, ..gba(3, 0) };
    let slow = |worker, _| if worker == 2 { 900 } else { 100 };
    let history = run(rule, 30, 3, slow);
    check(rule, 30, &history, "bsp");
    assert_eq!(history.reported, [10, 10, 10]);
    assert!(history.members.iter().all(|member| (member.staleness, member.lag) == (0, 0)));
}

#[test]
fn backup_workers_leave_the_slowest_behind() {
    let rule = Rule {
        members: 3,
        admission: Admission::OnePerVersion,
        late_takes_place: false,
        ..gba(3, 0)
    };
    let slow = |worker, _| if worker == 3 { 450 } else { 100 };
    let history = run(rule, 81, 4, slow);
    let dropped = history.members.iter().filter(|member| member.weight == 0.0).count();
    assert_eq!(dropped, history.reported[3] as usize, "all of the slow one's come too late");
    assert!(history.reported[0] > 4 * history.reported[3]);
    check(rule, 81, &history, "backup");
}

#[test]
fn bounded_staleness_holds_the_fast_back() {
    for steps in [0, 1, 3] {
        let rule = Rule {
            members: 1,
            admission: Admission::Within { steps },
            decay: Decay::None,
            ..gba(1, 0)
        };
        let slow = |worker, _| if worker == 0 { 1000 } else { 100 };
        let history = run(rule, 60, 3, slow);
        check(rule, 60, &history, "bounded");
        assert_eq!(history.apart_max, steps);
    }
}

#[test]
fn a_pause_ends_the_aggregate_in_hand_and_tokens_begin_anew() {
    let (mut all, mut under_way) = ([Worker::default(); 2], [None; 2]);
    let mut given = [0; 3];
    let streams = Streams::new(&mut given, 2..20, 5);
    let mut it = Coordinator::new(gba(4, 0), streams, (10, 7), &mut all, &mut under_way);
    it.streams().end_at(3);
    let ticket = |answer| match answer {
        Ok(Answer::Train(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    let first = ticket(it.ask(0, Nanos(0)));
    assert_eq!(first, Ticket { place: 0, batch: 10, stream: 0, step: 2, token: 7, version: 7 });
    let second = ticket(it.ask(1, Nanos(0)));
    assert_eq!(it.flush(), Err(Refused::Busy { under_way: 2 }));
    it.report(1, second.batch, true).unwrap();
    // Not finite: it takes its place, with no weight.
    let dropped = it.report(0, first.batch, false).unwrap();
    assert!(matches!(dropped, Verdict::Dropped(Member { weight: 0.0, .. })), "{dropped:?}");
    let third = ticket(it.ask(0, Nanos(0)));
    assert_eq!(it.ask(1, Nanos(0)), Ok(Answer::Wait { until: Some(NEVER) }));
    it.report(0, third.batch, true).unwrap();
    assert_eq!(it.ask(1, Nanos(0)), Ok(Answer::End));
    let aggregate = Aggregate { number: 7, members: 3, weight: 2.0 };
    assert_eq!(it.flush(), Ok(Some(aggregate)));
    assert_eq!(it.flush(), Ok(None));
    it.streams().end_at(20);
    let next = ticket(it.ask(0, Nanos(0)));
    assert_eq!((next.batch, next.step, next.token, next.version), (13, 3, 8, 8));
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let (mut all, mut under_way) = ([Worker::default(); 2], [None; 2]);
    let mut given = [0];
    let streams = Streams::new(&mut given, 0..9, 1);
    let mut it = Coordinator::new(gba(2, 0), streams, (0, 0), &mut all, &mut under_way);
    assert_eq!(it.ask(2, Nanos(0)), Err(Refused::Worker { got: 2, workers: 2 }));
    assert_eq!(it.report(0, 0, true), Err(Refused::Batch { got: 0, next: 0 }));
    it.ask(0, Nanos(0)).unwrap();
    assert_eq!(it.report(5, 0, true), Err(Refused::Worker { got: 5, workers: 2 }));
    assert_eq!(it.report(1, 1, true), Err(Refused::Batch { got: 1, next: 1 }));
    assert_eq!((it.under_way(), it.workers()[1].reported), (1, 0));
}
