//! Images of every rank's state on its own node, for a job that is started again where it was.
//!
//! "CPR: understanding and improving failure tolerant training for deep learning recommendation
//! with partial recovery", arXiv 2011.02999. Where a lost rank ends the job, those that did not
//! fail have their state in memory of their nodes, or on their disks, and only the lost one's rows
//! come from the shared checkpoint, which may be older.
//!
//! ```text
//! LOCAL_DIR/umbra-TOKEN/rank-R/step-1200/    an image: what rank R would write of a checkpoint
//! CHECKPOINTS/LOCAL                          TOKEN: whose images are this run's
//! ```
//!
//! Invariants: an image is a checkpoint with one rank's files (`checkpoint`), and with all of the
//! model that is evaluated, on every rank that trains. The two newest are kept, since a job may end
//! while the newest is written on some ranks. They are of use beside a shared checkpoint only, on
//! as many ranks as before, and where at least one rank has any.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::checkpoint::{self, After, Checkpoint, Contents, Folders, Manifest, say_unwritten};
use crate::comm::Comm;
use crate::config::{Config, RecoveryMode};
use crate::error::Error;
use crate::launch::world::World;

/// Where a rank's images are.
pub struct LocalImages {
    folders: Folders,
    dir: PathBuf,
    alone: Comm,
}

/// Images that a run goes on from.
pub struct Found {
    /// Their step.
    pub step: u64,
    /// Ranks that have none.
    pub lost: Vec<usize>,
    /// This rank's, if it has one.
    pub own: Option<Checkpoint>,
}

impl LocalImages {
    /// Those of the run of `config`, `None` where it has none; of a run that begins, `anew`, no
    /// others are its own. *Collective over `control`, main thread only.*
    ///
    /// # Errors
    /// When the folder can't be used: a mistake in the configuration.
    pub fn open(
        world: &World,
        control: &Comm,
        config: &Config,
        anew: bool,
    ) -> Result<Option<Self>, Error> {
        let Some(local) = &config.checkpoint.local_dir else { return Ok(None) };
        let token = if control.rank() == 0 { token(config, anew) } else { Ok(0) };
        let mut token = [control.agree(token)?];
        control.broadcast(&mut token, "whose local images are this run's", false)?;
        let place = local.join(format!("umbra-{:016x}", token[0]));
        let dir = place.join(format!("rank-{}", world.rank));
        let made = fs::create_dir_all(&dir);
        control.agree(made.map_err(|source| Error::file(&dir, "make the folder", source)))?;
        let alone = Comm::alone(std::sync::Arc::clone(world.watch()))?;
        Ok(Some(Self { folders: Folders::new(dir.clone()), dir, alone }))
    }

    /// This rank's own communicator.
    #[must_use]
    pub const fn alone(&self) -> &Comm {
        &self.alone
    }

    /// Writes an image. One that can't be written is a warning. *Not collective.*
    ///
    /// # Errors
    /// When MPI does not answer.
    pub fn save(&self, manifest: Manifest, contents: &Contents<'_>) -> Result<(), Error> {
        let after = After { keep: 2, best: false };
        match checkpoint::write(&self.alone, &self.folders, manifest, contents, after) {
            Err(error) if error.exit_code() == 4 => say_unwritten(&error),
            other => drop(other?),
        }
        Ok(())
    }

    /// The newest images that all ranks have that have any, if a run goes on from them rather than
    /// from `shared` alone. `fits` says whether one is of a run on the same ranks. *Collective over
    /// `control`.*
    ///
    /// # Errors
    /// When not all ranks come in time.
    pub fn find(
        &self,
        control: &Comm,
        mode: Option<RecoveryMode>,
        shared_step: u64,
        fits: impl Fn(&Manifest) -> bool,
    ) -> Result<Option<Found>, Error> {
        let whole = |step: &u64| {
            let image = Checkpoint::open_here(&self.folders.of(*step)).ok()?;
            let sound = fits(&image.manifest) && image.verify().is_ok();
            (sound && *step > shared_step).then_some(image)
        };
        let mut images: Vec<Checkpoint> =
            self.folders.steps().unwrap_or_default().iter().filter_map(whole).collect();
        let own: Vec<u64> = images.iter().map(|image| image.manifest.steps).collect();
        let all = control.all_gather_varied(&own, "local images")?;
        let lost: Vec<usize> = (0..all.len()).filter(|rank| all[*rank].is_empty()).collect();
        let have: Vec<&Vec<u64>> = all.iter().filter(|steps| !steps.is_empty()).collect();
        let common = |step: &&u64| have.iter().all(|steps| steps.contains(step));
        let newest = have.first().and_then(|steps| steps.iter().find(common));
        let everybody = mode == Some(RecoveryMode::Full);
        Ok(newest.filter(|_| lost.is_empty() || !everybody).map(|step| {
            let at = images.iter().position(|image| image.manifest.steps == *step);
            Found { step: *step, lost, own: at.map(|at| images.swap_remove(at)) }
        }))
    }

    /// The run is done: nobody goes on from them. *Not collective.*
    pub fn clear(&self) {
        // What is left is in nobody's way.
        let _ = fs::remove_dir_all(&self.dir);
        if let Some(place) = self.dir.parent() {
            // The last rank of the node.
            let _ = fs::remove_dir(place);
        }
    }
}

/// The token of the run's images: a new one for a run that begins.
fn token(config: &Config, anew: bool) -> Result<u64, Error> {
    let path = config.checkpoint.dir.join(TOKEN);
    let there = fs::read_to_string(&path).ok();
    let there = there.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    if let (Some(token), false) = (there, anew) {
        return Ok(token);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    // Other runs begin at other times, or in other processes.
    let token =
        u64::try_from(now & u128::from(u64::MAX)).unwrap_or(0) ^ u64::from(std::process::id());
    let made = fs::create_dir_all(&config.checkpoint.dir);
    let written = made.and_then(|()| fs::write(&path, format!("{token:016x}\n")));
    written.map_err(|source| Error::file(&path, "write it", source))?;
    Ok(token)
}

const TOKEN: &str = "LOCAL";
