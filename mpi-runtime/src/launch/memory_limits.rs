//! Memory that this process may still have: what the machine has free, or what its control group
//! has left if that is less. A container or a batch job ends a process that takes more.

use std::fs;
use std::path::{Path, PathBuf};

/// What bounds the memory of this process, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// What it may still have, with all others that the bound is for.
    pub bytes: u64,
    /// The bound is a control group's, which may have as much.
    pub of_group: Option<u64>,
}

/// What this process may still have; `None` where the system does not say. *Not collective.*
#[must_use]
pub fn available() -> Option<Available> {
    let free = meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = folders(&groups).iter().filter_map(|folder| of_group(folder)).min();
    Some(match left {
        Some((bytes, limit)) if bytes < free => Available { bytes, of_group: Some(limit) },
        _ => Available { bytes: free, of_group: None },
    })
}

/// Bytes that /proc/meminfo calls available.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kibibytes * 1024)
}

/// Folders of the control groups that bound memory, from the process's own to the outermost, as
/// /proc/self/cgroup names them. In a container the own one may be mounted in the place of the
/// outermost.
fn folders(groups: &str) -> Vec<PathBuf> {
    let mut folders = vec![];
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next(), fields.next());
        let root = match controllers {
            Some("") => Path::new("/sys/fs/cgroup"),
            Some(list) if list.split(',').any(|name| name == "memory") => {
                Path::new("/sys/fs/cgroup/memory")
            }
            _ => continue,
        };
        let path = Path::new(path.unwrap_or("/").trim_start_matches('/'));
        folders.extend(path.ancestors().map(|group| root.join(group)));
    }
    folders
}

/// What a group has left, and its limit; `None` where it has none.
fn of_group(folder: &Path) -> Option<(u64, u64)> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
    };
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    // Version 1 writes "none" as a number that nobody has.
    if limit > 1 << 60 {
        return None;
    }
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of_files = statistics.lines().find_map(|line| {
        let line = line.strip_prefix("total_").unwrap_or(line);
        line.strip_prefix("inactive_file ")?.trim().parse::<u64>().ok()
    });
    // What is read of files goes when memory is wanted.
    Some((limit.saturating_sub(used.saturating_sub(of_files.unwrap_or(0))), limit))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_looked_at_from_the_inside_out() {
        let found = folders("12:pids:/x\n4:cpu,memory:/job/step\n0::/a\n");
        let text: Vec<_> = found.iter().map(|folder| folder.to_str().unwrap()).collect();
        assert_eq!(
            text,
            [
                "/sys/fs/cgroup/memory/job/step",
                "/sys/fs/cgroup/memory/job",
                "/sys/fs/cgroup/memory/",
                "/sys/fs/cgroup/a",
                "/sys/fs/cgroup/",
            ]
        );
    }

    #[test]
    fn what_files_take_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "900\n");
        assert_eq!(of_group(folder.path()), None);
        write("memory.max", "1000\n");
        write("memory.stat", "anon 5\ninactive_file 300\n");
        assert_eq!(of_group(folder.path()), Some((400, 1000)));
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(other.path().join("memory.usage_in_bytes"), "5\n").unwrap();
        assert_eq!(of_group(other.path()), None);
    }

    #[test]
    fn the_machine_says_what_is_available() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:   2 kB\n"), Some(2048));
        assert!(available().is_some_and(|available| available.bytes > 0));
    }
}
