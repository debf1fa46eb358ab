//! Life and death of processes: parent-death signals and signals to whole groups.

use std::io;

use rustix::process::{kill_process_group, set_parent_process_death_signal, Pid, Signal};

/// Asks the kernel to kill this process when its parent dies.
///
/// # Errors
/// What the kernel says.
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Sends `signal` to every process of the group led by `leader`.
///
/// # Errors
/// `ESRCH` if the group has ended; `EINVAL` for a leader that is no process number.
pub fn signal_group(leader: u32, signal: Signal) -> io::Result<()> {
    let raw = i32::try_from(leader).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let pid = Pid::from_raw(raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process_group(pid, signal)?)
}
