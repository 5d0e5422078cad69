//! What of a method's messages is coded: one of three ways, which follows from the method.
//!
//! | a method sends | way |
//! | --- | --- |
//! | sums over all trainers: gradients, averages | `coded_sum.rs` |
//! | messages between workers or trainers and servers or centers | `coded_links.rs` |
//! | averages in groups that change | `coded_groups.rs` |

use umbra_core::compress::Coding;
use umbra_core::model::Model;
use umbra_core::sync::{Instances, Method, Rounds};

use crate::dense::coded_groups::CodedGroups;
use crate::dense::coded_links::CodedLinks;
use crate::dense::coded_sum::CodedSum;
use crate::dense::ledger::Ledger;
use crate::dense::stretches::Stretches;

/// This rank's part; nothing where things are sent as they are.
#[derive(Default)]
pub struct Coded {
    /// Of sums.
    pub sum: Option<CodedSum>,
    /// Of messages.
    pub links: Option<CodedLinks>,
    /// Of averages in groups.
    pub groups: Option<CodedGroups>,
}

impl Coded {
    /// Of `method` with these instances, on the rank of this `trainer`, if it is one's. `shares`:
    /// the model, and how many of its elements are trained, and are there.
    #[must_use]
    pub fn new(
        coding: Coding,
        method: &Method<'_>,
        instances: Instances,
        (model, parameters, elements): (&Model, usize, usize),
        trainer: Option<usize>,
    ) -> Self {
        let mut coded = Self::default();
        let trainers = instances.trainers;
        if method.has_centers() {
            // What is sent as it is takes no detour; so it is with groups.
            let parts = |slice| Stretches::new(model, &method.slice(slice, elements));
            let parts = (0..method.slices()).map(parts).collect();
            let links = CodedLinks::new(coding, parts, instances.center(0));
            coded.links = (!coding.is_all()).then_some(links);
            return coded;
        }
        let Some(trainer) = trainer.filter(|_| trainers > 1) else { return coded };
        if method.dealing().is_some() {
            let groups = || CodedGroups::new(coding, Stretches::new(model, &(0..elements)));
            coded.groups = (!coding.is_all()).then(groups);
            return coded;
        }
        let (elements, alpha) = match method.rounds {
            Rounds::EveryStep => (parameters, 1.0),
            _ if method.averages() && method.differences => (elements, method.alpha),
            _ => return coded,
        };
        let parts = Stretches::new(model, &(0..elements));
        coded.sum = Some(CodedSum::new((coding, alpha), parts, elements, (trainer, trainers)));
        coded
    }

    /// What it came to so far.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let sum = self.sum.as_ref().map(CodedSum::ledger);
        let links = self.links.as_ref().map(CodedLinks::ledger);
        let groups = self.groups.as_ref().map(CodedGroups::ledger);
        let all = [sum, links, groups].into_iter().flatten();
        all.fold(Ledger::default(), |all, each| all.plus(*each))
    }

    /// Replicas and states are others from now on.
    pub fn forget(&mut self) {
        self.links.iter_mut().for_each(CodedLinks::forget);
        self.groups.iter_mut().for_each(CodedGroups::forget);
    }
}
