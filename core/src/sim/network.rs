//! Links: full duplex, each direction first come first served.
//!
//! A message occupies the sender's link for overhead + bytes / bandwidth and, a latency after it
//! began there, the receiver's for as long (D. E. Culler et al., "LogP: towards a realistic model
//! of parallel computation", PPoPP 1993, with the gap per byte of LogGP). The receiver's side is
//! decided when the message gets there, so that messages of many senders queue in the order in
//! which they come.

use super::cluster::{Link, nanoseconds};

/// One node's end of the network. Times in ns.
#[derive(Clone, Debug)]
pub(super) struct Port {
    ns_per_byte: f64,
    latency: u64,
    overhead: u64,
    egress_free: u64,
    ingress_free: u64,
}

/// When a message reaches the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    /// Its begin.
    pub(super) first: u64,
    /// Its end, if the receiver's link is as fast and free.
    pub(super) last: u64,
}

impl Port {
    pub(super) fn new(link: Link) -> Self {
        Self {
            ns_per_byte: 1e9 / link.bytes_per_second,
            latency: link.latency.0,
            overhead: link.overhead.0,
            egress_free: 0,
            ingress_free: 0,
        }
    }

    /// Sends `messages` of `bytes` together from `now` on, or as soon as the link is free; as a
    /// mean they may be a part of one.
    pub(super) fn send(&mut self, now: u64, bytes: u64, messages: f64) -> Flight {
        let start = now.max(self.egress_free);
        self.egress_free = start + self.occupied(bytes, messages);
        Flight { first: start + self.latency, last: self.egress_free + self.latency }
    }

    /// When messages that begin to arrive `now` and can't end before `last` are here.
    pub(super) fn receive(&mut self, now: u64, last: u64, bytes: u64, messages: f64) -> u64 {
        let start = now.max(self.ingress_free);
        self.ingress_free = (start + self.occupied(bytes, messages)).max(last);
        self.ingress_free
    }

    /// When both directions are free.
    pub(super) fn free(&self) -> u64 {
        self.egress_free.max(self.ingress_free)
    }

    /// Time from the begin of a message to its end at the other side.
    pub(super) fn takes(&self, bytes: u64) -> u64 {
        self.latency + self.occupied(bytes, 1.0)
    }

    /// Both directions carry something else until then.
    pub(super) fn hold(&mut self, until: u64) {
        (self.egress_free, self.ingress_free) = (until, until);
    }

    fn occupied(&self, bytes: u64, messages: f64) -> u64 {
        nanoseconds(self.overhead as f64, messages) + nanoseconds(self.ns_per_byte, bytes as f64)
    }
}

/// When every one of `ports` has exchanged `bytes` with the others, from `now` on: each needs
/// something of each, so all end together. Ports are given by number, into `all`.
pub(super) fn exchange(all: &mut [Port], ports: &[usize], now: u64, bytes: u64) -> u64 {
    let messages = ports.len() as f64 - 1.0;
    let mut end = now;
    for &port in ports {
        let flight = all[port].send(now, bytes, messages);
        end = end.max(flight.last);
    }
    for &port in ports {
        let first = now + all[port].latency;
        end = end.max(all[port].receive(first, first, bytes, messages));
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    fn port(bytes_per_second: f64) -> Port {
        Port::new(Link { bytes_per_second, latency: Nanos(100), overhead: Nanos(10) })
    }

    #[test]
    fn a_message_alone_takes_overhead_latency_and_its_bytes_once() {
        let (mut from, mut to) = (port(1e9), port(1e9));
        let flight = from.send(5, 1000, 1.0);
        assert_eq!(flight, Flight { first: 105, last: 1115 });
        assert_eq!(to.receive(flight.first, flight.last, 1000, 1.0), 1115);
    }

    #[test]
    fn messages_of_many_queue_at_one_receiver_and_directions_are_independent() {
        let mut center = port(1e9);
        let ends: [u64; 3] = core::array::from_fn(|_| {
            let flight = port(1e9).send(0, 1000, 1.0);
            center.receive(flight.first, flight.last, 1000, 1.0)
        });
        assert_eq!(ends, [1110, 2120, 3130]);
        assert_eq!(center.send(0, 1000, 1.0).last, 1110, "what comes does not hold up what goes");
        assert_eq!(center.send(0, 1000, 1.0).last, 2120, "what goes does");
    }

    #[test]
    fn the_slower_end_decides() {
        let flight = port(1e8).send(0, 1000, 1.0);
        assert_eq!(port(1e9).receive(flight.first, flight.last, 1000, 1.0), 10_110);
        let flight = port(1e9).send(0, 1000, 1.0);
        assert_eq!(port(1e8).receive(flight.first, flight.last, 1000, 1.0), 10_110);
    }

    #[test]
    fn an_exchange_of_all_takes_the_slowest_and_holds_links() {
        let mut ports = [port(1e9), port(1e9), port(5e8)];
        assert_eq!(exchange(&mut ports, &[0, 1, 2], 0, 1000), 100 + 2 * 10 + 2000);
        assert_eq!(ports[0].send(0, 0, 1.0).first, 1020 + 100);
    }
}
