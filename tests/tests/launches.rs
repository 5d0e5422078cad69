//! Launches that can't do what their user meant: each is refused by one message with its cure.
//!
//! Wrong PMIs are tested beside `launch/environment.rs`, whose affair they are. One job at a time,
//! in one test: these start `mpirun` with several programs or folders, past what the helpers know.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use umbra_tests::{Ended, Folder, Job, LIMIT, program, start};

/// What `hpc/env.sh` and tests say of themselves, taken back.
const STRICT: (&str, &str) = ("UMBRA_ALLOW_OVERSUBSCRIBE", "0");

/// Runs a command line in `folder`; `U` stands for the program.
fn run(folder: &Folder, line: &str) -> Ended {
    let umbra = program("umbra");
    let words = line
        .split_whitespace()
        .map(|word| if word == "U" { umbra.to_str().unwrap() } else { word });
    let words: Vec<&str> = words.collect();
    start(folder.root(), 1, Path::new(words[0]), &words[1..], &[STRICT]).wait(LIMIT)
}

fn refused(ended: &Ended, code: i32, parts: &[&str]) {
    let said = &ended.stderr;
    assert_eq!(ended.code, code, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part} in:\n{said}");
    }
    let is_message = |line: &&str| line.starts_with("umbra: ") && !line.contains(": warning: ");
    assert_eq!(said.lines().filter(is_message).count(), 1, "one message:\n{said}");
}

#[test]
fn wrong_launches_are_refused_with_a_cure() {
    let folder = Job::PLAIN.folder(512, 64);
    let two = |one: &str, other: &str| {
        format!("mpirun --oversubscribe -n 1 {one} : --oversubscribe -n 1 {other}")
    };
    let dry = "U train -c job.toml --dry-run";

    let _ = run(&folder, &two(dry, dry)).fine();

    let other = dry.to_owned() + " --set optim.dense.lr=0.5";
    let ended = run(&folder, &two(dry, &other));
    let key = "`optim.dense.lr` is 0.02 on rank 0 and 0.5 on rank 1";
    refused(&ended, 5, &[key, "give all ranks the same job file"]);

    another_build(&folder);
    let ended = run(&folder, &two(dry, &dry.replace('U', "./another")));
    refused(&ended, 5, &["ranks run different programs", "on rank 1", "install one umbra"]);

    std::fs::create_dir(folder.path("elsewhere")).unwrap();
    folder.write("elsewhere/job.toml", folder.text("job.toml"));
    let elsewhere = format!("--wdir {} {dry}", folder.path("elsewhere").display());
    let ended = run(&folder, &two(dry, &elsewhere));
    refused(&ended, 3, &["train.h5", "on rank 1 (", "alone of 2 ranks", "all nodes share"]);

    let ended = run(&folder, "U train -c job.toml --set train.worker_threads=4000");
    refused(&ended, 5, &["train.worker_threads = 4000, and a rank may use", "or UMBRA_ALLOW"]);

    bound_to_a_core(&folder);
    small_shared_memory(&folder, dry);
}

/// A program that differs from umbra in nothing but what its linker says of it.
fn another_build(folder: &Folder) {
    let mut bytes = std::fs::read(program("umbra")).unwrap();
    let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0"].concat();
    let at = bytes.windows(note.len()).position(|window| window == note);
    bytes[at.expect("a linker that names builds") + note.len()] ^= 1;
    folder.write("another", bytes);
    let path = folder.path("another");
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(path, permissions).unwrap();
}

/// Where there is more than one core.
fn bound_to_a_core(folder: &Folder) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let Some((core, _)) = cores.trim().split_once([',', '-']) else {
        eprintln!("skipped: a rank that is bound to a core, on a machine of one core");
        return;
    };
    let line = format!("taskset -c {core} U train -c job.toml --set train.worker_threads=2");
    refused(&run(folder, &line), 5, &["bound to fewer than the", "--bind-to none"]);
}

/// Where a test may have a /dev/shm of its own.
fn small_shared_memory(folder: &Folder, dry: &str) {
    folder.write("small", "mount -t tmpfs -o size=1m none /dev/shm && exec \"$@\"\n");
    let within =
        |line: &str| run(folder, &format!("unshare --map-root-user --mount sh small {line}"));
    if within("true").code != 0 {
        eprintln!("skipped: a small /dev/shm, which this system gives no test");
        return;
    }
    let ended = within(&format!("mpirun --oversubscribe -n 2 {dry}"));
    refused(&ended, 5, &["/dev/shm has 1 MiB free", "--shm-size"]);
    let alone = "mpirun --oversubscribe --mca btl tcp,self -n 2";
    let _ = within(&format!("{alone} {dry}")).fine();
}
