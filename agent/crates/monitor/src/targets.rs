//! What a reader watches besides the host as a whole.

use partywall_facts::cgroup::CgroupFolders;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to watch. By default the host as a whole: all CPUs, disks and interfaces, no process and no cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Targets {
    /// Processes, with all their threads.
    pub pids: Vec<u32>,
    /// Cgroups.
    pub cgroups: Vec<CgroupTarget>,
    /// CPUs to tell one by one; all that are online if not given. Their sum is always told.
    pub cpus: Option<Vec<u32>>,
    /// Disks; all that hold something if not given.
    pub disks: Option<Vec<String>>,
    /// Network interfaces of the reader's own network namespace; all if not given.
    pub interfaces: Option<Vec<String>>,
}

/// A cgroup to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CgroupTarget {
    /// What its counters are labelled with.
    pub label: String,
    /// Where it lies.
    pub folders: CgroupFolders,
}
