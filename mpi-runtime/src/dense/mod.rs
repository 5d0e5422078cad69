//! Dense parameters: how the replicas of trainers stay together.
//!
//! - [`replica_sync`]: which protocol runs on which slice of the replica
//! - [`driver`]: runs protocols on one thread · [`seat`]: one of them, action by action ·
//!   [`endpoints`]: what they act through
//! - [`group_sums`]: sums over groups of trainers, `places`: by nodes · [`mean`]: the mean of all,
//!   taken once
//! - [`bsp`]: one update per step for all · [`gradients`]: what the workers bring to it ·
//!   [`coded`]: what of all this is coded, [`coded_sum`]: sums of what matters, [`coded_links`]:
//!   messages, [`coded_groups`]: averages in groups, [`stretches`]: of what, [`ledger`]: what
//!   it came to, [`coding_trial`]: whether it pays
//! - [`parts`]: a replica whose layers are dealt to several ranks
//! - [`served`]: parameter servers · [`hand`]: what a worker is handed and brings
//! - [`meeting`]: the workers of a trainer meet · [`gate`]: where they wait for a round ·
//!   [`compute_slots`]: more workers than threads that may compute
//! - [`traffic`]: what all this sends, predicted

pub mod bsp;
pub mod coded;
pub mod coded_groups;
pub mod coded_links;
pub mod coded_sum;
pub mod coding_trial;
pub mod compute_slots;
pub mod driver;
pub mod endpoints;
pub mod gate;
pub mod gradients;
pub mod group_sums;
pub mod hand;
pub mod ledger;
pub mod mean;
pub mod meeting;
pub mod parts;
mod places;
pub mod replica_sync;
pub mod seat;
pub mod served;
pub mod stretches;
pub mod traffic;
