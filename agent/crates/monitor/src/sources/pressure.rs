//! `/proc/pressure`: how long some or all threads were stalled by lack of a resource (PSI).

use partywall_kernels::Resource::{Cpu, Disk, MemoryCapacity};

use super::header;
use crate::counter::{Column, Group, MICROSECONDS};
use crate::reader::{Builder, Row};
use crate::text::{lines, number, words};

const REMEDY: &str = "boot with psi=1, or a kernel built with CONFIG_PSI";

pub(crate) const CPU: Group = Group {
    file: "/proc/pressure/cpu",
    subject: "the host",
    columns: &[Column::total(
        "some",
        "cpu_pressure_some_ns",
        "time some thread waited for a CPU",
        MICROSECONDS,
        Cpu,
        "at least one thread waited for a CPU",
    )],
    cost: "time lost for lack of a CPU is known only of the processes watched",
    remedy: REMEDY,
};

pub(crate) const MEMORY: Group = Group {
    file: "/proc/pressure/memory",
    subject: "the host",
    columns: &[
        Column::total(
            "some",
            "memory_pressure_some_ns",
            "time some thread waited for memory",
            MICROSECONDS,
            MemoryCapacity,
            "at least one thread waited for memory to be reclaimed or swapped",
        ),
        Column::total(
            "full",
            "memory_pressure_full_ns",
            "time all threads waited for memory",
            MICROSECONDS,
            MemoryCapacity,
            "every thread that had work waited for memory",
        ),
    ],
    cost: "time lost for lack of memory is not seen, only that memory was reclaimed",
    remedy: REMEDY,
};

pub(crate) const IO: Group = Group {
    file: "/proc/pressure/io",
    subject: "the host",
    columns: &[
        Column::total(
            "some",
            "io_pressure_some_ns",
            "time some thread waited for a disk",
            MICROSECONDS,
            Disk,
            "at least one thread waited for a disk",
        ),
        Column::total(
            "full",
            "io_pressure_full_ns",
            "time all threads waited for a disk",
            MICROSECONDS,
            Disk,
            "every thread that had work waited for a disk",
        ),
    ],
    cost: "time lost waiting for disks is seen only as queues",
    remedy: REMEDY,
};

pub(crate) fn open(builder: &mut Builder) {
    for group in [&CPU, &MEMORY, &IO] {
        if let Some((file, _)) = builder.open(group, group.file) {
            builder.add_file(vec![(group, header(group.columns, None))], file, |text, row| fill(group, text, row));
        }
    }
}

/// Fills a row of `group` from a pressure file, the host's or a cgroup's.
pub(super) fn fill(group: &Group, text: &[u8], row: &mut Row) {
    for line in lines(text) {
        let Some((key, total)) = parse_line(line) else { continue };
        for (value, _) in row.iter_mut().zip(group.columns).filter(|(_, column)| column.key.as_bytes() == key) {
            *value = Some(total * group.columns[0].step);
        }
    }
}

fn parse_line(line: &[u8]) -> Option<(&[u8], f64)> {
    let mut words = words(line);
    let key = words.next()?;
    let total = words.find_map(|word| word.strip_prefix(b"total="))?;
    Some((key, number(total)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8] = b"some avg10=5.27 avg60=7.11 avg300=2.33 total=15890083\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";

    #[test]
    fn microseconds_become_nanoseconds() {
        let mut row = [None; 2];
        fill(&IO, TEXT, &mut row);
        assert_eq!(row, [Some(15_890_083_000.0), Some(7000.0)]);
    }

    #[test]
    fn a_line_the_kernel_does_not_write_stays_empty() {
        let mut row = [None; 2];
        fill(&IO, b"full avg10=0.00 total=7\n", &mut row);
        assert_eq!(row, [None, Some(7000.0)]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(some|full|total=|[0-9]|.|\n)*") {
            fill(&IO, text.as_bytes(), &mut [None; 2]);
        }
    }
}
