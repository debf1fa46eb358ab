//! Life and death of processes: parent-death signals and signals to whole groups.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{kill_process_group, set_parent_process_death_signal, Pid};

pub use rustix::process::Signal;

/// Asks the kernel to kill this process when the thread that started it ends.
///
/// # Errors
/// What the kernel says.
pub fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Makes the kernel kill the process that `command` will start when the thread that starts it ends.
pub fn kill_child_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe and allocates nothing.
    unsafe { command.pre_exec(die_with_parent) };
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
