//! Standard input, into lent memory.

use core::arch::asm;

const READ: usize = 0;

/// Reads to the end of the input; `None` when it has as many bytes as `memory` or more, or can't be
/// read.
pub fn read(memory: &mut [u8]) -> Option<&[u8]> {
    let mut length = 0;
    loop {
        let rest = memory.get_mut(length..).filter(|rest| !rest.is_empty())?;
        let got: isize;
        // SAFETY: read writes at most `rest.len()` bytes to `rest`; the kernel overwrites rcx and
        // r11.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") READ => got,
                in("rdi") 0,
                in("rsi") rest.as_mut_ptr(),
                in("rdx") rest.len(),
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        match usize::try_from(got).ok()? {
            0 => return memory.get(..length),
            got => length += got,
        }
    }
}
