//! Disks, and the file system of a path.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::memory::chosen;
use crate::survey::{self, Survey};
use crate::under;

const FOLDER: &str = "/sys/block";
/// Unit of `/sys/block/*/size`, regardless of the disk's block size.
const SECTOR_BYTES: u64 = 512;

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskFacts {
    /// For example `vda`.
    pub name: String,
    /// Its capacity.
    pub size_bytes: u64,
    /// Whether the driver reports it as rotational. This is often wrong for virtual disks.
    pub rotational: Option<bool>,
    /// The selected I/O scheduler.
    pub scheduler: Option<String>,
    /// Its smallest request, to which direct I/O must be aligned.
    pub logical_block_bytes: Option<u64>,
    /// Write cache mode: `write back` is a volatile cache.
    pub write_cache: Option<String>,
    /// Requests that its queue can hold.
    pub queue_requests: Option<u64>,
}

/// The file system of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileSystem {
    /// For example `ext4`.
    pub kind: String,
    /// For example `/dev/vda`.
    pub source: String,
    /// Its mount point.
    pub mount_point: String,
    /// Mount and superblock options.
    pub options: String,
    /// Major and minor number of the device. A major number of 0 is not a block device.
    pub device: String,
    /// The folder of the file system at the mount point.
    pub top: String,
}

pub(crate) fn read(survey: &mut Survey) -> Vec<DiskFacts> {
    survey.names(FOLDER).into_iter().filter_map(|name| disk(survey, name)).collect()
}

/// `None` for devices of size 0, such as unused loop devices.
fn disk(survey: &Survey, name: String) -> Option<DiskFacts> {
    let read = |file: &str| survey.optional(&format!("{FOLDER}/{name}/{file}"));
    let number = |file: &str| read(file).and_then(|text| text.parse::<u64>().ok());
    let size_bytes = number("size")?.checked_mul(SECTOR_BYTES).filter(|&bytes| bytes > 0)?;
    Some(DiskFacts {
        size_bytes,
        rotational: number("queue/rotational").map(|flag| flag == 1),
        // Drivers without a choice only report `none`.
        scheduler: read("queue/scheduler").map(|text| chosen(&text).unwrap_or(text)),
        logical_block_bytes: number("queue/logical_block_size"),
        write_cache: read("queue/write_cache"),
        queue_requests: number("queue/nr_requests"),
        name,
    })
}

/// The file system that contains `path` (absolute, as seen by this process).
#[must_use]
pub fn file_system(root: &Path, path: &Path) -> Option<FileSystem> {
    parse_mountinfo(&survey::text(&under(root, "/proc/self/mountinfo")).ok()?)
        .filter(|mount| path.starts_with(&mount.mount_point))
        // A later mount at the same point hides the earlier.
        .max_by_key(|mount| Path::new(&mount.mount_point).components().count())
}

/// Mounts of a `mountinfo` file. Invalid lines are skipped.
pub(crate) fn parse_mountinfo(text: &str) -> impl Iterator<Item = FileSystem> + '_ {
    text.lines().filter_map(|line| {
        let (mount, super_block) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        let mut super_block = super_block.split(' ');
        Some(FileSystem {
            device: (*mount.get(2)?).to_owned(),
            top: unescape(mount.get(3)?),
            mount_point: unescape(mount.get(4)?),
            kind: super_block.next()?.to_owned(),
            source: unescape(super_block.next()?),
            options: format!("{},{}", mount.get(5)?, super_block.next().unwrap_or_default()),
        })
    })
}

/// The kernel encodes blanks, backslashes and number signs in names as three octal digits.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\043", "#"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOUNTS: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 254:16 / /var/my\\040disk rw,noatime - xfs /dev/vdb rw
nonsense";

    #[test]
    fn a_path_belongs_to_the_deepest_mount_above_it() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join("proc/self/mountinfo"), MOUNTS).unwrap();
        let kind = |path: &str| file_system(root.path(), Path::new(path)).map(|found| found.kind);
        assert_eq!(kind("/var/my disk/file").as_deref(), Some("xfs"));
        assert_eq!(kind("/var/my disks").as_deref(), Some("ext4"));
        assert_eq!(kind("relative"), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(.|\n)*") {
            let _ = parse_mountinfo(&text).count();
        }
    }
}
