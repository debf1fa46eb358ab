//! Kernel modules, in the order of the initramfs, which respects their dependencies.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::system::finit_module;

use crate::InitError;

/// Inserts every module listed in the file `order`, one on each line.
pub(crate) fn insert_all(folder: &Path) -> Result<(), InitError> {
    listed(folder)?.iter().try_for_each(|file| insert(file).map_err(|source| InitError::Module { file: file.clone(), source }))
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, InitError> {
    let text = fs::read_to_string(folder.join("order")).map_err(|e| InitError::Other("reading /lib/modules/order", e))?;
    Ok(text.lines().filter(|line| !line.is_empty()).map(|line| folder.join(line)).collect())
}

fn insert(file: &Path) -> io::Result<()> {
    match finit_module(File::open(file)?, c"", 0) {
        // It exists already: built in, or inserted as a dependency.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_listed_in_the_order_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("order"), "virtio_ring.ko\nvirtio.ko\n\n").unwrap();
        let names: Vec<_> = listed(folder.path()).unwrap();
        assert_eq!(names, [folder.path().join("virtio_ring.ko"), folder.path().join("virtio.ko")]);
    }

    #[test]
    fn a_missing_list_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(insert_all(folder.path()).unwrap_err().to_string().contains("/lib/modules/order"));
    }
}
