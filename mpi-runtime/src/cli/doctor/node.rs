//! What a rank sees of its node: cores, memory, pages, links, limits, room for files.
//!
//! Everything is read from where the system keeps it, and absent where it does not say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::launch::environment::Cores;
use crate::launch::memory_limits;
use crate::launch::shared_segments::{Segments, free_bytes};

/// What a rank sees.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) host: String,
    /// Its affinity mask, as Linux writes it.
    pub(super) cores: String,
    /// Cores of the node that are there for somebody.
    pub(super) online: usize,
    /// MPI's components in this process's memory, "btl tcp".
    pub(super) components: Vec<String>,
    /// Network links that are up, with Mbit/s where they say.
    pub(super) links: Vec<(String, Option<u64>)>,
    /// There is an adapter that could do without TCP.
    pub(super) infiniband: bool,
    /// `/sys/kernel/mm/transparent_hugepage/enabled` and `shmem_enabled`: the word in brackets.
    pub(super) huge_pages: [Option<String>; 2],
    /// Bytes of memory that it may still have, and the limit of its control group where that is
    /// what bounds it.
    pub(super) memory: Option<(u64, Option<u64>)>,
    /// Bytes free in /dev/shm, and needed there by MPI.
    pub(super) shared: Option<(u64, Option<u64>)>,
    /// Bytes free where run folders are.
    pub(super) folder: Option<u64>,
    /// Files that it may open, and bytes that it may keep from being swapped; absent: no limit.
    pub(super) limits: [Option<u64>; 2],
}

/// Where runs go by default.
const RUNS: &str = "runs";

impl Node {
    /// This rank's.
    pub(super) fn look(host: &str) -> Self {
        let env = |name: &str| std::env::var(name).ok();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let chosen = |name: &str| {
            let path = Path::new("/sys/kernel/mm/transparent_hugepage").join(name);
            in_brackets(&fs::read_to_string(path).ok()?)
        };
        let needed = Segments::look(&env).map(|segments| segments.needed);
        let limit = |resource| getrlimit(resource).current;
        Self {
            host: host.to_owned(),
            cores: Cores::allowed().to_string(),
            online: Cores::parse(&online).count(),
            components: components(&fs::read_to_string("/proc/self/maps").unwrap_or_default()),
            links: links(Path::new("/sys/class/net")),
            infiniband: Path::new("/sys/class/infiniband")
                .read_dir()
                .is_ok_and(|mut adapters| adapters.next().is_some()),
            huge_pages: ["enabled", "shmem_enabled"].map(chosen),
            memory: memory_limits::available().map(|found| (found.bytes, found.of_group)),
            shared: free_bytes("/dev/shm").map(|free| (free, needed)),
            folder: free_bytes(RUNS).or_else(|| free_bytes(".")),
            limits: [limit(Resource::Nofile), limit(Resource::Memlock)],
        }
    }

    /// Mbit/s of its fastest link that says so.
    pub(super) fn link_speed(&self) -> Option<u64> {
        self.links.iter().filter_map(|(_, speed)| *speed).max()
    }

    /// Components of a framework: "tcp", "vader" of "btl".
    pub(super) fn components_of<'a>(&'a self, framework: &str) -> Vec<&'a str> {
        let split = self.components.iter().filter_map(|name| name.split_once(' '));
        split.filter(|(of, _)| *of == framework).map(|(_, name)| name).collect()
    }
}

/// The word in brackets, which is the one that is chosen.
fn in_brackets(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

/// Components of Open MPI that carry messages, by the libraries in a process's memory: those that
/// were not chosen have been put away by the time that MPI has started.
fn components(maps: &str) -> Vec<String> {
    let names = maps.lines().filter_map(|line| {
        let library = line.rsplit('/').next()?.strip_prefix("mca_")?;
        let (framework, name) = library.strip_suffix(".so")?.split_once('_')?;
        ["pml", "btl", "mtl"].contains(&framework).then(|| format!("{framework} {name}"))
    });
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Links below `folder` that are up, but for the loopback.
fn links(folder: &Path) -> Vec<(String, Option<u64>)> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
    let of = |path: &Path| {
        let name = path.file_name()?.to_str()?.to_owned();
        // A link that does not know says "unknown" and works.
        let up = ["up", "unknown"].contains(&read(path, "operstate").trim());
        let is_link = up && name != "lo" && read(path, "carrier").trim() == "1";
        // Not known is -1.
        let speed = read(path, "speed").trim().parse::<u64>().ok().filter(|speed| *speed > 0);
        is_link.then_some((name, speed))
    };
    let mut links: Vec<_> = entries.filter_map(|entry| of(&entry.path())).collect();
    links.sort();
    links
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_is_in_brackets() {
        assert_eq!(in_brackets("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(in_brackets("nothing"), None);
    }

    #[test]
    fn libraries_in_memory_say_what_carries_messages() {
        let maps = "7f-80 r-xp 0 0:0 1 /usr/lib/openmpi3/mca_btl_tcp.so\n\
                    7f-80 r--p 0 0:0 1 /usr/lib/openmpi3/mca_btl_tcp.so\n\
                    7f-80 r-xp 0 0:0 1 /usr/lib/openmpi3/mca_pml_ob1.so\n\
                    7f-80 r-xp 0 0:0 1 /usr/lib/openmpi3/mca_coll_tuned.so\n";
        assert_eq!(components(maps), ["btl tcp", "pml ob1"]);
        let node = Node { components: components(maps), ..Node::default() };
        assert_eq!((node.components_of("btl"), node.components_of("mtl")), (vec!["tcp"], vec![]));
    }

    #[test]
    fn links_that_are_up_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let link = |name: &str, state: &str, carrier: &str, speed: &str| {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            for (file, text) in [("operstate", state), ("carrier", carrier), ("speed", speed)] {
                fs::write(path.join(file), text).unwrap();
            }
        };
        link("lo", "unknown", "1", "");
        link("eth0", "up", "1", "10000\n");
        link("eth1", "down", "0", "1000\n");
        link("eth2", "up", "1", "-1\n");
        let found = links(folder.path());
        assert_eq!(found, [("eth0".to_owned(), Some(10000)), ("eth2".to_owned(), None)]);
        assert_eq!(Node { links: found, ..Node::default() }.link_speed(), Some(10000));
    }

    #[test]
    fn a_node_travels_as_text() {
        let node = Node::look("n0");
        let text = serde_json::to_string(&node).unwrap();
        let back: Node = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{back:?}"), format!("{node:?}"));
        assert!(node.online >= 1 && node.folder.is_some());
    }
}
