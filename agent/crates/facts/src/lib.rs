#![forbid(unsafe_code)]
//! Facts about this host: CPUs, caches, memory, disks and kernel features, and a check that the memory for a run is really available.
//! They are read once before a run and stored with its result. The monitor reads values that change during a run. This crate does
//! not judge the facts.

pub mod cgroup;
pub mod cpu;
pub mod cpulist;
pub mod disk;
pub mod kernel;
pub mod memory;
pub mod memory_changes;
pub mod memory_check;
mod neighbours;
pub mod process;
mod survey;
pub mod virtualisation;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use survey::Survey;
pub use survey::{under, Missing};

/// All facts about a host. A fact that could not be read is `None`, and [`HostFacts::missing`] has the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// The kernel of the operating system and its features.
    pub kernel: kernel::KernelFacts,
    /// CPUs that this process may run on: permitted and online. `None` if the host reports neither.
    pub cpus_allowed: Option<Vec<u32>>,
    /// CPUs, caches and frequency.
    pub cpu: cpu::CpuFacts,
    /// Memory, swap, NUMA nodes and huge pages.
    pub memory: memory::MemoryFacts,
    /// Whether the host is a guest, and whether it can run guests.
    pub virtualisation: virtualisation::VirtualisationFacts,
    /// Mounts of cgroups.
    pub cgroup: cgroup::CgroupFacts,
    /// Block devices with a size above 0, by name.
    pub disks: Vec<disk::DiskFacts>,
    /// Names of the programs whose parent is init: engines of containers, agents, guests. Empty if there are very many.
    #[serde(default)]
    pub neighbours: Vec<String>,
    /// Facts that could not be read, with reason, consequence and remedy.
    pub missing: Vec<Missing>,
}

/// Reads all facts. `root` is the folder that contains `proc`, `sys` and `dev`.
#[must_use]
pub fn read(root: &Path) -> HostFacts {
    let mut survey = Survey::new(root);
    let cpu = cpu::read(&mut survey);
    HostFacts {
        kernel: kernel::read(&mut survey),
        cpus_allowed: cpu::allowed(&mut survey, cpu.online.as_deref()),
        cpu,
        memory: memory::read(&mut survey),
        virtualisation: virtualisation::read(&mut survey),
        cgroup: cgroup::read(&mut survey),
        disks: disk::read(&mut survey),
        neighbours: neighbours::read(&survey),
        missing: survey.into_missing(),
    }
}
