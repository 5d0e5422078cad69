//! Conversations of parameter servers whose words are anything: workers, a server, the relay of a
//! rank with its rows, and the dispatcher, each as its driver would step it.

use std::collections::VecDeque;

use umbra_core::optim::{Optimizer, OptimizerKind, Rate, Schedule};
use umbra_core::rows::intake::{Part, Push};
use umbra_core::rows::row_sums::Entry;
use umbra_core::rows::tokens::{RowDivisor, Tokens};
use umbra_core::sync::owned::{OwnedDispatcher, OwnedShard};
use umbra_core::sync::reduction::TAIL;
use umbra_core::sync::server::{Dispatcher, Relay, ServerWorker, Shard, Updates, member};
use umbra_core::sync::token::{Admission, Coordinator, Decay, Place, Rule, Streams};
use umbra_core::sync::{Action, Completion, Divisor, News, Note, Payload, Protocol};
use umbra_core::units::Nanos;

use super::targets::Fuzzed;

const WORKERS: usize = 2;
/// The server, the relay and the dispatcher.
const SERVER: usize = WORKERS;
const DISPATCHER: usize = SERVER + 2;
const INSTANCES: usize = DISPATCHER + 1;
/// Parameters.
const LEN: usize = 4;
/// f32s of a row.
const WIDTH: usize = 2;

/// A message on its way to an instance; to one behind the last: a push of rows.
#[derive(Clone, Copy)]
struct Event {
    to: u8,
    from: u8,
    elements: u8,
    /// 1 with a note, 2 when the worker is asked to stop.
    flags: u8,
    word: u64,
    note: Note,
}

/// Bytes of an event.
const EVENT: usize = 44;

impl Event {
    fn of(bytes: &[u8; EVENT]) -> Self {
        let [to, from, elements, flags, numbers @ ..] = bytes;
        let number = |at: usize| {
            let bytes = numbers[8 * at..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let note = core::array::from_fn(|at| number(at + 1));
        Self { to: *to, from: *from, elements: *elements, flags: *flags, word: number(0), note }
    }

    fn bytes(&self) -> Vec<u8> {
        let Self { to, from, elements, flags, word, note } = *self;
        let numbers = core::iter::once(word).chain(note).flat_map(u64::to_le_bytes);
        [to, from, elements, flags].into_iter().chain(numbers).collect()
    }
}

/// Gradients of two rows.
struct Rows([u32; 2]);

impl Push for Rows {
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        core::iter::once(Part { worker: 0, rate: 0.1, rows: &self.0, at: 0 })
    }

    fn gradient(&self, at: u32, width: usize) -> &[f32] {
        &[0.5; 8][at as usize..][..width]
    }
}

/// Applies what a relay tells to the pushes that are here. What is refused changes nothing.
fn tell(rows: &mut Tokens<'_, Rows>, news: News) -> Result<(), String> {
    let aggregate = match news {
        News::Begin { version } => {
            let _ = rows.begin(version);
            None
        }
        News::Member(note) => {
            let member = member(note);
            rows.count(&member).ok().and(member.completes)
        }
        News::Flush(aggregate) => Some(aggregate),
        News::End => None,
    };
    let Some(aggregate) = aggregate else { return Ok(()) };
    let mut entries = vec![Entry::default(); rows.entries_len()];
    let mut sums = vec![0.0; rows.sums_len(WIDTH)];
    let mut gradients = 0;
    if rows.sum(&aggregate, WIDTH, &mut entries, &mut sums, |_, _| gradients += 1).is_ok() {
        rows.advance(drop);
    }
    if gradients > entries.len() { Err(format!("{gradients} rows")) } else { Ok(()) }
}

/// Lets `talk` happen between machines that have not begun.
fn with_machines<T>(talk: impl FnOnce(&mut [&mut dyn Protocol], &mut Tokens<'_, Rows>) -> T) -> T {
    let optimizer = Optimizer { kind: OptimizerKind::Sgd, weight_decay: 0.0 };
    let updates = Updates {
        optimizer,
        rate: Rate { base: 0.05, schedule: Schedule::CONSTANT },
        members_of: (1, 1),
        statistics_momentum: 0.1,
        divisor: Divisor::Members,
    };
    let rule = Rule {
        members: 2,
        admission: Admission::Free,
        decay: Decay::Hard { tolerance: 4 },
        late_takes_place: true,
        reissue_after: Nanos(1000),
    };
    let mut shard = OwnedShard::new(optimizer, &[1.0; LEN], LEN, WORKERS);
    let mut shard = Shard::new(shard.lend(), updates, LEN, DISPATCHER, 0);
    let mut relay = Relay::new(DISPATCHER, 0);
    let OwnedDispatcher { mut workers, mut under_way, mut given, mut asking, mut tally } =
        OwnedDispatcher::new(WORKERS, WORKERS, WORKERS);
    let streams = Streams::new(&mut given, 0..3, 8);
    let coordinator = Coordinator::new(rule, streams, (0, 0), &mut workers, &mut under_way);
    let mut dispatcher = Dispatcher::new(coordinator, &mut asking, &mut tally, SERVER..DISPATCHER);
    let mut staging = [[0.0; LEN + TAIL]; WORKERS];
    let [one, two] = &mut staging;
    let [mut one, mut two] =
        [one, two].map(|staging| ServerWorker::new(staging, SERVER..SERVER + 1, DISPATCHER));
    let mut places = core::array::from_fn::<_, WORKERS, _>(|_| Place::default());
    let mut members = [const { None }; 2];
    let mut rows = Tokens::new(&mut places, &mut members, RowDivisor::OwnCount, 0);
    talk(&mut [&mut one, &mut two, &mut shard, &mut relay, &mut dispatcher], &mut rows)
}

/// What goes with an action that needs no message.
const fn done(action: Action, event: Option<Event>) -> Completion {
    match action {
        Action::Train { .. } => {
            let stop = match event {
                Some(event) => event.flags & 2 != 0,
                None => false,
            };
            Completion::Trained { finite: true, stop }
        }
        _ => Completion::Done,
    }
}

const fn listens(action: Action) -> bool {
    matches!(action, Action::Receive { .. } | Action::Await { .. })
}

/// Gives machines the messages of a case; each goes on until it listens.
fn hear(
    events: &[[u8; EVENT]],
    machines: &mut [&mut dyn Protocol],
    rows: &mut Tokens<'_, Rows>,
) -> Result<bool, String> {
    let mut accepted = 0;
    let mut actions = vec![];
    for machine in &mut *machines {
        actions.push(machine.step(Completion::Start).map_err(|error| error.to_string())?);
    }
    for event in events.iter().map(Event::of) {
        let at = usize::from(event.to) % (INSTANCES + 1);
        let Some(machine) = machines.get_mut(at) else {
            let push = Rows([event.from.into(), event.elements.into()]);
            accepted += u32::from(rows.push(event.word as usize, event.note[0], push).is_ok());
            continue;
        };
        for _ in 0..STEPS_MAX {
            match actions[at] {
                Action::Finish => break,
                Action::Send { to, .. } if to >= INSTANCES => {
                    return Err(format!("instance {at} sends to {to}"));
                }
                Action::Tell { news } => tell(rows, news)?,
                _ => {}
            }
            let (from, now) = (usize::from(event.from) % INSTANCES, Nanos(event.note[3]));
            let last = match actions[at] {
                action if !listens(action) => done(action, Some(event)),
                Action::Await { until } if event.flags & 4 != 0 => Completion::Late { now: until },
                _ if event.flags & 1 != 0 => {
                    Completion::Noted { from, word: event.word, note: event.note, now }
                }
                _ => {
                    let room = machine.staging().len() - TAIL + 1;
                    let elements = usize::from(event.elements) % room;
                    Completion::Received { from, word: event.word, elements }
                }
            };
            let heard = listens(actions[at]);
            match machine.step(last) {
                Ok(action) => actions[at] = action,
                Err(refused) if refused.to_string().is_empty() => return Err("no message".into()),
                // The job ends with it.
                Err(_) => return Ok(accepted > 0),
            }
            if heard {
                accepted += 1;
                break;
            }
        }
    }
    Ok(accepted > 0)
}

/// No machine does more between two messages.
const STEPS_MAX: usize = 64;

/// The messages of a conversation of machines that speak to each other.
fn conversation() -> Vec<Event> {
    with_machines(|machines, _| {
        let mut actions: Vec<Action> =
            machines.iter_mut().map(|machine| machine.step(Completion::Start).unwrap()).collect();
        let mut queues = vec![VecDeque::<Event>::new(); INSTANCES];
        let mut events = vec![];
        while events.len() < 80 {
            let before = events.len();
            let mut moved = false;
            for at in 0..INSTANCES {
                if actions[at] == Action::Finish {
                    continue;
                }
                let wanted = match actions[at] {
                    Action::Receive { from } => from,
                    _ => None,
                };
                let last = if listens(actions[at]) {
                    let is_it = |it: &Event| wanted.is_none_or(|from| from == usize::from(it.from));
                    let Some(place) = queues[at].iter().position(is_it) else { continue };
                    let event = queues[at].remove(place).unwrap();
                    events.push(event);
                    let (from, word, note) = (event.from.into(), event.word, event.note);
                    if event.flags == 1 {
                        Completion::Noted { from, word, note, now: Nanos(0) }
                    } else {
                        Completion::Received { from, word, elements: event.elements.into() }
                    }
                } else {
                    done(actions[at], None)
                };
                if let Action::Send { to, word, payload } = actions[at] {
                    let (elements, note) = match payload {
                        Payload::Note(note) => (0, Some(note)),
                        Payload::None => (0, None),
                        _ => (LEN, None),
                    };
                    let (flags, elements) = (u8::from(note.is_some()), elements as u8);
                    let (note, from, address) = (note.unwrap_or_default(), at as u8, to as u8);
                    queues[to].push_back(Event { to: address, from, elements, flags, word, note });
                }
                actions[at] = machines[at].step(last).unwrap();
                moved = true;
            }
            if !moved && events.len() == before {
                break;
            }
        }
        events
    })
}

pub(super) fn tokens() -> Fuzzed {
    let mut events = conversation();
    assert!(events.len() > 20, "{} messages", events.len());
    let push = |place: u64| Event {
        to: INSTANCES as u8,
        from: 3,
        elements: 4,
        flags: 0,
        word: place,
        note: [place; 4],
    };
    let beginning: Vec<u8> = events.iter().take(12).flat_map(Event::bytes).collect();
    events.splice(0..0, [push(0), push(1)]);
    let all = events.iter().flat_map(Event::bytes).collect();
    Fuzzed::new(vec![beginning, all], |case, _| {
        with_machines(|machines, rows| hear(case.as_chunks().0, machines, rows))
    })
}
