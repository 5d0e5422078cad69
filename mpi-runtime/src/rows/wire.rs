//! What trainers and embedding PSs say to each other.
//!
//! A message is `u32` words: a header of [`HEADER_LEN`], then a body. f32s travel as their bits.
//!
//! | kind | from → to | clock | body |
//! | --- | --- | --- | --- |
//! | `Lookup` | worker → partition | step that will use the rows | row numbers |
//! | `LookupNow` | worker → partition | ticket | row numbers, for evaluation |
//! | `Rows` | partition → worker | as asked | values, `[rows, width]` |
//! | `Push` | worker → partition | step of the gradient | n row numbers, then gradients `[n, width]` |
//! | `Ack` | partition → worker | as pushed | none: the push holds no memory any more |
//!
//! Invariants: a worker has at most `embedding.prefetch + 1` steps between lookup and `Ack`, which
//! bounds both the staleness of its rows and the memory its messages can take anywhere.

/// Words of a header.
pub const HEADER_LEN: usize = 5;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rows wanted for a training step.
    Lookup,
    /// Rows wanted as they are now.
    LookupNow,
    /// The rows asked for.
    Rows,
    /// Gradients of rows.
    Push,
    /// A push was taken.
    Ack,
}

const KINDS: [Kind; 5] = [Kind::Lookup, Kind::LookupNow, Kind::Rows, Kind::Push, Kind::Ack];

/// The first words of every message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// What follows.
    pub kind: Kind,
    /// The partition that is asked or answers.
    pub partition: u32,
    /// The worker that asks or is answered: its number over all trainers.
    pub worker: u32,
    /// Training step, or ticket of an evaluation.
    pub clock: u32,
    /// Learning rate of a push; 0 elsewhere.
    pub rate: f32,
}

impl Header {
    /// Starts a message in an empty buffer.
    pub fn write(&self, words: &mut Vec<u32>) {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(0);
        words.clear();
        words.extend([
            u32::try_from(kind).unwrap_or(0),
            self.partition,
            self.worker,
            self.clock,
            self.rate.to_bits(),
        ]);
    }

    /// The header of a message, or `None` if it is no message of ours.
    #[must_use]
    pub fn read(words: &[u32]) -> Option<Self> {
        let header: &[u32; HEADER_LEN] = words.first_chunk()?;
        Some(Self {
            kind: *KINDS.get(header[0] as usize)?,
            partition: header[1],
            worker: header[2],
            clock: header[3],
            rate: f32::from_bits(header[4]),
        })
    }
}

/// The body of a message.
#[must_use]
pub fn body(words: &[u32]) -> &[u32] {
    &words[HEADER_LEN..]
}

/// Row numbers and gradients of a push with rows of `width`.
#[must_use]
pub fn push_body(words: &[u32], width: usize) -> (&[u32], &[f32]) {
    let body = body(words);
    let (rows, gradients) = body.split_at(body.len() / (1 + width));
    (rows, bytemuck::cast_slice(gradients))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire_and_strangers_are_refused() {
        for kind in KINDS {
            let header = Header { kind, partition: 3, worker: 9, clock: 77, rate: 0.125 };
            let mut words = vec![1, 2, 3];
            header.write(&mut words);
            assert_eq!(words.len(), HEADER_LEN);
            assert_eq!(Header::read(&words), Some(header));
        }
        assert_eq!(Header::read(&[9, 0, 0, 0, 0]), None);
        assert_eq!(Header::read(&[0, 0]), None);
    }

    #[test]
    fn a_push_is_rows_then_gradients() {
        let mut words = vec![0; HEADER_LEN];
        words.extend([7, 8]);
        words.extend([1.0f32, 2.0, 3.0, 4.0].map(f32::to_bits));
        assert_eq!(push_body(&words, 2), (&[7, 8][..], &[1.0, 2.0, 3.0, 4.0][..]));
    }
}
