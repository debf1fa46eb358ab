//! The file systems of a guest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{mount, MountFlags};

use crate::device::wait_for;
use crate::{InitError, WORK};

const BASICS: [(&str, &str); 6] =
    [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/dev/shm"), ("tmpfs", "/tmp"), ("tmpfs", "/run")];

/// What every Linux program expects.
pub(crate) fn basics() -> Result<(), InitError> {
    BASICS.iter().try_for_each(|&(kind, at)| mount_at(kind, kind, Path::new(at)))
}

/// The first virtio disk if the machine has one, else memory.
pub(crate) fn work(block: &Path) -> Result<(), InitError> {
    match disk(block) {
        Some(name) => mount_at("ext4", &format!("/dev/{name}"), Path::new(WORK)),
        None => mount_at("tmpfs", "tmpfs", Path::new(WORK)),
    }
}

/// The name of the first virtio disk. Its driver has been inserted, so it shows up at once or is not there.
fn disk(block: &Path) -> Option<String> {
    let mut names: Vec<String> = fs::read_dir(block).ok()?.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names.into_iter().find(|name| name.starts_with("vd"))
}

fn mount_at(kind: &'static str, source: &str, at: &Path) -> Result<(), InitError> {
    let failed = |source: io::Error| InitError::Mount { kind, at: PathBuf::from(at), source };
    fs::create_dir_all(at).map_err(failed)?;
    if source.starts_with("/dev/") {
        wait_for(Path::new(source)).map_err(failed)?;
    }
    match mount(source, at, kind, MountFlags::NOATIME, None) {
        // The kernel may have mounted /dev by itself.
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_virtio_disk_is_chosen_among_other_devices() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["vdb", "loop0", "vda", "sr0"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(disk(folder.path()), Some("vda".into()));
        fs::remove_dir(folder.path().join("vda")).unwrap();
        fs::remove_dir(folder.path().join("vdb")).unwrap();
        assert_eq!(disk(folder.path()), None);
    }
}
