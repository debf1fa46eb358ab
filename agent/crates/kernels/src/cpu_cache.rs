//! Data caches that the host reports for its CPUs. It only reads `/sys/devices/system/cpu` below a root. Guests often report
//! nothing or wrong values, so a caller must work without this information.

use std::fs;
use std::path::{Path, PathBuf};

/// A cache that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CpuCache {
    /// Level 1 is next to the core.
    pub(crate) level: u8,
    /// Its size.
    pub(crate) bytes: usize,
    /// Size of its line. `None` if the host does not report it.
    pub(crate) line_bytes: Option<usize>,
}

/// The largest cache of `level` of any CPU, so that data exceeding it exceeds the cache on every CPU.
pub(crate) fn of_level(root: &Path, level: u8) -> Option<CpuCache> {
    all(root).into_iter().filter(|cache| cache.level == level).max_by_key(|cache| cache.bytes)
}

/// The largest cache of the last level.
pub(crate) fn last(root: &Path) -> Option<CpuCache> {
    all(root).into_iter().max()
}

fn all(root: &Path) -> Vec<CpuCache> {
    let cpus = folders(&root.join("sys/devices/system/cpu"), "cpu");
    cpus.iter().flat_map(|cpu| folders(&cpu.join("cache"), "index")).filter_map(|index| cache(&index)).collect()
}

/// Folders named `prefix` and a number.
fn folders(of: &Path, prefix: &str) -> Vec<PathBuf> {
    let numbered = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.strip_prefix(prefix)?.parse::<u32>().ok()).is_some();
    fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path()).filter(numbered).collect()
}

fn cache(folder: &Path) -> Option<CpuCache> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok().map(|text| text.trim().to_owned());
    if read("type")? == "Instruction" {
        return None;
    }
    let line_bytes = read("coherency_line_size").and_then(|text| text.parse().ok()).filter(|&line| line > 0);
    Some(CpuCache { level: read("level")?.parse().ok()?, bytes: size(&read("size")?)?, line_bytes })
}

/// Parses sizes such as `32K`.
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
pub(crate) mod testing {
    //! A root with the caches that a test needs.

    use std::fs;

    /// A root with `caches` of (CPU, level, type, size).
    pub(crate) fn root(caches: &[(u32, u8, &str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("proc")).expect("a folder");
        fs::write(root.path().join("proc/meminfo"), "MemAvailable: 4194304 kB\n").expect("a file");
        for (index, (cpu, level, kind, size)) in caches.iter().enumerate() {
            let folder = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}"));
            fs::create_dir_all(&folder).expect("a folder");
            for (name, text) in [("level", level.to_string().as_str()), ("type", kind), ("size", size), ("coherency_line_size", "64")] {
                fs::write(folder.join(name), format!("{text}\n")).expect("a file");
            }
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!([size("32K"), size("16M"), size("512")], [Some(32 << 10), Some(16 << 20), Some(512)]);
        assert_eq!([size(""), size("K"), size("0K"), size("12Q")], [None; 4]);
    }

    #[test]
    fn the_largest_data_cache_of_a_level_is_used() {
        let root = testing::root(&[
            (0, 1, "Data", "32K"),
            (0, 1, "Instruction", "64K"),
            (0, 2, "Unified", "512K"),
            (4, 1, "Data", "48K"),
            (4, 2, "Unified", "2048K"),
        ]);
        assert_eq!(of_level(root.path(), 1).expect("there").bytes, 48 << 10);
        assert_eq!(of_level(root.path(), 3), None);
        assert_eq!(last(root.path()), Some(CpuCache { level: 2, bytes: 2 << 20, line_bytes: Some(64) }));
    }

    #[test]
    fn a_host_without_cache_information_has_no_known_cache() {
        assert_eq!(last(testing::root(&[]).path()), None);
    }
}
