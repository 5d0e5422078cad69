//! Ranks with their replicas, the messages under way and the reductions under way.
//!
//! Invariants: nothing happens by itself: every function is one event at one rank. Messages between
//! two ranks keep their order, those of different senders have none; a reduction ends at each rank
//! at a time of its own, after all of its group have joined it. Sums and moves are the library's.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::AtomicU32;

use umbra_core::dense::replica::{add_parameters, element, interpolate, load_finite, store};
use umbra_core::sync::{Action, Completion, Dealing, Group, Intake, Protocol, reduction};

pub(crate) trait Machine: Protocol + Debug {}
impl<T: Protocol + Debug> Machine for T {}

pub(crate) const fn intake(delta: bool, loaded: &mut [f32]) -> Intake<'_> {
    if delta { Intake::Delta { loaded } } else { Intake::Interpolate }
}

#[derive(Debug)]
pub(crate) struct Rank<'a> {
    pub machine: Box<dyn Machine + 'a>,
    pub outstanding: Action,
    /// Empty at a center.
    pub replica: Vec<AtomicU32>,
    /// Its workers have ended, as far as the protocol was told.
    pub ended: bool,
    /// Reductions it joined and reductions whose outcome it has.
    pub joined: usize,
    pub concluded: usize,
}

impl Rank<'_> {
    pub(crate) fn values(&self) -> Vec<f32> {
        self.replica.iter().map(element).collect()
    }

    pub(crate) fn train(&self, work: impl Fn(usize, f32) -> f32) {
        let values: Vec<f32> =
            self.values().into_iter().enumerate().map(|(i, x)| work(i, x)).collect();
        store(&self.replica, &values);
    }

    /// What goes beside the replica in `staging`.
    pub(crate) fn slice(&mut self) -> Vec<f32> {
        reduction::slice(self.machine.staging()).to_vec()
    }
}

/// What a trainer brings to a reduction: its number, staging, and for how long it has heard of
/// nobody who wants another.
type Term = (usize, Vec<f32>, u32);

/// A word and, if the message has them, values.
type Message = (u64, Option<Vec<f32>>);

#[derive(Debug)]
pub(crate) struct World<'a> {
    pub ranks: Vec<Rank<'a>>,
    /// By sender and receiver.
    messages: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// Terms of the reductions that some trainer has no outcome of, by number.
    reductions: BTreeMap<usize, Vec<Term>>,
    trainers: usize,
    /// The groups of reductions; without it all trainers.
    dealing: Option<Dealing<'a>>,
}

impl<'a> World<'a> {
    /// All machines started; the ranks after those of `replicas` are centers.
    pub(crate) fn new(machines: Vec<Box<dyn Machine + 'a>>, replicas: &[Vec<f32>]) -> Self {
        Self::dealt(machines, replicas, None)
    }

    /// As [`World::new`]; the number of a reduction is its round.
    pub(crate) fn dealt(
        machines: Vec<Box<dyn Machine + 'a>>,
        replicas: &[Vec<f32>],
        dealing: Option<Dealing<'a>>,
    ) -> Self {
        let start = |(rank, mut machine): (usize, Box<dyn Machine + 'a>)| {
            let outstanding = machine.step(Completion::Start).unwrap();
            let values = replicas.get(rank).map_or(&[][..], Vec::as_slice);
            let replica = values.iter().map(|x| AtomicU32::new(x.to_bits())).collect();
            Rank { machine, outstanding, replica, ended: false, joined: 0, concluded: 0 }
        };
        let ranks = machines.into_iter().enumerate().map(start).collect();
        let (messages, reductions) = (BTreeMap::new(), BTreeMap::new());
        Self { ranks, messages, reductions, trainers: replicas.len(), dealing }
    }

    /// Who reduces with `rank` in a reduction.
    pub(crate) fn group(&self, rank: usize, number: usize) -> Vec<usize> {
        let mut members: Vec<usize> = (0..self.trainers).collect();
        let dealt = self.dealing.map(|it| it.deal(number as u64, rank, &mut members).len());
        members.truncate(dealt.unwrap_or(self.trainers));
        members
    }

    fn complete(&mut self, rank: usize, completion: Completion) {
        let it = &mut self.ranks[rank];
        it.outstanding = it.machine.step(completion).unwrap();
        if let Action::ReduceMean { group, weight, silent } = it.outstanding {
            let round = self.dealing.map(|_| it.joined as u64);
            assert_eq!(group, round.map_or(Group::All, |round| Group::Dealt { round }));
            let staging = it.machine.staging();
            reduction::contribute(staging, weight, silent);
            let term = (rank, staging.to_vec(), silent);
            self.reductions.entry(it.joined).or_default().push(term);
            it.joined += 1;
        }
    }

    /// `Load` is answered with the replica as it is.
    pub(crate) fn load(&mut self, rank: usize, last: bool) {
        let it = &mut self.ranks[rank];
        assert_eq!(it.outstanding, Action::Load);
        let finite = load_finite(&it.replica, reduction::slice(it.machine.staging()));
        self.complete(rank, Completion::Loaded { finite, last });
    }

    /// `Load` is answered with the end of the workers, and `Read` with what they have left.
    pub(crate) fn stop(&mut self, rank: usize) {
        let it = &mut self.ranks[rank];
        assert_eq!(it.outstanding, Action::Load);
        it.ended = true;
        self.complete(rank, Completion::Stop);
        let it = &mut self.ranks[rank];
        if it.outstanding == Action::Read {
            let finite = load_finite(&it.replica, reduction::slice(it.machine.staging()));
            self.complete(rank, Completion::Loaded { finite, last: true });
        }
    }

    /// An action that needs nobody else.
    pub(crate) fn act(&mut self, rank: usize) {
        let it = &mut self.ranks[rank];
        match it.outstanding {
            Action::Store { alpha } => {
                interpolate(&it.replica, alpha, reduction::slice(it.machine.staging()));
            }
            Action::Add { alpha, parameters } => {
                let staging = reduction::slice(it.machine.staging());
                add_parameters(&it.replica, alpha, parameters, staging);
            }
            Action::Send { to, word, payload } => {
                let values = (payload.has_values()).then(|| it.slice());
                self.messages.entry((rank, to)).or_default().push_back((word, values));
            }
            other => panic!("{other:?} needs somebody else"),
        }
        self.complete(rank, Completion::Done);
    }

    /// Whether the outcome of the reduction that `rank` waits for is there.
    pub(crate) fn is_reduced(&self, rank: usize) -> bool {
        let it = &self.ranks[rank];
        let here = |number| self.terms(rank, number).len() == self.group(rank, number).len();
        it.concluded < it.joined && here(it.concluded)
    }

    /// What has come for a reduction of `rank`, in the order of ranks.
    fn terms(&self, rank: usize, number: usize) -> Vec<Term> {
        let group = self.group(rank, number);
        let all = self.reductions.get(&number).into_iter().flatten();
        let mut terms: Vec<Term> = all.filter(|term| group.contains(&term.0)).cloned().collect();
        terms.sort_by_key(|term| term.0);
        terms
    }

    pub(crate) fn conclude(&mut self, rank: usize) -> Completion {
        assert!(self.is_reduced(rank));
        let number = self.ranks[rank].concluded;
        let mut sums = self.terms(rank, number);
        let heard = sums.iter().map(|term| term.2).min().filter(|_| self.dealing.is_some());
        if let Some(silent @ reduction::QUIET..) = heard {
            self.ranks[rank].concluded += 1;
            if self.ranks[..self.trainers].iter().all(|it| it.concluded > number) {
                self.reductions.remove(&number);
            }
            let outcome = Completion::Reduced { weight: 0.0, silent };
            self.complete(rank, outcome);
            return outcome;
        }
        reduction::sum_into_first(&mut sums, |to, from| reduction::add(&mut to.1, &from.1));
        let it = &mut self.ranks[rank];
        it.concluded += 1;
        it.machine.staging().copy_from_slice(&sums[0].1);
        let outcome = reduction::conclude(it.machine.staging(), heard);
        if self.ranks[..self.trainers].iter().all(|it| it.concluded > number) {
            self.reductions.remove(&number);
        }
        self.complete(rank, outcome);
        outcome
    }

    /// Ranks whose message the outstanding `Receive` would take.
    pub(crate) fn senders(&self, rank: usize) -> Vec<usize> {
        let Action::Receive { from } = self.ranks[rank].outstanding else { return vec![] };
        let waiting =
            |&from: &usize| self.messages.get(&(from, rank)).is_some_and(|m| !m.is_empty());
        (0..self.ranks.len())
            .filter(|&r| from.is_none_or(|from| from == r))
            .filter(waiting)
            .collect()
    }

    pub(crate) fn receive(&mut self, rank: usize, from: usize) {
        let (word, values) = self.messages.get_mut(&(from, rank)).unwrap().pop_front().unwrap();
        let elements = values.as_ref().map_or(0, Vec::len);
        if let Some(values) = values {
            assert!(values.iter().all(|x| x.is_finite()), "{from} sent {values:?}");
            reduction::slice(self.ranks[rank].machine.staging()).copy_from_slice(&values);
        }
        self.complete(rank, Completion::Received { from, word, elements });
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.reductions.is_empty() && self.messages.values().all(VecDeque::is_empty)
    }

    pub(crate) fn has_finished(&self, rank: usize) -> bool {
        self.ranks[rank].outstanding == Action::Finish
    }

    /// One round of all trainers of an averaging protocol, in rank order; `ended` trainers are told
    /// so, and `during` is what workers do to replicas while the reduction is under way.
    pub(crate) fn round(&mut self, ended: &[bool], during: impl Fn(&Rank<'_>, usize)) {
        for (rank, ended) in ended.iter().enumerate() {
            if *ended { self.stop(rank) } else { self.load(rank, false) }
        }
        self.ranks.iter().enumerate().for_each(|(rank, it)| during(it, rank));
        for rank in 0..self.trainers {
            self.conclude(rank);
        }
        for rank in 0..self.trainers {
            if matches!(self.ranks[rank].outstanding, Action::Store { .. } | Action::Add { .. }) {
                self.act(rank);
            }
        }
    }

    /// One exchange of trainer `rank` with center `center`, without anybody else between.
    pub(crate) fn exchange(&mut self, rank: usize, center: usize) {
        self.load(rank, false);
        self.act(rank);
        self.receive(center, rank);
        self.act(center);
        self.receive(rank, center);
        self.act(rank);
    }
}
