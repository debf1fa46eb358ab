//! `/proc/vmstat`: faults, reclaim, swapping and compaction; a few of its two hundred lines.

use partywall_kernels::Resource::{Disk, MemoryBandwidth, MemoryCapacity};

use super::open_keyed;
use crate::counter::{Column, Group, COUNT, KIBIBYTES};
use crate::reader::Builder;

pub(crate) const GROUP: Group = Group {
    file: "/proc/vmstat",
    subject: "the host",
    columns: &[
        Column::total("pgpgin", "paged_in_bytes", "data read from block devices", KIBIBYTES, Disk, "read from block devices"),
        Column::total("pgpgout", "paged_out_bytes", "data written to block devices", KIBIBYTES, Disk, "written to block devices"),
        Column::total(
            "pswpin",
            "swapped_in_pages_count",
            "pages swapped in",
            COUNT,
            MemoryCapacity,
            "pages read back from swap: somebody needed what had been taken away",
        ),
        Column::total("pswpout", "swapped_out_pages_count", "pages swapped out", COUNT, MemoryCapacity, "pages written to swap"),
        Column::total(
            "allocstall",
            "allocation_stalls_count",
            "allocations that had to reclaim memory",
            COUNT,
            MemoryCapacity,
            "an allocation had to reclaim memory itself before it got any",
        ),
        Column::total(
            "pgfault",
            "page_faults_count",
            "page faults",
            COUNT,
            MemoryCapacity,
            "page faults, minor and major: memory is being touched for the first time",
        ),
        Column::total(
            "pgmajfault",
            "major_faults_count",
            "page faults that waited for a disk",
            COUNT,
            MemoryCapacity,
            "page faults that had to wait for a disk",
        ),
        Column::total(
            "pgscan_kswapd",
            "scanned_background_pages_count",
            "pages looked at for reclaim",
            COUNT,
            MemoryCapacity,
            "memory is short: pages looked at in the background for reclaim",
        ),
        Column::total(
            "pgscan_direct",
            "scanned_direct_pages_count",
            "pages looked at for urgent reclaim",
            COUNT,
            MemoryCapacity,
            "memory is very short: pages looked at by the threads that need memory",
        ),
        Column::total(
            "pgsteal_kswapd",
            "reclaimed_background_pages_count",
            "pages reclaimed",
            COUNT,
            MemoryCapacity,
            "pages taken away in the background",
        ),
        Column::total(
            "pgsteal_direct",
            "reclaimed_direct_pages_count",
            "pages reclaimed urgently",
            COUNT,
            MemoryCapacity,
            "pages taken away by the threads that need memory",
        ),
        Column::total(
            "workingset_refault_file",
            "refaulted_file_pages_count",
            "file pages read again after reclaim",
            COUNT,
            MemoryCapacity,
            "file pages read again soon after they were taken away: the cache is too small",
        ),
        Column::total(
            "workingset_refault_anon",
            "refaulted_anonymous_pages_count",
            "swapped pages read again",
            COUNT,
            MemoryCapacity,
            "swapped pages read again soon after they were taken away",
        ),
        Column::total(
            "compact_stall",
            "compaction_stalls_count",
            "waits for contiguous memory",
            COUNT,
            MemoryCapacity,
            "an allocation waited until memory was made contiguous",
        ),
        Column::total(
            "thp_fault_alloc",
            "huge_pages_given_count",
            "huge pages given",
            COUNT,
            MemoryCapacity,
            "huge pages given on a fault",
        ),
        Column::total(
            "thp_fault_fallback",
            "huge_pages_refused_count",
            "huge pages refused",
            COUNT,
            MemoryCapacity,
            "no huge page was free: small ones given, with more misses of the TLB",
        ),
        Column::total(
            "oom_kill",
            "oom_kills_count",
            "processes killed for lack of memory",
            COUNT,
            MemoryCapacity,
            "a process was killed for lack of memory, on the host or in a cgroup",
        ),
        Column::total(
            "numa_miss",
            "numa_misses_count",
            "allocations from a distant memory node",
            COUNT,
            MemoryBandwidth,
            "memory came from another node than the one preferred",
        ),
        Column::total(
            "numa_pages_migrated",
            "numa_migrated_pages_count",
            "pages moved between memory nodes",
            COUNT,
            MemoryBandwidth,
            "pages were copied to another node",
        ),
    ],
    cost: "faults, reclaim and swapping are not seen",
    remedy: "a kernel built with CONFIG_VM_EVENT_COUNTERS",
};

pub(crate) fn open(builder: &mut Builder) {
    open_keyed(builder, &GROUP);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{filled, value};
    use super::*;
    use crate::keyed::Keyed;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Vec<Option<f64>> {
        filled(GROUP.columns, text, |text, row| Keyed::new(GROUP.columns).fill(text, row))
    }

    #[test]
    fn lines_of_a_modern_kernel_are_read() {
        let row = parse(b"pgpgin 3\nallocstall_normal 5\nallocstall_movable 6\npgscan_direct 7\npgscan_direct_throttle 900\noom_kill 1\n");
        assert_eq!(value(GROUP.columns, &row, "paged_in_bytes"), Some(3072.0));
        assert_eq!(value(GROUP.columns, &row, "allocation_stalls_count"), Some(11.0));
        assert_eq!(value(GROUP.columns, &row, "scanned_direct_pages_count"), Some(7.0), "the throttle counter is another one");
        assert_eq!(value(GROUP.columns, &row, "oom_kills_count"), Some(1.0));
    }

    #[test]
    fn kernels_up_to_4_8_split_reclaim_by_zone() {
        let row = parse(b"allocstall 4\npgscan_kswapd_dma 1\npgscan_kswapd_dma32 2\npgscan_kswapd_normal 30\npgscan_kswapd_movable 0\n");
        assert_eq!(value(GROUP.columns, &row, "scanned_background_pages_count"), Some(33.0));
        assert_eq!(value(GROUP.columns, &row, "allocation_stalls_count"), Some(4.0));
        assert_eq!(value(GROUP.columns, &row, "oom_kills_count"), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(pgfault|pgpgin_dma|[0-9 ]|.|\n)*") {
            let _ = parse(text.as_bytes());
        }
    }
}
