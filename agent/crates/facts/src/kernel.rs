//! The kernel of the operating system: its release, and which of the features that Partywall can use it has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::survey::{Question, Survey};

/// Facts about the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not one state
pub struct KernelFacts {
    /// For example `6.1.0-18-amd64`.
    pub release: Option<String>,
    /// Boot command line.
    pub command_line: Option<String>,
    /// The clock source.
    pub clocksource: Option<String>,
    /// Whether pressure stall information is available.
    pub pressure: bool,
    /// Whether run-queue wait is reported for each CPU.
    pub cpu_run_queue_wait: bool,
    /// Who may use `io_uring`.
    pub io_uring: Option<IoUring>,
    /// Whether the CPU's performance counters are accessible.
    pub hardware_counters: bool,
    /// `perf_event_paranoid`: above 2 only privileged users may count events.
    pub perf_event_paranoid: Option<i32>,
    /// Whether cache and memory bandwidth can be allocated by `resctrl`.
    pub resctrl: Resctrl,
    /// Whether the CPU reports its energy consumption.
    pub rapl: bool,
}

/// Who may use `io_uring`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IoUring {
    /// All users.
    Allowed,
    /// Privileged users and one group.
    Privileged,
    /// No users.
    Disabled,
}

/// State of the `resctrl` file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resctrl {
    /// Mounted.
    Mounted,
    /// Known to the kernel, not mounted.
    Supported,
    /// Not known to the kernel, or not supported by the CPU.
    Absent,
}

pub(crate) fn read(survey: &mut Survey) -> KernelFacts {
    KernelFacts {
        release: release(survey),
        command_line: survey.optional("/proc/cmdline"),
        clocksource: clocksource(survey),
        pressure: present(survey, "/proc/pressure/cpu", PRESSURE),
        cpu_run_queue_wait: present(survey, "/proc/schedstat", SCHEDSTAT),
        io_uring: io_uring(survey),
        hardware_counters: hardware_counters(survey),
        perf_event_paranoid: survey.optional("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse().ok()),
        resctrl: resctrl(survey),
        rapl: rapl(survey),
    }
}

const PRESSURE: Question = Question {
    what: "pressure stall information",
    cost: "no direct measure of time lost for lack of CPU, memory or I/O",
    remedy: "boot with psi=1, or a kernel built with CONFIG_PSI",
};

const SCHEDSTAT: Question = Question {
    what: "run-queue wait for each CPU",
    cost: "waiting is known only for the processes watched, not for each CPU",
    remedy: "a kernel built with CONFIG_SCHEDSTATS",
};

const COUNTERS: Question = Question {
    what: "hardware counters",
    cost: "no instructions per cycle and no cache misses",
    remedy: "on metal load the CPU's PMU driver; a virtual machine needs a virtual PMU",
};

const RESCTRL: Question = Question {
    what: "resctrl",
    cost: "cache occupancy and memory bandwidth of a sandbox can be neither read nor limited",
    remedy: "a CPU with RDT or QoS extensions and a kernel built with CONFIG_X86_CPU_RESCTRL",
};

const RAPL: Question = Question {
    what: "RAPL",
    cost: "no energy from the CPU itself",
    remedy: "on metal load intel_rapl_msr; virtual machines rarely have it",
};

fn present(survey: &mut Survey, path: &str, question: Question) -> bool {
    // Opening is not sufficient: with psi=0 the file exists, but reading it fails.
    survey.ask(question, path, |_| Some(())).is_some()
}

fn release(survey: &mut Survey) -> Option<String> {
    let question = Question { what: "kernel release", cost: "the report cannot name the kernel", remedy: "mount procfs on /proc" };
    survey.ask(question, "/proc/sys/kernel/osrelease", |text| Some(text.to_owned()))
}

fn clocksource(survey: &mut Survey) -> Option<String> {
    let question = Question {
        what: "clocksource",
        cost: "reading the clock may be slow (hpet, acpi_pm) without the report saying so",
        remedy: "mount sysfs on /sys",
    };
    survey.ask(question, "/sys/devices/system/clocksource/clocksource0/current_clocksource", |text| Some(text.to_owned()))
}

fn io_uring(survey: &mut Survey) -> Option<IoUring> {
    let question = Question {
        what: "whether io_uring is allowed",
        cost: "only trying shows whether disk kernels can keep more than one request in flight without threads",
        remedy: "none needed: kernels before 6.6 have no such switch",
    };
    survey.ask(question, "/proc/sys/kernel/io_uring_disabled", |text| match text {
        "0" => Some(IoUring::Allowed),
        "1" => Some(IoUring::Privileged),
        "2" => Some(IoUring::Disabled),
        _ => None,
    })
}

fn hardware_counters(survey: &mut Survey) -> bool {
    const DEVICES: &str = "/sys/bus/event_source/devices";
    // ARM and hybrid x86 name their PMUs armv8_pmuv3_0, cpu_core, cpu_atom.
    let there = survey.names(DEVICES).iter().any(|name| name == "cpu" || name.starts_with("cpu_") || name.starts_with("armv"));
    if !there {
        survey.lack(COUNTERS, format!("{DEVICES}/cpu is not there"));
    }
    there
}

fn resctrl(survey: &mut Survey) -> Resctrl {
    if survey.exists("/sys/fs/resctrl/schemata") {
        return Resctrl::Mounted;
    }
    let known = survey.optional("/proc/filesystems").is_some_and(|text| text.split_whitespace().any(|word| word == "resctrl"));
    if known {
        return Resctrl::Supported;
    }
    survey.lack(RESCTRL, "/proc/filesystems does not list it".into());
    Resctrl::Absent
}

fn rapl(survey: &mut Survey) -> bool {
    const FOLDER: &str = "/sys/class/powercap";
    let there = survey.names(FOLDER).iter().any(|name| name.contains("rapl"));
    if !there {
        survey.lack(RAPL, format!("{FOLDER} lists none"));
    }
    there
}
