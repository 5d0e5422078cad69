//! The instances of a method and their numbers: which machine runs where.
//!
//! Instances are numbered: those of trainer 0 first, slice by slice and within a slice gate by
//! gate, then those of trainer 1 and so on; the centers, one per slice, come last. Messages go from
//! instance to instance.
//!
//! Invariant: [`Instances::part`] undoes [`Instances::trainer`] and [`Instances::center`].

/// Who runs the instances of a method, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instances {
    /// Trainers that have instances.
    pub trainers: usize,
    /// Slices of the replica.
    pub slices: usize,
    /// Gates of a trainer: its workers, where each has one of its own, else 1.
    pub gates: usize,
    /// One per slice, or none.
    pub centers: usize,
}

/// What an instance is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Synchronizes a slice of a trainer's replica.
    Trainer {
        /// Whose.
        trainer: usize,
        /// Which slice.
        slice: usize,
        /// At which gate.
        gate: usize,
    },
    /// Serves a slice.
    Center {
        /// Which.
        slice: usize,
    },
}

impl Instances {
    /// All of them.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.trainers * self.slices * self.gates + self.centers
    }

    /// The method has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those of one trainer.
    #[must_use]
    pub const fn of_a_trainer(&self) -> usize {
        if self.trainers == 0 { 0 } else { self.slices * self.gates }
    }

    /// What instance `number` is for.
    #[must_use]
    pub const fn part(&self, number: usize) -> Part {
        let each = self.slices * self.gates;
        if number >= self.trainers * each {
            return Part::Center { slice: number - self.trainers * each };
        }
        let (trainer, within) = (number / each, number % each);
        Part::Trainer { trainer, slice: within / self.gates, gate: within % self.gates }
    }

    /// The number of a trainer's instance.
    #[must_use]
    pub const fn trainer(&self, trainer: usize, slice: usize, gate: usize) -> usize {
        (trainer * self.slices + slice) * self.gates + gate
    }

    /// The number of the center of a slice.
    #[must_use]
    pub const fn center(&self, slice: usize) -> usize {
        self.trainers * self.slices * self.gates + slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_numbered_by_trainer_slice_and_gate() {
        let all = Instances { trainers: 3, slices: 2, gates: 4, centers: 2 };
        assert_eq!((all.len(), all.center(1)), (3 * 2 * 4 + 2, 25));
        for trainer in 0..3 {
            for (slice, gate) in [(0, 0), (0, 3), (1, 0), (1, 2)] {
                let part = Part::Trainer { trainer, slice, gate };
                assert_eq!(all.part(all.trainer(trainer, slice, gate)), part);
            }
        }
        assert_eq!(all.part(24), Part::Center { slice: 0 });
    }
}
