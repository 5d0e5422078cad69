//! The open files of a dataset, on the thread that reads them.
//!
//! A piece is *begun* by taking what is stored from its file, and *finished* when its numbers are
//! wanted: between the two it is decoded, here or by [`Decoders`]. Files are opened when they are
//! first read; the one that was not read for longest is closed when too many are open.

use core::ops::Range;

use crate::decoders::Decoders;
use crate::hdf5::{FileInfo, FileReader, RawRows, Road, RowBuffer, Workspace};
use crate::{Dataset, DatasetError};

/// How a dataset is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Batches read ahead for each worker.
    pub prefetch: usize,
    /// Threads that undo compression, with the one that reads the files.
    pub threads: usize,
    /// All data through the filters of the HDF5 library, on the reader's thread: the plain twin of
    /// the reader, for tests and comparisons.
    pub through_library: bool,
}

impl From<usize> for Reading {
    /// With so many batches ahead, one thread.
    fn from(prefetch: usize) -> Self {
        Self { prefetch, threads: 1, through_library: false }
    }
}

/// The open files of a dataset; belongs to the thread that reads.
#[derive(Debug)]
pub(crate) struct DatasetReader {
    dataset: Dataset,
    road: Road,
    /// Open files, the one read last at the end: number in the dataset, and reader.
    open: Vec<(usize, FileReader)>,
    open_max: usize,
    /// Of the library's chunk caches.
    cache_bytes: usize,
    workspace: Workspace,
    decoders: Option<Decoders>,
    /// Memory of pieces that are done with.
    spare_raw: Vec<RawRows>,
    spare_rows: Vec<RowBuffer>,
    /// For whoever puts the rows of pieces into an order.
    pub(crate) places: Vec<u32>,
}

/// A piece on its way to memory.
#[derive(Debug)]
pub(crate) enum Begun {
    Decoded(RowBuffer),
    /// With the decoders, under this number.
    Away(u64),
}

/// Bounds of the chunk cache of one HDF5 dataset, in bytes.
const CACHE_BYTES: (usize, usize) = (1 << 20, 1 << 28);

/// Bounds of our own, for chunks that are read in pieces, in bytes.
const CHUNKS_BYTES: (usize, usize) = (1 << 26, 1 << 31);

/// Bounds of the number of open files. Each costs some 100 kB, and to open one again a millisecond.
const OPEN_FILES: (usize, usize) = (8, 256);

/// Files that one reader holds open: a quarter of what the system permits the process, since there
/// may be readers of other data, connections and checkpoints.
fn open_max() -> usize {
    let permitted = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let quarter = permitted.map_or(usize::MAX, |n| usize::try_from(n / 4).unwrap_or(usize::MAX));
    quarter.clamp(OPEN_FILES.0, OPEN_FILES.1)
}

impl DatasetReader {
    /// For reading in `places` places at once.
    pub(crate) fn new(
        dataset: &Dataset,
        places: usize,
        reading: Reading,
    ) -> Result<Self, DatasetError> {
        let chunk = dataset.files().iter().map(|f| f.chunk_bytes).max().unwrap_or(0);
        let all = chunk.saturating_mul(places + 1);
        // The widest dataset and the others, which have no more together than twice as much.
        let chunks_bytes = all.saturating_mul(2).clamp(CHUNKS_BYTES.0, CHUNKS_BYTES.1);
        let road = if reading.through_library { Road::Library } else { Road::Direct };
        let decoders = if reading.threads > 1 && road == Road::Direct {
            Some(Decoders::start(reading.threads - 1)?)
        } else {
            None
        };
        Ok(Self {
            dataset: dataset.clone(),
            road,
            open: Vec::new(),
            open_max: open_max(),
            cache_bytes: all.clamp(CACHE_BYTES.0, CACHE_BYTES.1),
            workspace: Workspace::new(chunks_bytes),
            decoders,
            spare_raw: Vec::new(),
            spare_rows: Vec::new(),
            places: Vec::new(),
        })
    }

    /// All files are still those of the beginning.
    pub(crate) fn unchanged(&self) -> Result<(), DatasetError> {
        self.dataset.files().iter().try_for_each(FileInfo::unchanged)
    }

    /// Begins to read rows of the dataset, all of one file.
    pub(crate) fn begin(&mut self, rows: Range<u64>) -> Result<Begun, DatasetError> {
        let file = self.dataset.grid().partition_point(|g| g.first <= rows.start) - 1;
        let first = self.dataset.grid()[file].first;
        self.open_file(file)?;
        let mut raw = self.spare_raw.pop().unwrap_or_default();
        let mut block = self.spare_rows.pop().unwrap_or_default();
        block.clear();
        block.bags = !self.dataset.one_hot();
        if let [.., (_, reader)] = self.open.as_slice() {
            reader.fetch(rows.start - first..rows.end - first, &mut self.workspace, &mut raw)?;
        }
        if let Some(decoders) = &mut self.decoders {
            return Ok(Begun::Away(decoders.give(raw, block)));
        }
        raw.decode(&mut self.workspace.unpacker, &mut block)?;
        self.spare_raw.push(raw);
        Ok(Begun::Decoded(block))
    }

    /// The rows of what was begun.
    pub(crate) fn finish(&mut self, begun: Begun) -> Result<RowBuffer, DatasetError> {
        match (begun, &mut self.decoders) {
            (Begun::Decoded(rows), _) => Ok(rows),
            (Begun::Away(number), Some(decoders)) => {
                let (raw, rows) = decoders.take(number, &mut self.workspace.unpacker)?;
                self.spare_raw.push(raw);
                Ok(rows)
            }
            (Begun::Away(_), None) => Err(DatasetError::ReaderLost),
        }
    }

    /// Takes back the memory of rows.
    pub(crate) fn recycle(&mut self, rows: RowBuffer) {
        self.spare_rows.push(rows);
    }

    /// Puts `file` at the end of the open ones.
    fn open_file(&mut self, file: usize) -> Result<(), DatasetError> {
        if let Some(at) = self.open.iter().rposition(|(number, _)| *number == file) {
            self.open[at..].rotate_left(1);
            return Ok(());
        }
        if self.open.len() >= self.open_max {
            self.open.remove(0);
        }
        let info = &self.dataset.files()[file];
        let reader = FileReader::open(info, file, self.road, self.cache_bytes)?;
        self.open.push((file, reader));
        Ok(())
    }
}
