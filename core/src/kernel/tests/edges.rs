//! Products read nothing behind their matrices: each ends where memory does. A read too far ends
//! the process with a signal.
#![cfg(all(unix, not(miri)))]

use core::ptr::null_mut;
use core::slice::from_raw_parts_mut;

use super::super::layout::place;
use super::*;

/// Elements of the memory of a matrix.
const LEN: usize = 1 << 14;

/// Memory with a page behind it that nobody may touch.
struct Guarded {
    first: *mut f32,
    mapped: usize,
}

impl Guarded {
    fn new() -> Self {
        // SAFETY: a question, and new memory of the process's own, whose last page is closed.
        unsafe {
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).expect("a page's size");
            let len = size_of::<f32>() * LEN;
            assert!(len.is_multiple_of(page), "pages of {page} bytes");
            let (open, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let first = libc::mmap(null_mut(), len + page, open, kind, -1, 0);
            assert_ne!(first, libc::MAP_FAILED, "no memory");
            assert_eq!(libc::mprotect(first.byte_add(len), page, libc::PROT_NONE), 0, "a page");
            Self { first: first.cast(), mapped: len + page }
        }
    }

    /// The last `len` elements.
    fn last(&mut self, len: usize) -> &mut [f32] {
        assert!(len <= LEN, "{len} elements");
        // SAFETY: they are this memory's, zeros in the beginning.
        unsafe { from_raw_parts_mut(self.first.add(LEN - len), len) }
    }

    /// A matrix of activations, without what a layout leaves free behind its last element.
    fn matrix(&mut self, (n, width): (usize, usize), blocked: bool) -> ActivationsMut<'_> {
        let strides = if blocked { Strides::blocked(n, width) } else { Strides::row_major(width) };
        let len = place(strides, n - 1, width - 1) + 1;
        ActivationsMut::new(self.last(len), n, width, strides)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        assert_eq!(unsafe { libc::munmap(self.first.cast(), self.mapped) }, 0, "memory given back");
    }
}

#[test]
fn products_read_nothing_behind_their_matrices() {
    let [mut x, mut y, mut w, mut b, mut panels] = core::array::from_fn(|_| Guarded::new());
    for set in sets() {
        for (n, inputs) in [(1, 1), (3, 5), (6, 33), (14, 7), (29, 64), (7, 150)] {
            for outputs in 1..=2 * PANEL + 1 {
                for blocked in [false, true] {
                    let mut x = x.matrix((n, inputs), blocked);
                    let mut y = y.matrix((n, outputs), blocked);
                    let (w, panels) = (w.last(outputs * inputs), panels.last(outputs * inputs));
                    let bias = Some(shared(b.last(outputs)));
                    let of = (x.view(), shared(w));
                    if outputs == 1 {
                        let (y, (x, weight)) = (&mut y, of);
                        run_on(set, linear::ForwardOne { x, weight, bias, relu: true, y });
                    }
                    let (y_mut, (x_view, weight)) = (&mut y, of);
                    let from = weight.as_ptr();
                    let forward = linear::Forward {
                        operand: Whole,
                        x: x_view,
                        panels: from,
                        bias,
                        relu: true,
                        y: y_mut,
                    };
                    run_on(set, forward);
                    let outer = weight::WeightGradient {
                        operand: Whole,
                        x: x_view,
                        d_y: y.view(),
                        fresh: true,
                        d_weight: panels,
                    };
                    run_on(set, outer);
                    let back = linear::DataGradient {
                        operand: Whole,
                        d_y: y.view(),
                        transposed: Transposed::Fresh { weight, panels, again: true },
                        mask: None,
                        d_x: &mut x,
                    };
                    run_on(set, back);
                }
            }
        }
    }
}
