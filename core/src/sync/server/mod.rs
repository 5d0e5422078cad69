//! Training on a parameter server: the conversation of workers, servers and the dispatcher.
//!
//! The servers own the dense parameters, a slice each, with their optimizer state; workers fetch
//! them for every batch and bring gradients (M. Li et al., "Scaling distributed machine learning
//! with the parameter server", OSDI 2014). Who trains which batch, and which gradients are applied
//! together, the dispatcher decides (`token/`, arXiv 2205.11048): with its rule this is GBA, an
//! asynchronous or a synchronous server.
//!
//! | word | from → to | with it |
//! | --- | --- | --- |
//! | `ASK` | worker → dispatcher | a note, empty |
//! | `REPORT` | worker → dispatcher | a note: batch, 1 if its gradient is finite, 1 if its trainer was asked to stop; asks too |
//! | `TICKET` | dispatcher → worker | a note: the [`Ticket`] |
//! | `PULL` + version | worker → server | nothing |
//! | `PARAMETERS` + version | server → worker | the slice |
//! | `PUSH` + place and batch | worker → server | the gradient of the slice |
//! | `ACK` + batch | server → worker | nothing |
//! | `MEMBER` | dispatcher → server, relay | a note: the [`Member`] |
//! | `FLUSH` | dispatcher → server, relay | a note: the [`Aggregate`] |
//! | `END` | dispatcher → worker, server, relay | nothing |
//!
//! Rows are asked for and pushed on ways of their own (`rows/tokens.rs`); on every rank that holds
//! some a relay tells their partitions what the dispatcher says.
//!
//! Map: `serving.rs` a server as data · `worker.rs` · `shard.rs`, a server's side · `relay.rs` ·
//! `dispatcher.rs`.
//!
//! Invariants: a gradient is reported when every server has it, so a server waits for no worker. A
//! dispatcher's words come to each server in the order in which they were sent, so all servers
//! apply the same aggregates. A pull waits for its version, of which all members are there.

mod dispatcher;
mod relay;
mod serving;
mod shard;
mod worker;

pub use dispatcher::{Dispatcher, Reached, Tally};
pub use relay::Relay;
pub use serving::Serving;
pub use shard::{Shard, ShardMemory, Updates};
pub use worker::ServerWorker;

use super::protocol::Note;
use super::token::{Aggregate, Member, Ticket};

const ASK: u64 = 1;
const REPORT: u64 = 2;
const TICKET: u64 = 3;
const PULL: u64 = 4;
const PARAMETERS: u64 = 5;
const PUSH: u64 = 6;
const ACK: u64 = 7;
const MEMBER: u64 = 8;
const FLUSH: u64 = 9;
const END: u64 = 10;

/// Bits of a word below its kind.
const NUMBER_BITS: u32 = 56;
/// Bits of a push's number that are its place.
const PLACE_BITS: u32 = 16;

/// Most batches under way, and most streams of data: what a message can tell apart.
pub const PLACES_MAX: usize = 1 << PLACE_BITS;

/// A word of a kind, with a number below 2^56.
const fn word(kind: u64, number: u64) -> u64 {
    kind << NUMBER_BITS | number
}

/// Kind and number of a word.
const fn parts(word: u64) -> (u64, u64) {
    (word >> NUMBER_BITS, word & ((1 << NUMBER_BITS) - 1))
}

/// Place and batch as one number: places are fewer than 2^16, batches than 2^40.
const fn placed(place: usize, batch: u64) -> u64 {
    batch << PLACE_BITS | place as u64
}

/// Place and batch of such a number.
const fn place_of(number: u64) -> (usize, u64) {
    ((number & ((1 << PLACE_BITS) - 1)) as usize, number >> PLACE_BITS)
}

/// Streams are fewer than 2^16, as they are members or workers; steps than 2^40.
const fn ticket_note(ticket: &Ticket) -> Note {
    let Ticket { place, batch, stream, step, token, version } = *ticket;
    [placed(place, batch), placed(stream, step), token, version]
}

const fn ticket([placed, of_data, token, version]: Note) -> Ticket {
    let ((place, batch), (stream, step)) = (place_of(placed), place_of(of_data));
    Ticket { place, batch, stream, step, token, version }
}

/// What a server is told of a member: staleness and lag are the dispatcher's affair.
fn member_note(member: &Member) -> Note {
    let (members, sum) = match member.completes {
        Some(aggregate) => (u64::from(aggregate.members), aggregate.weight),
        None => (0, 0.0),
    };
    let weights = u64::from(member.weight.to_bits()) << 32 | u64::from(sum.to_bits());
    [placed(member.place, member.batch), member.version, weights, members]
}

/// The member that the dispatcher tells of, without its staleness and lag.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "as `member_note` has put them together")]
pub fn member([placed, version, weights, members]: Note) -> Member {
    let (place, batch) = place_of(placed);
    let aggregate = Aggregate {
        number: version,
        members: members as u32,
        weight: f32::from_bits(weights as u32),
    };
    Member {
        place,
        batch,
        version,
        weight: f32::from_bits((weights >> 32) as u32),
        staleness: 0,
        lag: 0,
        completes: (members > 0).then_some(aggregate),
    }
}

fn aggregate_note(aggregate: &Aggregate) -> Note {
    let Aggregate { number, members, weight } = *aggregate;
    [number, u64::from(members), u64::from(weight.to_bits()), 0]
}

#[expect(clippy::cast_possible_truncation, reason = "as `aggregate_note` has put them together")]
fn aggregate([number, members, weight, _]: Note) -> Aggregate {
    Aggregate { number, members: members as u32, weight: f32::from_bits(weight as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_notes_come_back() {
        assert_eq!(parts(word(PULL, 77)), (PULL, 77));
        let (kind, number) = parts(word(PUSH, placed(65_535, (1 << 40) - 1)));
        assert_eq!((kind, place_of(number)), (PUSH, (65_535, (1 << 40) - 1)));
        let it =
            Ticket { place: 3, batch: 1 << 39, stream: 5, step: 1 << 33, token: 7, version: 8 };
        assert_eq!(ticket(ticket_note(&it)), it);
        let done = Aggregate { number: 9, members: 4, weight: 2.5 };
        assert_eq!(aggregate(aggregate_note(&done)), done);
        for completes in [None, Some(done)] {
            let (staleness, lag) = (0, 0);
            let it =
                Member { place: 1, batch: 2, version: 9, weight: 0.5, staleness, lag, completes };
            assert_eq!(member(member_note(&it)), it);
        }
    }
}
