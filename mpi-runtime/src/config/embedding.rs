//! `[embedding]`: how rows are kept, dealt to ranks and brought to who trains with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::Precision;

/// `[embedding]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddingConfig {
    /// Batches whose rows are fetched ahead.
    pub prefetch: usize,
    /// Partitions, each with its own service thread, per embedding PS rank.
    pub partitions: usize,
    /// Threads per rank that carry rows between ranks, each with a communicator of its own.
    pub links: usize,
    /// Where bags are pooled.
    pub pool_at: PoolAt,
    /// Ranks of a node use each other's rows where they are, with methods that allow it.
    pub shared_memory: bool,
    /// What values of rows are in memory.
    pub precision: Precision,
    /// Which rows are together.
    pub placement: Placement,
    /// Names of fields that share a table, by table.
    pub shared: Vec<Vec<String>>,
    /// Elements of the vectors of fields where they are not `model.embedding_dim`, by name.
    pub dims: BTreeMap<String, usize>,
    /// Columns of a strip that tables are cut into; 0: no more than `dims` ask for.
    pub columns: usize,
}

/// Which rows of the tables are in one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Those of every table are dealt to all.
    #[default]
    Rows,
    /// All of a table.
    Tables,
    /// One of the others, by the bytes that are expected to travel, once a run is planned.
    Auto,
}

/// Where the rows of a bag become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolAt {
    /// Where it is trained with: rows travel.
    #[default]
    Trainer,
    /// Where the rows are: vectors travel.
    Ps,
    /// Where fewer bytes are expected to travel: one of the others once a run is planned.
    Auto,
}

impl Default for EmbeddingConfig {
    fn default() -> Self {
        Self {
            prefetch: 2,
            partitions: 2,
            links: 1,
            pool_at: PoolAt::default(),
            shared_memory: true,
            precision: Precision::default(),
            placement: Placement::default(),
            shared: vec![],
            dims: BTreeMap::new(),
            columns: 0,
        }
    }
}
