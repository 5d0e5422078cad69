//! A worker's side: ask, fetch, train, bring, report.
//!
//! Its rows are asked for while parameters are on their way, and taken while its gradient is.
//!
//! Invariants: a worker has one batch at a time. It reports a batch when every server has said that
//! it has the gradient, and all who hold rows have said so of theirs. A gradient that is not finite
//! is brought as zeros and reported as such.

use core::ops::Range;

use super::super::protocol::{Action, Completion, OutOfTurn, Payload, Protocol};
use super::super::reduction::{TAIL, slice};
use super::super::token::Ticket;
use super::{ACK, ASK, END, PARAMETERS, PULL, PUSH, REPORT, TICKET, parts, placed, ticket, word};

/// The protocol of one worker.
#[derive(Debug)]
pub struct ServerWorker<'a> {
    /// Of the whole replica. `[replica + TAIL]`
    staging: &'a mut [f32],
    /// Instances of the servers, one per slice.
    servers: Range<usize>,
    dispatcher: usize,
    /// The server of the outstanding action, if it is about one.
    server: Option<usize>,
    ticket: Ticket,
    finite: bool,
    stop: bool,
    outstanding: Option<Action>,
}

impl<'a> ServerWorker<'a> {
    /// Trains what `dispatcher` hands it, with the parameters of `servers`, over `staging:
    /// [replica + TAIL]`.
    #[must_use]
    pub fn new(staging: &'a mut [f32], servers: Range<usize>, dispatcher: usize) -> Self {
        Self {
            staging,
            servers,
            dispatcher,
            server: None,
            ticket: Ticket::default(),
            finite: true,
            stop: false,
            outstanding: None,
        }
    }

    fn tell(&self, kind: u64, numbers: [u64; 3]) -> Action {
        let [first, second, third] = numbers;
        let payload = Payload::Note([first, second, third, 0]);
        Action::Send { to: self.dispatcher, word: word(kind, 0), payload }
    }

    /// To the servers in turn: of `server` if there is such a one, else `after`.
    fn each(
        &mut self,
        server: usize,
        action: impl FnOnce(&Self, usize) -> Action,
        after: impl FnOnce(&mut Self) -> Action,
    ) -> Action {
        if server < self.servers.len() {
            self.server = Some(server);
            return action(self, self.servers.start + server);
        }
        self.server = None;
        after(self)
    }

    fn pull(&mut self, server: usize) -> Action {
        self.each(
            server,
            |it, to| {
                let word = word(PULL, it.ticket.version);
                Action::Send { to, word, payload: Payload::None }
            },
            |it| it.fetch(0),
        )
    }

    fn fetch(&mut self, server: usize) -> Action {
        let whole = |_: &mut Self| Action::Store { alpha: 1.0 };
        self.each(server, |_, from| Action::Receive { from: Some(from) }, whole)
    }

    fn push(&mut self, server: usize) -> Action {
        self.each(
            server,
            |it, to| {
                let word = word(PUSH, placed(it.ticket.place, it.ticket.batch));
                Action::Send { to, word, payload: Payload::Change }
            },
            |it| it.settle(0),
        )
    }

    fn settle(&mut self, server: usize) -> Action {
        self.each(server, |_, from| Action::Receive { from: Some(from) }, |_| Action::Settle)
    }

    /// What follows a send to, or a message from, server number `server`.
    fn after(&mut self, server: usize, completion: Completion) -> Option<Action> {
        let ours = self.servers.start + server;
        let slice_len = self.range(server).len();
        match (self.outstanding?, completion) {
            (Action::Send { payload: Payload::None, .. }, Completion::Done) => {
                Some(self.pull(server + 1))
            }
            (Action::Send { payload: Payload::Change, .. }, Completion::Done) => {
                Some(self.push(server + 1))
            }
            (Action::Receive { .. }, Completion::Received { from, word, elements })
                if from == ours =>
            {
                match parts(word) {
                    (PARAMETERS, version)
                        if version >= self.ticket.version && elements == slice_len =>
                    {
                        Some(self.fetch(server + 1))
                    }
                    (ACK, batch) if batch == self.ticket.batch && elements == 0 => {
                        Some(self.settle(server + 1))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The slice of a server.
    fn range(&self, server: usize) -> Range<usize> {
        let (elements, servers) = (self.staging.len() - TAIL, self.servers.len());
        elements * server / servers..elements * (server + 1) / servers
    }
}

impl Protocol for ServerWorker<'_> {
    fn step(&mut self, last: Completion) -> Result<Action, OutOfTurn> {
        let asks = Action::Receive { from: Some(self.dispatcher) };
        let next = match (self.outstanding, last) {
            (Some(Action::Finish), _) => Some(Action::Finish),
            (None, Completion::Start) => Some(self.tell(ASK, [0; 3])),
            (Some(Action::Send { payload: Payload::Note(_), .. }), Completion::Done) => Some(asks),
            (Some(action), Completion::Noted { from, word, note, .. })
                if action == asks && from == self.dispatcher && parts(word).0 == TICKET =>
            {
                self.ticket = ticket(note);
                Some(Action::Announce { ticket: self.ticket })
            }
            (Some(Action::Announce { .. }), Completion::Done) => Some(self.pull(0)),
            (Some(Action::Settle), Completion::Done) => {
                let numbers = [self.ticket.batch, u64::from(self.finite), u64::from(self.stop)];
                Some(self.tell(REPORT, numbers))
            }
            (Some(action), Completion::Received { from, word, elements: 0 })
                if action == asks && from == self.dispatcher && parts(word).0 == END =>
            {
                Some(Action::Finish)
            }
            (Some(Action::Store { .. }), Completion::Done) => {
                Some(Action::Train { ticket: self.ticket })
            }
            (Some(Action::Train { .. }), Completion::Trained { finite, stop }) => {
                (self.finite, self.stop) = (finite, stop);
                if !finite {
                    slice(self.staging).fill(0.0);
                }
                Some(self.push(0))
            }
            (_, last) => self.server.and_then(|server| self.after(server, last)),
        };
        let Some(next) = next else {
            return Err(OutOfTurn { expected: self.outstanding, got: last });
        };
        self.outstanding = Some(next);
        Ok(next)
    }

    fn staging(&mut self) -> &mut [f32] {
        match self.server {
            // The tail of a part is never looked at.
            Some(server) => {
                let Range { start, end } = self.range(server);
                &mut self.staging[start..end + TAIL]
            }
            None => self.staging,
        }
    }
}
