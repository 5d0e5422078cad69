//! Trainers by nodes, for groups that follow them.

/// Where trainers are: their nodes, and their numbers there. `[trainers]` each.
pub(super) struct Places {
    /// The node of each.
    pub(super) node: Vec<usize>,
    /// Its number there.
    pub(super) place: Vec<usize>,
}

impl Places {
    /// By the names of nodes. `hosts: [trainers]`
    pub(super) fn new(hosts: &[Vec<u8>]) -> Self {
        let (mut node, mut place) = (vec![], vec![]);
        for (trainer, host) in hosts.iter().enumerate() {
            let before = &hosts[..trainer];
            let known = before.iter().position(|other| other == host);
            let next = node.iter().max().map_or(0, |node| node + 1);
            node.push(known.map_or(next, |other| node[other]));
            place.push(before.iter().filter(|other| *other == host).count());
        }
        Self { node, place }
    }
}
