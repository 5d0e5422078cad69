//! The MPI runtime of umbra.
//!
//! A rank has roles (trainer, embedding PS), a thread has one job, and each communicator is used by
//! one thread. Reading order:
//!
//! - the job: [`config`] what a user can set · [`launch`] is the launch what it seems · [`roles`] which
//!   rank does what · [`plan`] every input opened, every size known · [`convert`] to the core's types
//! - the run: [`train`] from plan to summary · [`run`] threads and memory of a rank · [`early_stop`]
//! - ranks: [`world`] start, agreement, end · [`comm`] communicators with deadlines (with [`memory`] the only unsafe)
//!   · [`watch`] deadlines · [`reduce`] sums in a fixed order · [`heartbeat`] who is alive and where
//! - embedding tables: [`tables`] layout and records · [`wire`] messages · [`embedding_ps`] owners of
//!   partitions · [`embedding_link`] the communicator thread · [`services`] starts and ends both ·
//!   [`embedding_client`] a worker's side
//! - training: [`trainer`] the worker's loop · [`batches`] what it takes · [`buffers`] its memory ·
//!   [`group`] workers meet · [`bsp`] one update per step · [`turns`] slices and threads · [`rounds`] who
//!   runs which protocol on which slice · [`driver`] runs one · [`post`] its messages · [`counters`] what is
//!   counted · [`trace`] what is drawn · [`bench`](mod@bench) how fast it is · [`processor`] cores and their time
//! - results: [`scoring`], [`scores`], [`exact`] metrics that ranks do not change · [`evaluate`] a
//!   saved model on data · [`checkpoint`] models on disk · [`record`] the run folder · [`recorder`]
//!   what is recorded under way
//! - no cluster at hand: [`simulate`] a job in virtual time
//! - the shell: [`cli`], [`signals`], [`error`]
#![deny(unsafe_code)]

pub mod batches;
pub mod bench;
pub mod bsp;
pub mod buffers;
pub mod checkpoint;
pub mod cli;
pub mod comm;
pub mod config;
pub mod convert;
pub mod counters;
pub mod driver;
pub mod early_stop;
pub mod embedding_client;
pub mod embedding_link;
pub mod embedding_ps;
pub mod error;
pub mod evaluate;
pub mod exact;
pub mod group;
pub mod heartbeat;
pub mod launch;
pub mod memory;
pub mod plan;
pub mod post;
pub mod processor;
pub mod record;
pub mod recorder;
pub mod reduce;
pub mod roles;
pub mod rounds;
pub mod run;
pub mod scores;
pub mod scoring;
pub mod services;
pub mod signals;
pub mod simulate;
pub mod tables;
pub mod trace;
pub mod train;
pub mod trainer;
pub mod trainer_groups;
pub mod turns;
pub mod watch;
pub mod wire;
pub mod world;
