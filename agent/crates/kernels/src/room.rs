//! How much memory a process can take without exhausting the host or the sandbox: the host's available memory, and the room below the
//! limits of this process's cgroup. It only reads files below `root`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Environment, KernelError};

/// Bytes that can be allocated now: the minimum of `MemAvailable` and the room in each cgroup above this process.
///
/// # Errors
/// `/proc/meminfo` below `root` does not report available memory.
pub fn available(root: &Path) -> Result<u64, KernelError> {
    let host = host_available(root)?;
    Ok(cgroups(root).iter().filter_map(Cgroup::room).fold(host, u64::min))
}

/// Returns an error if there is no room for `bytes`, the given or derived value of parameter `key`.
pub(crate) fn claim(key: &'static str, bytes: u64, environment: &Environment) -> Result<(), KernelError> {
    let available = available(&environment.root)?;
    if bytes <= available {
        return Ok(());
    }
    let why =
        format!("asks for {bytes} bytes in this worker but the host and the cgroup leave {available}; give less or raise the memory limit");
    Err(KernelError::Parameter { key, value: bytes.to_string(), why })
}

fn host_available(root: &Path) -> Result<u64, KernelError> {
    let path = root.join("proc/meminfo");
    let what = || format!("reading the available memory from {}", path.display());
    let text = fs::read_to_string(&path).map_err(KernelError::host(what()))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "there is no line MemAvailable; kernels have it since 3.14");
    Ok(kib.ok_or_else(missing).map_err(KernelError::host(what()))? * 1024)
}

/// A memory cgroup's folder and the names of its files.
struct Cgroup {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
    reclaimable: &'static str,
}

impl Cgroup {
    fn v1(folder: PathBuf) -> Self {
        Self { folder, limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", reclaimable: "total_inactive_file" }
    }

    fn v2(folder: PathBuf) -> Self {
        Self { folder, limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" }
    }

    /// The room below the limit. `None` without a limit (v2 writes `max`, v1 a number above any host's memory).
    fn room(&self) -> Option<u64> {
        let number = |name| fs::read_to_string(self.folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let used = number(self.usage)?.saturating_sub(self.reclaimable_bytes());
        Some(number(self.limit)?.saturating_sub(used))
    }

    /// File pages that the kernel reclaims before it refuses memory. Unknown counts as 0, which is the cautious choice.
    fn reclaimable_bytes(&self) -> u64 {
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        stat.lines().find_map(|line| line.strip_prefix(self.reclaimable)?.trim().parse().ok()).unwrap_or(0)
    }
}

/// This process's memory cgroups from its own up to the root. In a container the path may be the host's, while the mount begins at
/// the container. Then only the upper folders exist, and the mount's own is the container's.
fn cgroups(root: &Path) -> Vec<Cgroup> {
    let mounts = root.join("sys/fs/cgroup");
    let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in memberships.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let above = Path::new(path.trim_start_matches('/')).ancestors();
        if hierarchy == "0" {
            found.extend(above.map(|path| Cgroup::v2(mounts.join(path))));
        } else if controllers.split(',').any(|controller| controller == "memory") {
            found.extend(above.map(|path| Cgroup::v1(mounts.join("memory").join(path))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder above")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        root
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n");

    #[test]
    fn without_cgroups_the_hosts_memory_is_the_limit() {
        assert_eq!(available(root(&[MEMINFO]).path()).expect("known"), 1000 * 1024);
    }

    #[test]
    fn the_tightest_limit_above_a_process_of_cgroup_v2_applies() {
        let root = root(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/box\n"),
            ("sys/fs/cgroup/pod/box/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/box/memory.current", "5000\n"),
            ("sys/fs/cgroup/pod/memory.max", "90000\n"),
            ("sys/fs/cgroup/pod/memory.current", "40000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 10000\n"),
        ]);
        assert_eq!(available(root.path()).expect("known"), 60_000);
    }

    #[test]
    fn in_a_container_of_cgroup_v1_the_limit_of_the_mount_applies() {
        let root = root(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu:/\n4:hugetlb,memory:/on/the/host\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "80000\n"),
        ]);
        assert_eq!(available(root.path()).expect("known"), 0);
    }

    #[test]
    fn a_host_that_does_not_report_available_memory_is_named() {
        let error = available(root(&[("proc/meminfo", "MemTotal: 5 kB\n")]).path()).expect_err("unknown").to_string();
        assert!(error.contains("proc/meminfo") && error.contains("MemAvailable"), "{error}");
    }
}
