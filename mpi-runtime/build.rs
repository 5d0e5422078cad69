//! Names the commit the program is built from, for `--version` and every record.
//!
//! `UMBRA_GIT` in the environment wins (a build from a source archive); else `git describe`. A
//! release build, the kind that is measured, looks again after every commit and every change of
//! the sources; other builds only when HEAD moves to another branch, so that a commit does not
//! rebuild the package.

use std::process::Command;

fn main() {
    let given = std::env::var("UMBRA_GIT").ok().filter(|given| !given.is_empty());
    let described = given.or_else(|| git(&["describe", "--always", "--dirty"]));
    println!("cargo:rustc-env=UMBRA_GIT={}", described.unwrap_or_else(|| "unknown".into()));

    println!("cargo:rerun-if-env-changed=UMBRA_GIT");
    println!("cargo:rerun-if-changed=build.rs");
    let mut watched = vec!["HEAD"];
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        watched.push("logs/HEAD");
        for folder in ["src", "../core/src", "../datasets/src", "../Cargo.toml"] {
            println!("cargo:rerun-if-changed={folder}");
        }
    }
    for file in watched {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
