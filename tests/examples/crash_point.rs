//! A library that ends its process in the middle of writing: loaded before the C library
//! (`LD_PRELOAD`), it counts the calls that change something below a folder, and kills the process
//! after the one it was told to.
//!
//! `CRASH_UNDER`: part of the paths that count; `CRASH_AFTER`: which call is the last one.
//!
//! Every function here is the C library's of that name and makes the system call itself.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks, clippy::cast_possible_truncation)]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts a call that has changed what `path` names.
fn count(path: &str) {
    let Ok(under) = std::env::var("CRASH_UNDER") else { return };
    let Ok(after) = std::env::var("CRASH_AFTER") else { return };
    if path.contains(&under) && CALLS.fetch_add(1, SeqCst) + 1 == after.parse().unwrap_or(0) {
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

fn text(path: *const c_char) -> String {
    unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned()
}

/// The path behind a descriptor.
fn opened(file: c_int) -> String {
    let link = format!("/proc/self/fd/{file}\0");
    let mut path = [0u8; 4096];
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

#[unsafe(no_mangle)]
unsafe extern "C" fn write(file: c_int, bytes: *const c_void, length: usize) -> isize {
    let done = unsafe { libc::syscall(libc::SYS_write, file, bytes, length) };
    count(&opened(file));
    done as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(
    file: c_int,
    bytes: *const c_void,
    length: usize,
    at: c_long,
) -> isize {
    let done = unsafe { libc::syscall(libc::SYS_pwrite64, file, bytes, length, at) };
    count(&opened(file));
    done as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fsync(file: c_int) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_fsync, file) };
    count(&opened(file));
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_rename, from, to) };
    count(&text(to));
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_mkdir, path, mode) };
    count(&text(path));
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_unlink, path) };
    count(&text(path));
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_rmdir, path) };
    count(&text(path));
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    let name = below(folder, path);
    let done = unsafe { libc::syscall(libc::SYS_unlinkat, folder, path, flags) };
    count(&name);
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlink(target: *const c_char, path: *const c_char) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_symlink, target, path) };
    count(&text(path));
    done as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let done = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) };
    if flags & libc::O_CREAT != 0 {
        count(&text(path));
    }
    done as c_int
}
