//! Memory: size, nodes, swap and huge pages.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cgroup::{self, MemoryRoom};
use crate::survey::{self, field, Question, Survey};
use crate::{cpulist, under};

const NODES: &str = "/sys/devices/system/node";

/// Facts about the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryFacts {
    /// All memory that the kernel manages.
    pub total_bytes: Option<u64>,
    /// Memory available without swapping at the time of reading.
    pub available_bytes: Option<u64>,
    /// The tightest limit of this process's cgroups. `None` if there is no limit.
    pub limit: Option<MemoryRoom>,
    /// Memory that this process could allocate: available, and within that limit.
    pub usable_bytes: Option<u64>,
    /// Total swap space; 0 means none.
    pub swap_bytes: Option<u64>,
    /// NUMA nodes. Empty if the kernel knows none.
    pub nodes: Vec<NumaNode>,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// Reserved huge pages.
    pub huge_pages: Option<u64>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Its CPUs.
    pub cpus: Vec<u32>,
    /// Its memory.
    pub total_bytes: Option<u64>,
}

/// A line of `/proc/meminfo` in bytes.
#[must_use]
pub fn meminfo(text: &str, key: &str) -> Option<u64> {
    let value = field(text, key)?;
    match value.strip_suffix("kB") {
        Some(kib) => kib.trim().parse::<u64>().ok()?.checked_mul(1024),
        None => value.parse().ok(),
    }
}

/// Memory available now without swapping. Kernels before 3.14 have no estimate, so free and cached memory is used.
///
/// # Errors
/// `/proc/meminfo` cannot be read, or lacks the values.
pub fn available(root: &Path) -> std::io::Result<u64> {
    let text = survey::named_text(&under(root, "/proc/meminfo"))?;
    estimated(&text).ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "/proc/meminfo has no line MemAvailable"))
}

fn estimated(text: &str) -> Option<u64> {
    let free_and_cached = || meminfo(text, "MemFree")?.checked_add(meminfo(text, "Cached")?);
    meminfo(text, "MemAvailable").or_else(free_and_cached)
}

/// The tightest limit of this process's cgroups. Without a `cgroup` file there is no limit.
#[must_use]
pub fn limit(root: &Path) -> Option<MemoryRoom> {
    cgroup::own(root).ok().and_then(|own| cgroup::memory_room(root, &own))
}

/// Memory that this process can allocate now: what is available on the host, within the limits of its cgroups.
///
/// # Errors
/// As [`available`].
pub fn usable(root: &Path) -> std::io::Result<u64> {
    let limit = limit(root).map_or(u64::MAX, |limit| limit.left_bytes());
    Ok(available(root)?.min(limit))
}

pub(crate) fn read(survey: &mut Survey) -> MemoryFacts {
    let ask = |survey: &mut Survey, what, parse: fn(&str) -> Option<u64>| {
        let question = Question { what, cost: "memory kernels need their bounds given by hand", remedy: "mount procfs on /proc" };
        survey.ask(question, "/proc/meminfo", parse)
    };
    let available_bytes = ask(survey, "available memory", estimated);
    let limit = limit(survey.root());
    MemoryFacts {
        total_bytes: ask(survey, "memory size", |text| meminfo(text, "MemTotal")),
        available_bytes,
        usable_bytes: [available_bytes, limit.as_ref().map(MemoryRoom::left_bytes)].into_iter().flatten().min(),
        limit,
        swap_bytes: ask(survey, "swap size", |text| meminfo(text, "SwapTotal")),
        nodes: nodes(survey),
        transparent_huge_pages: huge(survey),
        huge_pages: survey.optional("/proc/meminfo").and_then(|text| meminfo(&text, "HugePages_Total")),
    }
}

fn nodes(survey: &Survey) -> Vec<NumaNode> {
    let number = |name: &String| name.strip_prefix("node").and_then(|rest| rest.parse::<u32>().ok());
    survey.names(NODES).iter().filter_map(number).map(|number| node(survey, number)).collect()
}

fn node(survey: &Survey, node: u32) -> NumaNode {
    let read = |name: &str| survey.optional(&format!("{NODES}/node{node}/{name}"));
    // The lines of this file begin with "Node 0 ".
    let total = |text: String| meminfo(&text[text.find("MemTotal")?..], "MemTotal");
    NumaNode {
        node,
        cpus: read("cpulist").and_then(|text| cpulist::parse(&text)).unwrap_or_default(),
        total_bytes: read("meminfo").and_then(total),
    }
}

fn huge(survey: &mut Survey) -> Option<String> {
    let question = Question {
        what: "transparent huge pages",
        cost: "the report cannot say whether memory figures were taken with small or huge pages",
        remedy: "none: this kernel was built without them",
    };
    survey.ask(question, "/sys/kernel/mm/transparent_hugepage/enabled", chosen)
}

/// The selected word of a sysfs choice such as `always [madvise] never`.
pub(crate) fn chosen(text: &str) -> Option<String> {
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kibibytes_become_bytes_and_counts_stay() {
        let text = "MemTotal:       24684084 kB\nHugePages_Total:       3\n";
        assert_eq!(meminfo(text, "MemTotal"), Some(24_684_084 * 1024));
        assert_eq!(meminfo(text, "HugePages_Total"), Some(3));
        assert_eq!(meminfo(text, "Mem"), None);
    }

    #[test]
    fn the_selected_word_is_the_bracketed_one() {
        assert_eq!(chosen("none [mq-deadline] kyber").as_deref(), Some("mq-deadline"));
        assert_eq!(chosen("none"), None);
    }
}
