//! Moves a thread into another namespace.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Moves the calling thread into the network namespace of the open file `namespace`.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` if it is no network namespace.
pub fn enter_network(namespace: BorrowedFd) -> io::Result<()> {
    // SAFETY: the call takes two numbers and only affects this thread. Unlike a user or mount namespace, a network namespace changes
    // nothing that safe code of other threads relies on.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Moves the calling thread into a new network namespace, which the kernel removes with its last user.
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
