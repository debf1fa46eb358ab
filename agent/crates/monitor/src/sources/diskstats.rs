//! `/proc/diskstats`: requests, bytes, waiting and queue length of each disk.

use partywall_facts::under;
use partywall_kernels::Resource::Disk;

use crate::counter::{Column, Group, COUNT, MILLISECONDS, SECTORS};
use crate::reader::Builder;
use crate::table::Table;
use crate::text::{numbers_at, words};

pub(crate) const GROUP: Group = Group {
    file: "/proc/diskstats",
    subject: "each disk",
    columns: &[
        Column::total("reads completed", "disk_reads_count", COUNT, Disk, "read requests done"),
        Column::total("sectors read", "disk_read_bytes", SECTORS, Disk, "bytes read"),
        Column::total(
            "time reading",
            "disk_read_wait_ns",
            MILLISECONDS,
            Disk,
            "sum over read requests of the time from issue to end; divided by their number, the mean wait",
        ),
        Column::total("writes completed", "disk_writes_count", COUNT, Disk, "write requests done"),
        Column::total("sectors written", "disk_written_bytes", SECTORS, Disk, "bytes written"),
        Column::total("time writing", "disk_write_wait_ns", MILLISECONDS, Disk, "sum over write requests of the time from issue to end"),
        Column::gauge("I/Os in progress", "disk_queue_count", COUNT, Disk, "requests in the queue or the disk now"),
        Column::total(
            "time doing I/Os",
            "disk_busy_ns",
            MILLISECONDS,
            Disk,
            "time with at least one request; divided by time, the utilisation",
        ),
        Column::total(
            "weighted time",
            "disk_queue_ns",
            MILLISECONDS,
            Disk,
            "requests waiting, times how long; divided by time, the mean queue length",
        ),
        Column::total("discards completed", "disk_discards_count", COUNT, Disk, "blocks given back; some disks stall meanwhile"),
        Column::total("flushes completed", "disk_flushes_count", COUNT, Disk, "caches of the disk written out: somebody calls fsync"),
    ],
    cost: "no rates, waits and queues of disks",
    remedy: "mount procfs on /proc",
};

pub(crate) fn open(builder: &mut Builder) {
    let Some((file, text)) = builder.open(&GROUP, GROUP.file) else { return };
    let table = Table::new(&text, parse_line, GROUP.columns, |disk| wanted(builder, disk));
    for disk in builder.targets.disks.iter().flatten().filter(|disk| !table.subjects().contains(disk)) {
        builder.lack(&GROUP, format!("{} does not list disk {disk}", GROUP.file));
    }
    builder.add_file(vec![(&GROUP, table.header())], file, move |text, row| table.fill(text, row));
}

/// By default whole disks that hold something: neither partitions nor loop devices that nobody uses.
fn wanted(builder: &Builder, disk: &str) -> bool {
    let size = || std::fs::read_to_string(under(builder.root, &format!("/sys/block/{disk}/size"))).ok()?.trim().parse::<u64>().ok();
    match &builder.targets.disks {
        Some(disks) => disks.iter().any(|wanted| wanted == disk),
        None => size().is_some_and(|sectors| sectors > 0),
    }
}

fn parse_line(line: &[u8]) -> Option<(&[u8], [Option<f64>; 11])> {
    Some((words(line).nth(2)?, numbers_at(line, [3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 18])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(line: &[u8]) -> Vec<Option<f64>> {
        parse_line(line).unwrap().1.to_vec()
    }

    #[test]
    fn twenty_columns_since_5_5() {
        let line = b" 254       0 vda 87435 25972 4619706 16807 16637 31979 3924408 11369 2 11116 28803 4901 53 487456 552 1915 75";
        let expected = [87435, 4_619_706, 16807, 16637, 3_924_408, 11369, 2, 11116, 28803, 4901, 1915];
        assert_eq!(parse(line), expected.map(|value| Some(f64::from(value))));
    }

    #[test]
    fn eighteen_columns_since_4_18_have_discards_but_no_flushes() {
        let row = parse(b"   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15");
        assert_eq!((row[9], row[10]), (Some(12.0), None));
    }

    #[test]
    fn fourteen_columns_before_have_neither() {
        let row = parse(b"   8       0 sda 1 2 3 4 5 6 7 8 9 10 11");
        assert_eq!((row[8], row[9], row[10]), (Some(11.0), None, None));
    }

    #[test]
    fn sectors_and_milliseconds_become_bytes_and_nanoseconds() {
        let text = b"   8 0 sda 1 2 3 4 5 6 7 8 9 10 11\n   8 1 sda1 1 2 3 4 5 6 7 8 9 10 11\n";
        let table = Table::new(text, parse_line, GROUP.columns, |disk| disk == "sda");
        let mut row = vec![None; table.width()];
        table.fill(text, &mut row);
        assert_eq!((row[1], row[2]), (Some(3.0 * 512.0), Some(4e6)));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            let table = Table::new(&text, parse_line, GROUP.columns, |_| true);
            table.fill(&text, &mut vec![None; table.width()]);
        }
    }
}
