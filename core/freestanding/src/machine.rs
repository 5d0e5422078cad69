//! What an operating system's library would give: a start, a way to write, a way to end, and the
//! memory functions that compiled code calls. Linux on x86-64.

use core::arch::{asm, global_asm};
use core::fmt;

// The kernel enters here with the stack pointer aligned and no return address: a call restores the
// alignment that functions expect. A zero frame pointer ends stack traces.
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym crate::main,
);

const WRITE: usize = 1;
const EXIT_GROUP: usize = 231;

/// Ends the program.
pub fn exit(code: i32) -> ! {
    // SAFETY: exit_group takes one integer and does not return.
    unsafe {
        asm!("syscall", in("rax") EXIT_GROUP, in("rdi") code, options(noreturn, nostack));
    }
}

/// Standard output, one system call per piece.
pub struct Output;

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let written: isize;
            // SAFETY: write reads `rest.len()` bytes from `rest`; the kernel overwrites rcx and
            // r11.
            unsafe {
                asm!(
                    "syscall",
                    inlateout("rax") WRITE => written,
                    in("rdi") 1,
                    in("rsi") rest.as_ptr(),
                    in("rdx") rest.len(),
                    lateout("rcx") _,
                    lateout("r11") _,
                    options(nostack, readonly),
                );
            }
            let written = usize::try_from(written).ok().filter(|n| *n > 0).ok_or(fmt::Error)?;
            rest = rest.get(written..).ok_or(fmt::Error)?;
        }
        Ok(())
    }
}

// What `core` asks of its surroundings (its documentation, "How to use the core library"): five
// memory functions, called by name from compiled code. String instructions and byte loads of our
// own, because a plain copying loop would be compiled into a call of the function it is to
// implement.

/// Copies `n` bytes, upwards.
///
/// # Safety
/// As C's: both valid for `n` bytes, and `to` not inside `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear by the calling convention.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// Copies `n` bytes, which may overlap.
///
/// # Safety
/// As C's: both valid for `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= n {
        // SAFETY: the caller's promise, and `to` is not inside `from`.
        return unsafe { memcpy(to, from, n) };
    }
    // SAFETY: the caller's promise; downwards from the last byte, and the flag is cleared again. n
    // > 0 here.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") n => _,
            inout("rdi") to.wrapping_add(n).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(n).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    to
}

/// Sets `n` bytes to the low byte of `value`.
///
/// # Safety
/// As C's: valid for `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction flag is clear by the calling convention.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") n => _, inout("rdi") to => _, in("eax") value,
            options(nostack, preserves_flags),
        );
    }
    to
}

/// Order of `n` bytes: negative, 0 or positive.
///
/// # Safety
/// As C's: both valid for `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: the caller's promise, i < n.
        let (a, b) = unsafe { (*a.wrapping_add(i), *b.wrapping_add(i)) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// Whether `n` bytes differ.
///
/// # Safety
/// As C's: both valid for `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, n) }
}

/// Named by the tables of the precompiled `core`, which was built to unwind; this program aborts,
/// so nothing ever calls it.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}
