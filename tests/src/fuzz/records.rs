//! A run folder that is read again: its summary by whoever starts the job once more, its metrics by
//! a run that goes on.

use std::fs;
use std::path::Path;

use umbra_mpi::config::Config;
use umbra_mpi::record::metrics::MetricsWriter;
use umbra_mpi::record::summary::Summary;
use umbra_mpi::record::{Report, RunFolder, fail, has_ended, is_done};

use super::settings::least;
use super::targets::Fuzzed;

/// A case that begins with `#` is metrics, any other a summary.
pub(super) fn records(folder: &Path) -> Fuzzed {
    let mut config = Config::parse("", "job.toml".as_ref(), &least()).unwrap();
    config.run.dir = folder.to_owned();
    let job = config.clone().resolve(2, 2, 4).unwrap();
    let summary = Summary::new(&job, 2).unwrap();
    let report = |step| Report { step, logloss: Some(0.5), ..Report::default() };
    let lines = (1..4).map(|step| serde_json::to_string(&report(step)).unwrap() + "\n");
    let metrics = format!("#{}", lines.collect::<String>());
    let good = vec![serde_json::to_vec(&summary).unwrap(), metrics.into_bytes()];
    let (summary, metrics) = (folder.join("summary.json"), folder.join("metrics.jsonl"));
    let folder = folder.to_owned();
    Fuzzed::new(good, move |case, dice| {
        if let Some(lines) = case.strip_prefix(b"#") {
            fs::write(&metrics, lines).unwrap();
            let last = dice.below(4) as u64;
            let Ok(_) = MetricsWriter::go_on(&metrics, last) else { return Ok(false) };
            let kept = fs::read_to_string(&metrics).map_err(|error| error.to_string())?;
            for line in kept.lines() {
                let report: Report = serde_json::from_str(line).map_err(|e| e.to_string())?;
                if report.step > last {
                    return Err(format!("step {} is kept, the last is {last}", report.step));
                }
            }
            return Ok(!kept.is_empty());
        }
        fs::write(&summary, case).unwrap();
        let (done, ended) = (is_done(&folder), has_ended(&folder));
        if done && !(ended && RunFolder::holds_a_finished_run(&config)) {
            return Err("done, and not at its end".into());
        }
        fail(&folder, "a test");
        // An orderly summary stays as it is.
        if ended && fs::read(&summary).ok().as_deref() != Some(case) {
            return Err("an orderly summary was changed".into());
        }
        Ok(serde_json::from_slice::<Summary>(case).is_ok())
    })
}
