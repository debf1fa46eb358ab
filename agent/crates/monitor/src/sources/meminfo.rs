//! `/proc/meminfo`: current use of the host's memory.

use partywall_kernels::Resource::{Disk, MemoryCapacity};

use super::open_keyed;
use crate::counter::{Column, Group, KIBIBYTES};
use crate::reader::Builder;

pub(crate) const GROUP: Group = Group {
    file: "/proc/meminfo",
    subject: "the host",
    columns: &[
        Column::gauge("MemFree", "memory_free_bytes", "free memory", KIBIBYTES, MemoryCapacity, "memory nobody uses, not even as cache"),
        Column::gauge(
            "MemAvailable",
            "memory_available_bytes",
            "available memory",
            KIBIBYTES,
            MemoryCapacity,
            "memory available without swapping",
        ),
        Column::gauge(
            "Cached",
            "memory_cached_bytes",
            "files cached in memory",
            KIBIBYTES,
            MemoryCapacity,
            "files in memory; falls when a neighbour needs memory",
        ),
        Column::gauge("SwapFree", "swap_free_bytes", "free swap", KIBIBYTES, MemoryCapacity, "falls when pages are swapped out"),
        Column::gauge(
            "Dirty",
            "memory_dirty_bytes",
            "data not yet written to disk",
            KIBIBYTES,
            Disk,
            "written by programs and not yet by the disk",
        ),
        Column::gauge("Writeback", "memory_writeback_bytes", "data on its way to disk", KIBIBYTES, Disk, "on its way to the disk"),
    ],
    cost: "memory in use is not seen",
    remedy: "mount procfs on /proc",
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
    fn kibibytes_become_bytes_and_swap_cached_is_not_cached() {
        let row = parse(
            b"MemTotal: 9 kB\nMemFree:        22787364 kB\nMemAvailable:   24178768 kB\nCached:  3 kB\nSwapCached:  7 kB\nDirty: 1 kB\n",
        );
        assert_eq!(value(GROUP.columns, &row, "memory_free_bytes"), Some(22_787_364.0 * 1024.0));
        assert_eq!(value(GROUP.columns, &row, "memory_cached_bytes"), Some(3072.0));
        assert_eq!(value(GROUP.columns, &row, "swap_free_bytes"), None);
    }

    #[test]
    fn kernels_before_3_14_do_not_estimate_what_is_available() {
        assert_eq!(value(GROUP.columns, &parse(b"MemFree: 1 kB\nBuffers: 2 kB\n"), "memory_available_bytes"), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(MemFree:|Dirty|[0-9 ]|.|\n)*") {
            let _ = parse(text.as_bytes());
        }
    }
}
