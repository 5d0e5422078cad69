//! A run that is started again where it was: with the images of ranks on their own nodes.
//!
//! What `lost_ranks.rs` does inside a job, from files (`recovery::local`): ranks with an image have
//! it back. The rows of those without come from the shared checkpoint, their replicas and optimizer
//! state from the trainer that is furthest. Where no image is missing, all goes on as it was.
//!
//! Invariant: images are written between two stretches of training, on all ranks at the same step.

use core::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::Run;
use super::plan::Plan;
use super::row_saves::with_row_saves;
use super::saves::manifest;
use super::session::Session;
use crate::checkpoint::{Checkpoint, Contents, Dense, Manifest, Target};
use crate::comm::Comm;
use crate::config::RowPrecision;
use crate::dense::parts::WholeOn;
use crate::error::Error;
use crate::record::RankLoss;
use crate::recovery::local::Found;
use crate::state::section::REPLICA;
use crate::state::{Scope, Section};

/// Whether an image is of a run of `plan` on the same ranks.
pub(super) fn fits(plan: &Plan, image: &Manifest) -> bool {
    image.data_fingerprint == plan.train.fingerprint()
        && (image.trainers, image.workers) == (plan.roles.trainers.len(), plan.order.workers_total)
        && image.global_batch() == plan.job.global_batch() as u64
        && image.lanes == plan.order.lanes_used()
        && image.partitions == plan.roles.partitions
        && image.owners.as_deref() == plan.layout.owners()
        && image.method == plan.job.method.name()
}

impl Run<'_> {
    /// Goes on from images of some ranks, and from `shared` for the rows of the others. `alone` is
    /// this rank's own communicator. Before anything trains. Returns what was lost.
    ///
    /// # Errors
    /// When something does not fit or is damaged, on every rank.
    pub(super) fn resume_from_images(
        &mut self,
        found: &Found,
        shared: &Checkpoint,
        alone: &Comm,
    ) -> Result<RankLoss, Error> {
        let begun = Instant::now();
        let own = found.own.as_ref().map_or(Ok(false), |image| self.read_image(image, alone));
        let whole = self.control.agree(own)?;
        let mut all = vec![0; self.world.size];
        self.control.all_gather(&[u64::from(whole)], &mut all, "local images")?;
        let roles = &self.plan.roles;
        let of = |rank: &usize| roles.partitions_of(*rank).collect::<Vec<u32>>();
        let mut lost: Vec<u32> = found.lost.iter().flat_map(of).collect();
        lost.sort_unstable();
        let share = lost.len() as f64 / f64::from(roles.partitions);
        let shared = &with_row_saves(self.control, shared, found.step)?;
        let bytes_read = self.read_lost(shared, &lost)?;
        self.take_job_state(found.own.is_some())?;
        // Another number than in images of before a change of the method.
        self.state.step = found.step;
        if !found.lost.is_empty() {
            self.follow_the_furthest(found.own.is_none())?;
        }
        if all.contains(&0) || self.is_served() {
            self.take_over(None, found.step)?;
        }
        let since = found.step.saturating_sub(super::going_on::step_here(&self.plan, shared));
        Ok(RankLoss {
            ranks: found.lost.clone(),
            step: found.step,
            from_step: Some(shared.manifest.steps),
            row_saves: shared.row_saves().len(),
            partitions: lost,
            pls: share * since as f64 / self.plan.steps.max(1) as f64,
            bytes_read,
            seconds: begun.elapsed().as_secs_f64(),
            next_step_unix: None,
        })
    }

    /// Reads this rank's own image. True when all that its trainer and its part of the method had
    /// of their own was there.
    fn read_image(&mut self, image: &Checkpoint, alone: &Comm) -> Result<bool, Error> {
        let (model, own_replicas) = (self.plan.model, self.publishes());
        if let Some(side) = &mut self.trainer {
            side.forget_published();
            let dense =
                Dense { model: &model, replica: &side.shared.replica, state: &side.shared.state };
            image.read_own_dense(alone, dense)?;
            side.shared.updates.store(image.manifest.updates, Relaxed);
            side.release_parts();
        }
        let (layout, partitions) = (&self.plan.layout, &self.services.partitions);
        let dense = Dense { model: &model, replica: &[], state: &[] };
        let numbers: Vec<u32> = partitions.iter().map(|partition| partition.number).collect();
        image.read_lost(alone, &Target { dense, layout, partitions }, &numbers)?;
        let mut sections = self.sections();
        image.read_job(alone, &mut sections)?;
        let whole = image.has_own(&sections, own_replicas);
        if whole {
            image.read_own(&model, &mut sections, own_replicas)?;
        }
        Ok(whole)
    }

    /// How far the job is, from the first rank that `knows`: ranks that were given up in the middle
    /// of an evaluation may differ in what it has meant.
    pub(super) fn take_job_state(&mut self, knows: bool) -> Result<(), Error> {
        let control = self.control;
        let mut sections = self.sections();
        let of_job = |section: &&mut Section<'_>| section.scope == Scope::Job;
        let mut own = vec![];
        for section in sections.iter_mut().filter(of_job).filter(|_| knows) {
            let mut words = vec![0; section.words.len()];
            section.words.copy_out(0, &mut words);
            own.extend(words);
        }
        let all = control.all_gather_varied(&own, "how far the job is")?;
        let mut rest = all.iter().find(|words| !words.is_empty()).map_or(&[][..], Vec::as_slice);
        for section in sections.iter_mut().filter(of_job) {
            let (words, behind) = rest.split_at(section.words.len().min(rest.len()));
            section.words.read_in(0, words);
            rest = behind;
        }
        Ok(())
    }
}

impl Session<'_> {
    /// Writes an image of this rank's state to its node, if one is due at this step.
    pub(super) fn save_locally(&mut self) -> Result<(), Error> {
        let step = self.run.state.step;
        let Some(local) = &self.local else { return Ok(()) };
        if !self.local_due.is_due(step) || step == 0 || step >= self.run.plan.steps {
            return Ok(());
        }
        let manifest = manifest(&self.run)?;
        let begun = Instant::now();
        self.run.gather_parts(WholeOn::All)?;
        self.run.with_contents(|contents, _| {
            // Every trainer has what the first one writes of a checkpoint.
            let trains = |section: &Section<'_>| section.name == REPLICA;
            let first = contents.sections.iter().any(trains) || contents.first;
            let contents = Contents { first, row_precision: RowPrecision::F32, ..*contents };
            local.save(manifest, &contents)
        })?;
        self.run.release_parts();
        self.local_due.saved();
        let figures = self.summary.checkpoint.get_or_insert_default();
        *figures.seconds_local.get_or_insert_default() += begun.elapsed().as_secs_f64();
        Ok(())
    }
}
