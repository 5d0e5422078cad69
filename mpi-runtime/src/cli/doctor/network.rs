//! Messages and sums as training sends them, measured for a moment: how long a message takes, how
//! many bytes a second go through, how far clocks are apart.
//!
//! The first rank speaks with one rank after the other: the next one, and the first of every other
//! host, of a few hosts. Each measurement stops after [`LONG`]; every wait has the watch's limit.

use core::time::Duration;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::comm::reduce::{MANY, Sums};
use crate::comm::watch::{Lost, Waiting};
use crate::comm::{Comm, Mailbox};

/// The first rank and another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pair {
    pub(super) rank: usize,
    /// Seconds of a message of a word, one way: half of the fastest way there and back.
    pub(super) latency: f64,
    /// Bytes per second one way, of messages of [`LARGE`] words.
    pub(super) rate: f64,
    /// Seconds by which the other's clock is ahead, known to half of the fastest way there and
    /// back.
    pub(super) ahead: f64,
}

/// What was measured; on the first rank, of several.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Network {
    pub(super) pairs: Vec<Pair>,
    /// Bytes summed over all ranks, and the seconds that it took.
    pub(super) sum: Option<(usize, f64)>,
}

/// Longest time of a measurement, but for a message or a sum that itself takes longer.
const LONG: Duration = Duration::from_millis(200);

/// Messages there and back, at most.
const MESSAGES: usize = 500;

/// Words of a large message: a mebibyte.
const LARGE: usize = 1 << 18;

/// Hosts that the first rank speaks with.
const HOSTS: usize = 8;

/// Elements of the first sum, which says how large the next may be, and of the largest.
const SUMMED: [usize; 2] = [1 << 12, 1 << 20];

/// What ends a conversation.
const END: u32 = u32::MAX;

/// Ranks that the first one speaks with, of ranks on these `hosts`.
pub(super) fn partners(hosts: &[String]) -> Vec<usize> {
    let mut partners: Vec<usize> = (1..hosts.len())
        .filter(|rank| *rank == 1 || !hosts[..*rank].contains(&hosts[*rank]))
        .collect();
    partners.truncate(HOSTS);
    partners
}

/// Measures. `comm` is for this alone. *Collective over it; `partners` equal on all ranks.*
///
/// # Errors
/// When a rank does not answer, or not all come.
pub(super) fn measure(comm: Comm, partners: &[usize]) -> Result<Network, Lost> {
    let (rank, mut network) = (comm.rank(), Network::default());
    let mut talk = Talk { mailbox: Mailbox::new(comm) };
    if rank == 0 {
        for partner in partners {
            network.pairs.push(talk.ask(*partner)?);
        }
    } else if partners.contains(&rank) {
        talk.answer()?;
    }
    talk.finish()?;
    let comm = talk.mailbox.comm();
    comm.barrier("the end of messages", true)?;
    let first = sum(comm, SUMMED[0])?;
    let share = LONG.as_secs_f64() / first.max(1e-9);
    let elements = (SUMMED[0] as f64 * share).clamp(SUMMED[0] as f64, SUMMED[1] as f64);
    let elements = comm.all_gather_varied(&[elements.to_bits()], "the length of a sum")?;
    let elements = elements.into_iter().flatten().map(f64::from_bits).fold(f64::MAX, f64::min);
    let elements = SUMMED[1].min(whole(elements));
    let (once, again) = (sum(comm, elements)?, sum(comm, elements)?);
    if rank == 0 {
        network.sum = Some((4 * elements, once.min(again)));
    }
    Ok(network)
}

/// Seconds of a sum over all ranks, of so many elements.
fn sum(comm: &Comm, elements: usize) -> Result<f64, Lost> {
    let mut values = vec![1.0; elements];
    comm.barrier("a sum", false)?;
    let start = Instant::now();
    Sums::default().sum(comm, &mut values, MANY, "a sum")?;
    Ok(start.elapsed().as_secs_f64())
}

struct Talk {
    mailbox: Mailbox,
}

impl Talk {
    /// The first rank's side.
    fn ask(&mut self, partner: usize) -> Result<Pair, Lost> {
        let (mut fastest, mut ahead) = (f64::MAX, 0.0);
        let start = Instant::now();
        for message in 0..MESSAGES {
            let (sent, clock) = (Instant::now(), now());
            let answer = self.there_and_back(partner, vec![0])?;
            let took = sent.elapsed().as_secs_f64();
            if took < fastest {
                (fastest, ahead) = (took, clock_of(&answer) - (clock + took / 2.0));
            }
            if start.elapsed() > LONG && message > 1 {
                break;
            }
        }
        let (mut quickest, start) = (f64::MAX, Instant::now());
        for _ in 0..MESSAGES {
            let sent = Instant::now();
            self.there_and_back(partner, vec![0; LARGE])?;
            // There a mebibyte goes, and back comes a word.
            quickest = quickest.min(sent.elapsed().as_secs_f64());
            if start.elapsed() > LONG {
                break;
            }
        }
        self.mailbox.send(partner, vec![END]);
        let one_way = (quickest - fastest / 2.0).max(1e-9);
        Ok(Pair {
            rank: partner,
            latency: fastest / 2.0,
            rate: (4 * LARGE) as f64 / one_way,
            ahead,
        })
    }

    fn there_and_back(&mut self, partner: usize, words: Vec<u32>) -> Result<Vec<u32>, Lost> {
        self.mailbox.send(partner, words);
        self.next(&format!("the answer of rank {partner}"))
    }

    /// The other's side: a word of what time it is for every message, until the last.
    fn answer(&mut self) -> Result<(), Lost> {
        loop {
            let message = self.next("messages of rank 0")?;
            if message == [END] {
                return Ok(());
            }
            self.mailbox.recycle(message);
            let bits = now().to_bits();
            #[expect(clippy::cast_possible_truncation, reason = "halves of a word of 64 bits")]
            self.mailbox.send(0, vec![bits as u32, (bits >> 32) as u32]);
        }
    }

    /// Until MPI reads no more of what was sent.
    fn finish(&mut self) -> Result<(), Lost> {
        let mut waiting = Waiting::default();
        while self.mailbox.sending() > 0 {
            std::thread::yield_now();
            waiting.glance(self.mailbox.comm().watch(), &"what was sent")?;
        }
        Ok(())
    }

    /// The next message. Only yields while it waits, so that what is measured is the message.
    fn next(&mut self, what: &str) -> Result<Vec<u32>, Lost> {
        let mut waiting = Waiting::default();
        loop {
            if let Some((_, words)) = self.mailbox.receive() {
                return Ok(words);
            }
            std::thread::yield_now();
            waiting.glance(self.mailbox.comm().watch(), &what)?;
        }
    }
}

/// Seconds since 1970, by this node's clock.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn clock_of(answer: &[u32]) -> f64 {
    let [low, high] = [0, 1].map(|at| u64::from(answer.get(at).copied().unwrap_or(0)));
    f64::from_bits(low | high << 32)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within SUMMED")]
const fn whole(elements: f64) -> usize {
    elements as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_speaks_with_its_neighbour_and_other_hosts() {
        let hosts = |names: &str| names.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(partners(&hosts("a")), [0; 0]);
        assert_eq!(partners(&hosts("a a a")), [1]);
        assert_eq!(partners(&hosts("a a b b c")), [1, 2, 4]);
        let many: Vec<String> = (0..100).map(|host| host.to_string()).collect();
        assert_eq!(partners(&many).len(), HOSTS);
    }

    #[test]
    fn a_clock_travels_in_two_words() {
        let bits = 1.75e9_f64.to_bits();
        #[expect(clippy::cast_possible_truncation, reason = "halves of a word of 64 bits")]
        let words = [bits as u32, (bits >> 32) as u32];
        assert!((clock_of(&words) - 1.75e9).abs() < 1e-9);
        assert!((now() - clock_of(&words)).abs() > 1.0);
    }
}
