//! Threads that decode pieces beside the one that reads them.
//!
//! Who waits for a piece decodes others meanwhile, so that the reader's thread is one of them. What
//! a piece holds does not depend on who decoded it.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::DatasetError;
use crate::hdf5::{RawRows, RowBuffer, Unpacker};

/// The threads, and what is with them.
#[derive(Debug)]
pub(crate) struct Decoders {
    /// `None` once no more will come.
    jobs: Option<Sender<Job>>,
    waiting: Receiver<Job>,
    done: (Sender<Done>, Receiver<Done>),
    /// Done before they were asked for, by number.
    early: HashMap<u64, Result<Piece, DatasetError>>,
    next: u64,
    threads: Vec<JoinHandle<()>>,
}

type Piece = (RawRows, RowBuffer);
type Done = (u64, Result<Piece, DatasetError>);

/// A piece to be decoded.
#[derive(Debug)]
struct Job {
    piece: Piece,
    done: Answer,
}

/// Where the decoded piece goes. A job that ends in a panic is answered all the same.
#[derive(Debug)]
struct Answer(Option<Sender<Done>>, u64);

impl Answer {
    fn send(&mut self, answer: Result<Piece, DatasetError>) {
        if let Some(done) = self.0.take() {
            // Nobody listens any more once the reader has given up.
            let _ = done.send((self.1, answer));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.send(Err(DatasetError::ReaderLost));
    }
}

impl Job {
    fn decode(mut self, unpacker: &mut Unpacker) {
        let (mut raw, mut rows) = self.piece;
        let decoded = raw.decode(unpacker, &mut rows);
        self.done.send(decoded.map(|()| (raw, rows)));
    }
}

impl Decoders {
    /// Starts `threads` threads.
    pub(crate) fn start(threads: usize) -> Result<Self, DatasetError> {
        let (jobs, waiting) = unbounded::<Job>();
        let threads = (0..threads)
            .map(|_| {
                let waiting = waiting.clone();
                std::thread::Builder::new().name("umbra-inflate".into()).spawn(move || {
                    let mut unpacker = Unpacker::default();
                    while let Ok(job) = waiting.recv() {
                        job.decode(&mut unpacker);
                    }
                })
            })
            .collect::<Result<_, _>>()
            .map_err(|e| DatasetError::Thread { source: Arc::new(e) })?;
        let (early, done) = (HashMap::new(), unbounded());
        Ok(Self { jobs: Some(jobs), waiting, done, early, next: 0, threads })
    }

    /// Has `raw` decoded to `rows`. Returns the number to ask for it by.
    pub(crate) fn give(&mut self, raw: RawRows, rows: RowBuffer) -> u64 {
        let number = self.next;
        self.next += 1;
        let done = Answer(Some(self.done.0.clone()), number);
        if let Some(jobs) = &self.jobs {
            // The channel is open as long as `waiting` is here.
            let _ = jobs.send(Job { piece: (raw, rows), done });
        }
        number
    }

    /// Waits for piece `number`, once each, and decodes others in the meantime.
    pub(crate) fn take(
        &mut self,
        number: u64,
        unpacker: &mut Unpacker,
    ) -> Result<Piece, DatasetError> {
        loop {
            if let Some(answer) = self.early.remove(&number) {
                return answer;
            }
            if let Ok((number, answer)) = self.done.1.try_recv() {
                self.early.insert(number, answer);
            } else if let Ok(job) = self.waiting.try_recv() {
                job.decode(unpacker);
            } else if let Ok((number, answer)) = self.done.1.recv() {
                self.early.insert(number, answer);
            }
        }
    }
}

impl Drop for Decoders {
    fn drop(&mut self) {
        self.jobs = None;
        // What nobody wants any more is not decoded.
        while self.waiting.try_recv().is_ok() {}
        for thread in self.threads.drain(..) {
            // A panic was answered by its job.
            let _ = thread.join();
        }
    }
}
