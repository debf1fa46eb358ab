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

/// Columns in milliseconds.
const TIMES: [usize; 4] = [2, 5, 7, 8];
/// Such a time wraps here. With many requests in flight, the weighted time does so within hours.
const WRAP: f64 = 4_294_967_296.0;
/// The column of requests in progress. Drivers of kernels before 5.0 could print -1, also as an unsigned number.
const IN_FLIGHT: usize = 6;
const IN_FLIGHT_MAX: f64 = 2_147_483_648.0;

pub(crate) fn open(builder: &mut Builder) {
    let disks = builder.targets.disks.clone().unwrap_or_else(|| default_disks(builder.root));
    if disks.is_empty() {
        builder.lack(&GROUP, "/sys/block lists no disk that holds anything".into());
    }
    for disk in disks {
        if let Some((file, _)) = builder.open(&GROUP, &GROUP.file.replace('*', &disk)) {
            let mut parser = Parser::default();
            builder.add_file(vec![(&GROUP, header(GROUP.columns, Some(&disk)))], file, move |text, row| parser.fill(text, row));
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

/// Parses the text of one disk. Both rules are those of `partywall watch`.
#[derive(Default)]
struct Parser {
    times: [Unwrapped; TIMES.len()],
}

impl Parser {
    fn fill(&mut self, text: &[u8], row: &mut Row) {
        let mut numbers = numbers_at(text, [0, 2, 3, 4, 6, 7, 8, 9, 10, 11, 15]);
        for (place, time) in TIMES.into_iter().zip(&mut self.times) {
            numbers[place] = numbers[place].map(|ms| time.total(ms));
        }
        numbers[IN_FLIGHT] = numbers[IN_FLIGHT].filter(|requests| (0.0..IN_FLIGHT_MAX).contains(requests));
        scaled(numbers, GROUP.columns, row);
    }
}

/// A time that the kernel prints as a 32-bit number, continued where it wraps.
#[derive(Default)]
struct Unwrapped(Option<Counted>);

struct Counted {
    printed: f64,
    total: f64,
}

impl Unwrapped {
    fn total(&mut self, printed: f64) -> f64 {
        let before = self.0.take().unwrap_or(Counted { printed, total: printed });
        let change = (printed - before.printed).rem_euclid(WRAP);
        // Times of requests that overlap may go back a little.
        let change = if change < WRAP / 2.0 { change } else { 0.0 };
        let total = before.total + change;
        self.0 = Some(Counted { printed, total });
        total
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{filled, value};
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Vec<Option<f64>> {
        filled(GROUP.columns, text, |text, row| Parser::default().fill(text, row))
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

    #[test]
    fn a_count_of_requests_below_zero_is_unknown() {
        for printed in ["-1", "4294967295", "18446744073709551615"] {
            let row = parse(format!("1 2 3 4 5 6 7 8 {printed} 10 11\n").as_bytes());
            assert_eq!((row[5], row[6], row[7]), (Some(8e6), None, Some(10e6)), "{printed}");
        }
    }

    #[test]
    fn times_go_on_where_they_wrap() {
        let mut parser = Parser::default();
        let mut queue = |ms: u64| {
            let text = format!("1 2 3 4 5 6 7 8 9 10 {ms}\n");
            filled(GROUP.columns, text.as_bytes(), |text, row| parser.fill(text, row))[8]
        };
        assert_eq!(queue(4_294_967_290), Some(4_294_967_290e6));
        assert_eq!(queue(4), Some(4_294_967_300e6));
        // A step back is no wrap.
        assert_eq!(queue(2), Some(4_294_967_300e6));
        assert_eq!(queue(12), Some(4_294_967_310e6));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            let _ = parse(&text);
        }
    }
}
