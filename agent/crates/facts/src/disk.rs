//! Disks, and the file system that a path lies on.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::memory::chosen;
use crate::survey::{self, Survey};
use crate::under;

const FOLDER: &str = "/sys/block";
/// `/sys/block/*/size` counts in these, whatever the disk's own blocks are.
const SECTOR_BYTES: u64 = 512;

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DiskFacts {
    /// For example `vda`.
    pub name: String,
    /// What it holds.
    pub size_bytes: u64,
    /// Whether the driver says that it turns. Virtual disks often say so wrongly.
    pub rotational: Option<bool>,
    /// The I/O scheduler chosen.
    pub scheduler: Option<String>,
    /// Its smallest request: what direct I/O must be aligned to.
    pub logical_block_bytes: Option<u64>,
    /// Whether it says that it keeps writes in a volatile cache (`write back`).
    pub write_cache: Option<String>,
    /// Requests its queue takes.
    pub queue_requests: Option<u64>,
}

/// The file system a path lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileSystem {
    /// For example `ext4`.
    pub kind: String,
    /// For example `/dev/vda`.
    pub source: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Mount and superblock options.
    pub options: String,
    /// Major and minor number of the device; 0 as major number is no block device.
    pub device: String,
    /// The folder of the file system that the mount point shows.
    pub top: String,
}

pub(crate) fn read(survey: &mut Survey) -> Vec<DiskFacts> {
    survey.names(FOLDER).into_iter().filter_map(|name| disk(survey, name)).collect()
}

/// `None` for devices that hold nothing, such as loop devices nobody uses.
fn disk(survey: &Survey, name: String) -> Option<DiskFacts> {
    let read = |file: &str| survey.optional(&format!("{FOLDER}/{name}/{file}"));
    let number = |file: &str| read(file).and_then(|text| text.parse::<u64>().ok());
    let size_bytes = number("size")?.checked_mul(SECTOR_BYTES).filter(|&bytes| bytes > 0)?;
    Some(DiskFacts {
        size_bytes,
        rotational: number("queue/rotational").map(|flag| flag == 1),
        // Drivers without a choice write only `none`.
        scheduler: read("queue/scheduler").map(|text| chosen(&text).unwrap_or(text)),
        logical_block_bytes: number("queue/logical_block_size"),
        write_cache: read("queue/write_cache"),
        queue_requests: number("queue/nr_requests"),
        name,
    })
}

/// The file system that `path` (absolute, as seen by this process) lies on.
#[must_use]
pub fn file_system(root: &Path, path: &Path) -> Option<FileSystem> {
    parse_mountinfo(&survey::text(&under(root, "/proc/self/mountinfo")).ok()?)
        .filter(|mount| path.starts_with(&mount.mount_point))
        // A later mount on the same point hides the earlier.
        .max_by_key(|mount| Path::new(&mount.mount_point).components().count())
}

/// Mounts of a `mountinfo` file; lines that make no sense are left out.
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

/// The kernel writes blanks, backslashes and number signs of names as three octal digits.
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
    fn a_path_lies_on_the_deepest_mount_above_it() {
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
