#![forbid(unsafe_code)]
//! What this host is, and what it can give: CPUs, caches, memory, disks, the kernel's abilities, and a check that the
//! memory a run wants is really there. Read once before a run and stored with its result. Deliberately not here:
//! anything that changes while a run lasts (counters are the monitor's), and any judgement of what a fact is good for.

pub mod cgroup;
pub mod cpu;
pub mod cpulist;
pub mod disk;
pub mod kernel;
pub mod memory;
pub mod memory_changes;
pub mod memory_check;
mod survey;
pub mod virtualisation;

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use survey::Survey;
pub use survey::{under, Missing};

/// Everything read about a host. What could not be read is `None`, and [`HostFacts::missing`] says why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostFacts {
    /// The kernel of the operating system and what it allows.
    pub kernel: kernel::KernelFacts,
    /// CPUs that this process may run on: allowed and online. `None` if the host tells neither.
    pub cpus_allowed: Option<Vec<u32>>,
    /// CPUs, caches and frequency.
    pub cpu: cpu::CpuFacts,
    /// Memory, swap, NUMA nodes and huge pages.
    pub memory: memory::MemoryFacts,
    /// Whether the host is itself a guest, and whether it can have guests.
    pub virtualisation: virtualisation::VirtualisationFacts,
    /// How cgroups are mounted.
    pub cgroup: cgroup::CgroupFacts,
    /// Block devices that hold something, by name.
    pub disks: Vec<disk::DiskFacts>,
    /// What could not be found out, why, what that costs and what would help.
    pub missing: Vec<Missing>,
}

/// Reads all facts; `root` is the folder that holds `proc`, `sys` and `dev`.
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
        missing: survey.into_missing(),
    }
}
