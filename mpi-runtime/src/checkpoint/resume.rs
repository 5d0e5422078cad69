//! Reading what a run goes on from beside its model: how far the job is, and what trainers and
//! their method have of their own.

use super::contents::{is_own, name, places};
use super::error::CheckpointError;
use super::part::integers;
use super::read::Checkpoint;
use crate::comm::Comm;
use crate::error::Error;
use crate::state::section::{OPTIMIZER, REPLICA};
use crate::state::{Scope, Section};
use umbra_core::model::Model;

impl Checkpoint {
    /// Reads how far the job is into `sections`: the first rank reads, and tells the others.
    /// *Collective over `control`.*
    ///
    /// # Errors
    /// When it is damaged: on every rank, of whom the first has the message.
    pub fn read_job(&self, control: &Comm, sections: &mut [Section<'_>]) -> Result<(), Error> {
        for section in sections.iter_mut().filter(|section| section.scope == Scope::Job) {
            let mut words = vec![0; section.words.len()];
            let first = control.rank() == 0;
            let read = if first { self.read_whole(section, &mut words) } else { Ok(()) };
            control.agree(read.map_err(Error::from))?;
            control.broadcast(&mut words, WHAT, false)?;
            section.words.read_in(0, &words);
        }
        Ok(())
    }

    fn read_whole(&self, section: &Section<'_>, words: &mut [u32]) -> Result<(), CheckpointError> {
        let mut reader = self.reader(&name(section), length(section))?;
        reader.read(words)?;
        reader.finish()
    }

    /// Whether it has everything that the trainer and the instances of this rank have of their own,
    /// in the same lengths. *Not collective.*
    #[must_use]
    pub fn has_own(&self, sections: &[Section<'_>], own_replicas: bool) -> bool {
        let tensors = self.manifest.tensors();
        sections.iter().filter(|section| is_own(section, own_replicas)).all(|section| {
            let tensor = tensors.get(name(section).as_str());
            tensor.is_some_and(|(_, tensor)| tensor.values() == Some(values(section)))
        })
    }

    /// Reads what the trainer and the instances of this rank have of their own into `sections`.
    /// *Not collective.*
    ///
    /// # Errors
    /// When it is not there, or damaged.
    pub fn read_own(
        &self,
        model: &Model,
        sections: &mut [Section<'_>],
        own_replicas: bool,
    ) -> Result<(), CheckpointError> {
        for section in sections.iter_mut().filter(|section| is_own(section, own_replicas)) {
            let mut reader = self.reader(&name(section), length(section))?;
            let ordered = matches!(section.scope, Scope::Trainer(_))
                && [REPLICA, OPTIMIZER].contains(&section.name);
            let mut places = ordered.then(|| places(model, section));
            let (mut at, mut block) = (0, vec![]);
            while at < section.words.len() {
                block.resize((section.words.len() - at).min(BLOCK), 0);
                reader.read(&mut block)?;
                match &mut places {
                    None => section.words.read_in(at, &block),
                    Some(places) => {
                        for (word, place) in block.iter().zip(places) {
                            section.words.read_in(place, core::slice::from_ref(word));
                        }
                    }
                }
                at += block.len();
            }
            reader.finish()?;
        }
        Ok(())
    }

    /// Steps that each worker of `trainer` had made; `None` where the checkpoint does not say.
    /// *Not collective.*
    ///
    /// # Errors
    /// When it is damaged.
    pub fn worker_steps(&self, trainer: usize) -> Result<Option<Vec<u64>>, CheckpointError> {
        let name = format!("trainer.{trainer}.worker_steps");
        let tensors = self.manifest.tensors();
        let Some(workers) = tensors.get(name.as_str()).and_then(|(_, tensor)| tensor.values())
        else {
            return Ok(None);
        };
        let mut words = vec![0; 2 * usize::try_from(workers).unwrap_or(0)];
        let mut reader = self.reader(&name, (workers, 2))?;
        reader.read(&mut words)?;
        reader.finish()?;
        Ok(Some(integers(&words).collect()))
    }
}

/// Its values, and the words of each.
fn length(section: &Section<'_>) -> (u64, u64) {
    (values(section), section.words.kind().words())
}

fn values(section: &Section<'_>) -> u64 {
    section.words.len() as u64 * 4 / section.words.kind().bytes()
}

/// What waits say they are waiting for.
const WHAT: &str = "how far the job is";

/// Words read at a time.
const BLOCK: usize = 1 << 18;
