//! From bytes to a model, its replica and its rows.

use core::fmt;

use super::header::{self, FIXED, Header, MAGIC, VERSION};
use crate::model::{Cross, MAX_LAYERS, Model, ModelConfig, ModelError};
use crate::sparse::NumberingError;

/// Why bytes are no model, or a model can't become bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlatError {
    /// They begin with something else.
    Magic,
    /// Another version of the format.
    Version {
        /// Version found.
        got: u64,
    },
    /// Fewer or more than the header says, or than a header has.
    Length {
        /// Bytes by the header.
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// Another checksum than was written.
    Checksum {
        /// CRC-32 that was written.
        expected: u64,
        /// CRC-32 of the bytes.
        got: u64,
    },
    /// A word of the header means nothing.
    Word {
        /// Its place in bytes.
        at: u64,
        /// Its value.
        got: u64,
    },
    /// Words of the header contradict each other.
    Header {
        /// Place in bytes of the first that does not follow from those that describe the model.
        at: u64,
        /// What it would have to be.
        expected: u64,
        /// What it is.
        got: u64,
    },
    /// What fills up to a boundary is not zero.
    Padding {
        /// Its place in bytes.
        at: u64,
    },
    /// The configuration describes no model.
    Model(ModelError),
    /// Another number of tables than fields.
    Tables {
        /// Fields.
        expected: usize,
        /// Tables.
        got: usize,
    },
    /// A table without rows.
    EmptyTable {
        /// Its field.
        field: usize,
    },
    /// More rows than there are row numbers.
    Rows(NumberingError),
    /// More bytes than can be counted.
    TooLong,
}

impl fmt::Display for FlatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Magic => write!(f, "not a flat model: it begins with something else"),
            Self::Version { got } => {
                write!(f, "flat model of version {got}; this program reads version {VERSION}")
            }
            Self::Length { expected, got } => {
                write!(f, "{got} bytes; expected {expected}: the file is cut or torn")
            }
            Self::Checksum { expected, got } => {
                write!(f, "checksum {got:08x}; expected {expected:08x}: the file is damaged")
            }
            Self::Word { at, got } => write!(f, "header: {got} at byte {at} means nothing"),
            Self::Header { at, expected, got } => {
                write!(f, "header: {got} at byte {at}; the model it describes has {expected} there")
            }
            Self::Padding { at } => write!(f, "byte {at} fills up to a boundary and is not 0"),
            Self::Model(error) => error.fmt(f),
            Self::Tables { expected, got } => write!(f, "{got} tables for {expected} fields"),
            Self::EmptyTable { field } => write!(f, "the table of field {field} has no rows"),
            Self::Rows(error) => error.fmt(f),
            Self::TooLong => write!(f, "the model has more bytes than can be counted"),
        }
    }
}

impl core::error::Error for FlatError {}

/// A model that stands in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Flat<'a> {
    model: Model,
    /// Rows of every table, as u64s. `[S]`
    cardinality: &'a [[u8; 8]],
    /// As f32s. `[replica_len]`
    replica: &'a [[u8; 4]],
    /// Rows of all tables, as f32s. `[rows, row_width]`
    rows: &'a [[u8; 4]],
}

impl<'a> Flat<'a> {
    /// Reads the header and compares the checksum. Copies nothing.
    ///
    /// # Errors
    /// When something of `bytes` is not as it was written.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FlatError> {
        let (words, rest) = bytes.as_chunks::<8>();
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
        let got = bytes.len() as u64;
        if word(0) != MAGIC {
            return Err(FlatError::Magic);
        }
        if word(1) != VERSION {
            return Err(FlatError::Version { got: word(1) });
        }
        let Some((last, before)) = words.split_last().filter(|(_, before)| before.len() >= FIXED)
        else {
            return Err(FlatError::Length { expected: word(2), got });
        };
        if word(2) != got || !rest.is_empty() {
            return Err(FlatError::Length { expected: word(2), got });
        }
        let (expected, got) = (u64::from_le_bytes(*last), checksum(before.as_flattened()));
        if expected != got {
            return Err(FlatError::Checksum { expected, got });
        }
        Self::describe(before)
    }

    /// Makes the model that the header describes, and compares all that follows from it.
    fn describe(words: &'a [[u8; 8]]) -> Result<Self, FlatError> {
        let word = |index: usize| words.get(index).map_or(0, |word| u64::from_le_bytes(*word));
        let means_nothing = |index: usize| FlatError::Word { at: place(index), got: word(index) };
        let number = |index| usize::try_from(word(index)).map_err(|_| means_nothing(index));
        let layers = |index| number(index).ok().filter(|count| *count <= MAX_LAYERS);
        let bottom_len = layers(8).ok_or_else(|| means_nothing(8))?;
        let top_len = layers(9).ok_or_else(|| means_nothing(9))?;
        let (mut bottom, mut top) = ([0; MAX_LAYERS], [0; MAX_LAYERS]);
        let (bottom, top) = (&mut bottom[..bottom_len], &mut top[..top_len]);
        for (index, width) in (FIXED..).zip(bottom.iter_mut().chain(&mut *top)) {
            *width = number(index)?;
        }
        let first = FIXED + bottom_len + top_len;
        let fields = number(5)?;
        let cardinality = first.checked_add(fields).and_then(|end| words.get(first..end));
        let cardinality = cardinality.ok_or_else(|| means_nothing(5))?;
        let [batch_norm_momentum, dropout] = singles(word(14));
        let config = ModelConfig {
            kind: header::kind(word(3)).ok_or_else(|| means_nothing(3))?,
            dense_features: number(4)?,
            fields,
            embedding_dim: number(6)?,
            pooling: header::pooling(word(7)).ok_or_else(|| means_nothing(7))?,
            bottom,
            top,
            cross: Cross {
                layers: number(10)?,
                rank: number(11)?,
                structure: header::structure(word(12)).ok_or_else(|| means_nothing(12))?,
            },
            batch_norm: word(13) != 0,
            batch_norm_momentum,
            dropout,
        };
        let header = Header::new(&config, cardinality.iter().map(|x| u64::from_le_bytes(*x)))?;
        for (index, expected) in header.words().enumerate() {
            if word(index) != expected {
                return Err(FlatError::Header { at: place(index), expected, got: word(index) });
            }
        }
        // The length is one of those words, so all parts are there.
        let (numbers, _) = words.as_flattened().as_chunks::<4>();
        let part = |at: u64, length: u64| {
            let from = usize::try_from(at / 4).unwrap_or(usize::MAX);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let tail = numbers.get(from..).unwrap_or(&[]);
            tail.split_at_checked(length).unwrap_or((tail, &[]))
        };
        let model = *header.model();
        let (replica, after) = part(header.replica_at(), model.replica_len() as u64);
        let padding = (header.rows_at() / 4 - header.replica_at() / 4) - replica.len() as u64;
        check_zero(after.iter().take(usize::try_from(padding).unwrap_or(0)), header.rows_at())?;
        let (rows, after) = part(header.rows_at(), header.rows() * model.row_width() as u64);
        check_zero(after.iter(), header.checksum_at())?;
        Ok(Self { model, cardinality, replica, rows })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Rows of the table of every field.
    pub fn cardinality(&self) -> impl Iterator<Item = u64> + Clone + use<'a> {
        self.cardinality.iter().map(|rows| u64::from_le_bytes(*rows))
    }

    /// Values of the replica, in the core's order. `[replica_len]`
    pub fn replica(&self) -> impl Iterator<Item = f32> + use<'a> {
        self.replica.iter().map(|value| f32::from_le_bytes(*value))
    }

    /// Values of row number `row`, `[row_width]`; `None` past the last.
    pub fn row(&self, row: u32) -> Option<impl Iterator<Item = f32> + use<'a>> {
        let width = self.model.row_width();
        let from = (row as usize).checked_mul(width)?;
        let values = self.rows.get(from..)?.get(..width)?;
        Some(values.iter().map(|value| f32::from_le_bytes(*value)))
    }
}

/// CRC-32 (IEEE 802.3), as the word that stands at the end.
fn checksum(bytes: &[u8]) -> u64 {
    u64::from(crc32fast::hash(bytes))
}

/// The two f32s of a word.
const fn singles(word: u64) -> [f32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    [f32::from_le_bytes([a, b, c, d]), f32::from_le_bytes([e, f, g, h])]
}

/// Bytes before word `index`.
const fn place(index: usize) -> u64 {
    index as u64 * 8
}

/// What fills up to byte `end` is zero.
fn check_zero<'a>(
    mut padding: impl ExactSizeIterator<Item = &'a [u8; 4]>,
    end: u64,
) -> Result<(), FlatError> {
    let all = padding.len() as u64;
    match padding.position(|value| *value != [0; 4]) {
        Some(at) => Err(FlatError::Padding { at: end - 4 * (all - at as u64) }),
        None => Ok(()),
    }
}
