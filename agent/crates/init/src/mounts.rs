//! The file systems of a guest.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::mount::{mount, MountFlags};

use crate::device::wait_for;
use crate::{disks, root, InitError, WORK};

const BASICS: [(&str, &str); 8] = [
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("devpts", "/dev/pts"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/tmp"),
    ("tmpfs", "/run"),
    // Services put their locks there, Apache for one.
    ("tmpfs", "/run/lock"),
];
/// Links that a device manager usually creates: programs write to /dev/stdout, and shells open /dev/fd.
const LINKS: [(&str, &str); 4] = [("/proc/self/fd", "/dev/fd"), ("fd/0", "/dev/stdin"), ("fd/1", "/dev/stdout"), ("fd/2", "/dev/stderr")];

/// File systems that every Linux program expects.
pub(crate) fn basics() -> Result<(), InitError> {
    BASICS.iter().try_for_each(|&(kind, at)| mount_at(kind, kind, Path::new(at)))?;
    for (to, at) in LINKS {
        match symlink(to, at) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(InitError::Other("linking a device", error)),
            _ => {}
        }
    }
    Ok(())
}

/// Mounts the first virtio disk that is not the root disk if there is one, else memory.
pub(crate) fn work(block: &Path) -> Result<(), InitError> {
    match disks::without_serial(block, root::SERIAL) {
        Some(name) => mount_at("ext4", &format!("/dev/{name}"), Path::new(WORK)),
        None => mount_at("tmpfs", "tmpfs", Path::new(WORK)),
    }
}

pub(crate) fn mount_at(kind: &'static str, source: &str, at: &Path) -> Result<(), InitError> {
    let failed = |source: io::Error| InitError::Mount { kind, at: PathBuf::from(at), source };
    fs::create_dir_all(at).map_err(failed)?;
    if source.starts_with("/dev/") {
        wait_for(Path::new(source)).map_err(failed)?;
    }
    match mount(source, at, kind, MountFlags::NOATIME, None) {
        // The kernel may have mounted /dev itself.
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}
