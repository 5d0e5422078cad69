//! Are all ranks the same program with the same job, and do all of them see the same files?
//!
//! Ranks that differ get somewhere: they meet in messages of other lengths, or train two models and
//! call it one. A node may have an older program, a job file that was copied and then changed on
//! one node, a file that only one node can see.
//!
//! Invariant: [`check_program`] is the first that ranks say to each other, and its form never
//! changes, since it is what programs of different builds understand of each other.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::io::Read as _;

use crate::comm::Comm;
use crate::comm::watch::Lost;
use crate::config::Config;
use crate::error::Error;
use crate::launch::world::World;
use crate::record::{build_hash, config_hash};

/// Refuses a job whose ranks are not all the same program. *Collective over all ranks.*
///
/// # Errors
/// Builds that differ, on every rank; the first has the message.
pub fn check_program(world: &World, control: &Comm) -> Result<(), Error> {
    let wrong = programs(world, control)?;
    control.agree(wrong.map_or(Ok(()), Err))
}

/// What is wrong with the programs of all ranks. *Collective over all ranks.*
///
/// # Errors
/// When not all ranks come.
pub fn programs(world: &World, control: &Comm) -> Result<Option<Error>, Lost> {
    let own = format!("{}\n{}", program(), world.host);
    let all = control.all_gather_varied(own.as_bytes(), "the programs of all ranks")?;
    let said: Vec<_> =
        all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    Ok(mixture(&said).map(|builds| {
        Error::Launch(format!(
            "ranks run different programs: {builds}; install one umbra on all nodes, and start it \
             by its whole path"
        ))
    }))
}

/// Refuses a job whose ranks have different configurations. *Collective over all ranks.*
///
/// # Errors
/// Configurations that differ, on every rank; the first has the message.
pub fn check_config(world: &World, control: &Comm, config: &Config) -> Result<(), Error> {
    let mut shared = config.clone();
    // The one key that says where on its node a rank writes.
    shared.checkpoint.local_dir = None;
    let hash = control.agree(config_hash(&shared))?;
    let hashes = control.all_gather_varied(hash.as_bytes(), "configurations of all ranks")?;
    if hashes.iter().all(|other| *other == hashes[0]) {
        return Ok(());
    }
    let text = shared.to_toml().map_err(|error| Error::Failure(error.to_string()));
    let text = format!("{}\n{}", world.host, control.agree(text)?);
    let all = control.all_gather_varied(text.as_bytes(), "configurations that differ")?;
    let all: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    control.agree(Err(Error::Launch(different_jobs(&all))))
}

/// Agrees on `result`, which comes of files that every rank looks at for itself: if only some ranks
/// fail, the message says which. *Collective over all ranks.*
///
/// # Errors
/// As [`Comm::agree`].
pub fn agree_on_files<T>(
    world: &World,
    control: &Comm,
    result: Result<T, Error>,
) -> Result<T, Error> {
    let code = result.as_ref().err().map_or(0, Error::exit_code);
    let own = format!("{code}\n{}", world.host);
    let all = control.all_gather_varied(own.as_bytes(), "files of all ranks")?;
    let all: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect();
    let failed = |said: &String| !said.starts_with("0\n");
    let failing: Vec<usize> = (0..all.len()).filter(|rank| failed(&all[*rank])).collect();
    let place = |said: &String| said.split_once('\n').map_or("", |(_, host)| host).to_owned();
    let result = match result {
        // The configuration and the data: what comes of files.
        Err(error) if failing.len() < all.len() && [2, 3].contains(&error.exit_code()) => {
            let hosts: Vec<String> = all.iter().map(place).collect();
            let whose = among(&failing, &hosts);
            Err(Error::OfSome { source: Box::new(error), whose, ranks: all.len() })
        }
        other => other,
    };
    control.agree(result)
}

/// What tells this build from all others: version, commit, and what the linker has made of the
/// program's content, where it left that.
fn program() -> String {
    let build = std::fs::File::open("/proc/self/exe").ok().and_then(|file| {
        let mut head = vec![];
        file.take(HEAD).read_to_end(&mut head).ok()?;
        build_id(&head)
    });
    let build = build.map_or_else(String::new, |id| format!(", build {id}"));
    format!("{} ({}){build}", env!("CARGO_PKG_VERSION"), build_hash())
}

/// Bytes at the beginning of a program among which its notes are.
const HEAD: u64 = 16 << 10;

/// The first eight bytes of the note that names a build: its owner "GNU", type 3.
fn build_id(head: &[u8]) -> Option<String> {
    const NOTE: [u8; 12] = [4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0];
    let note = [&NOTE[..], b"GNU\0"].concat();
    let start = head.windows(note.len()).position(|window| window == note)? + note.len();
    let id = head.get(start..start + 8)?;
    Some(id.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// The builds of ranks that said "build, newline, host", when there are several.
fn mixture(said: &[String]) -> Option<String> {
    let split = |said: &String| {
        let (build, host) = said.split_once('\n').unwrap_or((said, ""));
        (build.to_owned(), host.to_owned())
    };
    let (builds, hosts): (Vec<_>, Vec<_>) = said.iter().map(split).unzip();
    if builds.iter().all(|build| *build == builds[0]) {
        return None;
    }
    let mut of_build: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, build) in builds.iter().enumerate() {
        of_build.entry(build).or_default().push(rank);
    }
    let each = of_build.iter().map(|(build, ranks)| format!("{build} on {}", among(ranks, &hosts)));
    Some(each.collect::<Vec<_>>().join(", "))
}

/// What to say of jobs, "host, newline, TOML" of every rank, that are not all the same.
fn different_jobs(all: &[String]) -> String {
    let split = |said: &String| {
        let (host, text) = said.split_once('\n').unwrap_or((said, ""));
        (host.to_owned(), text.parse::<toml::Table>().unwrap_or_default())
    };
    let (hosts, tables): (Vec<_>, Vec<_>) = all.iter().map(split).unzip();
    let keys: Vec<_> = tables.iter().map(keys_of).collect();
    let differs = |rank: &usize| keys[*rank] != keys[0];
    let others: Vec<usize> = (1..all.len()).filter(differs).collect();
    let Some(other) = others.first() else {
        return "ranks have different jobs".to_owned();
    };
    let all_keys = keys[0].keys().chain(keys[*other].keys());
    let mut different = all_keys.filter(|key| keys[0].get(*key) != keys[*other].get(*key));
    let key = different.next().cloned().unwrap_or_default();
    let value = |rank: usize| keys[rank].get(&key).map_or("not set", String::as_str);
    format!(
        "ranks have different jobs: `{key}` is {} on rank 0 and {} on {}; give all ranks the same \
         job file, on a file system that all nodes share, and the same --set",
        value(0),
        value(*other),
        among(&others, &hosts)
    )
}

/// Every key of a configuration by its whole name.
fn keys_of(table: &toml::Table) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    let mut left: Vec<_> = table.iter().map(|(key, value)| (key.clone(), value)).collect();
    while let Some((path, value)) = left.pop() {
        match value {
            toml::Value::Table(inner) => {
                left.extend(inner.iter().map(|(key, value)| (format!("{path}.{key}"), value)));
            }
            value => {
                keys.insert(path, value.to_string());
            }
        }
    }
    keys
}

/// "rank 2 (n1)", "ranks 1, 3, 5 and 9 more (n0, n1)".
fn among(ranks: &[usize], hosts: &[String]) -> String {
    let list = |names: Vec<String>| {
        let more = names.len().saturating_sub(NAMED);
        let named = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    };
    let mut on: Vec<String> = ranks.iter().filter_map(|rank| hosts.get(*rank).cloned()).collect();
    on.dedup();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {} ({})", list(ranks.iter().map(usize::to_string).collect()), list(on))
}

/// Ranks and hosts that a message names.
const NAMED: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn one_build_on_all_ranks_is_no_mixture() {
        assert_eq!(mixture(&said(&["1 (a)\nn0", "1 (a)\nn1"])), None);
        let mixed = mixture(&said(&["1 (a)\nn0", "1 (b)\nn1", "1 (a)\nn0", "1 (b)\nn1"]));
        assert_eq!(mixed.as_deref(), Some("1 (a) on ranks 0, 2 (n0), 1 (b) on ranks 1, 3 (n1)"));
    }

    #[test]
    fn the_key_that_differs_is_named() {
        let text = different_jobs(&said(&[
            "n0\nseed = 1\n[optim.dense]\nlr = 0.1\n",
            "n0\nseed = 1\n[optim.dense]\nlr = 0.1\n",
            "n1\nseed = 1\n[optim.dense]\nlr = 0.2\n",
        ]));
        assert!(
            text.contains("`optim.dense.lr` is 0.1 on rank 0 and 0.2 on rank 2 (n1)"),
            "{text}"
        );
        let text = different_jobs(&said(&["n0\nseed = 1\n", "n1\nseed = 1\n[run]\ntrace = true"]));
        assert!(text.contains("`run.trace` is not set on rank 0 and true on rank 1"), "{text}");
    }

    #[test]
    fn many_ranks_are_not_all_named() {
        let hosts = said(&["a", "a", "b", "b", "c", "d", "e"]);
        assert_eq!(among(&[1], &hosts), "rank 1 (a)");
        let all: Vec<usize> = (0..7).collect();
        assert_eq!(among(&all, &hosts), "ranks 0, 1, 2, 3 and 3 more (a, b, c, d and 1 more)");
    }

    #[test]
    fn a_build_has_a_name_of_its_own() {
        let note = [&[9, 4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0xab; 20]].concat();
        assert_eq!(build_id(&note).as_deref(), Some("abababababababab"));
        assert_eq!(build_id(&note[..20]), None);
        assert!(program().starts_with(env!("CARGO_PKG_VERSION")));
    }
}
