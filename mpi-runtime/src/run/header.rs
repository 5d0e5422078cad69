//! What a run says of itself when it begins: which program, where, on what data, what it trains and
//! how, and where that is recorded. What is not known is left out.

use core::fmt::{self, Write as _};
use core::time::Duration;

use umbra_core::kernel;
use umbra_datasets::Dataset;

use crate::launch::world::World;
use crate::record::{Loudness, build_hash};
use crate::run::plan::Plan;

/// Says it on stderr, in one piece.
pub(super) struct Header<'a> {
    pub(super) plan: &'a Plan,
    pub(super) world: &'a World,
    /// The step that it goes on from.
    pub(super) from: Option<u64>,
    /// When it stops by itself.
    pub(super) limit: Option<Duration>,
    pub(super) loudness: Loudness,
}

impl fmt::Display for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, world, from, limit, loudness } = self;
        let (job, roles) = (&plan.job, &plan.roles);
        let verbose = *loudness == Loudness::Verbose;
        write!(f, "umbra {} ({})", env!("CARGO_PKG_VERSION"), build_hash())?;
        let mut line = |name: &str, text: &dyn fmt::Display| write!(f, "\n  {name:8}{text}");
        line("ranks", &hosts(&plan.hosts))?;
        let servers = |count: usize, of: &str| {
            if count > 0 { format!(", {count} {of}") } else { String::new() }
        };
        let threads = count(job.worker_threads, "worker thread");
        let trainers = count(roles.trainers.len(), "trainer");
        let rows = servers(roles.embedding_ps.len(), "embedding PS");
        let dense = servers(roles.sync_ps.len(), "sync PS");
        line("roles", &format_args!("{trainers} × {threads}{rows}{dense}"))?;
        for (name, data) in [
            ("train", Some(&plan.train)),
            ("valid", plan.valid.as_ref()),
            ("test", plan.test.as_ref()),
        ] {
            if let Some(data) = data {
                line(name, &files(data, verbose))?;
            }
        }
        let numbering = plan.layout.numbering();
        let (dense, width) = (plan.model.parameters_len() as u64, plan.layout.width as u64);
        let embedding = u64::from(numbering.rows()) * width;
        let kind = serde_json::to_string(&job.config.model.kind).unwrap_or_default();
        let strips = if plan.layout.strips().is_empty() {
            String::new()
        } else {
            format!("{} strips of ", numbering.fields())
        };
        let tables = count(plan.layout.fields(), "table");
        line(
            "model",
            &format_args!(
                "{}: {} dense and {} embedding parameters ({} rows × {width} in {strips}{tables})",
                kind.trim_matches('"'),
                thousands(dense),
                thousands(embedding),
                thousands(numbering.rows().into()),
            ),
        )?;
        let (epochs, of_epoch) =
            (plan.steps.div_ceil(plan.steps_per_epoch.max(1)), plan.steps_per_epoch);
        let from = from.map_or_else(String::new, |step| format!(", from step {step}"));
        let limit =
            limit.map_or_else(String::new, |it| format!(", {:.0} s at most", it.as_secs_f64()));
        line(
            "method",
            &format_args!(
                "{}: {} steps of {} examples, {} an epoch, {}{from}{limit}",
                job.method.name(),
                thousands(plan.steps),
                thousands(job.global_batch() as u64),
                thousands(of_epoch),
                count(usize::try_from(epochs).unwrap_or(usize::MAX), "epoch"),
            ),
        )?;
        if verbose {
            line("seed", &job.config.seed)?;
            line("simd", &kernel::selected())?;
            line("mpi", &format_args!("{}, thread level {:?}", world.library(), world.threads))?;
        }
        line("run", &job.config.run.dir.display())
    }
}

/// Ranks and their hosts.
fn hosts(hosts: &[(String, usize)]) -> String {
    let ranks: usize = hosts.iter().map(|(_, ranks)| ranks).sum();
    let mut text = format!("{} on {}", ranks, count(hosts.len(), "host"));
    let named = |(host, ranks): &(String, usize)| {
        if *ranks > 1 { format!("{host} × {ranks}") } else { host.clone() }
    };
    let mut names: Vec<String> = hosts.iter().take(HOSTS_MAX).map(named).collect();
    if hosts.len() > HOSTS_MAX {
        names.push("…".to_owned());
    }
    // Writing to a String cannot fail.
    let _ = write!(text, ": {}", names.join(", "));
    text
}

/// The files of a dataset: the first, or all.
fn files(data: &Dataset, all: bool) -> String {
    let rows =
        |path: &std::path::Path, rows| format!("{}, {} rows", path.display(), thousands(rows));
    let several = data.rows_of_files().count() > 1;
    let mut text = match data.rows_of_files().next() {
        Some((path, of_it)) if !several => rows(path, of_it),
        Some((path, _)) => {
            let others = data.rows_of_files().count() - 1;
            format!(
                "{} and {}, {} rows",
                path.display(),
                count(others, "other file"),
                thousands(data.rows())
            )
        }
        None => String::new(),
    };
    let _ = write!(text, ", fingerprint {}", data.fingerprint());
    if several && all {
        for (path, of_it) in data.rows_of_files() {
            let _ = write!(text, "\n          {}", rows(path, of_it));
        }
    }
    text
}

/// "1 host", "2 hosts".
fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// With spaces between thousands, from 10 000 on.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .filter_map(|group| core::str::from_utf8(group).ok())
        .collect();
    groups.join(" ")
}

/// Hosts that are named.
const HOSTS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_hosts_can_be_read() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(9_999), "9999");
        assert_eq!(thousands(1_234_567), "1 234 567");
        let named =
            |n: usize, ranks| (0..n).map(|host| (format!("n{host}"), ranks)).collect::<Vec<_>>();
        assert_eq!(hosts(&named(1, 1)), "1 on 1 host: n0");
        assert_eq!(hosts(&named(2, 4)), "8 on 2 hosts: n0 × 4, n1 × 4");
        assert_eq!(hosts(&named(5, 1)), "5 on 5 hosts: n0, n1, n2, n3, …");
    }
}
