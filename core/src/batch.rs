//! A batch of examples as the model sees it: borrowed columns, no ownership.
//!
//! Letters used everywhere: `n` examples, `D` dense features, `S` sparse fields. A *bag* is the
//! list of ids of one field of one example; it may be empty.

/// Jagged bags, example-major: the bag of example `i`, field `s` is number `i * S + s`.
#[derive(Clone, Copy, Debug)]
pub struct Jagged<'a> {
    /// Ids, each below the cardinality of its field. `[offsets[n * S]]`
    pub values: &'a [u32],
    /// Start of every bag in `values`, and the end of the last one. `[n * S + 1]`, from 0.
    pub offsets: &'a [u32],
    /// Weight of every value in its bag, finite and from 0, or empty for all ones. As long as
    /// `values`, or `[0]`
    pub weights: &'a [f32],
}

impl<'a> Jagged<'a> {
    /// The ids of bag `bag`.
    #[must_use]
    pub fn bag(&self, bag: usize) -> &'a [u32] {
        &self.values[self.offsets[bag] as usize..self.offsets[bag + 1] as usize]
    }
}

/// Examples of one batch.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Clicked (1) or not (0); values between are soft labels. `[n]`
    pub label: &'a [f32],
    /// Weight of every example, or empty for all ones. `[n]` or `[0]`
    pub weight: &'a [f32],
    /// Dense features, row-major. `[n, D]`
    pub dense: &'a [f32],
    /// Ids of every field. `n * S` bags
    pub bags: Jagged<'a>,
    /// Number of every example in its dataset: the key of its random numbers. `[n]`
    pub row: &'a [u64],
}

impl Batch<'_> {
    /// Number of examples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.label.len()
    }

    /// Sum of the examples' weights.
    #[must_use]
    pub fn weight_sum(&self) -> f64 {
        match self.weight {
            [] => self.len() as f64,
            weight => weight.iter().map(|w| f64::from(*w)).sum(),
        }
    }

    /// No examples: a legal batch, met at the ragged end of an epoch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.label.is_empty()
    }
}
