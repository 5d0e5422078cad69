//! The job files that ship are jobs: every key known, every value in range. The scripts that ship
//! are scripts, and stand alone.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use umbra_mpi::config::Config;

fn files() -> impl Iterator<Item = PathBuf> {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hpc/jobs");
    std::fs::read_dir(jobs).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn every_job_file_is_a_configuration() {
    let mut read = 0;
    for path in files() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // Schemas of csv files lie beside the jobs; `prepare`'s tests read them.
        if name.ends_with(".toml") && !name.ends_with(".schema.toml") {
            if let Err(error) = Config::load(Some(&path), &[]) {
                panic!("{}: {error}", path.display());
            }
            read += 1;
        }
    }
    assert!(read >= 3, "{read} job files found");
}

/// `make test-slurm` runs them; this is what can be seen without a Slurm.
#[test]
fn every_script_stands_alone() {
    let mut read = 0;
    for path in files().filter(|path| path.extension().is_some_and(|end| end == "sbatch")) {
        let parsed = Command::new("bash").arg("-n").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&parsed.stderr).into_owned();
        assert!(parsed.status.success(), "{}: {said}", path.display());
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.starts_with('#'));
        for line in code {
            let strange =
                ["hpc/", "target/", ". /", "source "].iter().any(|mark| line.contains(mark));
            assert!(!strange, "{} needs the checkout: {line}", path.display());
        }
        assert!(text.contains("umbra=${UMBRA:-umbra}\n"), "{}", path.display());
        read += 1;
    }
    assert!(read >= 5, "{read} scripts found");
}
