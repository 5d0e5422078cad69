//! The words before the numbers.
//!
//! One function says which they are: writers write them, and a reader that has made a model from
//! them compares them all. So there is one header for a model and its tables, to the last byte.

use super::FlatError;
use crate::model::{Cross, Model, ModelConfig, ModelKind, Pooling, Structure};
use crate::sparse::NumberingError;

/// What a file begins with.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"UMBRAFLT");
/// Version of the format.
pub(super) const VERSION: u64 = 1;
/// Words before the widths of layers.
pub(super) const FIXED: usize = 20;
/// Bytes on whose multiples replica and rows start: a cache line.
const LINE: u64 = 64;

/// What a file holds, and where. `C`: the rows of every table.
#[derive(Clone, Debug)]
pub struct Header<'a, C> {
    config: ModelConfig<'a>,
    cardinality: C,
    rows: u64,
    model: Model,
    places: Places,
}

/// Bytes before each part.
#[derive(Clone, Copy, Debug)]
struct Places {
    replica: u64,
    rows: u64,
    checksum: u64,
    end: u64,
}

impl<'a, C: Iterator<Item = u64> + Clone> Header<'a, C> {
    /// Of the model that `config` describes, with tables of these `cardinality`, one per field.
    ///
    /// # Errors
    /// When it describes none, or the tables do not fit it or have more rows than there are row
    /// numbers.
    pub fn new(config: &ModelConfig<'a>, cardinality: C) -> Result<Self, FlatError> {
        let config = needed(config);
        let model = Model::new(&config).map_err(FlatError::Model)?;
        let (mut tables, mut rows) = (0, 0u64);
        for cardinality in cardinality.clone() {
            if cardinality == 0 {
                return Err(FlatError::EmptyTable { field: tables });
            }
            (tables, rows) = (tables + 1, rows.saturating_add(cardinality));
        }
        if tables != config.fields {
            return Err(FlatError::Tables { expected: config.fields, got: tables });
        }
        if rows > u64::from(u32::MAX) {
            return Err(FlatError::Rows(NumberingError { rows }));
        }
        let places = Places::new(&config, &model, rows).ok_or(FlatError::TooLong)?;
        Ok(Self { config, cardinality, rows, model, places })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Everything before the replica.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let Self { config, model, places, .. } = self;
        let word = |x: usize| x as u64;
        let pair =
            |low: f32, high: f32| u64::from(low.to_bits()) | u64::from(high.to_bits()) << u32::BITS;
        let fixed: [u64; FIXED] = [
            MAGIC,
            VERSION,
            places.end,
            kind_code(config.kind),
            word(config.dense_features),
            word(config.fields),
            word(config.embedding_dim),
            pooling_code(config.pooling),
            word(config.bottom.len()),
            word(config.top.len()),
            word(config.cross.layers),
            word(config.cross.rank),
            structure_code(config.cross.structure),
            u64::from(config.batch_norm),
            pair(config.batch_norm_momentum, config.dropout),
            word(model.replica_len()),
            word(model.row_width()),
            self.rows,
            places.replica,
            places.rows,
        ];
        let widths = config.bottom.iter().chain(config.top).map(move |width| word(*width));
        let words = fixed.into_iter().chain(widths).chain(self.cardinality.clone());
        let all = usize::try_from(places.replica / WORD).unwrap_or(usize::MAX);
        words.chain(core::iter::repeat(0)).take(all)
    }

    /// Rows of all tables.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes before the replica.
    #[must_use]
    pub const fn replica_at(&self) -> u64 {
        self.places.replica
    }

    /// Bytes before the rows.
    #[must_use]
    pub const fn rows_at(&self) -> u64 {
        self.places.rows
    }

    /// Bytes before the checksum, which is of all of them.
    #[must_use]
    pub const fn checksum_at(&self) -> u64 {
        self.places.checksum
    }

    /// Bytes of the file.
    #[must_use]
    pub const fn file_len(&self) -> u64 {
        self.places.end
    }
}

/// Bytes of a word.
const WORD: u64 = size_of::<u64>() as u64;

impl Places {
    fn new(config: &ModelConfig<'_>, model: &Model, rows: u64) -> Option<Self> {
        let word = |x: usize| u64::try_from(x).ok();
        let layers = config.bottom.len().checked_add(config.top.len())?;
        let words = FIXED.checked_add(layers)?.checked_add(config.fields)?;
        let replica = word(words)?.checked_mul(WORD)?.checked_next_multiple_of(LINE)?;
        let replica_end = replica.checked_add(word(model.replica_len())?.checked_mul(4)?)?;
        let first_row = replica_end.checked_next_multiple_of(LINE)?;
        let row_bytes = word(model.row_width())?.checked_mul(4)?;
        let rows_end = first_row.checked_add(rows.checked_mul(row_bytes)?)?;
        let checksum = rows_end.checked_next_multiple_of(WORD)?;
        Some(Self { replica, rows: first_row, checksum, end: checksum.checked_add(WORD)? })
    }
}

/// `config` without what its model does not look at.
fn needed<'a>(config: &ModelConfig<'a>) -> ModelConfig<'a> {
    let (d, bottom, top, cross) = match config.kind {
        ModelKind::Dlrm if config.dense_features == 0 => (true, false, true, false),
        ModelKind::Dlrm => (true, true, true, false),
        ModelKind::DeepFm | ModelKind::WideDeep => (true, false, true, false),
        ModelKind::Fm => (true, false, false, false),
        ModelKind::Lr => (false, false, false, false),
        ModelKind::DcnV2 => (true, false, true, true),
    };
    ModelConfig {
        embedding_dim: if d { config.embedding_dim } else { 0 },
        bottom: if bottom { config.bottom } else { &[] },
        top: if top { config.top } else { &[] },
        cross: if cross { config.cross } else { Cross::NONE },
        ..*config
    }
}

const fn kind_code(kind: ModelKind) -> u64 {
    match kind {
        ModelKind::Dlrm => 0,
        ModelKind::DeepFm => 1,
        ModelKind::Fm => 2,
        ModelKind::Lr => 3,
        ModelKind::DcnV2 => 4,
        ModelKind::WideDeep => 5,
    }
}

const fn pooling_code(pooling: Pooling) -> u64 {
    match pooling {
        Pooling::Sum => 0,
        Pooling::Mean => 1,
    }
}

const fn structure_code(structure: Structure) -> u64 {
    match structure {
        Structure::Parallel => 0,
        Structure::Stacked => 1,
    }
}

/// The architecture of a code.
pub(super) fn kind(code: u64) -> Option<ModelKind> {
    use ModelKind::{DcnV2, DeepFm, Dlrm, Fm, Lr, WideDeep};
    [Dlrm, DeepFm, Fm, Lr, DcnV2, WideDeep].into_iter().find(|kind| kind_code(*kind) == code)
}

/// The pooling of a code.
pub(super) fn pooling(code: u64) -> Option<Pooling> {
    [Pooling::Sum, Pooling::Mean].into_iter().find(|pooling| pooling_code(*pooling) == code)
}

/// The structure of a code.
pub(super) fn structure(code: u64) -> Option<Structure> {
    let all = [Structure::Parallel, Structure::Stacked];
    all.into_iter().find(|structure| structure_code(*structure) == code)
}
