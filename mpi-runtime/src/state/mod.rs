//! State: what a run would need to go on from where it is, as one list of sections.
//!
//! - [`section`]: a name, whose it is, and its words, lent for copying out and reading back in
//! - [`rate_factor`]: the factor on learning rates
//!
//! The list itself is [`Run::sections`](crate::run::Run::sections), after llm.c's `save_state`. An
//! owner lends its memory and keeps nothing twice; whoever saves, restores or hands over a run
//! takes sections, and knows no owner.

pub mod rate_factor;
pub mod section;

pub use rate_factor::RateFactor;
pub use section::{Kind, Scope, Section, Words};
