//! Mounts of cgroups (v1, v2 or both), the cgroups of a process, and the memory that they leave it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::disk::parse_mountinfo;
use crate::survey::{self, field, Question, Survey};
use crate::under;

/// Mounts of cgroups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CgroupFacts {
    /// `None` if no cgroup file system is mounted.
    pub mode: Option<CgroupMode>,
    /// Mount points of v1 controllers, by controller.
    pub v1: BTreeMap<String, String>,
    /// Mount point of the unified hierarchy.
    pub v2: Option<String>,
    /// Controllers of the unified hierarchy.
    pub v2_controllers: Vec<String>,
}

/// The version of cgroups that has the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CgroupMode {
    /// Only v1 is mounted.
    V1,
    /// Only v2 is mounted.
    V2,
    /// Both are mounted; each controller belongs to one of them.
    Hybrid,
}

/// The folders of one cgroup: absolute paths on the host, v1 by controller. On a hybrid host it may have both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CgroupFolders {
    /// v1 folders by controller: `cpu`, `cpuacct`, `memory`.
    #[serde(default)]
    pub v1: BTreeMap<String, String>,
    /// Folder in the unified hierarchy.
    #[serde(default)]
    pub v2: Option<String>,
}

pub(crate) fn read(survey: &mut Survey) -> CgroupFacts {
    let facts = mounts(survey.root());
    if facts.mode.is_none() {
        let question = Question {
            what: "cgroups",
            cost: "no limits, weights or throttling counters of sandboxes",
            remedy: "mount cgroup2 on /sys/fs/cgroup",
        };
        survey.lack(question, "/proc/self/mountinfo lists no cgroup file system".into());
    }
    facts
}

/// Mount points of cgroup file systems.
#[must_use]
pub fn mounts(root: &Path) -> CgroupFacts {
    let Hierarchies { v1, v2 } = hierarchies(root);
    let point = |hierarchy: Hierarchy| hierarchy.mount_point;
    let (v1, v2): (BTreeMap<_, _>, _) = (v1.into_iter().map(|(name, mount)| (name, point(mount))).collect(), v2.map(point));
    let v2_controllers = v2.as_deref().map(|folder| words(root, &format!("{folder}/cgroup.controllers"))).unwrap_or_default();
    let mode = match (v1.is_empty(), v2.is_some()) {
        (true, true) => Some(CgroupMode::V2),
        (false, false) => Some(CgroupMode::V1),
        (false, true) => Some(CgroupMode::Hybrid),
        (true, false) => None,
    };
    CgroupFacts { mode, v1, v2, v2_controllers }
}

/// A mounted hierarchy. `top`: the cgroup at its mount point, which in a container may not be the root.
#[derive(Clone)]
struct Hierarchy {
    mount_point: String,
    top: String,
}

struct Hierarchies {
    v1: BTreeMap<String, Hierarchy>,
    v2: Option<Hierarchy>,
}

/// Of several mounts of one hierarchy, the first is used: later ones belong to containers and other roots.
fn hierarchies(root: &Path) -> Hierarchies {
    let text = survey::text(&under(root, "/proc/self/mountinfo")).unwrap_or_default();
    let cgroups = survey::text(&under(root, "/proc/cgroups")).unwrap_or_default();
    let known = controllers(&cgroups);
    let mut hierarchies = Hierarchies { v1: BTreeMap::new(), v2: None };
    for mount in parse_mountinfo(&text) {
        let hierarchy = Hierarchy { mount_point: mount.point, top: mount.top };
        match mount.kind.as_str() {
            "cgroup" => {
                for name in v1_controllers(&mount.options, &known) {
                    hierarchies.v1.entry(name).or_insert_with(|| hierarchy.clone());
                }
            }
            "cgroup2" => hierarchies.v2 = hierarchies.v2.or(Some(hierarchy)),
            _ => {}
        }
    }
    hierarchies
}

fn words(root: &Path, path: &str) -> Vec<String> {
    survey::text(&under(root, path)).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// All controllers that version 1 ever had, for hosts that hide `/proc/cgroups`.
const V1_CONTROLLERS: [&str; 14] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "blkio",
    "memory",
    "devices",
    "freezer",
    "net_cls",
    "net_prio",
    "perf_event",
    "hugetlb",
    "pids",
    "rdma",
    "misc",
];

fn controllers(cgroups: &str) -> Vec<&str> {
    let listed: Vec<&str> =
        cgroups.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next()).collect();
    if listed.is_empty() {
        V1_CONTROLLERS.to_vec()
    } else {
        listed
    }
}

/// The controllers among the mount options. The rest are options such as `rw`, or a hierarchy's name.
fn v1_controllers<'t>(options: &'t str, known: &'t [&str]) -> impl Iterator<Item = String> + 't {
    options.split(',').filter(|option| known.contains(option)).map(str::to_owned)
}

/// The cgroup of process or thread `pid`, for all mounted controllers, or only those at or below a path.
///
/// # Errors
/// The process has ended, or its `cgroup` file cannot be read.
pub fn of_process(root: &Path, pid: u32, below: Option<&str>) -> std::io::Result<CgroupFolders> {
    let ended = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => std::io::Error::new(error.kind(), format!("{error}; check that the process still runs")),
        _ => error,
    };
    survey::named_text(&under(root, &format!("/proc/{pid}/cgroup"))).map_err(ended).map(|text| folders(root, &text, below))
}

/// The cgroup of this process.
///
/// # Errors
/// If its `cgroup` file cannot be read.
pub fn own(root: &Path) -> std::io::Result<CgroupFolders> {
    survey::named_text(&under(root, "/proc/self/cgroup")).map(|text| folders(root, &text, None))
}

fn folders(root: &Path, text: &str, below: Option<&str>) -> CgroupFolders {
    let mounts = hierarchies(root);
    let mut folders = CgroupFolders::default();
    let counts = |path: &str| below.is_none_or(|below| is_below(path, below));
    for (controllers, path) in text.lines().filter_map(parse_membership).filter(|(_, path)| counts(path)) {
        if controllers.is_empty() {
            folders.v2 = mounts.v2.as_ref().map(|mount| folder(root, mount, path));
        }
        for controller in controllers.split(',') {
            if let Some(mount) = mounts.v1.get(controller) {
                folders.v1.insert(controller.to_owned(), folder(root, mount, path));
            }
        }
    }
    folders
}

/// The path may have a prefix if this process is not at the root of the host's cgroups.
fn is_below(path: &str, below: &str) -> bool {
    format!("{path}/").contains(&format!("{}/", below.trim_end_matches('/')))
}

/// Controllers and path of a line such as `4:memory:/a/b`.
fn parse_membership(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(3, ':').skip(1);
    Some((parts.next()?, parts.next()?))
}

/// In a container the path may be the host's, while the mount only shows the container's part. In a cgroup namespace, a path outside
/// it begins with `/..`. Paths that the mount does not show fall back to the mount point.
fn folder(root: &Path, mount: &Hierarchy, path: &str) -> String {
    let top = mount.top.trim_end_matches('/');
    let shown = path.strip_prefix(top).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(path);
    let full = format!("{}{}", mount.mount_point, shown.trim_end_matches('/'));
    if !shown.split('/').any(|part| part == "..") && under(root, &full).is_dir() {
        full
    } else {
        mount.mount_point.clone()
    }
}

/// The room below the tightest memory limit of a cgroup and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryRoom {
    /// The cgroup's folder.
    pub folder: String,
    /// Its limit.
    pub limit_bytes: u64,
    /// Used memory that cannot simply be dropped.
    pub used_bytes: u64,
}

impl MemoryRoom {
    /// Remaining bytes.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }
}

/// The tightest memory limit above `cgroup`. `None` if there is no limit.
#[must_use]
pub fn memory_room(root: &Path, cgroup: &CgroupFolders) -> Option<MemoryRoom> {
    let mounts = mounts(root);
    let v1 = cgroup.v1.get("memory").zip(mounts.v1.get("memory")).map(|(folder, mount)| (folder, mount, V1_FILES));
    let v2 = cgroup.v2.as_ref().zip(mounts.v2.as_ref()).map(|(folder, mount)| (folder, mount, V2_FILES));
    let (folder, mount, files) = v1.or(v2)?;
    let up = Path::new(folder).ancestors().take_while(|above| above.starts_with(mount));
    up.filter_map(|above| room(root, above, files)).min_by_key(MemoryRoom::left_bytes)
}

/// Files of limit and usage, and the key of `memory.stat` for memory that can simply be dropped.
type Files = [&'static str; 3];
const V1_FILES: Files = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
const V2_FILES: Files = ["memory.max", "memory.current", "inactive_file"];

fn room(root: &Path, folder: &Path, [limit, usage, droppable]: Files) -> Option<MemoryRoom> {
    /// v1 writes the largest multiple of a page for "no limit".
    const UNLIMITED: u64 = 1 << 62;
    let at: PathBuf = under(root, folder.to_str()?);
    let read = |name: &str| survey::text(&at.join(name)).ok();
    let limit_bytes = read(limit)?.parse::<u64>().ok().filter(|&limit| limit < UNLIMITED)?;
    let usage: u64 = read(usage)?.parse().ok()?;
    let cache: u64 = read("memory.stat").and_then(|text| field(&text, droppable)?.parse().ok()).unwrap_or(0);
    Some(MemoryRoom { folder: folder.display().to_string(), limit_bytes, used_bytes: usage.saturating_sub(cache) })
}

/// A quota of CPU time in each period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuQuota {
    /// CPUs whose time it equals: 0.5 is half of the time of one.
    pub cpus: f64,
    /// Its period.
    pub period_ns: u64,
}

/// The tightest CPU quota of a cgroup and its ancestors. `None` if there is no quota.
#[must_use]
pub fn cpu_quota(root: &Path, cgroup: &CgroupFolders) -> Option<CpuQuota> {
    let mounts = mounts(root);
    let v1 = cgroup.v1.get("cpu").zip(mounts.v1.get("cpu")).map(|(folder, mount)| (folder, mount, quota_v1 as ReadQuota));
    let v2 = cgroup.v2.as_ref().zip(mounts.v2.as_ref()).map(|(folder, mount)| (folder, mount, quota_v2 as ReadQuota));
    let (folder, mount, quota) = v1.or(v2)?;
    let up = Path::new(folder).ancestors().take_while(|above| above.starts_with(mount));
    let quotas = up.filter_map(|above| quota(&under(root, above.to_str()?)));
    quotas.min_by(|first, second| first.cpus.total_cmp(&second.cpus))
}

type ReadQuota = fn(&Path) -> Option<CpuQuota>;

fn quota_v2(folder: &Path) -> Option<CpuQuota> {
    let text = survey::text(&folder.join("cpu.max")).ok()?;
    let (quota, period) = text.split_once(' ')?;
    quota_of(quota, period)
}

fn quota_v1(folder: &Path) -> Option<CpuQuota> {
    let read = |name: &str| survey::text(&folder.join(name)).ok();
    quota_of(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
}

/// In microseconds. Without a limit, the quota is `max` or -1.
fn quota_of(quota: &str, period: &str) -> Option<CpuQuota> {
    let (quota_us, period_us): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    (quota_us > 0 && period_us > 0).then(|| CpuQuota { cpus: quota_us as f64 / period_us as f64, period_ns: period_us * 1000 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host in a folder: files and their contents.
    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = under(root.path(), path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const V2: &[(&str, &str)] = &[
        ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"),
        ("/proc/self/cgroup", "0::/a/b\n"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
        ("/sys/fs/cgroup/a/memory.max", "1000000\n"),
        ("/sys/fs/cgroup/a/memory.current", "900000\n"),
        ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000\n"),
        ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
        ("/sys/fs/cgroup/a/b/memory.current", "5\n"),
    ];

    #[test]
    fn the_tightest_limit_of_all_ancestors_applies_without_droppable_memory() {
        let host = host(V2);
        let own = own(host.path()).unwrap();
        assert_eq!(own.v2.as_deref(), Some("/sys/fs/cgroup/a/b"));
        let room = memory_room(host.path(), &own).unwrap();
        assert_eq!(room.folder, "/sys/fs/cgroup/a");
        assert_eq!(room.left_bytes(), 400_000);
    }

    #[test]
    fn the_tightest_cpu_quota_of_all_ancestors_applies() {
        let own_of = |files: &[(&str, &str)]| {
            let host = host(&[V2, files].concat());
            cpu_quota(host.path(), &own(host.path()).unwrap())
        };
        let (above, below) = ("/sys/fs/cgroup/a/cpu.max", "/sys/fs/cgroup/a/b/cpu.max");
        let half = Some(CpuQuota { cpus: 0.5, period_ns: 100_000_000 });
        assert_eq!(own_of(&[(above, "50000 100000\n"), (below, "80000 100000\n")]), half);
        assert_eq!(own_of(&[(above, "max 100000\n"), (below, "50000 100000\n")]), half);
        assert_eq!(own_of(&[(above, "max 100000\n"), (below, "max 100000\n")]), None);
        assert_eq!(own_of(&[]), None);
    }

    #[test]
    fn a_v1_quota_of_minus_one_is_none() {
        let (quota, period) = ("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us");
        for (text, wanted) in [("25000\n", Some(CpuQuota { cpus: 0.25, period_ns: 100_000_000 })), ("-1\n", None)] {
            let root = host(&[HYBRID, &[("/proc/8/cgroup", "1:cpu,cpuacct:/box\n"), (quota, text), (period, "100000\n")]].concat());
            assert_eq!(cpu_quota(root.path(), &of_process(root.path(), 8, None).unwrap()), wanted);
        }
    }

    #[test]
    fn v2_alone_is_v2_with_its_controllers() {
        let facts = mounts(host(V2).path());
        assert_eq!(facts.mode, Some(CgroupMode::V2));
        assert_eq!(facts.v2_controllers, ["cpuset", "cpu", "io", "memory", "pids"]);
    }

    const HYBRID: &[(&str, &str)] = &[
        ("/proc/cgroups", "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\ncpuacct\t1\t1\t1\nmemory\t4\t21\t1\n"),
        (
            "/proc/self/mountinfo",
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("/proc/7/cgroup", "4:memory:/box\n1:cpu,cpuacct:/hidden\n9:name=systemd:/\n0::/\n"),
        ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n"),
        ("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "5\n"),
        ("/sys/fs/cgroup/unified/cgroup.controllers", "\n"),
    ];

    #[test]
    fn a_hybrid_host_has_a_folder_for_each_controller() {
        let root = host(HYBRID);
        assert_eq!(mounts(root.path()).mode, Some(CgroupMode::Hybrid));
        let folders = of_process(root.path(), 7, None).unwrap();
        assert_eq!(folders.v1["memory"], "/sys/fs/cgroup/memory/box");
        assert_eq!(folders.v1["cpuacct"], "/sys/fs/cgroup/cpu,cpuacct", "a path the mount does not show falls back to the mount");
        assert_eq!(folders.v2.as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(memory_room(root.path(), &folders), None, "the largest number v1 can write is no limit");
    }

    #[test]
    fn a_cgroup_shared_with_others_is_not_the_requested_one() {
        let root = host(HYBRID);
        let folders = of_process(root.path(), 7, Some("/box")).unwrap();
        assert_eq!(folders.v1.keys().collect::<Vec<_>>(), ["memory"]);
        assert_eq!(folders.v2, None);
        assert_eq!(of_process(root.path(), 7, Some("/bo")).unwrap(), CgroupFolders::default(), "a part of a name is none");
    }

    #[test]
    fn an_ended_process_is_an_error_that_names_its_file() {
        let error = of_process(host(HYBRID).path(), 8, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("/proc/8/cgroup: No such file"), "{error}");
        assert!(error.to_string().ends_with("check that the process still runs"), "{error}");
    }

    #[test]
    fn a_host_that_hides_our_own_cgroup_is_an_error_that_names_the_file() {
        let error = own(host(HYBRID).path()).unwrap_err();
        assert!(error.to_string().contains("/proc/self/cgroup: No such file"), "{error}");
    }
}
