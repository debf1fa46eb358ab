//! `/proc/schedstat`: for each CPU, how long threads ran on it and how long they waited for it, in nanoseconds.

use partywall_kernels::Resource::{Cpu, Kernel};

use super::wants_cpu;
use crate::counter::{Column, Group, COUNT, NANOSECONDS};
use crate::reader::Builder;
use crate::table::Table;
use crate::text::{numbers_at, words};

pub(crate) const GROUP: Group = Group {
    file: "/proc/schedstat",
    subject: "each CPU",
    columns: &[
        Column::total("7th", "cpu_run_ns", "time threads ran", NANOSECONDS, Cpu, "threads ran; finer than the ticks of `/proc/stat`"),
        Column::total(
            "8th",
            "cpu_run_queue_wait_ns",
            "time threads waited for the CPU",
            NANOSECONDS,
            Cpu,
            "threads could run, but waited for this CPU",
        ),
        Column::total("9th", "cpu_timeslices_count", "turns given to threads", COUNT, Kernel, "threads were given this CPU"),
    ],
    cost: "waiting is known only of the processes watched, not of each CPU",
    remedy: "a kernel built with CONFIG_SCHEDSTATS",
};

pub(crate) fn open(builder: &mut Builder) {
    let Some((file, text)) = builder.open(&GROUP, GROUP.file) else { return };
    let table = Table::new(&text, parse_line, GROUP.columns, |subject| wants_cpu(builder, subject));
    builder.add_file(vec![(&GROUP, table.header())], file, move |text, row| table.fill(text, row));
}

fn parse_line(line: &[u8]) -> Option<(&[u8], [Option<f64>; 3])> {
    if !line.starts_with(b"cpu") {
        return None;
    }
    Some((words(line).next()?, numbers_at(line, [7, 8, 9])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_three_of_nine_are_read_and_domains_are_not() {
        let text = b"version 15\ntimestamp 4295\ncpu0 0 0 0 0 0 0 500 70 9\ndomain0 3 1 2 3\ncpu1 0 0 0 0 0 0 1 2 3\n";
        let table = Table::new(text, parse_line, GROUP.columns, |_| true);
        let mut row = vec![None; table.width()];
        table.fill(text, &mut row);
        assert_eq!(table.subjects(), ["cpu0", "cpu1"]);
        assert_eq!(row, [500, 70, 9, 1, 2, 3].map(|value| Some(f64::from(value))));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(line: Vec<u8>) {
            let _ = parse_line(&[b"cpu", &line[..]].concat());
        }
    }
}
