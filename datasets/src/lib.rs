//! Files to batches: HDF5 datasets of clicks, how they are made and how they are read.
//!
//! Map: [`schema`] says what a dataset is · [`hdf5`] writes, opens and reads the files, which
//! `codec` compresses · [`dataset`] joins files to a split · [`batch`] is what a worker gets ·
//! [`order`] decides which worker sees which row when (pure functions) · `lane` reads one lane in
//! that order, `stream` the lanes of one worker, `in_order` all rows in that of the files;
//! `dataset_reader` has the files open for them, and `decoders` the threads that inflate beside
//! it · [`pipeline`] is the one thread of a rank that owns HDF5 and fills the workers' batches,
//! [`on_request`] those that workers ask for · [`synthetic`] makes click logs with a planted
//! model · [`prepare`] turns raw text and Parquet into datasets · [`scores`] writes what a model
//! says of the rows · [`output`] keeps what we write from harming what is there · [`attention`]
//! tells which file HDF5 is at work on · [`error`] says what is wrong with a dataset · `bench`
//! lends parts to the examples.
#![deny(unsafe_code)]

pub mod attention;
pub mod batch;
#[doc(hidden)]
pub mod bench;
mod codec;
pub mod dataset;
mod dataset_reader;
mod decoders;
pub mod error;
pub mod hdf5;
mod in_order;
mod lane;
pub mod on_request;
pub mod order;
pub mod output;
pub mod pipeline;
pub mod prepare;
pub mod schema;
pub mod scores;
mod stream;
pub mod synthetic;

pub use batch::BatchBuffer;
pub use dataset::Dataset;
pub use dataset_reader::Reading;
pub use error::DatasetError;
pub use hdf5::{Vocabulary, Writer, mean_label, read_vocabulary, verify, vocabulary_hash};
pub use on_request::{RequestedBatches, train_on_request};
pub use order::{TrainOrder, WINDOW_ROWS_MAX, steps_per_epoch};
pub use pipeline::{Pipeline, WorkerBatches};
pub use schema::{DatasetInfo, DatasetSummary, RowBlock};
pub use synthetic::{Preset, SynthOptions, SynthSummary, synth};
