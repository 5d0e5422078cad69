//! What is made of the columns of a table: the part of a schema that other splits must share, and
//! that a dataset keeps.

use serde::{Deserialize, Serialize};

use crate::prepare::keys::rule::KeySettings;

/// A sparse field. Of one that is a column's value as it stands, all is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FieldRecipe {
    /// The columns of a cross, whose key is their values with the unit separator between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) columns: Vec<String>,
    /// A value is a bag: the texts between these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) separator: Option<String>,
    /// A key may have its weight in the bag behind it: between the two, the last one of an item.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight_separator: Option<String>,
    /// Of a bag so many are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_length: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep: Option<Keep>,
    /// A value is a number; the key is how many of these bounds are at most that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) buckets: Option<Vec<f64>>,
    #[serde(flatten)]
    pub(crate) settings: KeySettings,
}

/// Which end of a bag is kept when it is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keep {
    #[default]
    First,
    Last,
}

/// A dense feature beyond its transform. Of one without any of this, all is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct NumberRecipe {
    /// Numbers below the first are the first, numbers above the second the second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clip: Option<[f64; 2]>,
    /// Stands for a missing number, in the units of the column.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fill: Option<f64>,
    /// The next feature is 1 where the number is missing.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(crate) missing_flag: bool,
    /// Of a z-score: over the numbers that were there, once clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean: Option<f64>,
    /// Of a z-score: the standard deviation of the same numbers (of the population).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deviation: Option<f64>,
}

impl FieldRecipe {
    /// What no field can do: the name of the key, and what is expected of it.
    pub(crate) fn defect(&self) -> Option<(&'static str, &'static str)> {
        if let Some(defect) = self.settings.defect() {
            return Some(defect);
        }
        match (&self.separator, self.max_length, self.keep) {
            (Some(separator), ..) if separator.is_empty() => {
                return Some(("separator", "some text, got none"));
            }
            (Some(_), Some(0), _) => return Some(("max_length", "at least 1, got 0")),
            (Some(_), None, Some(_)) => return Some(("keep", "max_length beside it")),
            (None, Some(_), _) => return Some(("max_length", "separator beside it")),
            (None, _, Some(_)) => return Some(("keep", "separator beside it")),
            _ => {}
        }
        match (&self.separator, &self.weight_separator) {
            (None, Some(_)) => return Some(("weight_separator", "separator beside it")),
            (Some(_), Some(own)) if own.is_empty() => {
                return Some(("weight_separator", "some text, got none"));
            }
            (Some(separator), Some(own)) if own.contains(separator) => {
                return Some(("weight_separator", "no separator in it"));
            }
            _ => {}
        }
        let Some(bounds) = &self.buckets else { return None };
        if self.separator.is_some() {
            return Some(("buckets", "no separator beside them"));
        }
        let ascends = bounds.windows(2).all(|pair| pair[0] < pair[1]);
        if bounds.is_empty() || !ascends || bounds.iter().any(|bound| !bound.is_finite()) {
            return Some(("buckets", "finite numbers, each above the one before"));
        }
        None
    }
}

impl NumberRecipe {
    /// What no feature can do: the name of the key, and what is expected of it.
    pub(crate) fn defect(&self) -> Option<(&'static str, &'static str)> {
        match (self.clip, self.fill) {
            (Some([low, high]), _) if !(low.is_finite() && high.is_finite() && low <= high) => {
                Some(("clip", "[LOW, HIGH], two finite numbers in this order"))
            }
            (_, Some(fill)) if !fill.is_finite() => Some(("fill", "a finite number")),
            _ => None,
        }
    }

    /// What splits must share before anything is counted.
    pub(crate) fn wishes(&self) -> Self {
        Self { mean: None, deviation: None, ..*self }
    }
}
