//! What a run does with the text, and the threads that do it.
//!
//! - `plan`: settles everything before a row is read. `layout`: the format with its columns;
//!   `recipe`: what the output keeps of it all.
//! - `ids`: where the ids come from: counted in this text, stored in another file, or hashed.
//! - `run`: the two passes, count and encode. `slots`: the blocks that are under way in a pass.
//!   `totals`: what a pass has seen. `outputs`: the files that are written,
//!   with names by `parts`.

pub(super) mod ids;
mod layout;
pub(super) mod outputs;
mod parts;
pub(super) mod plan;
mod recipe;
pub(super) mod run;
mod slots;
pub(super) mod totals;
