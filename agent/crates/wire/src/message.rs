//! The table of methods, their parameters and results, and the content of each notification.

use std::collections::BTreeMap;
use std::path::PathBuf;

use partywall_record::Slice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::guard::{GuardNote, GuardPoolRow, GuardRow};
use crate::trace::{Trace, TraceRecords};

use crate::load::{LoadProgram, LoadSecond, LoadStarted};

/// The table of methods. Each row has a name, the function that answers, parameters and result, the capabilities of which an agent
/// needs one, and the required Linux capabilities. The table passes all rows to the macro `then`. In the macro's scope, `wire`,
/// `facts` and `monitor` are the crates of the named types; types that it does not use need not exist there.
#[macro_export]
macro_rules! methods {
    ($then:ident) => {
        $then! {
            "hello" hello(wire::Hello) -> wire::HelloReply, only [], needs [];
            "facts" facts() -> facts::HostFacts, only [], needs [];
            "clock" clock() -> wire::Clock, only [], needs [];
            "clock.adjust" clock_adjust(wire::ClockAdjust) -> wire::Clock, only [], needs [];
            "memory.check" memory_check(wire::MemoryCheck) -> facts::memory_check::MemoryCheck, only [Memory], needs [];
            "memory.changes" memory_changes(wire::MemoryChanges) -> facts::memory_changes::MemoryChanges, only [Memory], needs [];

            "workload.start" workload_start(wire::Start) -> wire::Started, only [Probe, Stressor, Command, Load], needs [];
            "workload.calibrate" workload_calibrate(wire::Calibrate) -> wire::Calibrated, only [Stressor], needs [];
            "workload.schedule" workload_schedule(wire::Schedule) -> wire::Outcome, only [Stressor, Command, Load], needs [];
            "load.level" load_level(wire::load::LoadLevel) -> wire::Outcome, only [Load], needs [];
            "workload.stop" workload_stop(wire::Stop) -> wire::Stopped, only [Probe, Stressor, Command, Load], needs [];

            "monitor.start" monitor_start(wire::MonitorStart) -> monitor::Watched, only [Monitor], needs [];
            "monitor.schedule" monitor_schedule(wire::MonitorAt) -> wire::Outcome, only [Monitor], needs [];
            "monitor.stop" monitor_stop(wire::Stop) -> wire::Outcome, only [Monitor], needs [];

            "guard.start" guard_start(wire::GuardStart) -> wire::GuardStarted,
                only [Guard], needs [NetAdmin, SysAdmin, Perfmon, Bpf];
            "guard.adjust" guard_adjust(wire::GuardStart) -> wire::GuardAdjusted,
                only [Guard], needs [NetAdmin, SysAdmin, Perfmon, Bpf];
            "guard.grants" guard_grants(wire::Stop) -> wire::GuardGrants, only [Guard], needs [];
            "guard.move" guard_move(wire::GuardMoves) -> wire::Outcome, only [Guard], needs [NetAdmin, SysAdmin, Perfmon, Bpf];
            "guard.stop" guard_stop(wire::Stop) -> wire::Outcome, only [Guard], needs [];
            "guard.remove" guard_remove(wire::GuardRemove) -> wire::GuardRemoved, only [Guard], needs [NetAdmin, SysAdmin];

            "trace.start" trace_start(wire::trace::TraceStart) -> wire::trace::TraceStarted,
                only [Trace], needs [NetAdmin, SysAdmin, Perfmon, Bpf];
            "trace.feed" trace_feed(wire::trace::TraceFeed) -> wire::Outcome, only [Trace], needs [];
            "trace.sample" trace_sample(wire::trace::TraceSample) -> wire::Outcome, only [Trace], needs [];
            "trace.close" trace_close(wire::Stop) -> wire::trace::TraceClosed, only [Trace], needs [];
            "trace.stop" trace_stop(wire::Stop) -> wire::Outcome, only [Trace], needs [];
        }
    };
}

/// `hello`: the first request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The controller's [`crate::PROTOCOL`].
    pub protocol: u32,
}

/// Result of `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HelloReply {
    /// The agent's [`crate::PROTOCOL`].
    pub protocol: u32,
    /// Version of the agent.
    pub agent: String,
    /// Process ID, in the agent's own namespace.
    pub pid: u32,
    /// CPUs it may run on.
    pub cpus: Vec<usize>,
    /// Whether the processor is emulated, so that results are those of the emulator. Null if the processor does not report it.
    pub emulated: Option<bool>,
}

/// Result of `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Clock {
    /// `CLOCK_MONOTONIC` now.
    pub monotonic_ns: u64,
}

/// `clock.adjust`: adjusts the clock of a guest to the host's time. Returns the adjusted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockAdjust {
    /// Offset added to the agent's time. Not permitted while a workload, monitor, trace or guard runs.
    #[serde(default)]
    pub shift_ns: i64,
    /// Rate adjustment of the clock from now on, in parts per billion. If not set, the rate does not change.
    #[serde(default)]
    pub frequency_ppb: Option<i64>,
}

/// `memory.check`: checks whether this much memory is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryCheck {
    /// Bytes to touch.
    pub bytes: u64,
    /// Maximum duration of the check, including the wait for free memory.
    pub budget_ns: u64,
}

/// `memory.changes`: counts which pages of a file in memory change over time. Returns after all samples were taken, after at most
/// 120 s; `samples` × `interval_ns` is limited to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryChanges {
    /// The file that contains the memory, such as that of a guest with shared memory.
    pub file: PathBuf,
    /// Time from one sample to the next.
    pub interval_ns: u64,
    /// Maximum samples, including the first. Samples that become due during the scan of another are skipped.
    #[schemars(range(min = 1, max = 4096))]
    pub samples: u32,
    /// One of this many pages is hashed.
    #[serde(default = "single_thread")]
    #[schemars(range(min = 1, max = 4096))]
    pub stride: u32,
    /// Windows as numbers of intervals, ascending, at most 64. For each window, every sample counts the pages that changed within it.
    #[schemars(length(max = 64))]
    pub windows: Vec<u32>,
}

/// `workload.start`: starts a workload. A scheduled one stays off until its first switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// ID chosen by the controller. All messages about the workload contain it.
    pub id: String,
    /// The work to do.
    pub work: Work,
    /// Measured or paced.
    pub pace: Pace,
    /// Number of worker threads. Each has its own kernel.
    #[serde(default = "single_thread")]
    pub threads: u32,
    /// Length of a slice.
    #[serde(default = "ten_ms")]
    pub slice_ns: u64,
    /// The sandbox's folder on a real disk.
    pub work_dir: PathBuf,
    /// Seed for kernels that use random numbers.
    #[serde(default)]
    pub seed: u64,
}

fn single_thread() -> u32 {
    1
}

fn ten_ms() -> u64 {
    10_000_000
}

/// A kernel, a command or virtual users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// A built-in kernel.
    Kernel(Kernel),
    /// A command of the user.
    Command(Command),
    /// Virtual users.
    Load(Box<LoadProgram>),
}

/// A built-in kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Its name in the catalogue.
    pub name: String,
    /// Its parameters.
    #[serde(default)]
    pub params: Map<String, Value>,
}

/// A command of the user. It is started without a shell. Its lines of output arrive as `output` notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the agent's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How long a scheduled command runs before it is first switched off, so that it can initialise.
    #[serde(default)]
    pub warm_up_ns: u64,
}

/// Measured or paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Runs continuously at full speed: a probe.
    FlatOut,
    /// Follows its schedule of switches: a stressor.
    Scheduled,
}

/// Result of `workload.start`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Facts of each worker thread, to store with the result.
    pub facts: Vec<Map<String, Value>>,
    /// Process ID of a command, in the agent's own namespace.
    pub pid: Option<u32>,
    /// Description of the prepared virtual users.
    #[serde(default)]
    pub load: Option<LoadStarted>,
}

/// `workload.calibrate`: runs a stressor alone at full speed, to measure intensity 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibrate {
    /// ID of the workload.
    pub id: String,
    /// Duration of the run. It is longer under a CPU limit, and is repeated if other processes use the CPU.
    pub for_ns: u64,
    /// CPUs whose time the sandbox's limit leaves, because a sandbox may hide its limit from the agent. Absent if it has no limit.
    #[serde(default)]
    pub cpus_limit: Option<f64>,
}

/// Result of `workload.calibrate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibrated {
    /// Work per second at intensity 1, of each worker thread.
    pub rate_max: Vec<f64>,
    /// Share of the time, 0 to 1, in which other processes used the CPU of the most disturbed thread. It is taken off the rates.
    pub disturbed: f64,
}

/// A switch to this intensity from `at_ns` on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Monotonic time; times of a workload's switches never fall.
    pub at_ns: u64,
    /// 0 is off, 1 is full speed.
    pub intensity: f64,
}

/// `workload.schedule`: appends switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// ID of the workload.
    pub id: String,
    /// In order of time.
    pub switches: Vec<Switch>,
}

/// `workload.stop` and `monitor.stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// ID of the workload, monitor, guard or trace.
    pub id: String,
}

/// `monitor.start`: opens the counters of the host, of processes, and of the cgroups of processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorStart {
    /// ID chosen by the controller.
    pub id: String,
    /// Processes to watch, with all their threads.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Cgroups to watch: a label, and a process in the cgroup.
    #[serde(default)]
    pub cgroups_of: BTreeMap<String, u32>,
    /// Only cgroups at or below this path are used. In some hierarchies a process may be in a cgroup that it shares with others.
    #[serde(default)]
    pub cgroups_below: Option<String>,
    /// CPUs to report one by one. Default: all online CPUs.
    #[serde(default)]
    pub cpus: Option<Vec<u32>>,
}

/// `monitor.schedule`: appends times at which counters are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorAt {
    /// ID of the monitor.
    pub id: String,
    /// In order of time.
    pub at_ns: Vec<u64>,
}

/// An empty result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {}

/// Notification `slices`: finished slices of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slices {
    /// ID of the workload.
    pub id: String,
    /// In order of time within each thread.
    pub slices: Vec<Slice>,
}

/// An output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One line of a command's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// When its end was read.
    pub at_ns: u64,
    /// The output stream.
    pub stream: Stream,
    /// Without the line end. Bytes that are not UTF-8 are replaced.
    pub text: String,
}

/// Resources that a command's processes used between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Used {
    /// Time of the switch before.
    pub start_ns: u64,
    /// Time of the next switch.
    pub end_ns: u64,
    /// Whether it was on in between.
    pub on: bool,
    /// Processes at the end.
    pub processes: u32,
    /// CPU time of all processes, in steps of the kernel's tick.
    pub cpu_ns: u64,
    /// Bytes read from and written to block devices. Null if the kernel does not report them.
    pub disk_bytes: Option<u64>,
}

/// Result of `workload.stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stopped {
    /// Facts of each worker thread's kernel at its end, such as missed deadlines or cached bytes.
    pub facts: Vec<Map<String, Value>>,
}

/// Notification `ended`: a workload, monitor, guard or trace ended without a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ended {
    /// ID of the workload, monitor, guard or trace.
    pub id: String,
    /// The reason, as text.
    pub reason: String,
}

/// Every notification, as one type for the schema and the golden vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "method", content = "params", rename_all = "snake_case")]
pub enum Event {
    /// Finished slices.
    Slices(Slices),
    /// Lines of a command's output.
    Output {
        /// ID of the workload.
        id: String,
        /// In order of time.
        lines: Vec<Line>,
        /// Number of lines dropped because they arrived too fast, or were longer than 4 MiB.
        dropped: u64,
    },
    /// Resources that a scheduled command used while it was on, and while it was off.
    Usage {
        /// ID of the workload.
        id: String,
        /// In order of time.
        intervals: Vec<Used>,
    },
    /// Counters read by a monitor, in the order of its header; null where a counter could not be read.
    Sample {
        /// ID of the monitor.
        id: String,
        /// When the reading began.
        at_ns: u64,
        /// When the reading ended.
        until_ns: u64,
        /// In the order of the header.
        values: Vec<Option<f64>>,
    },
    /// Results of virtual users, by second and thread.
    Load {
        /// ID of the workload.
        id: String,
        /// In order of time within each thread.
        seconds: Vec<LoadSecond>,
    },
    /// Results of a trace.
    Trace(Trace),
    /// Records of a relay.
    TraceRecords(TraceRecords),
    /// Measurements and grants of a guard since its last report.
    Guard {
        /// ID of the guard.
        id: String,
        /// Start of the reported period.
        from_ns: u64,
        /// End of the reported period.
        at_ns: u64,
        /// One row per leaf, in their order.
        rows: Vec<GuardRow>,
        /// One row per pool, in their order.
        #[serde(default)]
        pools: Vec<GuardPoolRow>,
        /// Findings of the independent check.
        notes: Vec<GuardNote>,
        /// Longest time to read counters, decide and write rates.
        round_ns_max: u64,
        /// Longest time to decide.
        #[serde(default)]
        decide_ns_max: u64,
    },
    /// Number of messages dropped since the last such message, because the controller did not read in time.
    Dropped {
        /// ID of the workload, monitor or guard.
        id: String,
        /// Name of the dropped notification.
        what: String,
        /// Number of dropped slices, lines, intervals, samples, seconds or reports.
        count: u64,
    },
    /// A workload, monitor, guard or trace ended without a stop.
    Ended(Ended),
}

impl Event {
    /// The notification's name, the ID of its sender, and the number of its items.
    #[must_use]
    pub fn content(&self) -> (&'static str, &str, u64) {
        match self {
            Self::Slices(Slices { id, slices }) => ("slices", id, slices.len() as u64),
            Self::Output { id, lines, dropped } => ("output", id, lines.len() as u64 + dropped),
            Self::Usage { id, intervals } => ("usage", id, intervals.len() as u64),
            Self::Sample { id, .. } => ("sample", id, 1),
            Self::Load { id, seconds } => ("load", id, seconds.len() as u64),
            Self::Trace(Trace { id, .. }) => ("trace", id, 1),
            Self::TraceRecords(TraceRecords { id, .. }) => ("trace_records", id, 1),
            Self::Guard { id, .. } => ("guard", id, 1),
            Self::Dropped { id, count, .. } => ("dropped", id, *count),
            Self::Ended(Ended { id, .. }) => ("ended", id, 1),
        }
    }
}
