//! What a run does with the text, and the threads that do it.
//!
//! - `plan`: settles everything before a row is read: columns, names, transforms.
//! - `ids`: where the ids come from: counted in this text, stored in another file, or hashed.
//! - `run`: the two passes, count and encode. `slots`: the blocks that are under way in a pass.

pub(super) mod ids;
pub(super) mod plan;
pub(super) mod run;
mod slots;
