//! The root file system with the user's programs, if the machine has one. It is identified by the serial number of its disk. The
//! agent does not need it and runs from the initramfs.

use std::fs;
use std::io;
use std::path::Path;

use rustix::mount::mount_move;
use rustix::process::{chdir, chroot};

use crate::{disks, mounts, InitError};

/// The serial number of the disk with the root file system.
pub const SERIAL: &str = "partywall-root";
const AT: &str = "/root-disk";

/// Makes the file system on the disk with the serial number [`SERIAL`] the root. Returns whether there is one.
pub(crate) fn change(block: &Path) -> Result<bool, InitError> {
    let Some(name) = disks::with_serial(block, SERIAL) else { return Ok(false) };
    mounts::mount_at("ext4", &format!("/dev/{name}"), Path::new(AT))?;
    let failed = |source: io::Error| InitError::Other("making the root disk the root", source);
    chdir(AT).map_err(|error| failed(error.into()))?;
    mount_move(".", "/").map_err(|error| failed(error.into()))?;
    chroot(".").map_err(|error| failed(error.into()))?;
    // `.` is now below the new root.
    chdir("/").map_err(|error| failed(error.into()))?;
    mounts::basics()?;
    fs::write("/proc/sys/kernel/hostname", "guest").map_err(failed)?;
    Ok(true)
}
