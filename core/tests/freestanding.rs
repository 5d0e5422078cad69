//! Core needs neither std nor an allocator nor a C library: a program that has none of them links
//! against it, trains, and learns. See `freestanding/`.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::std_instead_of_core, clippy::alloc_instead_of_core)]

use std::path::Path;
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

#[test]
fn a_program_without_std_or_allocator_trains() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("freestanding/Cargo.toml");
    let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("freestanding");
    let build = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--offline", "--target", TARGET])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target_dir)
        // Flags meant for the tests (coverage, sanitizers) would need std.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&build.stderr);
    assert!(build.status.success(), "it does not link without std:\n{messages}");
    let program = target_dir.join(TARGET).join("release/umbra-freestanding");
    let run = Command::new(program).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{}: {text}", run.status);
    assert!(text.starts_with("log loss "), "{text}");
}
