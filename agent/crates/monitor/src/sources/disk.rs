//! `/sys/class/block/*/stat`: requests, bytes, waiting and queue length of each disk. The same numbers as in
//! `/proc/diskstats`, but that file makes the kernel tell of every partition and idle loop device as well.

use std::fs;
use std::path::Path;

use partywall_facts::under;
use partywall_kernels::Resource::Disk;

use super::header;
use crate::counter::{scaled, Column, Group, COUNT, MILLISECONDS, SECTORS};
use crate::reader::{Builder, Row};
use crate::text::numbers_at;

pub(crate) const GROUP: Group = Group {
    file: "/sys/class/block/*/stat",
    subject: "each disk",
    columns: &[
        Column::total("reads completed", "disk_reads_count", "read requests", COUNT, Disk, "read requests done"),
        Column::total("sectors read", "disk_read_bytes", "data read", SECTORS, Disk, "bytes read"),
        Column::total(
            "time reading",
            "disk_read_wait_ns",
            "read requests under way",
            MILLISECONDS,
            Disk,
            "sum over read requests of the time from issue to end; divided by their number, the mean wait",
        ),
        Column::total("writes completed", "disk_writes_count", "write requests", COUNT, Disk, "write requests done"),
        Column::total("sectors written", "disk_written_bytes", "data written", SECTORS, Disk, "bytes written"),
        Column::total(
            "time writing",
            "disk_write_wait_ns",
            "write requests under way",
            MILLISECONDS,
            Disk,
            "sum over write requests of the time from issue to end",
        ),
        Column::gauge(
            "I/Os in progress",
            "disk_queue_count",
            "requests in the queue",
            COUNT,
            Disk,
            "requests in the queue or the disk now",
        ),
        Column::total(
            "time doing I/Os",
            "disk_busy_ns",
            "busy time",
            MILLISECONDS,
            Disk,
            "time with at least one request; divided by time, the utilisation",
        ),
        Column::total(
            "weighted time",
            "disk_queue_ns",
            "mean queue length",
            MILLISECONDS,
            Disk,
            "requests waiting, times how long; divided by time, the mean queue length",
        ),
        Column::total(
            "discards completed",
            "disk_discards_count",
            "discards",
            COUNT,
            Disk,
            "blocks given back; some disks stall meanwhile",
        ),
        Column::total(
            "flushes completed",
            "disk_flushes_count",
            "flushes",
            COUNT,
            Disk,
            "caches of the disk written out: somebody calls fsync",
        ),
    ],
    cost: "no rates, waits and queues of disks",
    remedy: "mount sysfs on /sys; check the disk's name",
};

pub(crate) fn open(builder: &mut Builder) {
    let disks = builder.targets.disks.clone().unwrap_or_else(|| default_disks(builder.root));
    if disks.is_empty() {
        builder.lack(&GROUP, "/sys/block lists no disk that holds anything".into());
    }
    for disk in disks {
        if let Some((file, _)) = builder.open(&GROUP, &GROUP.file.replace('*', &disk)) {
            builder.add_file(vec![(&GROUP, header(GROUP.columns, Some(&disk)))], file, fill);
        }
    }
}

/// Whole disks with a size above 0: neither partitions nor unused loop devices.
fn default_disks(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(under(root, "/sys/block")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let size = |disk: &str| fs::read_to_string(under(root, &format!("/sys/block/{disk}/size"))).ok()?.trim().parse::<u64>().ok();
    names.retain(|disk| size(disk).is_some_and(|sectors| sectors > 0));
    names
}

fn fill(text: &[u8], row: &mut Row) {
    let numbers = numbers_at(text, [0, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15]);
    scaled(numbers, GROUP.columns, row);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{filled, value};
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Vec<Option<f64>> {
        filled(GROUP.columns, text, fill)
    }

    #[test]
    fn seventeen_columns_since_5_5() {
        // Written by 6.18.
        let row = parse(b"   87435    25972  4619706    16807    16637    31979  3924408    11369        2    11116    28803     4901       53   487456      552     1915       75\n");
        let reading = |name: &str| value(GROUP.columns, &row, name);
        assert_eq!(reading("disk_reads_count"), Some(87435.0));
        assert_eq!(reading("disk_read_bytes"), Some(4_619_706.0 * 512.0));
        assert_eq!(reading("disk_read_wait_ns"), Some(16_807e6));
        assert_eq!(reading("disk_writes_count"), Some(16637.0));
        assert_eq!(reading("disk_write_wait_ns"), Some(11_369e6));
        assert_eq!(reading("disk_queue_count"), Some(2.0));
        assert_eq!(reading("disk_busy_ns"), Some(11_116e6));
        assert_eq!(reading("disk_queue_ns"), Some(28_803e6));
        assert_eq!((reading("disk_discards_count"), reading("disk_flushes_count")), (Some(4901.0), Some(1915.0)));
    }

    #[test]
    fn fifteen_columns_since_4_18_have_discards_but_no_flushes() {
        let row = parse(b"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n");
        assert_eq!((row[9], row[10]), (Some(12.0), None));
    }

    #[test]
    fn eleven_columns_before_have_neither() {
        let row = parse(b"1 2 3 4 5 6 7 8 9 10 11\n");
        assert_eq!((row[8], row[9], row[10]), (Some(11e6), None, None));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            let _ = parse(&text);
        }
    }
}
