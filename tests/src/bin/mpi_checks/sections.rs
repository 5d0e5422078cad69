//! What a run would go on from: listed by a run on these ranks, copied out, and read back in.

use std::path::Path;
use std::sync::Arc;

use umbra_datasets::{Preset, SynthOptions, synth};
use umbra_mpi::comm::Comm;
use umbra_mpi::comm::watch::Watch;
use umbra_mpi::config::Config;
use umbra_mpi::launch::signals::Signals;
use umbra_mpi::launch::world::World;
use umbra_mpi::run::Run;
use umbra_mpi::run::plan::Plan;
use umbra_mpi::run::sections::{Begin, JobState};
use umbra_mpi::state::{Scope, Section};
use umbra_mpi::trainer::Segment;
use umbra_tests::Job;

const JOB: Job = Job {
    model: "kind = \"dlrm\"\nembedding_dim = 8\nbottom = [16, 8]\ntop = [24, 12]",
    optim: [("adagrad", 0.02), ("rowwise_adagrad", 0.05)],
    batch_size: 16,
};

/// Every rank has the job's.
const JOBS: [&str; 7] = [
    "step",
    "evaluated",
    "best_step",
    "valid",
    "best_figure",
    "without_improvement",
    "rate_factor",
];

/// A method, what a trainer has, what it remembers of a slice, and what a center does.
type Case =
    (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

const CASES: [Case; 4] = [
    ("bsp", &["replica", "optimizer", "updates", "worker_steps"], &["round"], &[]),
    (
        "foreground_bmuf",
        &["replica", "published", "optimizer", "updates", "worker_steps"],
        &["round", "global_model", "velocity"],
        &[],
    ),
    (
        "ds_sync",
        &["replica", "published", "optimizer", "mean_optimizer", "updates", "worker_steps"],
        &["round"],
        &[],
    ),
    (
        "foreground_easgd",
        &["replica", "published", "optimizer", "updates", "worker_steps"],
        &["round"],
        &["round", "center"],
    ),
];

/// The names, and the words.
fn copies(sections: &[Section<'_>]) -> Vec<(&'static str, Scope, Vec<u32>)> {
    let copy = |section: &Section<'_>| {
        let mut words = vec![0; section.words.len()];
        section.words.copy_out(0, &mut words);
        (section.name, section.scope, words)
    };
    sections.iter().map(copy).collect()
}

/// Everything is in the list once, what is read in is what was copied out, and training goes on.
pub(crate) fn listed_once(world: &World, _: &Arc<Watch>, control: &Comm) {
    const STEPS: u64 = 3;
    let rows = STEPS * 2 * 16 * world.size as u64;
    if world.rank == 0 {
        let (preset, options) = (Preset::Small, SynthOptions::default());
        synth(rows, preset, 1, Path::new("train.h5"), options, &mut |_| ()).unwrap();
    }
    control.barrier("the data", true).unwrap();
    for (method, of_trainer, of_slice, of_center) in CASES {
        let mut sets = vec!["data.test=[]".to_owned(), format!("sync.method={method}")];
        if method == "ds_sync" {
            sets.push("sync.average_state=true".to_owned());
        }
        let config = Config::parse(&JOB.text(), Path::new("job.toml"), &sets).unwrap();
        let plan = Plan::new(config.resolve(world.size, world.size, 1).unwrap(), world.size);
        let signals = Arc::new(Signals::none());
        let begin = Begin::anew(JobState::new(None), vec![]);
        let run = Run::start(world, control, plan.unwrap(), &signals, Some(begin), None);
        let mut run = run.unwrap();
        run.train(Segment { first_step: 0, steps: STEPS }).unwrap();
        // Others may train longer, and what they push moves the rows here.
        control.barrier("the others' pushes", true).unwrap();

        let mut sections = run.sections();
        let names = |is: fn(&Scope) -> bool| -> Vec<&str> {
            sections.iter().filter(|it| is(&it.scope)).map(|it| it.name).collect()
        };
        assert_eq!(names(|scope| *scope == Scope::Job), JOBS, "{method}");
        assert_eq!(names(|scope| matches!(scope, Scope::Trainer(_))), of_trainer, "{method}");
        let center = if world.rank == 0 { of_center } else { &[] };
        let memory = [of_slice, center].concat();
        assert_eq!(names(|scope| matches!(scope, Scope::Slice(_))), memory, "{method}");
        assert!(names(|scope| matches!(scope, Scope::Partition(_))).contains(&"rows"), "{method}");
        for (place, section) in sections.iter().enumerate() {
            let twin = |it: &&Section<'_>| it.name == section.name && it.scope == section.scope;
            assert_eq!(sections[place..].iter().filter(twin).count(), 1, "{method}: {section:?}");
        }

        let before = copies(&sections);
        for section in &mut sections {
            section.words.read_in(0, &vec![0; section.words.len()]);
        }
        assert!(copies(&sections).iter().all(|(_, _, words)| words.iter().all(|word| *word == 0)));
        for (section, (.., words)) in sections.iter_mut().zip(&before) {
            section.words.read_in(0, words);
        }
        drop(sections);
        assert!(copies(&run.sections()) == before, "{method}: not what was copied out");
        let steps = &before.iter().find(|it| it.0 == "worker_steps").unwrap().2;
        assert_eq!(steps[..2], [STEPS as u32, 0], "{method}");
        // Nobody trains on rows that are still zeros.
        control.barrier("the others' sections", true).unwrap();
        run.train(Segment { first_step: STEPS, steps: STEPS }).unwrap();
        assert_eq!(run.reading().steps, 2 * STEPS * steps.len() as u64 / 2, "{method}");
        run.finish();
    }
}
