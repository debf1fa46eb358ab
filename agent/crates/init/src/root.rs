//! The root file system that holds the user's programs, if the machine has one. It is found by the serial number the host gave its
//! disk. The agent needs nothing of it: it goes on from the initramfs.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::mount_move;
use rustix::process::{chdir, chroot};

use crate::{disks, mounts, InitError};

/// The serial number of the disk that holds the root file system.
pub const SERIAL: &str = "partywall-root";
const AT: &str = "/root-disk";

/// Makes the file system on the disk with the serial number [`SERIAL`] the root of all; whether there is one.
pub(crate) fn change(block: &Path) -> Result<bool, InitError> {
    let Some(name) = disks::with_serial(block, SERIAL) else { return Ok(false) };
    mounts::mount_at("ext4", &format!("/dev/{name}"), Path::new(AT))?;
    let failed = |source: io::Error| InitError::Other("making the root disk the root", source);
    chdir(AT).map_err(|error| failed(error.into()))?;
    mount_move(".", "/").map_err(|error| failed(error.into()))?;
    chroot(".").map_err(|error| failed(error.into()))?;
    // Only now is `.` below the new root, and no longer above it.
    chdir("/").map_err(|error| failed(error.into()))?;
    mounts::basics()?;
    fs::write("/proc/sys/kernel/hostname", "guest").map_err(failed)?;
    Ok(true)
}
