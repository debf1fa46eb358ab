//! Moving a thread into another namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Moves the calling thread into the network namespace that `namespace` is open on.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` if it is no network namespace.
pub fn enter_network(namespace: BorrowedFd) -> io::Result<()> {
    // SAFETY: takes two numbers; a network namespace, unlike one of users or mounts, changes nothing that safe code of other
    // threads relies on, and the call concerns this thread alone.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves the calling thread into a network namespace of its own, which goes with its last user.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`.
pub fn new_network() -> io::Result<()> {
    // SAFETY: as above.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
