//! What was sent: `wire` of the summary.

use serde::{Deserialize, Serialize};

use crate::config::{Placement, PoolAt};

/// What was sent, over all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireFigures {
    /// Dense parameters and gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_bytes: Option<u64>,
    /// Embedding rows and gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_bytes: Option<u64>,
    /// Everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control_bytes: Option<u64>,
    /// Compression: dense elements sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_elements_kept: Option<u64>,
    /// Compression: dense elements there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense_elements_total: Option<u64>,
    /// Bytes of those, and of the tensors with them that were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense_bytes_coded: Option<u64>,
    /// Bytes that they would have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense_bytes_uncoded: Option<u64>,
    /// Time for thresholds, writing and reading, on the slowest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_coding: Option<f64>,
    /// Of `compress.auto`: a sum as it is, on the slowest trainer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_trial_plain: Option<f64>,
    /// The same, compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_trial_coded: Option<f64>,
    /// Where rows are not simply dealt: `"tables"`, or what `embedding.placement = "auto"` chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_placement: Option<Placement>,
    /// Of `embedding.pool_at = "auto"`: who pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_pool_at: Option<PoolAt>,
    /// Bytes of a step where trainers pool, as expected when that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_step_bytes_trainer: Option<f64>,
    /// And where those who hold rows do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_step_bytes_ps: Option<f64>,
    /// Pooled by those who hold rows: elements of vectors that were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_elements_kept: Option<u64>,
    /// Elements of those vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_elements_total: Option<u64>,
    /// Bytes of lookups, vectors and their gradients, without evaluations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes_coded: Option<u64>,
    /// Bytes that they would have been with all elements of the vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes_uncoded: Option<u64>,
    /// Bytes that the distinct rows and their gradients would have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_bytes_rows: Option<u64>,
    /// Layers that are split: elements of activations and of their gradients that were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_elements_kept: Option<u64>,
    /// Those there were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_elements_total: Option<u64>,
    /// Bytes that were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_bytes_coded: Option<u64>,
    /// Bytes that all elements would have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_bytes_uncoded: Option<u64>,
    /// Time for sending and waiting for them, thresholds, writing and reading, on the slowest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_crossing: Option<f64>,
    /// Model parallel, both of these: elements sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mp_elements_kept: Option<u64>,
    /// Elements there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mp_elements_total: Option<u64>,
    /// Rank by rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<WireOfRank>,
}

/// What one rank sent to others and received from them, evaluations included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireOfRank {
    /// Which.
    pub rank: usize,
    /// Embedding rows and gradients.
    pub embedding: ExchangedFigures,
    /// Dense parameters and gradients.
    pub dense: ExchangedFigures,
}

/// Messages and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangedFigures {
    /// Messages to others.
    pub messages_sent: u64,
    /// Bytes in them.
    pub bytes_sent: u64,
    /// Messages from others.
    pub messages_received: u64,
    /// Bytes in them.
    pub bytes_received: u64,
}
