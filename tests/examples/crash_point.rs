//! A library that ends its process in the middle of writing: loaded before the C library
//! (`LD_PRELOAD`), it counts the calls that change something below a folder, and kills the process
//! after the one it was told to, or stops it.
//!
//! `CRASH_UNDER`: part of the paths that count; `CRASH_AFTER`: which call is the last one;
//! `CRASH_SIGNAL`: the signal's number, SIGKILL's without it; `CRASH_RANK`: the rank that it is
//! for, as its launcher says it, every process without it.
//!
//! Every function here is the C library's of that name and makes the system call itself.
#![allow(missing_docs, clippy::cast_possible_truncation, reason = "the C library's functions")]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

static CALLS: AtomicU64 = AtomicU64::new(0);
/// Where the launchers of Open MPI and MPICH tell a process its rank.
const LAUNCHERS: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// Counts a call that has changed what `path` names.
fn count(path: &str) {
    let Ok(under) = std::env::var("CRASH_UNDER") else { return };
    let Ok(after) = std::env::var("CRASH_AFTER") else { return };
    if let Ok(rank) = std::env::var("CRASH_RANK")
        && LAUNCHERS.iter().all(|name| std::env::var(name) != Ok(rank.clone()))
    {
        return;
    }
    if path.contains(&under) && CALLS.fetch_add(1, SeqCst) + 1 == after.parse().unwrap_or(0) {
        let signal = std::env::var("CRASH_SIGNAL").ok().and_then(|signal| signal.parse().ok());
        // SAFETY: it asks for nothing but a process that is there.
        unsafe { libc::kill(libc::getpid(), signal.unwrap_or(libc::SIGKILL)) };
    }
}

fn text(path: *const c_char) -> String {
    // SAFETY: a path that the program hands to the C library ends with a zero.
    unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned()
}

/// The path behind a descriptor.
fn opened(file: c_int) -> String {
    let link = format!("/proc/self/fd/{file}\0");
    let mut path = [0u8; 4096];
    // SAFETY: the link ends with a zero, and the buffer has the length given.
    let length =
        unsafe { libc::syscall(libc::SYS_readlink, link.as_ptr(), path.as_mut_ptr(), path.len()) };
    String::from_utf8_lossy(&path[..usize::try_from(length).unwrap_or(0)]).into_owned()
}

/// A path beside an open folder.
fn below(folder: c_int, path: *const c_char) -> String {
    let path = text(path);
    if folder == libc::AT_FDCWD || path.starts_with('/') {
        return path;
    }
    format!("{}/{path}", opened(folder))
}

/// Functions of the C library: the system call of that name, then the path that it changed.
macro_rules! counted {
    ($($name:ident = $call:ident($($argument:ident: $kind:ty),*) -> $out:ty, $path:expr;)*) => {$(
        // SAFETY: the C library's own is in a shared object, which gives way.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $out {
            // What is removed has its path before.
            let path: String = $path;
            // SAFETY: the caller's word for the function of this name.
            let done = unsafe { libc::syscall(libc::$call, $($argument),*) };
            count(&path);
            done as $out
        }
    )*};
}

counted! {
    write = SYS_write(file: c_int, bytes: *const c_void, length: usize) -> isize, opened(file);
    pwrite64 = SYS_pwrite64(file: c_int, bytes: *const c_void, length: usize, at: c_long) -> isize,
        opened(file);
    fsync = SYS_fsync(file: c_int) -> c_int, opened(file);
    rename = SYS_rename(from: *const c_char, to: *const c_char) -> c_int, text(to);
    mkdir = SYS_mkdir(path: *const c_char, mode: c_uint) -> c_int, text(path);
    unlink = SYS_unlink(path: *const c_char) -> c_int, text(path);
    rmdir = SYS_rmdir(path: *const c_char) -> c_int, text(path);
    unlinkat = SYS_unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int,
        below(folder, path);
    symlink = SYS_symlink(target: *const c_char, path: *const c_char) -> c_int, text(path);
    // Opening without making changes nothing.
    open64 = SYS_open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int,
        if flags & libc::O_CREAT == 0 { String::new() } else { text(path) };
}
