//! Files to batches: HDF5 datasets of clicks, how they are made and how they are read.
//!
//! Map: [`schema`] says what a dataset is · [`hdf5`] writes, opens and reads the files ·
//! [`shard`] decides which worker sees which row when (pure functions) · [`pipeline`] is the one
//! thread of a rank that owns HDF5 and fills the workers' batches · [`synthetic`] makes click logs
//! with a planted model.
#![forbid(unsafe_code)]

pub mod error;
pub mod hdf5;
pub mod schema;

pub use error::DatasetError;
pub use hdf5::{Writer, read_vocabulary};
pub use schema::{DatasetInfo, DatasetSummary, RowBlock};
