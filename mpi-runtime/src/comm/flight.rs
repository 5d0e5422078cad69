//! Non-blocking operations under way together, looked at in one call however many they are.
//!
//! MPI 3.1 section 3.7.5. A call per operation would let the library run its own round over all
//! connections each time, to learn in most cases that nothing has happened.
//!
//! Invariant: what MPI may use stays beside its request until the request is done.

use core::ffi::c_int;

use super::pending::Request;
use super::{count, loss, raw};

/// Requests, and what each of them needs.
pub(super) struct Flight<T> {
    requests: Vec<Request>,
    /// In the order of `requests`.
    items: Vec<T>,
    /// Memory: the places of those that are done.
    done: Vec<c_int>,
}

impl<T> Default for Flight<T> {
    fn default() -> Self {
        Self { requests: vec![], items: vec![], done: vec![] }
    }
}

impl<T> Flight<T> {
    /// Puts `item` beside its `request`.
    pub(super) fn add(&mut self, request: Request, item: T) {
        self.requests.push(request);
        self.items.push(item);
    }

    /// Operations under way.
    pub(super) const fn len(&self) -> usize {
        self.items.len()
    }

    /// Looks once, and hands out the items of all operations that are done, in no order.
    pub(super) fn land(&mut self, mut landed: impl FnMut(T)) {
        if self.requests.is_empty() {
            return;
        }
        self.done.resize(self.requests.len(), 0);
        let mut found = 0;
        // SAFETY: a `Request` is its handle; both arrays have the length given.
        unsafe {
            raw::MPI_Testsome(
                count(self.requests.len()),
                self.requests.as_mut_ptr().cast(),
                &raw mut found,
                self.done.as_mut_ptr(),
                raw::no_statuses(),
            );
        }
        if loss::has_happened() {
            return;
        }
        let done = &mut self.done[..usize::try_from(found).unwrap_or(0)];
        // From the back: taking one out moves only what lies behind it.
        done.sort_unstable_by(|a, b| b.cmp(a));
        for place in done.iter().map(|place| usize::try_from(*place).unwrap_or(0)) {
            self.requests.swap_remove(place);
            landed(self.items.swap_remove(place));
        }
    }
}
