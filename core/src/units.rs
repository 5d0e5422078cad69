//! Units with types of their own.

/// Nanoseconds on a clock that never goes back; which clock is the driver's affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub u64);
