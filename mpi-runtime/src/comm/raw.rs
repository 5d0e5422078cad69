//! The MPI functions that the runtime calls, by their own names: each is the library's, guarded.
//!
//! Nothing else calls through `mpi::ffi`, so no call can forget the guard. Errors are fatal in MPI
//! (MPI_ERRORS_ARE_FATAL, the default), so a call that returns has succeeded; where the library
//! survives the loss of a rank, calls return errors and `loss` hears of every one of them. Either
//! way they return nothing here.

use core::ffi::{c_int, c_void};
use core::time::Duration;
use std::sync::OnceLock;

pub(super) use mpi::ffi::{MPI_Comm, MPI_Datatype, MPI_Message, MPI_Request, MPI_Status};

use super::guard::{guarded, guarded_at_last};

macro_rules! guarded_functions {
    ($($name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {$(
        /// # Safety
        /// As the standard says of the function of this name; pointers are valid for the call, and
        /// buffers of a non-blocking one until its request is done.
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the standard's")]
        pub(super) unsafe fn $name($($argument: $kind),*) {
            // SAFETY: the caller's word.
            super::loss::hear(guarded(|| unsafe { mpi::ffi::$name($($argument),*) }));
        }
    )*};
}

guarded_functions! {
    MPI_Comm_rank(comm: MPI_Comm, rank: *mut c_int);
    MPI_Comm_size(comm: MPI_Comm, size: *mut c_int);
    MPI_Comm_idup(comm: MPI_Comm, new: *mut MPI_Comm, request: *mut MPI_Request);
    MPI_Comm_split(comm: MPI_Comm, color: c_int, key: c_int, new: *mut MPI_Comm);
    MPI_Comm_free(comm: *mut MPI_Comm);
    MPI_Test(request: *mut MPI_Request, done: *mut c_int, status: *mut MPI_Status);
    MPI_Testsome(
        count: c_int, requests: *mut MPI_Request, done_count: *mut c_int, done: *mut c_int,
        statuses: *mut MPI_Status,
    );
    MPI_Isend(
        buffer: *const c_void, count: c_int, kind: MPI_Datatype, to: c_int, tag: c_int,
        comm: MPI_Comm, request: *mut MPI_Request,
    );
    MPI_Issend(
        buffer: *const c_void, count: c_int, kind: MPI_Datatype, to: c_int, tag: c_int,
        comm: MPI_Comm, request: *mut MPI_Request,
    );
    MPI_Irecv(
        buffer: *mut c_void, count: c_int, kind: MPI_Datatype, from: c_int, tag: c_int,
        comm: MPI_Comm, request: *mut MPI_Request,
    );
    MPI_Improbe(
        from: c_int, tag: c_int, comm: MPI_Comm, found: *mut c_int, message: *mut MPI_Message,
        status: *mut MPI_Status,
    );
    MPI_Get_count(status: *const MPI_Status, kind: MPI_Datatype, count: *mut c_int);
    MPI_Imrecv(
        buffer: *mut c_void, count: c_int, kind: MPI_Datatype, message: *mut MPI_Message,
        request: *mut MPI_Request,
    );
    MPI_Ibarrier(comm: MPI_Comm, request: *mut MPI_Request);
    MPI_Ibcast(
        buffer: *mut c_void, count: c_int, kind: MPI_Datatype, from: c_int, comm: MPI_Comm,
        request: *mut MPI_Request,
    );
    MPI_Iallgather(
        sent: *const c_void, sent_count: c_int, sent_kind: MPI_Datatype, received: *mut c_void,
        received_count: c_int, received_kind: MPI_Datatype, comm: MPI_Comm,
        request: *mut MPI_Request,
    );
    MPI_Iallgatherv(
        sent: *const c_void, sent_count: c_int, sent_kind: MPI_Datatype, received: *mut c_void,
        received_counts: *const c_int, received_starts: *const c_int, received_kind: MPI_Datatype,
        comm: MPI_Comm, request: *mut MPI_Request,
    );
    MPI_Ialltoall(
        sent: *const c_void, sent_count: c_int, sent_kind: MPI_Datatype, received: *mut c_void,
        received_count: c_int, received_kind: MPI_Datatype, comm: MPI_Comm,
        request: *mut MPI_Request,
    );
    MPI_Ialltoallv(
        sent: *const c_void, sent_counts: *const c_int, sent_starts: *const c_int,
        sent_kind: MPI_Datatype, received: *mut c_void, received_counts: *const c_int,
        received_starts: *const c_int, received_kind: MPI_Datatype, comm: MPI_Comm,
        request: *mut MPI_Request,
    );
}

/// What a library has that survives the loss of a rank: User-Level Failure Mitigation, of the MPI
/// Forum's working group on fault tolerance. They are looked up when the program runs, so that one
/// program runs on libraries with and without.
pub(super) struct FaultTolerance {
    revoke: Revoke,
    shrink: Shrink,
}

type Revoke = unsafe extern "C" fn(MPI_Comm) -> c_int;
type Shrink = unsafe extern "C" fn(MPI_Comm, *mut MPI_Comm) -> c_int;

impl FaultTolerance {
    /// Of the library that this process runs on, where it is there and switched on. *Not
    /// collective; once MPI has been started.*
    pub(super) fn get() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<FaultTolerance>> = OnceLock::new();
        FOUND.get_or_init(Self::look).as_ref()
    }

    fn look() -> Option<Self> {
        // MPICH has functions of these names too, which end the process, and no such attribute: to
        // ask for it would be an error, and fatal.
        let version = guarded(mpi::environment::library_version).ok()?;
        if !is_open_mpi_5(&version) {
            return None;
        }
        let [revoke, shrink] = [c"MPIX_Comm_revoke", c"MPIX_Comm_shrink"].map(|name| {
            // SAFETY: the name ends with a zero.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        });
        let (revoke, shrink) = (revoke?, shrink?);
        let (mut value, mut there) = (core::ptr::null_mut::<c_int>(), 0);
        // SAFETY: the out-pointers are valid.
        guarded(|| unsafe {
            let value = (&raw mut value).cast();
            mpi::ffi::MPI_Comm_get_attr(world(), MPI_FT, value, &raw mut there);
        });
        // SAFETY: an attribute that is there points to an int.
        let on = there != 0 && !value.is_null() && unsafe { *value } != 0;
        // SAFETY: functions of these names have these types (mpi-ext.h).
        on.then(|| unsafe {
            Self {
                revoke: core::mem::transmute::<*mut c_void, Revoke>(revoke),
                shrink: core::mem::transmute::<*mut c_void, Shrink>(shrink),
            }
        })
    }

    /// Calls on `comm` return errors from now on, on every rank.
    ///
    /// # Safety
    /// The handle is live.
    pub(super) unsafe fn revoke(&self, comm: MPI_Comm) {
        // What it says was heard already.
        // SAFETY: the caller's word.
        guarded(|| unsafe { (self.revoke)(comm) });
    }

    /// The ranks of `comm` that are left, in a communicator of their own, in their order; the null
    /// one when that failed. *Collective over those left.*
    ///
    /// # Safety
    /// The handle is live.
    pub(super) unsafe fn shrink(&self, comm: MPI_Comm) -> MPI_Comm {
        let mut new = no_comm();
        // SAFETY: the caller's word; the out-pointer is valid.
        let code = guarded(|| unsafe { (self.shrink)(comm, &raw mut new) });
        if code == 0 { new } else { no_comm() }
    }
}

/// Starts sending `count` elements. Where the loss of a rank is survived a message is done when its
/// receiver has matched it: of a short one that was copied and called done, and can't be delivered,
/// Open MPI 5 says "send error after request freed" and ends the process.
///
/// # Safety
/// As of MPI_Isend: the buffer holds the elements, and stays until the request is done.
pub(super) unsafe fn send(
    (buffer, count, kind): (*const c_void, c_int, MPI_Datatype),
    (to, tag): (c_int, c_int),
    comm: MPI_Comm,
    request: *mut MPI_Request,
) {
    // SAFETY: the caller's word.
    unsafe {
        if FaultTolerance::get().is_some() {
            MPI_Issend(buffer, count, kind, to, tag, comm, request);
        } else {
            MPI_Isend(buffer, count, kind, to, tag, comm, request);
        }
    }
}

/// Whether a library that says this of itself is Open MPI, of version 5 or later.
fn is_open_mpi_5(version: &str) -> bool {
    let number = version.strip_prefix("Open MPI v").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).is_some_and(|number: u32| number >= 5)
}

/// The attribute of Open MPI that says whether fault tolerance is on (mpi.h of version 5).
const MPI_FT: c_int = 12;

/// Calls on `comm`, and on what is made of it, return errors from now on.
///
/// # Safety
/// The handle is live.
pub(super) unsafe fn return_errors(comm: MPI_Comm) {
    // SAFETY: the caller's word; the handler is the library's.
    guarded(|| unsafe {
        mpi::ffi::MPI_Comm_set_errhandler(comm, mpi::ffi::RSMPI_ERRORS_RETURN);
    });
}

/// Ends the job on every rank with this exit code, and this process in any case: the library may
/// wait for a launcher that does not answer. *Not collective, from any thread.*
pub(super) fn abort(code: i32) -> ! {
    end_soon(code);
    // SAFETY: no memory is lent; it does not return, and if it did the process would end all the
    // same.
    guarded_at_last(|| unsafe {
        mpi::ffi::MPI_Abort(mpi::ffi::RSMPI_COMM_WORLD, code);
    });
    std::process::exit(code)
}

/// From now on this process has [`ABORT_MAX`] to live, whatever its threads wait for. *Not
/// collective, from any thread.*
pub(super) fn end_soon(code: i32) {
    // Without another thread there is only the library.
    let timer = std::thread::Builder::new().name("end".into());
    let _ = timer.spawn(move || {
        std::thread::sleep(ABORT_MAX);
        exit(code)
    });
}

/// Ends this process now.
pub(super) fn exit(code: i32) -> ! {
    // SAFETY: ends the process at once and runs nothing of it: other threads hold what they hold.
    unsafe { libc::_exit(code) }
}

/// Time for the library to end the job. It takes less than a second; a launcher on a crowded
/// machine takes longer to hear of it.
const ABORT_MAX: Duration = Duration::from_secs(10);

/// Constants of the library, which are variables to Rust.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $kind:ty = $constant:ident;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name() -> $kind {
            // SAFETY: never written.
            unsafe { mpi::ffi::$constant }
        }
    )*};
}

constants! {
    /// MPI_COMM_WORLD.
    world: MPI_Comm = RSMPI_COMM_WORLD;
    /// MPI_COMM_SELF.
    itself: MPI_Comm = RSMPI_COMM_SELF;
    /// MPI_COMM_NULL.
    no_comm: MPI_Comm = RSMPI_COMM_NULL;
    /// MPI_REQUEST_NULL.
    no_request: MPI_Request = RSMPI_REQUEST_NULL;
    /// MPI_ANY_SOURCE.
    any_source: c_int = RSMPI_ANY_SOURCE;
    /// MPI_UNDEFINED.
    undefined: c_int = RSMPI_UNDEFINED;
    /// MPI_STATUS_IGNORE.
    no_status: *mut MPI_Status = RSMPI_STATUS_IGNORE;
    /// MPI_STATUSES_IGNORE.
    no_statuses: *mut MPI_Status = RSMPI_STATUSES_IGNORE;
}

/// What `mpi.h` says of itself; 0 of a library that it is not of.
pub(super) struct Header {
    /// Major, minor and release number of Open MPI.
    pub(super) open_mpi: [u32; 3],
    /// The number of MPICH's version.
    pub(super) mpich: u32,
    /// Version and subversion of the standard.
    pub(super) standard: [u32; 2],
}

// Each library has its own names for it, and these are the others'.
#[allow(dead_code, reason = "hidden by the header's own")]
const OMPI_MAJOR_VERSION: u32 = 0;
#[allow(dead_code, reason = "hidden by the header's own")]
const OMPI_MINOR_VERSION: u32 = 0;
#[allow(dead_code, reason = "hidden by the header's own")]
const OMPI_RELEASE_VERSION: u32 = 0;
#[allow(dead_code, reason = "hidden by the header's own")]
const MPICH_NUMVERSION: u32 = 0;

/// What the header that the program was compiled against says.
pub(super) const fn header() -> Header {
    // Names that the header has hide those above.
    #[allow(clippy::wildcard_imports, reason = "which names there are, the header decides")]
    use mpi::ffi::*;
    Header {
        open_mpi: [OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION],
        mpich: MPICH_NUMVERSION,
        standard: [MPI_VERSION, MPI_SUBVERSION],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    /// Files under `folder` that name the library's unguarded functions.
    fn unguarded(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                unguarded(&path, found);
            } else if std::fs::read_to_string(&path).unwrap().contains("mpi::ffi") {
                found.push(path.file_name().unwrap().to_string_lossy().into_owned());
            }
        }
    }

    #[test]
    fn only_open_mpi_5_is_asked_for_fault_tolerance() {
        for (version, asked) in [
            ("Open MPI v5.0.11, package: Open MPI user@localhost Distribution", true),
            ("Open MPI v10.1.0", true),
            ("Open MPI v4.1.4, package: Debian OpenMPI", false),
            ("MPICH Version:      4.0.2\nMPICH Release date: …", false),
            ("Open MPI", false),
        ] {
            assert_eq!(super::is_open_mpi_5(version), asked, "{version}");
        }
    }

    #[test]
    fn only_this_file_calls_the_library_itself() {
        let mut found = vec![];
        unguarded(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found.retain(|name| name != "raw.rs");
        assert_eq!(found, Vec::<String>::new());
    }
}
