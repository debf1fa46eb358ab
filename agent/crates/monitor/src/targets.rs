//! What a reader watches in addition to the host as a whole.

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
    /// CPUs to report one by one. Default: all online CPUs. Their sum is always reported.
    pub cpus: Option<Vec<u32>>,
    /// Disks. Default: all with a size above 0.
    pub disks: Option<Vec<String>>,
    /// Network interfaces of the reader's network namespace. Default: all.
    pub interfaces: Option<Vec<String>>,
}

/// A cgroup to watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CgroupTarget {
    /// Label of its counters.
    pub label: String,
    /// Its folders.
    pub folders: CgroupFolders,
}
