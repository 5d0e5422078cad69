//! Bytes from every rank to the first, and from the first to all.
//!
//! What ranks have to say goes to the first in pieces of bounded length, one rank after the other,
//! so no rank's memory grows with the number of ranks or with what is said.
//!
//! Invariants: a message is its length and at most [`PIECE`] bytes; a short one is its sender's
//! last. The first rank takes the words of one rank to their end before those of the next, and a
//! rank whose turn has not come waits without a deadline, since the first may be busy writing.

use core::mem;
use std::io::{self, Write};

use bytemuck::Pod;
use mpi::traits::{AsRaw, Equivalence};

use super::pending::Pending;
use super::traffic::of_broadcast;
use super::{Comm, count, raw, writing};
use crate::comm::reduce::PIECE;
use crate::comm::watch::Lost;

/// What this rank has to say to the first, as it says it.
pub struct ToFirst<'c> {
    comm: &'c Comm,
    piece: Vec<u8>,
    sending: Option<Pending<Vec<u8>>>,
    what: &'c str,
}

impl Comm {
    /// Says something to the first rank, which hears it by [`hear`](Self::hear). *Not on the first
    /// rank.*
    #[must_use]
    pub fn tell_first<'c>(&'c self, what: &'c str) -> ToFirst<'c> {
        ToFirst { comm: self, piece: vec![0; HEADER], sending: None, what }
    }

    /// Hands `take` what rank `from` says, in pieces. *On the first rank, while `from` talks.*
    ///
    /// # Errors
    /// When the wait is given up.
    pub fn hear(&self, from: usize, what: &str, mut take: impl FnMut(&[u8])) -> Result<(), Lost> {
        let mut piece = vec![0; HEADER + PIECE];
        loop {
            let coming = Pending::with(piece, |piece| self.start_receive(from, TAG, piece));
            piece = coming.wait(self, what, true)?;
            let length = piece.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            let length = length as usize;
            self.meter.received(HEADER + length);
            take(&piece[HEADER..][..length]);
            if length < PIECE {
                return Ok(());
            }
        }
    }

    /// `values` becomes that of the first rank; `patient` waits without a deadline. *Collective;
    /// lengths equal on all ranks.*
    ///
    /// # Errors
    /// When not all come in time.
    pub fn broadcast<T: Pod>(
        &self,
        values: &mut [T],
        what: &str,
        patient: bool,
    ) -> Result<(), Lost> {
        let length = count(size_of_val(values));
        self.meter.count(of_broadcast(self.rank, self.size, size_of_val(values)));
        // SAFETY: the buffer holds the count given, and stays until the operation is done.
        let telling = Pending::start(values.to_vec(), |values, request| unsafe {
            raw::MPI_Ibcast(
                writing(values),
                length,
                u8::equivalent_datatype().as_raw(),
                0,
                self.handle,
                request,
            );
        });
        values.copy_from_slice(&telling.wait(self, what, patient)?);
        Ok(())
    }
}

impl ToFirst<'_> {
    /// Says the rest, and that it is the end.
    ///
    /// # Errors
    /// When the wait is given up.
    pub fn finish(mut self) -> Result<(), Lost> {
        self.send()?;
        self.wait().map(drop)
    }

    fn send(&mut self) -> Result<(), Lost> {
        let mut piece = self.wait()?;
        piece.resize(HEADER, 0);
        mem::swap(&mut piece, &mut self.piece);
        let length = u32::try_from(piece.len() - HEADER).unwrap_or(u32::MAX);
        piece[..HEADER].copy_from_slice(&length.to_le_bytes());
        self.sending = Some(Pending::with(piece, |piece| self.comm.start_send(0, TAG, piece)));
        Ok(())
    }

    /// Waits until the last piece has left, and returns its memory.
    fn wait(&mut self) -> Result<Vec<u8>, Lost> {
        let Some(sending) = self.sending.take() else { return Ok(vec![]) };
        let mut piece = sending.wait(self.comm, self.what, true)?;
        piece.clear();
        Ok(piece)
    }
}

impl Write for ToFirst<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(HEADER + PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == HEADER + PIECE {
            self.send().map_err(io::Error::other)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes before a piece: how many follow.
const HEADER: usize = size_of::<u32>();

/// Beyond the tags of `doubling.rs`.
const TAG: i32 = 1 << 14;
