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

use super::{Comm, Request, count, raw, writing};
use crate::comm::reduce::PIECE;

/// What this rank has to say to the first, as it says it.
pub struct ToFirst<'c> {
    comm: &'c Comm,
    piece: Vec<u8>,
    sending: Option<(Request, Vec<u8>)>,
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
    pub fn hear(&self, from: usize, what: &str, mut take: impl FnMut(&[u8])) {
        let mut piece = vec![0; HEADER + PIECE];
        loop {
            let request = self.start_receive(from, TAG, &mut piece);
            self.complete(request, what, true);
            let length = piece.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            let length = length as usize;
            take(&piece[HEADER..][..length]);
            if length < PIECE {
                return;
            }
        }
    }

    /// `values` becomes that of the first rank; `patient` waits without a deadline. *Collective;
    /// lengths equal on all ranks.*
    pub fn broadcast<T: Pod>(&self, values: &mut [T], what: &str, patient: bool) {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let length = count(bytes.len());
        // SAFETY: the buffer holds the count given, and is neither read nor freed until the request
        // is done.
        let request = Request::of(|request| unsafe {
            raw::MPI_Ibcast(
                writing(bytes),
                length,
                u8::equivalent_datatype().as_raw(),
                0,
                self.handle,
                request,
            );
        });
        self.complete(request, what, patient);
    }
}

impl ToFirst<'_> {
    /// Says the rest, and that it is the end.
    pub fn finish(mut self) {
        self.send();
        self.wait();
    }

    fn send(&mut self) {
        let mut piece = self.wait();
        piece.resize(HEADER, 0);
        mem::swap(&mut piece, &mut self.piece);
        let length = u32::try_from(piece.len() - HEADER).unwrap_or(u32::MAX);
        piece[..HEADER].copy_from_slice(&length.to_le_bytes());
        let request = self.comm.start_send(0, TAG, &piece);
        self.sending = Some((request, piece));
    }

    /// Waits until the last piece has left, and returns its memory.
    fn wait(&mut self) -> Vec<u8> {
        let Some((request, mut piece)) = self.sending.take() else { return vec![] };
        self.comm.complete(request, self.what, true);
        piece.clear();
        piece
    }
}

impl Write for ToFirst<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(HEADER + PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == HEADER + PIECE {
            self.send();
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
