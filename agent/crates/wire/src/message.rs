//! The methods in one table, their parameters and results, and the content of each notification.

use std::collections::BTreeMap;
use std::path::PathBuf;

use partywall_record::Slice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::guard::{GuardNote, GuardPoolRow, GuardRow};
use crate::trace::{Trace, TraceRecords};

use crate::load::{LoadProgram, LoadSecond, LoadStarted};

/// The table of methods: what each is called, who answers it, its parameters and result, the capabilities of which an agent
/// needs one, and what the agent needs of the kernel. Hands all rows to the macro `then`, in whose scope `wire`, `facts` and
/// `monitor` are the crates whose types it names; types that it does not use need not exist there.
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
            "workload.stop" workload_stop(wire::Stop) -> wire::Stopped, only [Probe, Stressor, Command, Load], needs [];

            "monitor.start" monitor_start(wire::MonitorStart) -> monitor::Watched, only [Monitor], needs [];
            "monitor.schedule" monitor_schedule(wire::MonitorAt) -> wire::Outcome, only [Monitor], needs [];
            "monitor.stop" monitor_stop(wire::Stop) -> wire::Outcome, only [Monitor], needs [];

            "guard.start" guard_start(wire::GuardStart) -> wire::GuardStarted,
                only [Guard], needs [NetAdmin, SysAdmin, Perfmon, Bpf];
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

/// Answer to `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HelloReply {
    /// The agent's [`crate::PROTOCOL`].
    pub protocol: u32,
    /// Version of the agent.
    pub agent: String,
    /// Process number, in the agent's own namespace.
    pub pid: u32,
    /// CPUs it may run on.
    pub cpus: Vec<usize>,
    /// Whether the processor is emulated: its figures are the emulator's. Null where the processor does not say.
    pub emulated: Option<bool>,
}

/// Answer to `clock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Clock {
    /// `CLOCK_MONOTONIC` now.
    pub monotonic_ns: u64,
}

/// `clock.adjust`: makes the clock of a guest tell the host's time. Answered with the time it then tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClockAdjust {
    /// Added to the time that the agent tells. Only before workloads start.
    #[serde(default)]
    pub shift_ns: i64,
    /// From now on the clock runs faster by this many parts in a thousand million; as before if not given.
    #[serde(default)]
    pub frequency_ppb: Option<i64>,
}

/// `memory.check`: is there room for this much?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryCheck {
    /// How much to touch.
    pub bytes: u64,
    /// How long the check may take, waiting for free memory included.
    pub budget_ns: u64,
}

/// `memory.changes`: counts which pages of a file in memory change over time. Answered once all samples are taken, after at most
/// 120 s; `samples` × `interval_ns` bounds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryChanges {
    /// The file that holds the memory, such as that of a guest whose memory is shared.
    pub file: PathBuf,
    /// From one sample to the next.
    pub interval_ns: u64,
    /// Samples at most, the first included. Those that come due during the scan of another are left out.
    #[schemars(range(min = 1, max = 4096))]
    pub samples: u32,
    /// Of so many pages, one is looked at.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 4096))]
    pub stride: u32,
    /// Numbers of intervals, ascending, at most 64: for each, every sample counts the pages that changed within them.
    #[schemars(length(max = 64))]
    pub windows: Vec<u32>,
}

/// `workload.start`: makes a workload. A scheduled one stays off until its first switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Chosen by the controller; all that concerns the workload carries it.
    pub id: String,
    /// What it does.
    pub work: Work,
    /// Measured or paced.
    pub pace: Pace,
    /// Worker threads, each with a kernel of its own.
    #[serde(default = "one")]
    pub threads: u32,
    /// Length of a slice.
    #[serde(default = "ten_ms")]
    pub slice_ns: u64,
    /// Folder of the sandbox's own on a real disk.
    pub work_dir: PathBuf,
    /// Seed for kernels that use chance.
    #[serde(default)]
    pub seed: u64,
}

fn one() -> u32 {
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
    /// A command of the user's.
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

/// A command of the user's. Started without a shell; its lines of output come as `output` notifications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Added to the agent's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How long a scheduled command runs at the start before it is first switched off, so that it can set itself up.
    #[serde(default)]
    pub warm_up_ns: u64,
}

/// Measured or paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Runs all the time as fast as it can: a probe.
    FlatOut,
    /// Follows its schedule of switches: a stressor.
    Scheduled,
}

/// Answer to `workload.start`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Facts worth keeping with the result, of each worker thread.
    pub facts: Vec<Map<String, Value>>,
    /// Process number of a command, in the agent's own namespace.
    pub pid: Option<u32>,
    /// What virtual users found when they were prepared.
    #[serde(default)]
    pub load: Option<LoadStarted>,
}

/// `workload.calibrate`: runs a stressor flat out, alone, to learn what intensity 1 means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibrate {
    /// Which workload.
    pub id: String,
    /// For how long.
    pub for_ns: u64,
}

/// Answer to `workload.calibrate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibrated {
    /// Work per second at intensity 1, of each worker thread.
    pub rate_max: Vec<f64>,
}

/// From `at_ns` on the workload has this intensity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Monotonic time; times of a workload's switches never fall.
    pub at_ns: u64,
    /// 0 is off, 1 is flat out.
    pub intensity: f64,
}

/// `workload.schedule`: appends switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Which workload.
    pub id: String,
    /// In order of time.
    pub switches: Vec<Switch>,
}

/// `workload.stop` and `monitor.stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    /// Which.
    pub id: String,
}

/// `monitor.start`: opens the counters of the host, of some processes and of the cgroups that some processes are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorStart {
    /// Chosen by the controller.
    pub id: String,
    /// Processes to watch, with all their threads.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Cgroups to watch: a label, and a process that is in it.
    #[serde(default)]
    pub cgroups_of: BTreeMap<String, u32>,
    /// Only cgroups at or below this path count: in some hierarchies a process may be in one that it shares with others.
    #[serde(default)]
    pub cgroups_below: Option<String>,
    /// CPUs to tell one by one; all that are online if not given.
    #[serde(default)]
    pub cpus: Option<Vec<u32>>,
}

/// `monitor.schedule`: appends the moments at which counters are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MonitorAt {
    /// Which monitor.
    pub id: String,
    /// In order of time.
    pub at_ns: Vec<u64>,
}

/// Nothing to say but that it was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {}

/// Notification `slices`: finished slices of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slices {
    /// Which workload.
    pub id: String,
    /// In order of time within each thread.
    pub slices: Vec<Slice>,
}

/// Which of a command's outputs.
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
    /// Which output.
    pub stream: Stream,
    /// Without its end; bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// What a command's processes used between two switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Used {
    /// When it was switched before.
    pub start_ns: u64,
    /// When it was switched again.
    pub end_ns: u64,
    /// Whether it was on in between.
    pub on: bool,
    /// Processes at the end.
    pub processes: u32,
    /// CPU time of them all, in steps of the kernel's tick.
    pub cpu_ns: u64,
    /// Read from and written to block devices; null where the kernel does not tell.
    pub disk_bytes: Option<u64>,
}

/// Answer to `workload.stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stopped {
    /// Facts of each worker thread's kernel as it ended: what it did, what it missed, what was cached.
    pub facts: Vec<Map<String, Value>>,
}

/// Notification `ended`: a workload ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ended {
    /// Which workload.
    pub id: String,
    /// Why, in words.
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
        /// Which workload.
        id: String,
        /// In order of time.
        lines: Vec<Line>,
        /// Lines that came too fast and were dropped.
        dropped: u64,
    },
    /// What a scheduled command used while it was on, and while it was off.
    Usage {
        /// Which workload.
        id: String,
        /// In order of time.
        intervals: Vec<Used>,
    },
    /// Counters read by a monitor, in the order of its header; null where a counter could not be read.
    Sample {
        /// Which monitor.
        id: String,
        /// When the reading began.
        at_ns: u64,
        /// When the reading ended.
        until_ns: u64,
        /// In the order of the header.
        values: Vec<Option<f64>>,
    },
    /// What virtual users did, second by second and thread by thread.
    Load {
        /// Which workload.
        id: String,
        /// In order of time within each thread.
        seconds: Vec<LoadSecond>,
    },
    /// What a trace found.
    Trace(Trace),
    /// What a relay saw.
    TraceRecords(TraceRecords),
    /// What a guard saw and granted since its last report.
    Guard {
        /// Which guard.
        id: String,
        /// When the rows' time began.
        from_ns: u64,
        /// When it ended.
        at_ns: u64,
        /// One a leaf, in their order.
        rows: Vec<GuardRow>,
        /// One a pool, in their order.
        #[serde(default)]
        pools: Vec<GuardPoolRow>,
        /// What the independent check found.
        notes: Vec<GuardNote>,
        /// The longest that reading counters, deciding and writing rates took.
        round_ns_max: u64,
        /// The longest that deciding alone took.
        #[serde(default)]
        decide_ns_max: u64,
    },
    /// What could not be sent since the last such message, for it was not read in time.
    Dropped {
        /// Of which workload, monitor or guard.
        id: String,
        /// The notification that it would have been in.
        what: String,
        /// How many slices, lines, intervals, samples, seconds or reports.
        count: u64,
    },
    /// A workload ended by itself.
    Ended(Ended),
}

impl Event {
    /// The name of the notification, of whom it is, and how many things it tells.
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
