//! Disks and mounts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::memory::chosen;
use crate::survey::Survey;

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

/// A mount.
pub(crate) struct Mount {
    /// For example `ext4`.
    pub kind: String,
    pub point: String,
    /// Of the mount and of its superblock.
    pub options: String,
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

/// Mounts of a `mountinfo` file. Invalid lines are skipped.
pub(crate) fn parse_mountinfo(text: &str) -> impl Iterator<Item = Mount> + '_ {
    text.lines().filter_map(|line| {
        let (mount, super_block) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        let mut super_block = super_block.split(' ');
        Some(Mount {
            top: unescape(mount.get(3)?),
            point: unescape(mount.get(4)?),
            kind: super_block.next()?.to_owned(),
            options: format!("{},{}", mount.get(5)?, super_block.nth(1).unwrap_or_default()),
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
    fn mounts_are_read_and_nonsense_is_skipped() {
        let mounts: Vec<(String, String)> = parse_mountinfo(MOUNTS).map(|mount| (mount.point, mount.kind)).collect();
        let expected = [("/proc", "proc"), ("/", "ext4"), ("/var/my disk", "xfs")];
        assert_eq!(mounts, expected.map(|(point, kind)| (point.to_owned(), kind.to_owned())));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(.|\n)*") {
            let _ = parse_mountinfo(&text).count();
        }
    }
}
