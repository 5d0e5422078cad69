//! The MPI driver of protocols: does what a protocol asks, on the dense communicator thread.
//!
//! No protocol knowledge here. A *foreground* protocol runs with its trainer's workers gated: it may
//! load when all of them stand at the gate, and they go on when it has stored.

use core::sync::atomic::AtomicU32;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use umbra_core::dense::replica::{interpolate, load};
use umbra_core::sync::{Action, Completion, Group, OutOfTurn, Protocol};
use umbra_core::units::Nanos;

use crate::comm::{Comm, Mailbox};
use crate::reduce::{sum_f32, sum_f64};
use crate::watch::Backoff;

/// What a protocol acts on.
pub struct Surroundings<'a> {
    /// Reductions go over this communicator; only this thread uses it.
    pub comm: &'a Comm,
    /// Point-to-point messages, for protocols that send any.
    pub mailbox: Option<&'a mut Mailbox>,
    /// The live dense replica. `[staging length]`
    pub replica: &'a [AtomicU32],
    /// The workers' gate.
    pub gate: GateKeeper,
}

/// The driver's end of the gate: the workers knock when all of them stand at it.
pub struct GateKeeper {
    /// A knock says whether this trainer has been asked to stop.
    pub knocks: Receiver<bool>,
    /// The answer, once the round is stored: what was agreed.
    pub opens: Sender<Agreement>,
}

/// What the trainers agreed on in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Some trainer was asked to stop: all stop here.
    pub stop: bool,
}

/// Bytes that rounds sent from this rank, and rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Rounds completed.
    pub rounds: u64,
    /// Bytes sent to other ranks.
    pub bytes: u64,
}

/// Runs `protocol` until it finishes, which it is asked to do when the workers have left the gate.
/// *Collective over the trainers as far as the protocol's actions are.*
///
/// # Errors
/// When the protocol refuses a completion: a defect of the protocol.
pub fn drive(
    protocol: &mut impl Protocol,
    mut around: Surroundings<'_>,
) -> Result<Traffic, OutOfTurn> {
    let start = Instant::now();
    let now = || Nanos(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let (mut scratch, mut traffic) = (vec![], Traffic::default());
    let mut stop_asked = false;
    let mut last = Completion::Start;
    loop {
        last = match protocol.step(now(), last)? {
            Action::Load => match around.gate.knocks.recv() {
                Ok(stop) => {
                    stop_asked = stop;
                    load(around.replica, protocol.staging());
                    Completion::Done
                }
                Err(_) => Completion::Stop,
            },
            Action::ReduceMean { group: Group::All } => {
                let staging = protocol.staging();
                sum_f32(around.comm, staging, &mut scratch, "the average of replicas");
                let ranks = around.comm.size();
                staging.iter_mut().for_each(|x| *x /= ranks as f32);
                traffic.bytes += 8 * (staging.len() * (ranks - 1) / ranks) as u64;
                Completion::Done
            }
            Action::Store { alpha } => {
                interpolate(around.replica, alpha, protocol.staging());
                traffic.rounds += 1;
                let mut stops = [f64::from(u8::from(stop_asked))];
                sum_f64(around.comm, &mut stops, &mut vec![], "the agreement to go on");
                // Workers that have gone need no answer.
                let _ = around.gate.opens.send(Agreement { stop: stops[0] > 0.0 });
                Completion::Done
            }
            Action::Send { to, word } => {
                if let Some(mailbox) = &mut around.mailbox {
                    let mut words = mailbox.buffer();
                    words.extend(bytemuck::cast::<u64, [u32; 2]>(word));
                    words.extend_from_slice(bytemuck::cast_slice(protocol.staging()));
                    traffic.bytes += 4 * words.len() as u64;
                    mailbox.send(to, words);
                }
                Completion::Done
            }
            Action::Receive { from, until } => match &mut around.mailbox {
                Some(mailbox) => receive(mailbox, protocol.staging(), from, || now() < until),
                None => Completion::TimedOut,
            },
            Action::Sleep { until } => {
                let left = until.0.saturating_sub(now().0);
                std::thread::sleep(core::time::Duration::from_nanos(left));
                Completion::Done
            }
            Action::Finish => return Ok(traffic),
        };
    }
}

/// Receives a protocol's message into `staging` while `go_on` says so.
fn receive(
    mailbox: &mut Mailbox,
    staging: &mut [f32],
    from: Option<usize>,
    go_on: impl Fn() -> bool,
) -> Completion {
    let mut backoff = Backoff::default();
    while go_on() {
        let Some((sender, words)) = mailbox.receive() else {
            backoff.wait();
            continue;
        };
        assert!(from.is_none_or(|from| from == sender), "a message of a stranger, rank {sender}");
        let (word, values) = words.split_at(2);
        staging.copy_from_slice(bytemuck::cast_slice(values));
        let word = bytemuck::cast::<[u32; 2], u64>([word[0], word[1]]);
        mailbox.recycle(words);
        return Completion::Received { from: sender, word };
    }
    Completion::TimedOut
}
