//! Rows of a partition as a checkpoint has them: all, or those that have changed since another
//! checkpoint, its base, which has all; and over those, where only lost rows are read, what row
//! saves have of them since.
//!
//! Invariant: all are read once, side by side, from their beginnings to their ends; row saves once
//! before, since one that is damaged is done without.

use super::contents;
use super::error::CheckpointError;
use super::part::{PartReader, integers};
use super::read::{Checkpoint, say_passed_over};

/// The records of a partition, from the first to the last.
pub(super) struct RowReader {
    all: PartReader,
    /// What stands in the place of these, the latest last.
    changed: Vec<Changed>,
    record: usize,
    /// The next record.
    at: u64,
}

/// Those that stand elsewhere.
struct Changed {
    index: PartReader,
    records: PartReader,
    /// What has been read of the index and not been used, the next one last.
    next: Vec<u64>,
    /// Of the block that is being read: which, and their words.
    places: Vec<usize>,
    words: Vec<u32>,
}

impl Checkpoint {
    /// The `count` records of partition `partition`, of `record` words.
    pub(super) fn rows(
        &self,
        partition: u32,
        count: u64,
        record: usize,
    ) -> Result<RowReader, CheckpointError> {
        let name = contents::rows(partition);
        let whole = self.base().unwrap_or(self).reader(&name, (count * record as u64, 1))?;
        let mut changed = vec![];
        if self.base().is_some() {
            changed.push(self.changed(&name, record)?);
        }
        for save in self.row_saves() {
            match save.changed(&name, record).and_then(Changed::read_over) {
                Ok(()) => changed.push(save.changed(&name, record)?),
                Err(error) => say_passed_over(&error),
            }
        }
        Ok(RowReader { all: whole, changed, record, at: 0 })
    }

    /// The records of the tensor `rows` that this one has in its place.
    fn changed(&self, rows: &str, record: usize) -> Result<Changed, CheckpointError> {
        let [index, changed] = contents::changed(rows);
        let count = self.values(&index)?;
        let index = self.reader(&index, (count, 2))?;
        let records = self.reader(&changed, (count.saturating_mul(record as u64), 1))?;
        let (next, places, words) = (vec![], vec![], vec![]);
        Ok(Changed { index, records, next, places, words })
    }
}

impl RowReader {
    /// Words that have not been read.
    pub(super) fn words_left(&self) -> usize {
        self.all.words_left()
    }

    /// The next records, as many as `out` has. Returns how many bytes of files they are.
    ///
    /// # Errors
    /// When they can't be read.
    pub(super) fn read(&mut self, out: &mut [u32]) -> Result<u64, CheckpointError> {
        let mut bytes = self.all.read(out)?;
        let count = (out.len() / self.record) as u64;
        for changed in &mut self.changed {
            bytes += changed.read(self.at, count, self.record, out)?;
        }
        self.at += count;
        Ok(bytes)
    }

    /// Checks the sums of what has been read to its end.
    ///
    /// # Errors
    /// When it is damaged.
    pub(super) fn finish(self) -> Result<(), CheckpointError> {
        self.all.finish()?;
        self.changed.into_iter().try_for_each(Changed::finish)
    }
}

impl Changed {
    fn finish(self) -> Result<(), CheckpointError> {
        let Self { index, records, next, .. } = self;
        if !next.is_empty() || index.words_left() > 0 {
            return Err(index.unordered());
        }
        index.finish()?;
        records.finish()
    }

    /// Reads it for the sake of its sums.
    fn read_over(self) -> Result<(), CheckpointError> {
        self.index.read_over()?;
        self.records.read_over()
    }

    /// Puts those of the `count` records from number `first` on in their places in `out`.
    fn read(
        &mut self,
        first: u64,
        count: u64,
        record: usize,
        out: &mut [u32],
    ) -> Result<u64, CheckpointError> {
        let mut bytes = 0;
        self.places.clear();
        loop {
            if self.next.is_empty() {
                bytes += self.refill()?;
            }
            let Some(&next) = self.next.last() else { break };
            if next >= first + count {
                break;
            }
            let place = next.checked_sub(first).and_then(|place| usize::try_from(place).ok());
            let ascending = place.filter(|place| self.places.last() < Some(place));
            self.places.push(ascending.ok_or_else(|| self.index.unordered())?);
            self.next.pop();
        }
        self.words.resize(self.places.len() * record, 0);
        bytes += self.records.read(&mut self.words)?;
        for (place, words) in self.places.iter().zip(self.words.chunks_exact(record)) {
            out[place * record..][..record].copy_from_slice(words);
        }
        Ok(bytes)
    }

    /// Reads on in the index, of which nothing is left here.
    fn refill(&mut self) -> Result<u64, CheckpointError> {
        let mut words = vec![0; self.index.words_left().min(2 * BLOCK)];
        let bytes = self.index.read(&mut words)?;
        self.next.extend(integers(&words));
        self.next.reverse();
        Ok(bytes)
    }
}

/// Places of records read at a time.
const BLOCK: usize = 1 << 13;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::file::{FileEntry, FileWriter, Tensor};
    use super::super::part::PartReader;
    use super::*;
    use crate::state::Kind;
    use crate::state::section::half;

    const RECORD: usize = 3;

    fn write(folder: &Path, name: &str, tensors: &[(&str, Kind, Vec<u64>, Vec<u32>)]) -> FileEntry {
        let described = tensors.iter().map(|(name, kind, shape, _)| Tensor {
            name: (*name).to_owned(),
            kind: *kind,
            shape: shape.clone(),
            record: None,
        });
        let mut file = FileWriter::create(folder, name.to_owned(), described.collect()).unwrap();
        for (number, (.., words)) in tensors.iter().enumerate() {
            file.append(number, bytemuck::cast_slice(words)).unwrap();
        }
        file.finish().unwrap()
    }

    /// A reader of `count` records whose words are their numbers, of which those at `places` have
    /// changed to the others.
    fn reader(folder: &Path, count: u64, places: &[u64]) -> RowReader {
        let words = 0..u32::try_from(count).unwrap() * RECORD as u32;
        let shape = vec![count, RECORD as u64];
        let all = write(folder, "all", &[("rows.0", Kind::F32, shape, words.collect())]);
        let index = places.iter().flat_map(|place| [0, 1].map(|word| half(*place, word)));
        let records = places.iter().flat_map(|place| [!*place as u32; RECORD]);
        let shape = vec![places.len() as u64, RECORD as u64];
        let tensors = [
            ("rows.0.index", Kind::U64, vec![places.len() as u64], index.collect()),
            ("rows.0.changed", Kind::F32, shape, records.collect()),
        ];
        let changed = write(folder, "changed", &tensors);
        let open = |file: &FileEntry, tensor: usize| {
            PartReader::tensor(folder, &file.name, &file.tensors[tensor]).unwrap()
        };
        let [index, records] = [0, 1].map(|tensor| open(&changed, tensor));
        let (next, places, words) = (vec![], vec![], vec![]);
        let changed = vec![Changed { index, records, next, places, words }];
        RowReader { all: open(&all, 0), changed, record: RECORD, at: 0 }
    }

    /// All records, so many at a time, and the bytes that were read.
    fn read(mut reader: RowReader, block: usize) -> Result<(Vec<u32>, u64), CheckpointError> {
        let (mut all, mut bytes) = (vec![], 0);
        while reader.words_left() > 0 {
            let mut words = vec![0; reader.words_left().min(block * RECORD)];
            bytes += reader.read(&mut words)?;
            all.extend(words);
        }
        reader.finish().map(|()| (all, bytes))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn what_changed_stands_in_its_place(
            count in 1u64..200,
            changed in prop::collection::btree_set(0u64..200, 0..100),
            block in 1usize..50,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let places: Vec<u64> = changed.into_iter().filter(|place| *place < count).collect();
            let (words, bytes) = read(reader(folder.path(), count, &places), block).unwrap();
            let there: BTreeMap<u64, u32> = places.iter().map(|it| (*it, !*it as u32)).collect();
            for (word, number) in words.iter().zip(0u64..) {
                let expected = there.get(&(number / RECORD as u64)).copied();
                prop_assert_eq!(*word, expected.unwrap_or(number as u32));
            }
            let record = 4 * RECORD as u64;
            prop_assert_eq!(bytes, count * record + places.len() as u64 * (8 + record));
        }
    }

    /// Whatever the list is, it is read or refused.
    #[test]
    fn a_list_that_is_no_list_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for places in [&[3, 2][..], &[2, 2], &[5, 1], &[10], &[9, 10], &[u64::MAX]] {
            for block in [1, 3, 4, 20] {
                let error = read(reader(folder.path(), 10, places), block).unwrap_err();
                let unordered = matches!(error, CheckpointError::Unordered { .. });
                assert!(unordered, "{places:?}, {block}: {error}");
            }
        }
        // More of it than is read at a time.
        let places: Vec<u64> = (0..3 * BLOCK as u64).map(|place| 2 * place).collect();
        let (words, _) = read(reader(folder.path(), 6 * BLOCK as u64, &places), 1000).unwrap();
        let odd = words.chunks_exact(RECORD).zip(0u32..).filter(|(_, number)| number % 2 == 1);
        assert!(odd.clone().count() > 0);
        assert!(odd.into_iter().all(|(record, number)| record[0] == number * RECORD as u32));
        let even = words.chunks_exact(RECORD).zip(0u32..).filter(|(_, number)| number % 2 == 0);
        assert!(even.into_iter().all(|(record, number)| record == [!number; RECORD]));
    }
}
