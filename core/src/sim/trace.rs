//! What happened, as a list.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

use crate::units::Nanos;

/// Something that took time, or a message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Who did it.
    pub who: Who,
    /// What it was.
    pub what: Deed,
    /// When it began.
    pub begin: Nanos,
    /// When it ended.
    pub end: Nanos,
}

/// A thread of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A worker of a trainer.
    Worker {
        /// Its trainer.
        trainer: u32,
        /// Its number there.
        worker: u32,
    },
    /// A thread that drives a protocol.
    Instance(u32),
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// A training step.
    Step,
    /// A worker waited for rows.
    AwaitRows,
    /// A worker stood at the gate.
    Gate,
    /// A thread waited until its round may begin: for its pace, or for workers at the gate.
    AwaitRound,
    /// A replica was loaded.
    Load,
    /// Staging was stored.
    Store,
    /// Staging was added.
    Add,
    /// A center made an answer.
    Serve,
    /// What matters of a message was found and written.
    Code,
    /// A message was on its way.
    Message {
        /// Receiving instance.
        to: u32,
        /// What it is.
        word: u64,
    },
    /// A thread waited for a message.
    Receive,
    /// A reduction, from this rank's coming to its end.
    Reduce,
    /// A thread slept.
    Sleep,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker { trainer, worker } => write!(f, "worker {trainer}.{worker}"),
            Self::Instance(number) => write!(f, "instance {number}"),
        }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Step => "step",
            Self::AwaitRows => "waits for rows",
            Self::Gate => "at the gate",
            Self::AwaitRound => "waits for its round",
            Self::Load => "load",
            Self::Store => "store",
            Self::Add => "add",
            Self::Serve => "serve",
            Self::Code => "code",
            Self::Message { to, word } => return write!(f, "message {word} to {to}"),
            Self::Receive => "receive",
            Self::Reduce => "reduce",
            Self::Sleep => "sleep",
        };
        f.write_str(name)
    }
}

/// Spans as text, one per line: begin and end in ns, who, what. In the order of their begins.
#[must_use]
pub fn lines(spans: &[Span]) -> String {
    let mut order: Vec<&Span> = spans.iter().collect();
    order.sort_by_key(|span| span.begin);
    let mut text = String::new();
    for Span { who, what, begin, end } in order {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:>10} {:>10}  {who}: {what}", begin.0, end.0);
    }
    text
}
