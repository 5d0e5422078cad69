//! What was found, a line each, and under it what to do about it.

use core::fmt;

use umbra_core::kernel::Simd;

use super::network::Network;
use super::node::Node;
use crate::comm::guard::ThreadLevel;
use crate::launch::environment::Cores;

/// A line, and what belongs under it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Finding {
    fine: bool,
    name: &'static str,
    text: String,
    /// More about it.
    notes: Vec<String>,
    /// What to do about it.
    cures: Vec<String>,
}

impl Finding {
    fn new(fine: bool, name: &'static str, text: impl fmt::Display) -> Self {
        Self { fine, name, text: text.to_string(), ..Self::default() }
    }

    fn note(mut self, note: impl fmt::Display) -> Self {
        self.notes.push(note.to_string());
        self
    }

    /// Has a `cure` where it is not fine.
    fn cure(mut self, cure: impl fmt::Display) -> Self {
        if !self.fine {
            self.cures.push(cure.to_string());
        }
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.fine { "ok  " } else { "LOOK" };
        writeln!(f, "{mark}  {:10} {}", self.name, self.text)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{:17}{note}", ""))?;
        self.cures.iter().try_for_each(|cure| writeln!(f, "{:17}cure: {cure}", ""))
    }
}

/// What is so on all ranks.
pub(super) struct Launch {
    pub(super) version: String,
    pub(super) library: String,
    pub(super) threads: ThreadLevel,
    /// The loss of a rank does not end a job.
    pub(super) survives: bool,
    pub(super) ranks: usize,
    /// What is wrong with how it was started.
    pub(super) error: Option<String>,
    /// What is wrong with its programs.
    pub(super) builds: Option<String>,
    pub(super) simd: Simd,
    pub(super) hdf5: (u8, u8, u8),
    pub(super) deflate: bool,
}

/// The program, its libraries, and how it was started.
pub(super) fn of_launch(about: &Launch) -> Vec<Finding> {
    let Launch { version, library, threads, survives, ranks, error, builds, .. } = about;
    let umbra = Finding::new(builds.is_none(), "umbra", version);
    let umbra = builds.iter().fold(umbra, Finding::cure);
    let mut mpi = Finding::new(true, "MPI", format_args!("{library}; {threads}"));
    if *survives {
        mpi = mpi.note("jobs go on without a rank that is lost");
    }
    if *threads == ThreadLevel::Serialized {
        mpi = mpi.note("the threads of a rank take turns to call MPI");
    }
    let launch = if error.is_none() {
        "launcher and MPI library count as many"
    } else {
        "launcher and MPI library do not agree"
    };
    let launch = Finding::new(error.is_none(), "launch", format_args!("{ranks} ranks; {launch}"));
    let (major, minor, patch) = about.hdf5;
    let filter = if about.deflate { "there" } else { "missing" };
    let hdf5 = format!("{major}.{minor}.{patch}, gzip filter {filter}");
    let hdf5 = Finding::new(about.deflate, "HDF5", hdf5);
    vec![
        umbra,
        mpi,
        error.iter().fold(launch, Finding::note),
        hdf5.cure("use an HDF5 built with zlib (Debian: libhdf5-dev)"),
        Finding::new(about.simd != Simd::Plain, "SIMD", about.simd).cure(
            "this processor has no AVX2 with FMA, or hides it (a virtual machine should pass the \
             host's processor on): training is several times slower",
        ),
    ]
}

/// Nodes, each with its ranks. `nodes: [ranks]`
pub(super) fn of_nodes(nodes: &[Node], yields: bool) -> Vec<Finding> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (rank, node) in nodes.iter().enumerate() {
        match hosts.iter_mut().find(|(host, _)| *host == node.host) {
            Some((_, ranks)) => ranks.push(rank),
            None => hosts.push((&node.host, vec![rank])),
        }
    }
    let several = hosts.len() > 1;
    let each = hosts.iter().flat_map(|(host, ranks)| {
        let of_ranks: Vec<(usize, &Node)> =
            ranks.iter().map(|rank| (*rank, &nodes[*rank])).collect();
        let mut found = vec![cores(host, &of_ranks, yields)];
        found.extend(of_ranks.first().into_iter().flat_map(|(_, node)| of_node(node, several)));
        found
    });
    each.collect()
}

/// Cores of a host and its ranks on them.
fn cores(host: &str, ranks: &[(usize, &Node)], yields: bool) -> Finding {
    let mut all = Cores::default();
    ranks.iter().for_each(|(_, node)| all.join(&Cores::parse(&node.cores)));
    let (count, share) = (all.count(), all.count() / ranks.len());
    let online = ranks.first().map_or(0, |(_, node)| node.online);
    let mut found = Finding::new(
        share >= 1,
        "node",
        format_args!(
            "{host}: {} ranks on {count} of {online} cores ({all}); default worker threads: {}",
            ranks.len(),
            share.max(1)
        ),
    );
    let same = ranks.iter().all(|(_, node)| node.cores == ranks[0].1.cores);
    if !same {
        let each = ranks.iter().take(RANKS_NAMED);
        let each = each.map(|(rank, node)| format!("rank {rank} on {}", node.cores));
        found = found.note(each.collect::<Vec<_>>().join(", "));
        // mpirun's default with one rank or two, and all threads of a rank with it.
        if count < online && ranks.iter().any(|(_, node)| Cores::parse(&node.cores).count() == 1) {
            found = found.note(format_args!(
                "ranks are bound to one core each, and {} are left over: mpirun --bind-to none, or \
                 --map-by slot:PE=N, gives them more (srun --cpus-per-task=N)",
                online - count
            ));
        }
    }
    if !yields {
        found = found.cure("export OMPI_MCA_mpi_yield_when_idle=1, or waiting ranks steal time");
    }
    found.cure(format_args!(
        "start at most {count} ranks on this node, or give them more cores (mpirun --bind-to none)"
    ))
}

/// Ranks of a host that are named one by one.
const RANKS_NAMED: usize = 16;

/// Memory, pages, transports, room for files and limits of a node; `several`: there are others.
fn of_node(node: &Node, several: bool) -> Vec<Finding> {
    let host = &node.host;
    let mut found = vec![transports(node, several)];
    if let [Some(own), shared] = &node.huge_pages {
        let shared = shared.as_deref().unwrap_or("unknown");
        let given = own != "never";
        found.push(
            Finding::new(
                given,
                "huge pages",
                format_args!("{host}: {own} for a process's own memory, {shared} for shared"),
            )
            .cure(
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root: lookups in \
                 large tables walk through page tables otherwise",
            ),
        );
    }
    if let Some((free, limit)) = node.memory {
        let limit = limit.map_or_else(String::new, |limit| {
            format!(", bounded by a control group of {}", bytes(limit))
        });
        let fine = free >= MEMORY_MIN;
        found.push(
            Finding::new(fine, "memory", format_args!("{host}: {} available{limit}", bytes(free)))
                .cure("ask for more (sbatch --mem=0 for all of a node, docker run --memory)"),
        );
    }
    if let Some((free, needed)) = node.shared {
        let wanted = needed
            .map_or_else(String::new, |needed| format!(", {} for MPI's messages", bytes(needed)));
        found.push(
            Finding::new(
                free >= needed.unwrap_or(0).max(SHARED_MIN),
                "/dev/shm",
                format_args!("{host}: {} free{wanted}", bytes(free)),
            )
            .cure(
                "docker run --shm-size=1g, mount -o remount,size=1g /dev/shm, or mpirun --mca btl \
                 tcp,self",
            ),
        );
    }
    if let Some(free) = node.folder {
        found.push(
            Finding::new(
                free >= FOLDER_MIN,
                "run folder",
                format_args!("{host}: {} free", bytes(free)),
            )
            .cure("set run.dir, or checkpoint.dir, to a file system with more room"),
        );
    }
    let [files, locked] = node.limits;
    let said = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    let locked = locked.map_or("unlimited".to_owned(), bytes);
    found.push(
        Finding::new(
            files.is_none_or(|files| files >= FILES_MIN),
            "limits",
            format_args!("{host}: {} open files, {locked} of locked memory", said(files)),
        )
        .cure("ulimit -n 4096 (limits.conf: nofile): a job opens its files and a socket per rank"),
    );
    found
}

/// What carries messages.
fn transports(node: &Node, several: bool) -> Finding {
    let Node { host, .. } = node;
    let [pml, btl, mtl] = ["pml", "btl", "mtl"].map(|framework| node.components_of(framework));
    let links: Vec<String> = node
        .links
        .iter()
        .map(|(name, speed)| match speed {
            Some(speed) => format!("{name} {speed} Mbit/s"),
            None => format!("{name}, speed unknown"),
        })
        .collect();
    let links = if links.is_empty() { "none".to_owned() } else { links.join(", ") };
    let used = [pml.clone(), btl.clone(), mtl.clone()].concat();
    let used = if used.is_empty() {
        "MPI's transports are not known (it has them built in)".to_owned()
    } else {
        format!("MPI has {} in use", used.join(", "))
    };
    let by_tcp = pml.contains(&"ob1") && !btl.contains(&"openib");
    Finding::new(
        !(several && node.infiniband && by_tcp),
        "transport",
        format_args!("{host}: {used}; links {links}"),
    )
    .cure(
        "there is an InfiniBand adapter, and messages go by TCP: use an MPI with UCX \
         (ompi_info | grep ucx), or ask for it: mpirun --mca pml ucx",
    )
}

/// Messages and sums, as measured.
pub(super) fn of_network(network: &Network, nodes: &[Node]) -> Vec<Finding> {
    let host = |rank: usize| nodes.get(rank).map_or("", |node| node.host.as_str());
    let mut found: Vec<Finding> = vec![];
    for pair in &network.pairs {
        let near = host(0) == host(pair.rank);
        let link = [0, pair.rank].iter().filter_map(|rank| nodes.get(*rank)?.link_speed()).min();
        let link = link.filter(|_| !near).map(|speed| speed as f64 * 1e6 / 8.0);
        let of_link = link.map_or_else(String::new, |link| {
            format!(", {:.0} % of the link's", 100.0 * pair.rate / link)
        });
        let slow = link.is_some_and(|link| pair.rate < SHARE_MIN * link);
        let place = if near { "on this node".to_owned() } else { host(pair.rank).to_owned() };
        found.push(
            Finding::new(
                !slow,
                "messages",
                format_args!(
                    "rank 0 to {} ({place}): {:.1} us, {:.0} MB/s{of_link}",
                    pair.rank,
                    1e6 * pair.latency,
                    pair.rate / 1e6
                ),
            )
            .cure(
                "name the fast link: mpirun --mca btl_tcp_if_include eth0; and look whether others \
                 use it now",
            ),
        );
        // What a trace, a log or a deadline would notice, and beyond what was measured.
        let apart = pair.ahead.abs() > CLOCKS_MAX + pair.latency;
        found.push(
            Finding::new(
                !apart,
                "clock",
                format_args!(
                    "rank {} ({place}) is {:+.3} ms from rank 0, known to {:.3} ms",
                    pair.rank,
                    1e3 * pair.ahead,
                    1e3 * pair.latency
                ),
            )
            .cure("run chrony or ntpd on all nodes: traces and logs of ranks do not line up"),
        );
    }
    if let Some((summed, seconds)) = network.sum {
        found.push(Finding::new(
            true,
            "all-reduce",
            format_args!(
                "{} over {} ranks: {:.2} ms, {:.0} MB/s",
                bytes(summed as u64),
                nodes.len(),
                1e3 * seconds,
                summed as f64 / seconds.max(1e-9) / 1e6
            ),
        ));
    }
    found
}

/// Of a link's rate, the least that large messages should have.
const SHARE_MIN: f64 = 0.5;
/// Seconds that clocks may be apart.
const CLOCKS_MAX: f64 = 0.1;
/// Bytes of memory, of /dev/shm and of a file system with which little can be done.
const MEMORY_MIN: u64 = 1 << 30;
const SHARED_MIN: u64 = 16 << 20;
const FOLDER_MIN: u64 = 1 << 30;
/// Files that a job may want to open.
const FILES_MIN: u64 = 1024;

fn bytes(bytes: u64) -> String {
    if bytes >= 1 << 30 {
        format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
    } else {
        format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::Pair;
    use super::*;

    fn node(host: &str, cores: &str) -> Node {
        Node {
            host: host.into(),
            cores: cores.into(),
            online: 4,
            components: ["btl tcp", "btl vader", "pml ob1"].map(str::to_owned).to_vec(),
            links: vec![("eth0".into(), Some(1000))],
            infiniband: false,
            huge_pages: [Some("madvise".into()), Some("never".into())],
            memory: Some((8 << 30, None)),
            shared: Some((1 << 30, Some(9 << 20))),
            folder: Some(8 << 30),
            limits: [Some(4096), None],
        }
    }

    fn launch() -> Launch {
        Launch {
            version: "0".into(),
            library: "Open MPI v4.1.4".into(),
            threads: ThreadLevel::Multiple,
            survives: false,
            ranks: 3,
            error: None,
            builds: None,
            simd: Simd::Avx2,
            hdf5: (1, 10, 8),
            deflate: true,
        }
    }

    fn text(found: &[Finding]) -> String {
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_sound_machine_needs_no_cure() {
        let nodes = [node("n0", "0-1"), node("n0", "2-3"), node("n1", "0-3")];
        let text = text(&of_launch(&launch())) + &text(&of_nodes(&nodes, false));
        assert!(text.contains("n0: 2 ranks on 4 of 4 cores (0-3); default worker threads: 2"));
        assert!(text.contains("n1: 1 ranks on 4 of 4 cores (0-3); default worker threads: 4"));
        assert!(text.contains("rank 0 on 0-1, rank 1 on 2-3"), "{text}");
        assert!(text.contains("ob1, tcp, vader in use; links eth0 1000 Mbit/s"), "{text}");
        assert!(!text.contains("LOOK") && !text.contains("cure"), "{text}");
    }

    #[test]
    fn what_is_wrong_with_a_launch_comes_with_its_cure() {
        let wrong = Launch {
            error: Some("UMBRA_ALLOW_SINGLETON".into()),
            builds: Some("install one umbra".into()),
            simd: Simd::Plain,
            deflate: false,
            ..launch()
        };
        let text = text(&of_launch(&wrong));
        for cure in ["UMBRA_ALLOW_SINGLETON", "install one umbra", "libhdf5-dev", "AVX2"] {
            assert!(text.contains(cure), "{cure}: {text}");
        }
        assert_eq!(text.matches("LOOK").count(), 4, "{text}");
    }

    #[test]
    fn what_is_wrong_with_a_node_comes_with_its_cure() {
        let wrong = Node {
            huge_pages: [Some("never".into()), None],
            memory: Some((1 << 20, Some(2 << 20))),
            shared: Some((1 << 20, Some(9 << 20))),
            folder: Some(1 << 20),
            limits: [Some(256), Some(1 << 16)],
            infiniband: true,
            ..node("n0", "0")
        };
        let beside = Node { cores: "0".into(), ..node("n0", "0") };
        let text = text(&of_nodes(&[wrong, beside, node("n1", "0-3")], false));
        for cure in [
            "at most 1 ranks",
            "yield_when_idle=1",
            "transparent_hugepage",
            "a control group of 2.0 MiB",
            "--shm-size",
            "checkpoint.dir",
            "ulimit -n",
            "--mca pml ucx",
        ] {
            assert!(text.contains(cure), "{cure}: {text}");
        }
        assert_eq!(text.matches("LOOK").count(), 7, "{text}");
    }

    #[test]
    fn ranks_that_are_bound_to_a_core_are_told_how_to_have_more() {
        let text = text(&of_nodes(&[node("n0", "0"), node("n0", "1")], true));
        assert!(text.contains("bound to one core each, and 2 are left over"), "{text}");
    }

    #[test]
    fn messages_are_held_against_the_link_and_clocks_against_each_other() {
        let pair = Pair { rank: 1, latency: 20e-6, rate: 100e6, ahead: 2e-5 };
        let slow = Pair { rate: 20e6, ahead: -3.0, ..pair.clone() };
        let nodes = [node("n0", "0-3"), node("n1", "0-3")];
        let of = |pair| {
            let network = Network { pairs: vec![pair], sum: Some((4 << 20, 0.1)) };
            text(&of_network(&network, &nodes))
        };
        let fine = of(pair.clone());
        assert!(fine.contains("rank 0 to 1 (n1): 20.0 us, 100 MB/s, 80 % of the link's"), "{fine}");
        assert!(fine.contains("4.0 MiB over 2 ranks: 100.00 ms, 42 MB/s"), "{fine}");
        assert!(!fine.contains("LOOK"), "{fine}");
        let wrong = of(slow);
        assert!(wrong.contains("btl_tcp_if_include") && wrong.contains("chrony"), "{wrong}");
        let here = text(&of_network(
            &Network { pairs: vec![pair], sum: None },
            &[node("n0", "0"), node("n0", "1")],
        ));
        assert!(!here.contains("link"), "the loopback has no rate: {here}");
    }
}
