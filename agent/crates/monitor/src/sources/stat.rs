//! `/proc/stat`: how CPU time was used, and scheduler events. It counts in ticks of 10 ms. So a single CPU's time in one short slot is
//! inexact, but the sum over a trial is not.

use partywall_kernels::Resource::{Cpu, Disk, Kernel, Network};

use super::{header, wants_cpu};
use crate::counter::{Column, Group, COUNT, TICKS};
use crate::keyed::Keyed;
use crate::reader::Builder;
use crate::table::Table;
use crate::text::{numbers_at, words};

pub(crate) const CPU: Group = Group {
    file: "/proc/stat",
    subject: "each CPU, and `cpu` for all",
    columns: &[
        Column::total(
            "user",
            "cpu_user_ns",
            "programs' time",
            TICKS,
            Cpu,
            "programs ran; the workload itself, or a neighbour on the same CPU",
        ),
        Column::total("nice", "cpu_nice_ns", "low-priority programs' time", TICKS, Cpu, "programs with lowered priority ran"),
        Column::total(
            "system",
            "cpu_system_ns",
            "time in the operating system",
            TICKS,
            Cpu,
            "the kernel worked for programs: system calls, page faults",
        ),
        Column::total("idle", "cpu_idle_ns", "idle time", TICKS, Cpu, "nothing to run"),
        Column::total(
            "iowait",
            "cpu_iowait_ns",
            "idle time waiting for disks",
            TICKS,
            Disk,
            "nothing to run while some program waited for a disk",
        ),
        Column::total("irq", "cpu_irq_ns", "time serving interrupts", TICKS, Kernel, "hardware interrupts were served"),
        Column::total(
            "softirq",
            "cpu_softirq_ns",
            "time serving packets and other deferred work",
            TICKS,
            Network,
            "deferred work of interrupts, on most hosts that of network packets",
        ),
        Column::total(
            "steal",
            "cpu_steal_ns",
            "time stolen by the hypervisor",
            TICKS,
            Cpu,
            "this virtual CPU could run, but the hypervisor ran something else",
        ),
        Column::total("guest", "cpu_guest_ns", "time given to guests", TICKS, Cpu, "virtual CPUs of guests ran (counted in user as well)"),
    ],
    cost: "no CPU use, no steal",
    remedy: "mount procfs on /proc",
};

pub(crate) const HOST: Group = Group {
    file: "/proc/stat",
    subject: "the host",
    columns: &[
        Column::total("intr", "interrupts_count", "interrupts", COUNT, Kernel, "interrupts of all devices"),
        Column::total("ctxt", "context_switches_count", "context switches", COUNT, Kernel, "a CPU went from one thread to another"),
        Column::total("processes", "forks_count", "processes and threads started", COUNT, Kernel, "processes and threads were started"),
        Column::gauge(
            "procs_running",
            "runnable_count",
            "threads that run or want to",
            COUNT,
            Cpu,
            "threads that run or wait for a CPU; more than CPUs means waiting",
        ),
        Column::gauge("procs_blocked", "blocked_count", "threads waiting for disks", COUNT, Disk, "threads that wait for a disk"),
    ],
    cost: "no context switches, no count of runnable threads",
    remedy: "mount procfs on /proc",
};

pub(crate) fn open(builder: &mut Builder) {
    let Some((file, text)) = builder.open(&CPU, CPU.file) else { return };
    let cpus = Table::new(&text, parse_line, CPU.columns, |subject| subject == "cpu" || wants_cpu(builder, subject));
    let host = Keyed::new(HOST.columns);
    builder.add_file(vec![(&CPU, cpus.header()), (&HOST, header(HOST.columns, None))], file, move |text, row| {
        let (of_cpus, of_host) = row.split_at_mut(cpus.width());
        cpus.fill(text, of_cpus);
        host.fill(text, of_host);
    });
}

fn parse_line(line: &[u8]) -> Option<(&[u8], [Option<f64>; 9])> {
    if !line.starts_with(b"cpu") {
        return None;
    }
    Some((words(line).next()?, numbers_at(line, [1, 2, 3, 4, 5, 6, 7, 8, 9])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Written by 6.18 on a virtual machine.
    const MODERN: &[u8] = b"\
cpu  15179 0 4777 211137 821 0 69 63 0 0
cpu0 5992 0 1901 108011 63 0 17 25 0 0
cpu1 9186 0 2875 103125 758 0 52 37 0 0
intr 280467 0 0 12
ctxt 490102
btime 1795260502
processes 8019
procs_running 3
procs_blocked 1
softirq 217372 0 23104 4
";

    #[test]
    fn ticks_become_nanoseconds() {
        assert_eq!(
            parse_line(b"cpu1 9186 0 2875 103125 758 0 52 37 0 0"),
            Some((&b"cpu1"[..], [9186, 0, 2875, 103_125, 758, 0, 52, 37, 0].map(|ticks| Some(f64::from(ticks)))))
        );
        let table = Table::new(MODERN, parse_line, CPU.columns, |_| true);
        let mut row = vec![None; table.width()];
        table.fill(MODERN, &mut row);
        assert_eq!(table.subjects(), ["cpu", "cpu0", "cpu1"]);
        assert_eq!(row[2 * 9 + 7], Some(370_000_000.0), "steal of cpu1");
    }

    #[test]
    fn kernels_before_steal_and_guest_have_fewer_columns() {
        // 2.6.10: seven numbers.
        let (_, numbers) = parse_line(b"cpu0 1 2 3 4 5 6 7").unwrap();
        assert_eq!(numbers[6..], [Some(7.0), None, None]);
    }

    #[test]
    fn columns_of_later_kernels_are_left_out() {
        let (_, numbers) = parse_line(b"cpu0 1 2 3 4 5 6 7 8 9 10 11 12").unwrap();
        assert_eq!(numbers[8], Some(9.0));
    }

    #[test]
    fn a_cpu_taken_offline_has_no_values() {
        let table = Table::new(MODERN, parse_line, CPU.columns, |_| true);
        let mut row = vec![None; table.width()];
        table.fill(b"cpu  1 2 3 4 5 6 7 8 9\ncpu0 1 2 3 4 5 6 7 8 9\n", &mut row);
        assert!(row[..18].iter().all(Option::is_some) && row[18..].iter().all(Option::is_none));
    }

    #[test]
    fn the_host_has_its_own_lines() {
        let mut row = [None; 5];
        Keyed::new(HOST.columns).fill(MODERN, &mut row);
        assert_eq!(row, [280_467, 490_102, 8019, 3, 1].map(|value| Some(f64::from(value))));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>, later in "(cpu[0-9 ]{0,9}\n|.)*") {
            let table = Table::new(&text, parse_line, CPU.columns, |_| true);
            table.fill(later.as_bytes(), &mut vec![None; table.width()]);
            let table = Table::new(later.as_bytes(), parse_line, CPU.columns, |_| true);
            table.fill(later.as_bytes(), &mut vec![None; table.width()]);
        }
    }
}
