//! Keys to ids.
//!
//! - `key_column`: the keys of one field, as they stand in the text.
//! - `vocabulary`: counts and ranks keys, and gives them their ids.
//! - `number_map`: a fast map from number keys to counts or ids, in the memory of `places`.
//! - `hash`: the stable hash of a key, and a fast one for maps.
//! - `digits`: digits to numbers and back, eight at once.

pub(super) mod digits;
pub(super) mod hash;
pub(super) mod key_column;
mod number_map;
mod places;
pub(super) mod vocabulary;
