//! Facts read from hosts represented as folders, and from the test host.

use std::fs;
use std::path::Path;

use partywall_facts::cpu::{Cache, CacheKind, Place};
use partywall_facts::kernel::{IoUring, Resctrl};
use partywall_facts::{read, under, HostFacts};
use tempfile::TempDir;

/// A host in a folder, defined file by file.
struct Host(TempDir);

impl Host {
    fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = under(self.0.path(), path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn cache(self, cpu: u32, index: u32, [level, kind, size, shared]: [&str; 4]) -> Self {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
        self.with(&format!("{folder}/level"), level)
            .with(&format!("{folder}/type"), kind)
            .with(&format!("{folder}/size"), size)
            .with(&format!("{folder}/shared_cpu_list"), shared)
            .with(&format!("{folder}/coherency_line_size"), "64\n")
    }

    fn facts(&self) -> HostFacts {
        read(self.0.path())
    }
}

/// Two cores of two threads each; one L2 per core, one L3.
fn smt() -> Host {
    let mut host = Host::empty()
        .with(
            "/proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Test CPU @ 3.00GHz\nmicrocode\t: 0xd1\nflags\t\t: fpu sse hypervisor\n\nprocessor\t: 1\n",
        )
        .with("/sys/devices/system/cpu/online", "0-3\n")
        .with("/sys/devices/system/cpu/isolated", "\n")
        .with("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n")
        .with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n")
        .with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
        .with("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "3000000\n");
    for cpu in 0..4 {
        let core = cpu % 2;
        let siblings = format!("{core},{}\n", core + 2);
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        host = host
            .with(&format!("{topology}/physical_package_id"), "0\n")
            .with(&format!("{topology}/core_id"), format!("{core}\n"))
            .with(&format!("{topology}/thread_siblings_list"), &siblings)
            .cache(cpu, 0, ["1", "Data", "32K", &siblings])
            .cache(cpu, 2, ["2", "Unified", "1024K", &siblings])
            .cache(cpu, 3, ["3", "Unified", "32M", "0-3"]);
    }
    host
}

#[test]
fn cpus_are_placed_and_each_cache_is_listed_once() {
    let cpu = smt().facts().cpu;
    assert_eq!(cpu.model.as_deref(), Some("Test CPU @ 3.00GHz"));
    assert_eq!(cpu.microcode.as_deref(), Some("0xd1"));
    assert_eq!(cpu.online, Some(vec![0, 1, 2, 3]));
    assert_eq!(cpu.isolated, Some(vec![]));
    assert_eq!(cpu.smt, Some(true));
    assert_eq!(cpu.turbo, Some(false));
    assert_eq!(cpu.places[3], Place { cpu: 3, package: Some(0), core: Some(1), siblings: vec![1, 3] });
    let shared: Vec<_> = cpu.caches.iter().map(|cache| (cache.level, cache.shared_by.clone())).collect();
    assert_eq!(shared, [(1, vec![0, 2]), (1, vec![1, 3]), (2, vec![0, 2]), (2, vec![1, 3]), (3, vec![0, 1, 2, 3])]);
    let last =
        Cache { level: 3, holds: CacheKind::Unified, size_bytes: 32 << 20, line_bytes: Some(64), ways: None, shared_by: vec![0, 1, 2, 3] };
    assert_eq!(cpu.caches[4], last);
    let frequency = cpu.frequency.unwrap();
    assert_eq!((frequency.driver.as_deref(), frequency.max_hz, frequency.min_hz), (Some("intel_pstate"), Some(3_000_000_000), None));
}

#[test]
fn a_host_that_reports_nothing_gives_only_reasons() {
    let facts = Host::empty().facts();
    assert_eq!((facts.cpu.model, facts.memory.total_bytes, facts.kernel.release), (None, None, None));
    assert_eq!(facts.cgroup.mode, None);
    assert_eq!(facts.kernel.resctrl, Resctrl::Absent);
    for what in ["CPU model", "online CPUs", "caches", "memory size", "kernel release", "cgroups", "RAPL", "hardware counters"] {
        let missing = facts.missing.iter().find(|missing| missing.what == what).unwrap_or_else(|| panic!("{what}"));
        assert!(!missing.why.is_empty() && !missing.cost.is_empty() && !missing.remedy.is_empty(), "{missing:?}");
    }
}

#[test]
fn memory_and_its_nodes_are_in_bytes() {
    let memory = Host::empty()
        .with("/proc/meminfo", "MemTotal:  2048 kB\nMemAvailable:  1024 kB\nSwapTotal:  0 kB\nHugePages_Total:  2\n")
        .with("/sys/devices/system/node/node1/cpulist", "4-5\n")
        .with("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       1000 kB\nNode 1 MemFree: 1 kB\n")
        .with("/sys/devices/system/node/has_cpu", "1\n")
        .with("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n")
        .facts()
        .memory;
    assert_eq!((memory.total_bytes, memory.available_bytes, memory.swap_bytes), (Some(2 << 20), Some(1 << 20), Some(0)));
    assert_eq!((memory.nodes.len(), memory.nodes[0].node, memory.nodes[0].total_bytes), (1, 1, Some(1_024_000)));
    assert_eq!((memory.transparent_huge_pages.as_deref(), memory.huge_pages), (Some("always"), Some(2)));
}

#[test]
fn firmware_is_one_text_of_what_the_tables_have() {
    let facts = Host::empty().with("/sys/class/dmi/id/bios_vendor", "Acme\n").with("/sys/class/dmi/id/bios_date", "04/01/2026\n").facts();
    assert_eq!(facts.virtualisation.firmware.as_deref(), Some("Acme 04/01/2026"));
    assert_eq!(Host::empty().facts().virtualisation.firmware, None);
}

#[test]
fn neighbours_are_what_init_has_started_each_once() {
    let host = Host::empty()
        .with("/proc/1/stat", "1 (init) S 0 1 1")
        .with("/proc/2/stat", "2 (kthreadd) S 0 0 0")
        .with("/proc/30/stat", "30 (kworker/0:1) I 2 0 0")
        .with("/proc/40/stat", "40 (qemu (web) x) S 1 40 40")
        .with("/proc/41/stat", "41 (containerd) S 1 41 41")
        .with("/proc/42/stat", "42 (containerd) S 1 42 42")
        .with("/proc/50/stat", "50 (bash) S 41 50 50")
        .with("/proc/60/stat", "cut off")
        .with("/proc/self/cgroup", "0::/\n");
    assert_eq!(host.facts().neighbours, ["containerd", "qemu (web) x"]);
}

#[test]
fn disks_of_size_0_are_skipped() {
    let disks = Host::empty()
        .with("/sys/block/loop0/size", "0\n")
        .with("/sys/block/sda/size", "2048\n")
        .with("/sys/block/sda/queue/rotational", "1\n")
        .with("/sys/block/sda/queue/scheduler", "mq-deadline kyber [bfq] none\n")
        .with("/sys/block/nvme0n1/size", "4096\n")
        .with("/sys/block/nvme0n1/queue/scheduler", "none\n")
        .facts()
        .disks;
    let listed: Vec<_> = disks.iter().map(|disk| (disk.name.as_str(), disk.size_bytes, disk.scheduler.as_deref())).collect();
    assert_eq!(listed, [("nvme0n1", 4096 * 512, Some("none")), ("sda", 2048 * 512, Some("bfq"))]);
    assert_eq!((disks[0].rotational, disks[1].rotational), (None, Some(true)));
}

#[test]
fn switches_of_the_kernel_are_read() {
    let kernel = Host::empty()
        .with("/proc/sys/kernel/io_uring_disabled", "2\n")
        .with("/proc/sys/kernel/perf_event_paranoid", "-1\n")
        .with("/proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n")
        .with("/sys/bus/event_source/devices/cpu_core/type", "4\n")
        .with("/proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        .facts()
        .kernel;
    assert_eq!(kernel.io_uring, Some(IoUring::Disabled));
    assert_eq!(kernel.perf_event_paranoid, Some(-1));
    assert_eq!(kernel.resctrl, Resctrl::Supported);
    assert!(kernel.hardware_counters && kernel.pressure && !kernel.rapl);
}

#[test]
fn invalid_text_is_missing_with_the_text() {
    let facts = smt().with("/sys/devices/system/cpu/online", "nonsense\n").facts();
    assert_eq!((facts.cpu.online, facts.cpu.smt), (None, None));
    let missing = facts.missing.iter().find(|missing| missing.what == "online CPUs").unwrap();
    assert!(missing.why.contains("nonsense"), "{missing:?}");
}

#[test]
fn firmware_strings_that_are_not_utf8_are_read() {
    let facts = Host::empty().with("/sys/class/dmi/id/product_name", b"Box \xff9\n").facts();
    assert_eq!(facts.virtualisation.product.as_deref(), Some("Box \u{fffd}9"));
}

#[test]
fn the_test_host_has_facts_that_survive_the_wire() {
    let facts = read(Path::new("/"));
    assert!(facts.kernel.release.is_some());
    assert!(facts.memory.total_bytes > facts.memory.available_bytes);
    assert_eq!(facts.cpu.places.len(), facts.cpu.online.as_ref().unwrap().len());
    let back: HostFacts = serde_json::from_str(&serde_json::to_string(&facts).unwrap()).unwrap();
    assert_eq!(back, facts);
}

#[test]
fn only_permitted_cpus_that_are_online_count() {
    let status = "Name:\tagent\nCpus_allowed_list:\t0-127\n";
    assert_eq!(smt().with("/proc/self/status", status).facts().cpus_allowed, Some(vec![0, 1, 2, 3]));
    assert_eq!(smt().with("/proc/self/status", "Cpus_allowed_list:\t2,9\n").facts().cpus_allowed, Some(vec![2]));
    assert_eq!(smt().facts().cpus_allowed, Some(vec![0, 1, 2, 3]), "without a list all that are online");
}

#[test]
fn a_host_without_sysfs_tells_its_cpus_in_cpuinfo() {
    let host = Host::empty().with("/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 85\n\nprocessor\t: 3\n");
    assert_eq!(host.facts().cpus_allowed, Some(vec![0, 3]));
    let s390 =
        "# processors    : 2\nprocessor 0: version = FF, machine = 2964\nprocessor 1: version = FF, machine = 2964\ncpu number      : 0\n";
    assert_eq!(Host::empty().with("/proc/cpuinfo", s390).facts().cpus_allowed, Some(vec![0, 1]));
    let facts = Host::empty().facts();
    assert_eq!(facts.cpus_allowed, None);
    for what in [partywall_facts::cpu::ALLOWED, "CPU frequency"] {
        assert!(facts.missing.iter().any(|missing| missing.what == what), "{what}");
    }
}

#[test]
fn memory_without_an_estimate_is_what_is_free_or_cached() {
    let memory = Host::empty().with("/proc/meminfo", "MemTotal: 9 kB\nMemFree: 2 kB\nCached: 3 kB\n").facts().memory;
    assert_eq!((memory.available_bytes, memory.usable_bytes), (Some(5 << 10), Some(5 << 10)));
    let huge = format!("MemFree: {0} kB\nCached: {0} kB\n", u64::MAX >> 10);
    assert_eq!(Host::empty().with("/proc/meminfo", huge).facts().memory.usable_bytes, None, "a sum that is no number");
}

/// A cgroup with a limit, seen through the given mounts.
fn limited(cgroup: &str, mounts: &str) -> Option<String> {
    let host = Host::empty()
        .with("/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
        .with("/proc/self/cgroup", cgroup)
        .with("/proc/self/mountinfo", mounts)
        .with("/sys/fs/cgroup/memory.max", "max\n")
        .with("/sys/fs/cgroup/memory.current", "9\n")
        .with("/sys/fs/cgroup/inner/memory.max", "4096\n")
        .with("/sys/fs/cgroup/inner/memory.current", "96\n")
        .with("/sys/fs/a#b c/memory.max", "8192\n")
        .with("/sys/fs/a#b c/memory.current", "0\n");
    host.facts().memory.limit.map(|limit| limit.folder)
}

#[test]
fn of_several_mounts_of_cgroups_the_first_is_used() {
    let first = "28 23 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let both = format!("{first}51 22 0:25 / /run/host/cgroup rw - cgroup2 cgroup2 rw\n");
    assert_eq!(limited("0::/inner\n", &both).as_deref(), Some("/sys/fs/cgroup/inner"));
}

#[test]
fn a_mount_that_shows_a_part_of_the_hierarchy_is_walked_from_there() {
    let part = "28 23 0:25 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    assert_eq!(limited("0::/docker/1/inner\n", part).as_deref(), Some("/sys/fs/cgroup/inner"));
    assert_eq!(limited("0::/docker/11/inner\n", part), None, "a part of a name is none");
}

#[test]
fn a_cgroup_outside_its_namespace_is_the_mount_point() {
    let mounts = "28 23 0:25 / /sys/fs/a\\043b\\040c rw - cgroup2 cgroup2 rw\n";
    assert_eq!(limited("0::/../../fs/cgroup/inner\n", mounts).as_deref(), Some("/sys/fs/a#b c"));
}

#[test]
fn hosts_that_hide_the_list_of_controllers_have_those_that_there_ever_were() {
    let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
    let folders = Host::empty().with("/proc/self/mountinfo", mounts).facts().cgroup.v1;
    assert_eq!(folders.keys().collect::<Vec<_>>(), ["cpu", "cpuacct"]);
}
