//! The MPI runtime of umbra.
//!
//! A rank has roles (trainer, embedding PS, sync PS), a thread has one job, and each communicator
//! is used by one thread. Each folder is a room, and arrows between rooms point one way:
//!
//! | room | what is in it | it uses |
//! | --- | --- | --- |
//! | [`error`] | what a verb can fail with, and its exit code | |
//! | [`memory`] | page-aligned words of tables and replicas | |
//! | [`comm`] | communicators, messages, sums in a fixed order, deadlines | |
//! | [`launch`] | ranks, roles, cores, signals | comm |
//! | [`state`] | what a run would go on from: sections, lent by their owners | |
//! | [`config`] | what a user can set, and the job that it makes | launch |
//! | [`measure`] | what threads count and draw | comm |
//! | [`rows`] | embedding tables: owners of partitions, messages, a worker's side | comm, launch |
//! | [`dense`] | how replicas of dense parameters stay together | comm, config, launch, measure |
//! | [`trainer`] | the worker's loop and its memory | config, dense, measure, rows, state |
//! | [`score`] | metrics that ranks do not change | comm, trainer |
//! | [`checkpoint`] | models on disk | comm, launch, rows, state |
//! | [`record`] | the run folder | config |
//! | [`report`] | runs side by side: a page | |
//! | [`recovery`] | what a job does about lost rows | config, record, rows |
//! | [`run`] | a job from plan to summary | all of the above |
//! | [`simulate`] | the same job in virtual time | run |
//! | [`bench`](mod@bench) | how fast a training step is here | trainer |
//! | [`cli`] | the verbs | run, simulate, bench, report |
#![deny(unsafe_code)]

pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod comm;
pub mod config;
pub mod dense;
pub mod error;
pub mod launch;
pub mod measure;
pub mod memory;
pub mod record;
pub mod recovery;
pub mod report;
pub mod rows;
pub mod run;
pub mod score;
pub mod simulate;
pub mod state;
pub mod trainer;
