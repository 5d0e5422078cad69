//! Keys to ids.
//!
//! - `key_column`: the keys of one field, as they stand in the text.
//! - `rule`: what is asked of a field: a vocabulary or hashing, with their settings.
//! - `vocabulary`: counts and ranks keys. `encoder`: gives them their ids.
//! - `spelling`: number keys as text.
//! - `number_map`, `text_map`: maps from keys to numbers or ids. `word`: short texts as numbers.
//! - `hash`: the stable hash of a key, and a fast one for maps.
//! - `digits`: digits to numbers and back, eight at once.

pub(super) mod digits;
pub(super) mod encoder;
pub(super) mod hash;
pub(super) mod key_column;
pub(super) mod number_map;
pub(super) mod rule;
pub(super) mod spelling;
mod text_map;
pub(super) mod vocabulary;
mod word;
