//! Recovering from lost shards of embedding rows.
//!
//! "CPR: understanding and improving failure tolerant training for deep learning recommendation
//! with partial recovery", arXiv 2011.02999. When one of the ranks that hold rows is lost, its rows
//! come back as they were last saved, and all others go on as they are. What that costs is a share
//! of what was learnt, the *portion of lost samples* (PLS); what it saves is the work that
//! everybody would do again, and saves: they may be far apart.
//!
//! - [`overhead`]: what saving and recovering take of a job's time, and which interval is best
//! - [`failures`]: when shards are lost, drawn
//! - [`usage`]: which rows have been updated most since they were saved
//! - [`largest`]: the rows to save first, selected without sorting
//!
//! Pure values like all of the core: times and counts come in as arguments, memory is lent.

pub mod failures;
pub mod largest;
pub mod overhead;
pub mod usage;
