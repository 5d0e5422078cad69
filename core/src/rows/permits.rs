//! Flow control: how many steps of a worker are under way.
//!
//! X. Lian et al., "Persia: an open, hybrid system scaling deep learning-based recommenders up to
//! 100 trillion parameters", KDD 2022: bounded staleness. The lookup of a step takes a permit, and
//! the acknowledgements of its push, one from everybody it went to, give it back.
//!
//! Invariants: as many steps are under way as permits are taken, never more than there are slots.
//! A call that does not fit is refused and changes nothing.

use core::fmt;

/// Memory of one permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slot {
    /// To be had.
    #[default]
    Free,
    /// Rows were asked for, and not pushed yet.
    Asked {
        /// The step that uses them.
        step: u32,
    },
    /// Gradients were pushed.
    Pushed {
        /// The step they are of.
        step: u32,
        /// Acknowledgements still to come, at least 1.
        owed: u32,
    },
}

impl Slot {
    const fn step(self) -> Option<u32> {
        match self {
            Self::Free => None,
            Self::Asked { step } | Self::Pushed { step, .. } => Some(step),
        }
    }
}

/// The permits of a worker, over memory of a slot for each.
#[derive(Clone, Debug)]
pub struct Permits<S> {
    slots: S,
}

/// A call that does not fit what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// A lookup without a free permit.
    NoPermit {
        /// The step asked for.
        step: u32,
        /// Steps under way: all that may be.
        under_way: usize,
    },
    /// A second lookup of a step.
    AskedTwice {
        /// The step.
        step: u32,
    },
    /// A push of a step whose rows were not asked for, or a second push.
    PushWithoutLookup {
        /// The step.
        step: u32,
    },
    /// An acknowledgement that nobody owed.
    NotOwed {
        /// The step.
        step: u32,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPermit { step, under_way } => {
                write!(
                    f,
                    "rows of step {step} asked for with {under_way} steps under way, the most"
                )
            }
            Self::AskedTwice { step } => write!(f, "rows of step {step} asked for twice"),
            Self::PushWithoutLookup { step } => {
                write!(f, "gradients of step {step} pushed without a lookup, or twice")
            }
            Self::NotOwed { step } => {
                write!(f, "an acknowledgement of step {step} that nobody owed")
            }
        }
    }
}

impl core::error::Error for Misuse {}

impl<S: AsRef<[Slot]> + AsMut<[Slot]>> Permits<S> {
    /// As many permits as `slots` has, all free.
    #[must_use]
    pub fn new(mut slots: S) -> Self {
        slots.as_mut().fill(Slot::Free);
        Self { slots }
    }

    /// Permits to be had.
    #[must_use]
    pub fn free(&self) -> usize {
        self.slots.as_ref().iter().filter(|slot| **slot == Slot::Free).count()
    }

    /// Steps that were pushed and are not acknowledged by all.
    #[must_use]
    pub fn pushed(&self) -> usize {
        self.slots.as_ref().iter().filter(|slot| matches!(slot, Slot::Pushed { .. })).count()
    }

    /// The earliest step of those.
    #[must_use]
    pub fn oldest_pushed(&self) -> Option<u32> {
        let step = |slot: &Slot| match slot {
            Slot::Pushed { step, .. } => Some(*step),
            _ => None,
        };
        self.slots.as_ref().iter().filter_map(step).min()
    }

    /// The lookup of `step` goes out.
    ///
    /// # Errors
    /// When no permit is free, or the step has one.
    pub fn ask(&mut self, step: u32) -> Result<(), Misuse> {
        if self.find(step).is_some() {
            return Err(Misuse::AskedTwice { step });
        }
        let slots = self.slots.as_mut();
        let under_way = slots.len();
        let Some(free) = slots.iter_mut().find(|slot| **slot == Slot::Free) else {
            return Err(Misuse::NoPermit { step, under_way });
        };
        *free = Slot::Asked { step };
        Ok(())
    }

    /// The push of `step` goes out to `owed` receivers. To none, the permit is free at once.
    ///
    /// # Errors
    /// When the step was not asked for, or has been pushed.
    pub fn push(&mut self, step: u32, owed: u32) -> Result<(), Misuse> {
        match self.find(step) {
            Some(slot @ Slot::Asked { .. }) => {
                *slot = if owed == 0 { Slot::Free } else { Slot::Pushed { step, owed } };
                Ok(())
            }
            _ => Err(Misuse::PushWithoutLookup { step }),
        }
    }

    /// A receiver has taken the push of `step`; the last one's answer gives the permit back.
    ///
    /// # Errors
    /// When nobody owed that answer.
    pub fn acknowledge(&mut self, step: u32) -> Result<(), Misuse> {
        match self.find(step) {
            Some(slot @ Slot::Pushed { owed: 1, .. }) => *slot = Slot::Free,
            Some(Slot::Pushed { owed, .. }) => *owed -= 1,
            _ => return Err(Misuse::NotOwed { step }),
        }
        Ok(())
    }

    fn find(&mut self, step: u32) -> Option<&mut Slot> {
        self.slots.as_mut().iter_mut().find(|slot| slot.step() == Some(step))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Stream};

    #[test]
    fn a_permit_is_out_from_the_lookup_to_the_last_acknowledgement() {
        let mut permits = Permits::new([Slot::default(); 2]);
        assert_eq!((permits.free(), permits.pushed(), permits.oldest_pushed()), (2, 0, None));
        assert_eq!(permits.ask(7), Ok(()));
        assert_eq!(permits.ask(8), Ok(()));
        assert_eq!(permits.free(), 0);
        assert_eq!(permits.push(7, 2), Ok(()));
        assert_eq!((permits.free(), permits.pushed(), permits.oldest_pushed()), (0, 1, Some(7)));
        assert_eq!(permits.acknowledge(7), Ok(()));
        assert_eq!(permits.free(), 0, "one answer is still owed");
        assert_eq!(permits.acknowledge(7), Ok(()));
        assert_eq!((permits.free(), permits.pushed()), (1, 0));
        assert_eq!(permits.push(8, 0), Ok(()));
        assert_eq!(permits.free(), 2, "a push to nobody is over at once");
    }

    #[test]
    fn steps_may_be_acknowledged_in_any_order() {
        let mut permits = Permits::new([Slot::default(); 3]);
        for step in 0..3 {
            permits.ask(step).unwrap();
            permits.push(step, 1).unwrap();
        }
        permits.acknowledge(1).unwrap();
        assert_eq!((permits.free(), permits.oldest_pushed()), (1, Some(0)));
        permits.ask(3).unwrap();
        permits.acknowledge(0).unwrap();
        assert_eq!((permits.free(), permits.oldest_pushed()), (1, Some(2)));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut permits = Permits::new([Slot::default(); 1]);
        assert_eq!(permits.push(4, 1), Err(Misuse::PushWithoutLookup { step: 4 }));
        assert_eq!(permits.acknowledge(4), Err(Misuse::NotOwed { step: 4 }));
        permits.ask(4).unwrap();
        assert_eq!(permits.ask(4), Err(Misuse::AskedTwice { step: 4 }));
        assert_eq!(permits.ask(5), Err(Misuse::NoPermit { step: 5, under_way: 1 }));
        assert_eq!(permits.acknowledge(4), Err(Misuse::NotOwed { step: 4 }));
        permits.push(4, 1).unwrap();
        assert_eq!(permits.push(4, 1), Err(Misuse::PushWithoutLookup { step: 4 }));
        assert_eq!(permits.ask(4), Err(Misuse::AskedTwice { step: 4 }));
        assert_eq!((permits.free(), permits.pushed()), (0, 1));
        permits.acknowledge(4).unwrap();
        assert_eq!(permits.acknowledge(4), Err(Misuse::NotOwed { step: 4 }));
        assert_eq!(permits.free(), 1);
    }

    /// Against a list of what is under way.
    #[test]
    fn random_walks_agree_with_a_plain_list() {
        for seed in 0..50 {
            let stream = Stream::new(seed, Purpose::Test(0));
            let limit = 1 + stream.below(0, 4) as usize;
            let mut slots = [Slot::default(); 4];
            let mut permits = Permits::new(&mut slots[..limit]);
            let mut asked = std::vec::Vec::new();
            let mut owed: std::vec::Vec<(u32, u32)> = std::vec::Vec::new();
            let mut next = 0;
            for i in 1..400 {
                let pick = stream.below(3 * i + 1, 8) as u32;
                match stream.below(3 * i, 3) {
                    0 => {
                        let room = asked.len() + owed.len() < limit;
                        assert_eq!(permits.ask(next).is_ok(), room, "seed {seed}");
                        if room {
                            asked.push(next);
                        }
                        next += 1;
                    }
                    1 if !asked.is_empty() => {
                        let (step, to) = (asked.remove(0), pick % 3);
                        permits.push(step, to).unwrap();
                        if to > 0 {
                            owed.push((step, to));
                        }
                    }
                    _ if !owed.is_empty() => {
                        let at = pick as usize % owed.len();
                        permits.acknowledge(owed[at].0).unwrap();
                        owed[at].1 -= 1;
                        owed.retain(|(_, owed)| *owed > 0);
                    }
                    _ => {}
                }
                assert_eq!(permits.free(), limit - asked.len() - owed.len(), "seed {seed}");
                assert_eq!(permits.pushed(), owed.len());
                assert_eq!(permits.oldest_pushed(), owed.iter().map(|(step, _)| *step).min());
            }
        }
    }
}
