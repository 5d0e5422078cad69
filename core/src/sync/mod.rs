//! Synchronization methods as state machines.
//!
//! A protocol knows nothing of threads, clocks or MPI: it says what to do next and is told how it
//! went. Drivers run it: the MPI driver on a communicator thread, a simulator in virtual time.
//!
//! - `protocol.rs`: the seam, [`Protocol`]
//! - `method.rs`: a method as data: what it needs, how workers meet its rounds, what it publishes
//! - `instances.rs`: which machines of a method run where
//! - `conductor.rs`: when a round begins
//! - `owned.rs`: memory of instances, with an allocator
//! - `reduction.rs`: a weighted mean over ranks, as every driver computes it
//! - `doubling.rs`: who exchanges what with whom in a sum of few messages
//! - `sum_plan.rs`: how a vector is summed over ranks, and what that sends
//! - `pace.rs`: how often rounds may begin
//! - `model_average.rs`: replicas move towards their mean (local SGD, shadow and foreground MA)
//! - `block_momentum.rs`: replicas move towards a model that follows their mean with momentum
//!   (BMUF)
//! - `groups.rs`: who averages with whom in which round (DS-Sync)
//! - `divide_shuffle.rs`: replicas move towards the mean of a group (DS-Sync)
//! - `step_sum.rs`: gradients become one every step (bsp)
//! - `slow_groups.rs`: the same with momentum from round to round (SlowMo)
//! - `elastic.rs`: each replica and a center pull at each other (EASGD)
//! - `token/`: who trains which batch, and which gradients a server applies together (GBA)
//! - `gradient_sum.rs`: those gradients of a dense slice
//! - `server/`: workers that fetch parameters and bring gradients, servers, and who hands out
//!   batches
//! - `switching.rs`: when training changes between synchronous and asynchronous

mod block_momentum;
mod conductor;
mod divide_shuffle;
pub mod doubling;
mod elastic;
mod gradient_sum;
mod groups;
mod instances;
mod method;
mod model_average;
#[cfg(feature = "sim")]
pub mod owned;
mod pace;
mod protocol;
pub mod reduction;
pub mod server;
mod slow_groups;
mod step_sum;
pub mod sum_plan;
pub mod switching;
pub mod token;

pub use block_momentum::{BlockMomentum, BlockState, Blocks};
pub use conductor::{Conductor, Decision, Look, Wait};
pub use divide_shuffle::{DivideShuffle, Spread};
pub use elastic::{ElasticCenter, ElasticTrainer, Pair};
pub use gradient_sum::{Divisor, GradientSum};
pub use groups::{Dealing, contraction};
pub use instances::{Instances, Part};
pub use method::{Algorithm, GateOf, Machine, Memory, Method, Published, Rounds, Scratch, Sizes};
pub use model_average::{Intake, ModelAverage};
pub use pace::{Pace, RoundCost};
pub use protocol::{Action, Completion, Group, News, Note, OutOfTurn, Payload, Protocol};
pub use server::Serving;
pub use slow_groups::SlowGroups;
pub use step_sum::StepSum;
