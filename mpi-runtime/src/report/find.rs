//! Which folders are runs, and what they are called.
//!
//! Invariants: a run is named once, however often it is given; names are all different; links to
//! folders inside a folder are not followed, so a search ends.

use core::cmp::Ordering;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::error::Error;

/// A run folder.
pub(super) struct Found {
    /// What of its path tells it from the others.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// The run folders among `paths` and in them.
pub(super) fn run_folders(paths: &[PathBuf]) -> Result<Vec<Found>, Error> {
    let mut found: Vec<PathBuf> = vec![];
    for path in paths {
        let refuse = |what: &str| Err(Error::Usage(format!("{}: {what}", path.display())));
        let Ok(folder) = path.canonicalize() else {
            return refuse(&format!("there is no such folder: {EXPECTED}"));
        };
        if !folder.is_dir() {
            return refuse(&format!("this is a file: {EXPECTED}"));
        }
        let before = found.len();
        collect(&folder, DEPTH_MAX, &mut found);
        if found.len() == before {
            return refuse(&format!(
                "there is no run in it (no summary.json, no metrics.jsonl): {EXPECTED}"
            ));
        }
    }
    let mut once: Vec<PathBuf> = vec![];
    for path in found {
        if !once.contains(&path) {
            once.push(path);
        }
    }
    let shared = shared_folders(&once);
    let named = once.into_iter().map(|path| {
        let parts: Vec<_> = path.components().skip(shared).map(Component::as_os_str).collect();
        let name = parts.iter().collect::<PathBuf>().to_string_lossy().into_owned();
        Found { name, path }
    });
    Ok(named.collect())
}

/// Adds `folder` if it is a run, else the runs in it.
fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    if RECORDS.iter().any(|record| folder.join(record).is_file()) {
        found.push(folder.to_path_buf());
        return;
    }
    if depth == 0 {
        return;
    }
    // One that may not be listed holds no run that could be read.
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    folders.sort_by(|a, b| by_name(&a.to_string_lossy(), &b.to_string_lossy()));
    for folder in folders {
        collect(&folder, depth - 1, found);
    }
}

/// How many folders all paths begin with; the last part of a path always tells it.
fn shared_folders(paths: &[PathBuf]) -> usize {
    let parts = |path: &Path| -> Vec<_> {
        path.components().map(|part| part.as_os_str().to_owned()).collect()
    };
    let Some((first, rest)) = paths.split_first() else { return 0 };
    let first = parts(first);
    let least = first.len().saturating_sub(1);
    rest.iter().map(|path| parts(path)).fold(least, |shared, other| {
        let shared = shared.min(other.len().saturating_sub(1));
        first.iter().zip(&other).take(shared).take_while(|(a, b)| a == b).count()
    })
}

/// By name, numbers in it by their value: run-2 comes before run-10.
fn by_name(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (x, y) = (digits(a), digits(b));
        if x > 0 && y > 0 {
            let (n, m) = (a[..x].trim_start_matches('0'), b[..y].trim_start_matches('0'));
            let order = n.len().cmp(&m.len()).then_with(|| n.cmp(m)).then(x.cmp(&y));
            if order.is_ne() {
                return order;
            }
            (a, b) = (&a[x..], &b[y..]);
            continue;
        }
        let (mut rest_a, mut rest_b) = (a.chars(), b.chars());
        match (rest_a.next(), rest_b.next()) {
            (None, None) => return Ordering::Equal,
            (x, y) if x != y => return x.cmp(&y),
            _ => (a, b) = (rest_a.as_str(), rest_b.as_str()),
        }
    }
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Either of these makes a folder a run.
const RECORDS: [&str; 2] = ["summary.json", "metrics.jsonl"];

/// How deep runs may lie in a folder that holds them.
const DEPTH_MAX: usize = 4;

const EXPECTED: &str = "expected the folder of a run (its job's run.dir, for example runs/job), or \
                        one that holds such folders";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn names(paths: &[PathBuf]) -> Vec<String> {
        run_folders(paths).unwrap().into_iter().map(|found| found.name).collect()
    }

    #[test]
    fn runs_are_found_once_in_the_order_of_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for run in ["sweep/task-10", "sweep/task-9", "sweep/task-09", "other/task-9", "alone"] {
            fs::create_dir_all(root.join(run).join("checkpoints")).unwrap();
            fs::write(root.join(run).join("metrics.jsonl"), "").unwrap();
        }
        fs::create_dir_all(root.join("data/.hidden")).unwrap();
        std::os::unix::fs::symlink(root, root.join("data/circle")).unwrap();
        let sweep = root.join("sweep");
        assert_eq!(names(core::slice::from_ref(&sweep)), ["task-9", "task-09", "task-10"]);
        assert_eq!(names(&[root.join("sweep/task-10"), sweep.clone()])[0], "task-10");
        assert_eq!(names(&[sweep, root.join("sweep/task-9")]).len(), 3);
        let all = ["alone", "other/task-9", "sweep/task-9", "sweep/task-09", "sweep/task-10"];
        assert_eq!(names(&[root.to_path_buf()]), all);
        assert_eq!(names(&[root.join("alone")]), ["alone"]);
    }

    #[test]
    fn what_is_no_run_is_refused_with_the_cure() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        for (path, what) in [("file", "is a file"), ("no", "no such folder"), (".", "no run")] {
            let error = run_folders(&[folder.path().join(path)]).err().unwrap();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains(what) && text.contains("run.dir"), "{text}");
        }
    }
}
