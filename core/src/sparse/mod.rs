//! Embedding tables: which rows a batch needs, where they live, how they are pooled and updated.
//!
//! All tables of a model share one numbering: a *row number* is a `u32`. Row numbers are what
//! travels, and say where a row lives.
//!
//! - `coalesce.rs`: the distinct rows of a batch, and the slot of every id among them
//! - `partition.rs`: id → row number → partition and index
//! - `table.rs`: the store of records `[values | optimizer state]` · `record.rs`: their parts ·
//!   `rounding.rs`: the random numbers by which bf16 values are rounded
//! - `strips.rs`: tables of several widths, as tables of one
//! - `bag.rs`: pooling of a bag's rows, forward and backward · `partial.rs`: the same where only
//!   some of a bag's rows are at hand · `direct.rs`: without copies, where all of them are in one
//!   table · `by_table.rs`: in which order bags go then · `group.rs`: what a batch makes of every
//!   row · `tiled.rs`: rows that are read and updated as a batch goes through a model

mod by_table;
mod coalesce;
mod direct;
mod group;
mod partial;
mod partition;
mod record;
mod rounding;
mod strips;
mod table;
mod tiled;

pub use by_table::{ByTable, NextOfTable};
pub use coalesce::{coalesce, heads_len};
pub use direct::{DirectBags, DirectUpdate};
pub use group::{GroupScratch, Groups, Spread, Use, buckets};
pub use partial::{PartialBags, RowUse};
pub use partition::{Numbering, NumberingError, Numbers, Partitioning};
pub use record::Record;
pub use rounding::Rounding;
pub use strips::{CutInto, cut, cut_len};
pub use table::Table;
pub use tiled::{Places, TilePlan, TiledRows, plan_tiles};

pub mod bag;
