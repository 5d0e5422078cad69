//! One damaged file: made, read with all that reads, and compared with the original.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use umbra_core::rng::{Purpose, Stream};
use umbra_datasets::{
    BatchBuffer, Dataset, DatasetError, DatasetSummary, Pipeline, Vocabulary, read_vocabulary,
    verify,
};

/// What is done to a file. Its text is a line of the talk between parent and child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Damage {
    /// One bit of one byte.
    Flip { at: usize, bit: u32 },
    /// Only so many bytes are left.
    Cut { length: usize },
    /// Several changes, drawn from this seed.
    Mutation { seed: u64 },
}

impl Damage {
    pub(crate) fn to_text(self) -> String {
        match self {
            Self::Flip { at, bit } => format!("flip {at} {bit}"),
            Self::Cut { length } => format!("cut {length} 0"),
            Self::Mutation { seed } => format!("mutation {seed} 0"),
        }
    }

    pub(crate) fn from_text(kind: &str, first: u64, second: u64) -> Self {
        match kind {
            "flip" => Self::Flip { at: first as usize, bit: second as u32 },
            "cut" => Self::Cut { length: first as usize },
            _ => Self::Mutation { seed: first },
        }
    }

    /// The damaged bytes.
    pub(crate) fn apply(self, original: &[u8]) -> Vec<u8> {
        let mut bytes = original.to_vec();
        match self {
            Self::Flip { at, bit } => bytes[at] ^= 1 << bit,
            Self::Cut { length } => bytes.truncate(length),
            Self::Mutation { seed } => mutate(&mut bytes, seed),
        }
        bytes
    }
}

/// One to four changes: bits, words that mean much, pieces zeroed, moved or taken out.
fn mutate(bytes: &mut Vec<u8>, seed: u64) {
    let stream = Stream::new(seed, Purpose::Test(2));
    let mut counter = 0;
    let mut below = |bound: usize| {
        counter += 1;
        stream.below(counter, bound.max(1) as u64) as usize
    };
    for _ in 0..=below(4) {
        let at = below(bytes.len());
        let length = (1 + below(64)).min(bytes.len() - at);
        match below(7) {
            0 => bytes[at] ^= 1 << below(8),
            1 => bytes[at] = below(256) as u8,
            2 => {
                let word = [0, 1, 0x7fff_ffff, u64::MAX, 1 << 40, 1 << 63][below(6)].to_le_bytes();
                let length = length.min(8);
                bytes[at..at + length].copy_from_slice(&word[..length]);
            }
            3 => bytes[at..at + length].fill(0),
            4 => {
                let from = below(bytes.len() - length);
                bytes.copy_within(from..from + length, at);
            }
            5 => drop(bytes.drain(at..at + length)),
            _ => {
                let piece = bytes[at..at + length].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

/// All that a file says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contents {
    /// Names, sizes, texts, hashes, fingerprint.
    says: String,
    summary: DatasetSummary,
    key_lists: Vec<Option<Vocabulary>>,
    batches: Vec<BatchBuffer>,
}

impl Contents {
    /// Reads all there is, by every way that there is.
    pub(crate) fn read(path: &Path) -> Result<Self, DatasetError> {
        let dataset = Dataset::open(&[path.to_owned()])?;
        let summary = verify(path)?;
        let key_lists = (0..dataset.fields())
            .map(|field| read_vocabulary(path, field))
            .collect::<Result<_, _>>()?;
        let (pipeline, mut workers) = Pipeline::evaluate(&dataset, 0, 1, 1, ROWS_AT_ONCE, 2)?;
        let mut batches = Vec::new();
        while let Some(batch) = workers[0].next(&mut || ())? {
            batches.push(batch);
        }
        pipeline.join();
        let says = format!(
            "{:?}",
            (
                (dataset.rows(), dataset.dense_names(), dataset.sparse_names()),
                (dataset.cardinality(), dataset.transform(), dataset.vocabulary()),
                (dataset.fingerprint(), dataset.values_per_row_max(), dataset.has_bags()),
                (dataset.has_labels(), dataset.has_weights(), dataset.has_groups()),
            )
        );
        Ok(Self { says, summary, key_lists, batches })
    }

    /// The first part in which two differ.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        // A copy cut short and filled up again has another size, and that is all.
        let whole = |summary: &DatasetSummary| DatasetSummary { file_bytes: 0, ..summary.clone() };
        [
            ("what it says of itself", self.says != other.says),
            ("summary", whole(&self.summary) != whole(&other.summary)),
            ("key lists", self.key_lists != other.key_lists),
            ("rows", self.batches != other.batches),
        ]
        .into_iter()
        .find_map(|(part, differs)| differs.then_some(part))
    }
}

/// What reading a damaged file came to, as a line.
pub(crate) fn outcome(path: &Path, original: &Contents) -> String {
    let path = path.to_owned();
    let (give, take) = mpsc::channel();
    let read: std::thread::JoinHandle<()> = {
        let path: PathBuf = path.clone();
        std::thread::spawn(move || {
            let _ = give.send(Contents::read(&path));
        })
    };
    let ended = take.recv();
    let panicked = read.join().is_err();
    match ended {
        _ if panicked => "panic".into(),
        Err(_) | Ok(Err(DatasetError::ReaderLost)) => "panic".into(),
        Ok(Err(error)) => {
            let message = error.to_string().replace('\n', " ");
            let named = message.starts_with(&path.display().to_string());
            format!("{} {message}", if named { "detected" } else { "unnamed" })
        }
        Ok(Ok(contents)) => match original.difference(&contents) {
            None => "harmless".into(),
            Some(part) => format!("silent {part}"),
        },
    }
}

/// A child: takes damages from standard input, one a line, and answers each with a line.
pub(crate) fn child(folder: &Path, originals: &[PathBuf]) {
    let bytes: Vec<Vec<u8>> = originals.iter().map(|path| fs::read(path).unwrap()).collect();
    let contents: Vec<Contents> =
        originals.iter().map(|path| Contents::read(path).unwrap()).collect();
    let bad = folder.join(format!("bad-{}.h5", std::process::id()));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let original = number(0) as usize;
        let damage = Damage::from_text(words[1], number(2), number(3));
        // HDF5 knows open files by their inodes, and what it leaves open keeps its own.
        let _ = fs::remove_file(&bad);
        fs::write(&bad, damage.apply(&bytes[original])).unwrap();
        println!("{}", outcome(&bad, &contents[original]));
    }
    let _ = fs::remove_file(&bad);
}

/// Rows of a batch.
const ROWS_AT_ONCE: usize = 512;
