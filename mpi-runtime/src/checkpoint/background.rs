//! Writing a checkpoint while training goes on: a thread and a communicator of its own.
//!
//! It says which of them have all rows, too. Between two of them it saves the rows that come first,
//! from its own copy, so training does not wait.
//!
//! Invariants: the main threads of all ranks order the same saves, one at a time; the image is with
//! the thread while it is being written. A checkpoint that can't be written is a warning.

use core::time::Duration;
use std::io;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::contents::Contents;
use super::folders::Folders;
use super::image::{Extent, Image};
use super::manifest::{Base, Manifest};
use super::write::{After, say_unwritten, write_items};
use crate::comm::Comm;
use crate::record::say_saved;
use crate::rows::tables::{Partition, TableLayout};
use crate::rows::usage::SaveFirst;

/// What writes checkpoints in the background.
#[derive(Debug)]
pub struct Saver {
    orders: Sender<Order>,
    done: Receiver<(Image, Written)>,
    thread: JoinHandle<()>,
    /// `None` while it is written.
    image: Option<Image>,
    rotation: Rotation,
    /// The newest checkpoint that was written here.
    newest: Option<Base>,
}

struct Order {
    image: Image,
    folders: Folders,
    manifest: Manifest,
    what: What,
}

enum What {
    /// A checkpoint, whose image has been taken.
    Checkpoint(After),
    /// The rows that come first of these partitions.
    Rows(SaveFirst, TableLayout, Vec<Partition>),
}

/// What became of an order.
struct Written {
    saved: Saved,
    /// What it leaves out rows of, and what others may leave out rows of it by.
    base: Option<Base>,
    this: Option<Base>,
}

/// How a save ended; equal on all ranks but for its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Of this step.
    pub step: u64,
    /// Bytes of all files; `None` when it was not written.
    pub bytes: Option<u64>,
    /// What of the state it has.
    pub extent: Extent,
    /// Writing, until all ranks had.
    pub took: Duration,
}

impl Saver {
    /// Starts the thread, which is the only user of `comm`. `image` has memory for what will be
    /// saved, `rotation` says which of them have all rows. *Not collective.*
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn start(mut comm: Comm, image: Image, rotation: Rotation) -> io::Result<Self> {
        comm.set_poll(Some(POLL));
        let (orders, ordered) = bounded::<Order>(1);
        let (finished, done) = bounded(1);
        let thread = Builder::new().name("checkpoint".into()).spawn(move || {
            let mut histogram = Box::new([0; 1 << 16]);
            for Order { mut image, folders, manifest, what } in ordered {
                let (step, base, begun) = (manifest.steps, manifest.base, Instant::now());
                let (extent, after) = match what {
                    What::Checkpoint(after) if base.is_none() => (Extent::All, Some(after)),
                    What::Checkpoint(after) => (Extent::Changed, Some(after)),
                    What::Rows(rule, layout, partitions) => {
                        image.take_first(&rule, &layout, &partitions, &mut histogram);
                        (Extent::First, None)
                    }
                };
                let written = write_items(&comm, &folders, manifest, image.items(), after);
                let written = comm.watch().end_if_lost(written);
                if comm.rank() == 0 && written.is_ok() && extent != Extent::First {
                    say_saved(&folders.of(step));
                }
                let written = written.map_err(|error| say_unwritten(&error)).ok();
                let (bytes, this) = written.unzip();
                let saved = Saved { step, bytes, extent, took: begun.elapsed() };
                if finished.send((image, Written { saved, base, this })).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { orders, done, thread, image: Some(image), rotation, newest: None })
    }

    /// Waits for the save that is under way, if one is. *On all ranks at the same places.*
    pub fn wait(&mut self) -> Option<Saved> {
        if self.image.is_some() {
            return None;
        }
        // A panic of the thread has ended the job already.
        let (image, Written { saved, base, this }) = self.done.recv().ok()?;
        self.image = Some(image);
        if saved.extent != Extent::First {
            self.rotation.written(base, this);
            self.newest = this.or(self.newest);
        }
        Some(saved)
    }

    /// Takes the image of `contents`, and begins to write it. *On all ranks.*
    ///
    /// # Panics
    /// When one is under way.
    pub fn begin(
        &mut self,
        folders: &Folders,
        manifest: Manifest,
        contents: &Contents<'_>,
        after: After,
    ) {
        let mut image = self.image.take().unwrap_or_else(|| panic!("a save is under way"));
        // Who takes the best model away takes one folder.
        let base = self.rotation.base().filter(|_| !after.best);
        image.take(contents, base.is_some());
        let manifest = Manifest { base, ..manifest };
        self.order(Order {
            image,
            folders: folders.clone(),
            manifest,
            what: What::Checkpoint(after),
        });
    }

    /// Begins to save the rows of `partitions` that `rule` has first, beside the newest checkpoint
    /// among `folders`. False where this run has written none. *On all ranks.*
    ///
    /// # Panics
    /// When a save is under way.
    pub fn begin_rows(
        &mut self,
        folders: &Folders,
        manifest: Manifest,
        (rule, layout): (&SaveFirst, &TableLayout),
        partitions: &[Partition],
    ) -> bool {
        let Some(newest) = self.newest else { return false };
        let image = self.image.take().unwrap_or_else(|| panic!("a save is under way"));
        let manifest = Manifest { base: Some(newest), ..manifest };
        let what = What::Rows(rule.clone(), layout.clone(), partitions.to_vec());
        self.order(Order { image, folders: folders.of_rows(), manifest, what });
        true
    }

    fn order(&self, order: Order) {
        // As above.
        let _ = self.orders.send(order);
    }

    /// Waits for the save that is under way, and ends the thread.
    pub fn finish(mut self) {
        let _ = self.wait();
        drop(self.orders);
        let _ = self.thread.join();
    }
}

/// First sleep between two looks at the other ranks, who are busy writing.
const POLL: Duration = Duration::from_millis(1);

/// Which checkpoints have all rows: the first of every so many, and the first after one that could
/// not be written. A pure function of what all ranks know.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    every: u64,
    base: Option<Base>,
    /// Written since the base.
    since: u64,
}

impl Rotation {
    /// One of `every` has all rows.
    #[must_use]
    pub const fn new(every: u64) -> Self {
        Self { every, base: None, since: 0 }
    }

    /// What the next one may leave out the rows of; `None`: nothing.
    #[must_use]
    pub fn base(&self) -> Option<Base> {
        self.base.filter(|_| self.since + 1 < self.every)
    }

    /// One that had `base` has been written, and is `this`, or could not be.
    pub fn written(&mut self, base: Option<Base>, this: Option<Base>) {
        (self.base, self.since) = match (base, this) {
            (Some(base), Some(_)) => (Some(base), self.since + 1),
            (_, this) => (this, 0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_so_many_has_all_rows_and_one_after_a_failure() {
        let mut rotation = Rotation::new(3);
        let save = |rotation: &mut Rotation, step: u64, fails: bool| {
            let (base, this) = (rotation.base(), Base { step, crc32: 0 });
            rotation.written(base, (!fails).then_some(this));
            base.map(|base| base.step)
        };
        let failing = [3, 10, 12];
        let bases: Vec<_> =
            (0..14).map(|step| save(&mut rotation, step, failing.contains(&step))).collect();
        let expected = [
            // All, and two with what changed since.
            [None, Some(0), Some(0)],
            // The whole one fails, then another is whole.
            [None, None, Some(4)],
            [Some(4), None, Some(7)],
            [Some(7), None, None],
        ];
        assert_eq!(bases[..12], *expected.as_flattened());
        // One with changes fails: the next has all rows.
        assert_eq!(bases[12..], [Some(11), None]);
        let mut always = Rotation::new(1);
        assert!((0..5).all(|step| save(&mut always, step, false).is_none()));
    }
}
