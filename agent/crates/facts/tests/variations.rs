//! Hosts whose files are missing, empty, garbled or unreadable: reading facts must still succeed.

use std::fs;
use std::path::Path;

use partywall_facts::memory_check::{room, MemoryError};
use partywall_facts::{cgroup, read, under, HostFacts};
use proptest::prelude::*;
use tempfile::TempDir;

/// A host with both versions of cgroups, two NUMA nodes and a frequency governor, one file of each kind.
const FILES: &[(&str, &str)] = &[
    ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: CPU\nflags\t\t: fpu hypervisor\n\nprocessor\t: 1\n"),
    (
        "/proc/meminfo",
        "MemTotal: 4030420 kB\nMemFree: 2030420 kB\nMemAvailable: 3030420 kB\nCached: 99 kB\nSwapTotal: 0 kB\nHugePages_Total: 3\n",
    ),
    ("/proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t4\t21\t1\n"),
    ("/proc/cmdline", "root=/dev/vda ro\n"),
    ("/proc/filesystems", "nodev\tproc\nnodev\tresctrl\n"),
    ("/proc/schedstat", "version 15\n"),
    ("/proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
    ("/proc/self/status", "Name:\tagent\nCpus_allowed_list:\t0-127\n"),
    ("/proc/self/cgroup", "4:memory:/box/inner\n1:cpu:/\n0::/../unit\n"),
    (
        "/proc/self/mountinfo",
        "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
         32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         35 31 0:32 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         41 31 0:38 / /sys/fs/my\\040unified rw - cgroup2 cgroup2 rw\n",
    ),
    ("/proc/sys/kernel/osrelease", "6.12.1\n"),
    ("/proc/sys/kernel/io_uring_disabled", "0\n"),
    ("/proc/sys/kernel/perf_event_paranoid", "-1\n"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
    ("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1073741824\n"),
    ("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "73741824\n"),
    ("/sys/fs/cgroup/memory/inner/memory.stat", "cache 1\ntotal_inactive_file 4096\n"),
    ("/sys/fs/my unified/cgroup.controllers", "io pids\n"),
    ("/sys/fs/my unified/memory.max", "max\n"),
    ("/sys/fs/my unified/memory.current", "4096\n"),
    ("/sys/devices/system/cpu/online", "0-1\n"),
    ("/sys/devices/system/cpu/isolated", "\n"),
    ("/sys/devices/system/cpu/intel_pstate/no_turbo", "1\n"),
    ("/sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
    ("/sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
    ("/sys/devices/system/cpu/cpu0/topology/core_cpus_list", "0-1\n"),
    ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
    ("/sys/devices/system/cpu/cpu0/cache/index0/level", "3\n"),
    ("/sys/devices/system/cpu/cpu0/cache/index0/type", "Unified\n"),
    ("/sys/devices/system/cpu/cpu0/cache/index0/size", "8M\n"),
    ("/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0-1\n"),
    ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "3000000\n"),
    ("/sys/devices/system/node/node0/cpulist", "0\n"),
    ("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1000 kB\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("/sys/block/vda/size", "2048\n"),
    ("/sys/block/vda/queue/scheduler", "none [mq-deadline]\n"),
    ("/sys/class/dmi/id/sys_vendor", "Vendor\n"),
    ("/sys/bus/event_source/devices/cpu/type", "4\n"),
];

/// Fault of one file.
#[derive(Clone, Debug)]
enum Fault {
    Gone,
    Empty,
    BlankLine,
    Unended,
    Max,
    /// Reading fails even for root, because the file is a folder.
    Unreadable,
    Numbers(String),
    Garbage(Vec<u8>),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::Gone),
        Just(Fault::Empty),
        Just(Fault::BlankLine),
        Just(Fault::Unended),
        Just(Fault::Max),
        Just(Fault::Unreadable),
        "-?[0-9]{1,30}".prop_map(Fault::Numbers),
        "[0-9,-]{0,12}".prop_map(Fault::Numbers),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Fault::Garbage),
    ]
}

/// The text of a file with its fault. `None` if there is no text.
fn spoilt(text: &str, fault: &Fault) -> Option<Vec<u8>> {
    match fault {
        Fault::Gone | Fault::Unreadable => None,
        Fault::Empty => Some(Vec::new()),
        Fault::BlankLine => Some(b"\n".to_vec()),
        Fault::Unended => Some(text.trim_end().as_bytes().to_vec()),
        Fault::Max => Some(with_numbers(text, "max")),
        Fault::Numbers(number) => Some(with_numbers(text, number)),
        Fault::Garbage(bytes) => Some(bytes.clone()),
    }
}

/// Replaces every run of digits with a word.
fn with_numbers(text: &str, word: &str) -> Vec<u8> {
    let mut replaced = String::new();
    let mut within = false;
    for letter in text.chars() {
        match (letter.is_ascii_digit(), within) {
            (true, false) => replaced.push_str(word),
            (true, true) => {}
            (false, _) => replaced.push(letter),
        }
        within = letter.is_ascii_digit();
    }
    replaced.into_bytes()
}

/// A host in which the files with these numbers have faults.
fn host(faults: &[(usize, Fault)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (number, (path, text)) in FILES.iter().enumerate() {
        let fault = faults.iter().find(|(which, _)| which % FILES.len() == number).map(|(_, fault)| fault);
        lay(root.path(), path, text, fault);
    }
    root
}

fn lay(root: &Path, path: &str, text: &str, fault: Option<&Fault>) {
    let place = under(root, path);
    match (fault, fault.map_or_else(|| Some(text.as_bytes().to_vec()), |fault| spoilt(text, fault))) {
        (Some(Fault::Unreadable), _) => fs::create_dir_all(&place).unwrap(),
        (_, Some(content)) => {
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, content).unwrap();
        }
        (_, None) => {}
    }
}

/// Facts survive the wire, and every missing fact has a reason.
fn sound(root: &Path) -> Result<HostFacts, TestCaseError> {
    let facts = read(root);
    let back: HostFacts = serde_json::from_str(&serde_json::to_string(&facts).unwrap()).unwrap();
    prop_assert_eq!(&back, &facts);
    for missing in &facts.missing {
        prop_assert!(!missing.why.is_empty() && !missing.cost.is_empty() && !missing.remedy.is_empty(), "{:?}", missing);
    }
    if let (Some(allowed), Some(online)) = (&facts.cpus_allowed, facts.cpu.online.as_ref().filter(|online| !online.is_empty())) {
        prop_assert!(allowed.iter().all(|cpu| online.contains(cpu)), "{:?} of {:?}", allowed, online);
    }
    prop_assert!(facts.memory.usable_bytes <= facts.memory.available_bytes.or(facts.memory.usable_bytes));
    if let Ok(own) = cgroup::own(root) {
        let folders = own.v1.values().chain(&own.v2);
        prop_assert!(folders.clone().all(|folder| !folder.contains("..")), "{:?}", own);
    }
    Ok(facts)
}

#[test]
fn the_host_without_faults_is_read_completely() {
    let root = host(&[]);
    let facts = sound(root.path()).unwrap();
    assert_eq!(facts.cpus_allowed, Some(vec![0, 1]));
    assert_eq!(facts.memory.limit.as_ref().map(|limit| limit.folder.as_str()), Some("/sys/fs/cgroup/memory/inner"));
    assert_eq!(facts.memory.usable_bytes, Some(1_073_741_824 - 73_741_824 + 4096));
    assert_eq!(facts.cgroup.v2_controllers, ["io", "pids"]);
    assert_eq!(cgroup::own(root.path()).unwrap().v2.as_deref(), Some("/sys/fs/my unified"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_few_faults_leave_sound_facts(faults in proptest::collection::vec((any::<usize>(), fault()), 1..8)) {
        sound(host(&faults).path())?;
    }

    #[test]
    fn a_host_with_only_faults_leaves_sound_facts(faults in proptest::collection::vec(fault(), FILES.len())) {
        let root = host(&faults.into_iter().enumerate().collect::<Vec<_>>());
        sound(root.path())?;
        match room(root.path()) {
            Ok(_) | Err(MemoryError::Host { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
