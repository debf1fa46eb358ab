//! Which thread goes first.

use std::io;

/// Lets the calling thread run before all ordinary ones whenever it has something to do. Threads and processes that it starts
/// are ordinary again.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE`.
pub fn go_first() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads a structure that outlives it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
