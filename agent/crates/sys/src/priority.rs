//! Priority of threads.

use std::io;

/// Makes the calling thread run before all ordinary threads whenever it is runnable. Threads and processes that it starts are ordinary.
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
