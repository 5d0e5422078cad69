//! The job files that ship are jobs: every key known, every value in range.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use umbra_mpi::config::Config;

#[test]
fn every_job_file_is_a_configuration() {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hpc/jobs");
    let mut read = 0;
    for entry in std::fs::read_dir(jobs).unwrap() {
        let path = entry.unwrap().path();
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
