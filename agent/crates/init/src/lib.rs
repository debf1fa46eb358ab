#![forbid(unsafe_code)]
//! The first process of a guest. It mounts the file systems that Linux programs expect, inserts the kernel modules from the
//! initramfs, switches to the root disk if there is one, configures the network interface, opens the port to the controller, starts
//! the agent on it, and powers the machine off when the agent ends. It does none of the agent's work. Because it is separate from
//! the agent, orphans are reaped, and a guest whose agent died reports it and ends.

mod console;
mod device;
mod disks;
mod modules;
mod mounts;
mod network;
mod root;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{wait, Pid, WaitOptions};
use rustix::system::{reboot, RebootCommand};

pub use network::Network;

/// The folder for files of workloads: on the guest's disk if it has one, else in memory.
pub const WORK: &str = "/work";
/// The name of the host's port for the stream to the controller.
pub const PORT: &str = "partywall.agent";

/// A console does not report that nobody reads it any more, so silence ends the agent.
const PATIENCE_S: &str = "60";

/// Why a guest could not be set up. Its console shows this.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A file system could not be mounted.
    #[error("mounting {kind} at {at}: {source}")]
    Mount {
        /// Type of file system.
        kind: &'static str,
        /// Mount point.
        at: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A module could not be inserted.
    #[error("inserting the module {file}: {source}")]
    Module {
        /// Its file.
        file: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The port did not appear in time.
    #[error("no virtio port has the name {PORT}; the machine has: {0}")]
    NoPort(String),
    /// Anything else.
    #[error("{0}: {1}")]
    Other(&'static str, io::Error),
}

/// Sets up the guest and runs the agent until its stream ends. console: the terminal for the stream to the controller, if there is
/// no virtio port.
///
/// # Errors
///
/// The reason why the guest could not be set up.
pub fn run(console: Option<&Path>, network: Option<Network>) -> Result<(), InitError> {
    let block = Path::new("/sys/class/block");
    mounts::basics()?;
    modules::insert_all(Path::new("/lib/modules"))?;
    network::bring_up(network).map_err(|e| InitError::Other("bringing the network up", e))?;
    root::change(block)?;
    mounts::work(block)?;
    let (port, arguments) = match console {
        Some(path) => (console::open(path)?, ["serve", "--guest", "--patience", PATIENCE_S].as_slice()),
        None => (device::open_port(Path::new("/sys/class/virtio-ports"), Path::new("/dev"))?, ["serve", "--guest"].as_slice()),
    };
    let agent = start_agent(port, arguments).map_err(|e| InitError::Other("starting the agent", e))?;
    reap_until(agent).map_err(|e| InitError::Other("waiting for the agent", e))
}

/// Powers the machine off. If that fails, restarts it, which the host treats in the same way.
pub fn power_off() {
    // What was written to the console may still be on its way, and would be lost: the reason for this end, for one.
    let _ = rustix::termios::tcdrain(io::stderr());
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
    let _ = reboot(RebootCommand::Restart);
}

fn start_agent(port: File, arguments: &[&str]) -> io::Result<Pid> {
    let answers = port.try_clone()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).current_dir(WORK);
    command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", WORK).env("TMPDIR", WORK);
    let child = command.stdin(Stdio::from(port)).stdout(Stdio::from(answers)).spawn()?;
    Pid::from_raw(i32::try_from(child.id()).unwrap_or_default()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Reaps every process that ends, as the first process must, until the agent has ended.
fn reap_until(agent: Pid) -> io::Result<()> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if pid == agent => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
