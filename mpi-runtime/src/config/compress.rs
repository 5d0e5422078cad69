//! `[compress]`: what passes a threshold before it is sent (DCT, arXiv 2010.08899).

use serde::{Deserialize, Serialize};
use umbra_core::compress::{Coding, Keep, Values};

use super::{Config, PoolAt};

/// `[compress]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompressConfig {
    /// Share of the elements of gradients, parameters and replicas that are sent; all without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dp_keep: Option<f64>,
    /// Share of the elements of pooled vectors, or of the activations between layers that are
    /// split, that are sent, and of their gradients; all without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mp_keep: Option<f64>,
    /// Steps after which thresholds are found anew.
    pub refresh_every: u32,
    /// What values are sent as.
    pub values: SentValues,
    /// Nothing is compressed where that does not pay, which is tried when a run starts.
    pub auto: bool,
}

/// What values are sent as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SentValues {
    /// As they are.
    F32,
    /// Rounded to bfloat16; what that costs is sent later.
    #[default]
    Bf16,
    /// Rounded to 8 bits, which changes it by an eighth at most; so is what that costs.
    F8,
}

impl Default for CompressConfig {
    fn default() -> Self {
        Self {
            dp_keep: None,
            mp_keep: None,
            refresh_every: 1000,
            values: SentValues::default(),
            auto: false,
        }
    }
}

impl Config {
    /// How gradients are coded; `None` where they are sent as they are.
    #[must_use]
    pub fn coding(&self) -> Option<Coding> {
        self.compress.dp_keep.map(|share| self.compress.coding(share))
    }

    /// Averages are of differences: what is sent as it is needs none.
    #[must_use]
    pub fn differences(&self) -> bool {
        self.coding().is_some_and(|coding| !coding.is_all())
    }

    /// How activations between the parts of a model are coded.
    #[must_use]
    pub fn crossing(&self) -> Coding {
        self.compress.mp_keep.map_or(Coding::ALL, |share| self.compress.coding(share))
    }

    /// How vectors are coded that those who hold rows have pooled; `None` where rows are sent, and
    /// while it is open who pools.
    #[must_use]
    pub fn pooled(&self) -> Option<Coding> {
        match self.compress.mp_keep.filter(|_| self.roles.dense_partitions == 1) {
            Some(share) => Some(self.compress.coding(share)),
            None => (self.embedding.pool_at == PoolAt::Ps).then_some(Coding::ALL),
        }
    }
}

impl CompressConfig {
    const fn coding(&self, share: f64) -> Coding {
        let Self { refresh_every, values, .. } = *self;
        let values = match values {
            SentValues::F32 => Values::F32,
            SentValues::Bf16 => Values::Bf16,
            SentValues::F8 => Values::F8,
        };
        #[expect(clippy::cast_possible_truncation, reason = "a share")]
        Coding { keep: Keep { share: share as f32, refresh_every }, values }
    }

    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
