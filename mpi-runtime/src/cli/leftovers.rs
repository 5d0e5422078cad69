//! What a job leaves behind that has lost a rank: processes that nobody ends any more, and shared
//! memory.
//!
//! Open MPI's ranks on a node talk through files in /dev/shm, which each removes when all have
//! opened them: ranks that are killed while MPI starts leave theirs, some megabytes each, until the
//! node is started anew. Only the supervisor's own node is cleaned.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Ends the process `root` and all that descend from it, whatever groups they are in, at once.
pub(super) fn kill_all(root: u32) {
    tree(root).into_iter().for_each(kill);
}

/// Ends those of them that a signal has stopped. True when there are any.
pub(super) fn kill_stopped(root: u32) -> bool {
    let stopped = |pid: &u32| stat(*pid).is_some_and(|stat| stat.starts_with(" T"));
    let all: Vec<u32> = tree(root).into_iter().filter(stopped).collect();
    all.iter().copied().for_each(kill);
    !all.is_empty()
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It may just have ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The process `root` and all that descend from it.
fn tree(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> =
        processes().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut all = vec![root];
    let mut next = 0;
    while let Some(&above) = all.get(next) {
        all.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(pid, _)| *pid));
        next += 1;
    }
    all
}

/// All processes there are.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.split_whitespace().nth(1)?.parse().ok()
}

/// What the system says of a process, from its state on.
fn stat(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before, in parentheses, may hold anything.
    Some(stat.rsplit(')').next()?.to_owned())
}

/// The files of shared memory that were there before a job began.
#[derive(Debug)]
pub(super) struct SharedMemory {
    folder: PathBuf,
    before: BTreeSet<OsString>,
}

impl SharedMemory {
    /// Looks, before a job begins.
    pub(super) fn look() -> Self {
        Self::of("/dev/shm".into())
    }

    fn of(folder: PathBuf) -> Self {
        let before = names(&folder).collect();
        Self { folder, before }
    }

    /// Removes what the job has left that has ended: files of Open MPI's that are new, this user's,
    /// and in no living process's memory.
    pub(super) fn clean(&self) {
        let of_mpi = |name: &OsString| {
            name.to_str().is_some_and(|name| NAMES.iter().any(|begins| name.starts_with(begins)))
        };
        let new = names(&self.folder).filter(|name| !self.before.contains(name) && of_mpi(name));
        let new = new.map(|name| self.folder.join(name)).filter(|path| {
            fs::symlink_metadata(path).is_ok_and(|file| file.uid() == geteuid().as_raw())
        });
        let new: Vec<PathBuf> = new.collect();
        if new.is_empty() {
            return;
        }
        let maps = processes().map(|pid| fs::read_to_string(format!("/proc/{pid}/maps")));
        let maps: Vec<String> = maps.filter_map(Result::ok).collect();
        for path in new {
            let used = path.to_str().is_none_or(|path| maps.iter().any(|map| map.contains(path)));
            if !used {
                // Another job's supervisor may be quicker.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn names(folder: &PathBuf) -> impl Iterator<Item = OsString> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// How the files of Open MPI begin, version 4 and from 5 on.
const NAMES: [&str; 2] = ["vader_segment.", "sm_segment."];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_is_new_and_nobodys_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(folder.path().join(name), [0; 4096]).unwrap();
        write("vader_segment.n.0.1.0");
        let before = SharedMemory::of(folder.path().into());
        for name in ["vader_segment.n.0.2.0", "vader_segment.n.0.2.1", "sm_segment.n.0.2", "other"]
        {
            write(name);
        }
        let file = fs::File::open(folder.path().join("vader_segment.n.0.2.1")).unwrap();
        // Words that only this test looks at; here they only have to be mapped.
        let mapped = memmap2::MmapOptions::new().map_raw_read_only(&file).unwrap();
        before.clean();
        let mut left: Vec<OsString> = names(&folder.path().into()).collect();
        left.sort();
        assert_eq!(left, ["other", "vader_segment.n.0.1.0", "vader_segment.n.0.2.1"]);
        drop(mapped);
        before.clean();
        assert_eq!(names(&folder.path().into()).count(), 2);
    }

    #[test]
    fn descendants_in_groups_of_their_own_are_ended_too() {
        let script = "setsid sleep 1000 & echo $!; wait";
        let mut shell =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let below: u32 = line.trim().parse().unwrap();
        assert!(processes().any(|pid| pid == below));
        kill_all(shell.id());
        assert!(!shell.wait().unwrap().success());
        // Somebody else takes it away; until then it has no memory any more.
        let gone = || fs::read(format!("/proc/{below}/cmdline")).is_ok_and(|it| it.is_empty());
        while processes().any(|pid| pid == below) && !gone() {
            std::thread::sleep(core::time::Duration::from_millis(10));
        }
    }
}
