//! The state of a rank as it was at one moment, in memory of its own.
//!
//! It is taken between two stretches of training, so all of a job is of one moment: a row and its
//! optimizer state, replicas and what the method remembers. Copying on write instead would have to
//! look at every row that is updated while a file is being written, and would copy nearly all of
//! them: at a hundred steps a second a batch touches most pages of a table within a second.

use std::io;

use super::contents::{Contents, Item, Source};
use super::file::Tensor;

/// A copy of a rank's state.
#[derive(Debug)]
pub struct Image {
    tensors: Vec<Tensor>,
    /// Of all tensors, one after the other.
    words: Vec<u32>,
}

impl Image {
    /// An image that has memory for `contents` and holds nothing yet.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn for_contents(contents: &Contents<'_>) -> io::Result<Self> {
        let length = contents.items().iter().map(|item| item.tensor.words()).sum();
        let mut words = vec![];
        words.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // Touched, so that it is there when training waits for a copy.
        words.resize(length, 0);
        Ok(Self { tensors: vec![], words })
    }

    /// Takes the image of `contents`. Nothing may train meanwhile.
    ///
    /// # Panics
    /// When they are larger than those that it has memory for.
    pub fn take(&mut self, contents: &Contents<'_>) {
        let items = contents.items();
        self.tensors.clear();
        let mut left = &mut *self.words;
        for Item { tensor, mut words } in items {
            let (own, others) = left.split_at_mut(tensor.words());
            words.fill(own);
            left = others;
            self.tensors.push(tensor);
        }
    }

    /// Its tensors, in the order in which they were.
    pub(super) fn items(&self) -> Vec<Item<'_>> {
        let mut left = &*self.words;
        let item = |tensor: &Tensor| {
            let (own, others) = left.split_at(tensor.words());
            left = others;
            Item { tensor: tensor.clone(), words: Source::Copied(own) }
        };
        self.tensors.iter().map(item).collect()
    }
}
