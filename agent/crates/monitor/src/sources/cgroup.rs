//! Counters of a cgroup, v1 or v2: CPU used and throttled, memory used and its limit hit, and (v2) pressure. The same
//! counter has the same name in both. `memory.stat` is left out: reading it costs more than all the rest.

use partywall_facts::cgroup::CgroupFolders;
use partywall_kernels::Resource::{Cpu, Disk, MemoryCapacity};

use super::{header, pressure};
use crate::counter::{Column, Group, BYTES, COUNT, MICROSECONDS, NANOSECONDS};
use crate::keyed::{fill_single, Keyed};
use crate::reader::Builder;
use crate::targets::CgroupTarget;

const V1: &str = "each cgroup (v1)";
const V2: &str = "each cgroup (v2)";
const V1_REMEDY: &str = "check the folder; the controller must be mounted and the cgroup must exist in it";
const V2_REMEDY: &str = "enable the controller in cgroup.subtree_control of the folder above; root cgroups have no such file";

const USAGE: &str = "threads of the cgroup ran";
const PERIODS: &str = "periods in which the cgroup wanted CPU under a limit";
const THROTTLED: &str = "periods in which the CPU limit was used up and threads were stopped";
const THROTTLED_NS: &str = "threads were stopped by the CPU limit, summed over CPUs";
const MEMORY: &str = "memory of the cgroup, page cache included";
const HITS: &str = "the cgroup wanted more than its memory limit and had to reclaim first";
const KILLS: &str = "a process of the cgroup was killed for lack of memory";

pub(crate) const V1_CPU: Group = Group {
    file: "cpu/…/cpu.stat",
    subject: V1,
    columns: &[
        Column::total("nr_periods", "cgroup_cpu_periods_count", "periods under a CPU limit", COUNT, Cpu, PERIODS),
        Column::total("nr_throttled", "cgroup_cpu_throttled_periods_count", "periods stopped by a CPU limit", COUNT, Cpu, THROTTLED),
        Column::total("throttled_time", "cgroup_cpu_throttled_ns", "time stopped by a CPU limit", NANOSECONDS, Cpu, THROTTLED_NS),
    ],
    cost: "throttling by a CPU limit is not seen",
    remedy: V1_REMEDY,
};

pub(crate) const V1_CPUACCT: Group = Group {
    file: "cpuacct/…/cpuacct.usage",
    subject: V1,
    columns: &[Column::total("", "cgroup_cpu_usage_ns", "CPU time", NANOSECONDS, Cpu, USAGE)],
    cost: "CPU used by the cgroup is not seen",
    remedy: V1_REMEDY,
};

pub(crate) const V1_MEMORY_USAGE: Group = Group {
    file: "memory/…/memory.usage_in_bytes",
    subject: V1,
    columns: &[Column::gauge("", "cgroup_memory_bytes", "memory", BYTES, MemoryCapacity, MEMORY)],
    cost: "memory used by the cgroup is not seen",
    remedy: V1_REMEDY,
};

pub(crate) const V1_MEMORY_FAILCNT: Group = Group {
    file: "memory/…/memory.failcnt",
    subject: V1,
    columns: &[Column::total("", "cgroup_memory_limit_hits_count", "hits of the memory limit", COUNT, MemoryCapacity, HITS)],
    cost: "hits of the memory limit are not seen",
    remedy: V1_REMEDY,
};

pub(crate) const V1_MEMORY_OOM: Group = Group {
    file: "memory/…/memory.oom_control",
    subject: V1,
    columns: &[Column::total("oom_kill", "cgroup_oom_kills_count", "processes killed for lack of memory", COUNT, MemoryCapacity, KILLS)],
    cost: "kills for lack of memory are not seen",
    remedy: V1_REMEDY,
};

pub(crate) const V2_CPU: Group = Group {
    file: "…/cpu.stat",
    subject: V2,
    columns: &[
        Column::total("usage_usec", "cgroup_cpu_usage_ns", "CPU time", MICROSECONDS, Cpu, USAGE),
        Column::total("nr_periods", "cgroup_cpu_periods_count", "periods under a CPU limit", COUNT, Cpu, PERIODS),
        Column::total("nr_throttled", "cgroup_cpu_throttled_periods_count", "periods stopped by a CPU limit", COUNT, Cpu, THROTTLED),
        Column::total("throttled_usec", "cgroup_cpu_throttled_ns", "time stopped by a CPU limit", MICROSECONDS, Cpu, THROTTLED_NS),
    ],
    cost: "CPU use and throttling of the cgroup are not seen",
    remedy: V2_REMEDY,
};

pub(crate) const V2_MEMORY_CURRENT: Group = Group {
    file: "…/memory.current",
    subject: V2,
    columns: &[Column::gauge("", "cgroup_memory_bytes", "memory", BYTES, MemoryCapacity, MEMORY)],
    cost: "memory used by the cgroup is not seen",
    remedy: V2_REMEDY,
};

pub(crate) const V2_MEMORY_EVENTS: Group = Group {
    file: "…/memory.events",
    subject: V2,
    columns: &[
        Column::total(
            "high",
            "cgroup_memory_high_hits_count",
            "slowdowns by memory.high",
            COUNT,
            MemoryCapacity,
            "the cgroup passed memory.high and was slowed down",
        ),
        Column::total("max", "cgroup_memory_limit_hits_count", "hits of the memory limit", COUNT, MemoryCapacity, HITS),
        Column::total("oom_kill", "cgroup_oom_kills_count", "processes killed for lack of memory", COUNT, MemoryCapacity, KILLS),
    ],
    cost: "hits of the memory limit and kills are not seen",
    remedy: V2_REMEDY,
};

pub(crate) const V2_SWAP: Group = Group {
    file: "…/memory.swap.current",
    subject: V2,
    columns: &[Column::gauge(
        "",
        "cgroup_swap_bytes",
        "swapped-out memory",
        BYTES,
        MemoryCapacity,
        "memory of the cgroup that was swapped out",
    )],
    cost: "swap used by the cgroup is not seen",
    remedy: "a kernel with swap built in; the memory controller enabled in cgroup.subtree_control of the folder above",
};

pub(crate) const V2_CPU_PRESSURE: Group = Group {
    file: "…/cpu.pressure",
    subject: V2,
    columns: &[
        Column::total(
            "some",
            "cgroup_cpu_pressure_some_ns",
            "time some thread waited for a CPU",
            MICROSECONDS,
            Cpu,
            "at least one thread of the cgroup waited for a CPU",
        ),
        Column::total(
            "full",
            "cgroup_cpu_pressure_full_ns",
            "time no thread got a CPU",
            MICROSECONDS,
            Cpu,
            "no thread of the cgroup that had work got a CPU",
        ),
    ],
    cost: "time the cgroup lost for lack of a CPU is not seen",
    remedy: "boot with psi=1, or a kernel built with CONFIG_PSI",
};

pub(crate) const V2_MEMORY_PRESSURE: Group = Group {
    file: "…/memory.pressure",
    subject: V2,
    columns: &[
        Column::total(
            "some",
            "cgroup_memory_pressure_some_ns",
            "time some thread waited for memory",
            MICROSECONDS,
            MemoryCapacity,
            "at least one thread of the cgroup waited for memory",
        ),
        Column::total(
            "full",
            "cgroup_memory_pressure_full_ns",
            "time all threads waited for memory",
            MICROSECONDS,
            MemoryCapacity,
            "every thread of the cgroup that had work waited for memory",
        ),
    ],
    cost: "time the cgroup lost for lack of memory is not seen",
    remedy: "boot with psi=1, or a kernel built with CONFIG_PSI",
};

pub(crate) const V2_IO_PRESSURE: Group = Group {
    file: "…/io.pressure",
    subject: V2,
    columns: &[
        Column::total(
            "some",
            "cgroup_io_pressure_some_ns",
            "time some thread waited for a disk",
            MICROSECONDS,
            Disk,
            "at least one thread of the cgroup waited for a disk",
        ),
        Column::total(
            "full",
            "cgroup_io_pressure_full_ns",
            "time all threads waited for a disk",
            MICROSECONDS,
            Disk,
            "every thread of the cgroup that had work waited for a disk",
        ),
    ],
    cost: "time the cgroup lost waiting for disks is not seen",
    remedy: "boot with psi=1, or a kernel built with CONFIG_PSI",
};

/// How a file's text fills its row.
#[derive(Clone, Copy)]
enum Shape {
    Keyed,
    Single,
    Pressure,
}

/// A v1 file belongs to one controller.
const V1_FILES: [(&str, &Group, Shape); 5] = [
    ("cpu", &V1_CPU, Shape::Keyed),
    ("cpuacct", &V1_CPUACCT, Shape::Single),
    ("memory", &V1_MEMORY_USAGE, Shape::Single),
    ("memory", &V1_MEMORY_FAILCNT, Shape::Single),
    ("memory", &V1_MEMORY_OOM, Shape::Keyed),
];

/// A v2 file is read unless a v1 controller reports the same.
const V2_FILES: [(&str, &Group, Shape); 7] = [
    ("cpu", &V2_CPU, Shape::Keyed),
    ("memory", &V2_MEMORY_CURRENT, Shape::Single),
    ("memory", &V2_MEMORY_EVENTS, Shape::Keyed),
    ("memory", &V2_SWAP, Shape::Single),
    ("", &V2_CPU_PRESSURE, Shape::Pressure),
    ("", &V2_MEMORY_PRESSURE, Shape::Pressure),
    ("", &V2_IO_PRESSURE, Shape::Pressure),
];

pub(crate) fn open(builder: &mut Builder) {
    for target in &builder.targets.cgroups {
        for (path, group, shape) in files(&target.folders) {
            open_file(builder, target, &path, group, shape);
        }
    }
}

/// The files to read of a cgroup.
fn files(folders: &CgroupFolders) -> Vec<(String, &'static Group, Shape)> {
    let path = |folder: &str, group: &Group| format!("{folder}/{}", group.file.rsplit('/').next().unwrap_or_default());
    let v1 = V1_FILES.iter().filter_map(|&(controller, group, shape)| Some((path(folders.v1.get(controller)?, group), group, shape)));
    let left = V2_FILES.iter().filter(|(controller, ..)| !folders.v1.contains_key(*controller));
    let v2 = left.filter_map(|&(_, group, shape)| Some((path(folders.v2.as_ref()?, group), group, shape)));
    v1.chain(v2).collect()
}

fn open_file(builder: &mut Builder, target: &CgroupTarget, path: &str, group: &'static Group, shape: Shape) {
    let Some((file, _)) = builder.open(group, path) else { return };
    let parts = vec![(group, header(group.columns, Some(&target.label)))];
    match shape {
        Shape::Keyed => {
            let keyed = Keyed::new(group.columns);
            builder.add_file(parts, file, move |text, row| keyed.fill(text, row));
        }
        Shape::Single => builder.add_file(parts, file, |text, row| fill_single(text, group.columns[0].step, row)),
        Shape::Pressure => builder.add_file(parts, file, |text, row| pressure::fill(group, text, row)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn names(folders: &CgroupFolders) -> Vec<String> {
        files(folders).into_iter().map(|(path, ..)| path).collect()
    }

    #[test]
    fn on_a_hybrid_host_v1_counts_and_v2_adds_pressure() {
        let v1 = BTreeMap::from([("cpu", "/c/cpu/a"), ("memory", "/c/memory/a")].map(|(name, path)| (name.to_owned(), path.to_owned())));
        let both = CgroupFolders { v1, v2: Some("/c/unified/a".into()) };
        assert_eq!(
            names(&both),
            [
                "/c/cpu/a/cpu.stat",
                "/c/memory/a/memory.usage_in_bytes",
                "/c/memory/a/memory.failcnt",
                "/c/memory/a/memory.oom_control",
                "/c/unified/a/cpu.pressure",
                "/c/unified/a/memory.pressure",
                "/c/unified/a/io.pressure",
            ]
        );
    }

    #[test]
    fn v2_alone_is_read_from_one_folder() {
        let files = names(&CgroupFolders { v1: BTreeMap::new(), v2: Some("/c/a".into()) });
        assert_eq!(files.len(), 7);
        assert_eq!(files[0], "/c/a/cpu.stat");
    }

    #[test]
    fn throttling_is_in_nanoseconds_in_both_versions() {
        let mut v1 = [None; 3];
        Keyed::new(V1_CPU.columns).fill(b"nr_periods 10\nnr_throttled 4\nthrottled_time 123456789\nnr_bursts 0\n", &mut v1);
        assert_eq!(v1, [Some(10.0), Some(4.0), Some(123_456_789.0)]);
        let mut v2 = [None; 4];
        Keyed::new(V2_CPU.columns).fill(b"usage_usec 5\nuser_usec 4\nnr_periods 10\nnr_throttled 4\nthrottled_usec 123456\n", &mut v2);
        assert_eq!(v2, [Some(5000.0), Some(10.0), Some(4.0), Some(123_456_000.0)]);
    }

    #[test]
    fn without_a_cpu_controller_v2_tells_use_only() {
        let mut row = [None; 4];
        Keyed::new(V2_CPU.columns).fill(b"usage_usec 5\nuser_usec 4\nsystem_usec 1\n", &mut row);
        assert_eq!(row, [Some(5000.0), None, None, None]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(nr_periods|max|[0-9 ]|.|\n)*") {
            Keyed::new(V2_CPU.columns).fill(text.as_bytes(), &mut [None; 4]);
            fill_single(text.as_bytes(), 1.0, &mut [None]);
        }
    }
}
