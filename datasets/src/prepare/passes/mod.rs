//! What a run does with the text, and the threads that do it.
//!
//! - `plan`: settles everything before a row is read. `layout`: the format with its columns;
//!   `recipe`: what the output keeps of it all.
//! - `ids`: where the ids come from: counted in this text, stored in another file, or hashed.
//! - `run`: the passes. `kept_rows`: the rows between two of them. `slots`: the blocks that are
//!   under way in a pass. `totals`: what was seen of the text. `outputs`: the files that are
//!   written, with names by `parts`.

pub(super) mod ids;
pub(super) mod kept_rows;
mod layout;
pub(super) mod outputs;
mod parts;
pub(super) mod plan;
mod recipe;
pub(super) mod run;
mod slots;
pub(super) mod totals;
