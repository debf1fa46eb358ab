#![forbid(unsafe_code)]
//! The first process of a guest: mounts what a Linux program expects, inserts the kernel modules that the initramfs brings,
//! makes the root disk the root if there is one, gives the network interface its address, opens the port to the controller, starts
//! the agent on it, and powers the machine off when the agent ends. Deliberately not here: anything of the agent's own work. A
//! process of its own stands between the agent and the machine, so that orphans are reaped and a guest whose agent died says so
//! and goes.

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

/// Where a guest keeps the files of its workloads: its disk if it has one, else memory.
pub const WORK: &str = "/work";
/// The name under which the host offers the stream to the controller.
pub const PORT: &str = "partywall.agent";

/// A console does not tell that nobody listens any more, so silence has to.
const PATIENCE_S: &str = "60";

/// Why a guest could not be made ready; its console shows this.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A file system could not be mounted.
    #[error("mounting {kind} at {at}: {source}")]
    Mount {
        /// Type of file system.
        kind: &'static str,
        /// Mount point.
        at: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A module could not be inserted.
    #[error("inserting the module {file}: {source}")]
    Module {
        /// Its file.
        file: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The port did not show up in time.
    #[error("no virtio port is called {PORT}; there are: {0}")]
    NoPort(String),
    /// Anything else.
    #[error("{0}: {1}")]
    Other(&'static str, io::Error),
}

/// Makes the guest ready and runs the agent until its stream ends. console: the terminal that is the stream to the controller,
/// where there is no virtio port.
///
/// # Errors
/// What kept the guest from being made ready.
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

/// Powers the machine off, and if it cannot be, restarts it, which the host takes for the same.
pub fn power_off() {
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
