//! The interface of a kernel: its work, its description and its environment.

use std::path::PathBuf;

use partywall_clock::Nanos;
use partywall_record::Recorder;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::needs::{Needs, Warning};

/// Parameters as they come over the wire, before a kernel decodes them.
pub type Params = serde_json::Map<String, serde_json::Value>;

/// A loop that uses one resource.
pub trait Kernel: Send {
    /// Does one short, bounded piece of work (about 20 to 500 µs where the resource allows it). Returns the amount in
    /// [`KernelInfo::unit`]. Kernels whose [`KernelInfo::latency`] is [`Latency::Own`] push latencies into `sink`.
    ///
    /// # Errors
    /// Only errors that make it pointless to continue; the workload ends with them.
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError>;

    /// Called when a stressor is switched off. Releases anything that would continue to use the resource. Most kernels hold nothing.
    ///
    /// # Errors
    /// See [`Kernel::step`].
    fn pause(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Work that `step` has counted and that the operating system still has to do, such as bytes in a socket's buffer.
    fn pending(&self) -> f64 {
        0.0
    }

    /// What a partial intensity is a share of.
    fn paced_by(&self) -> PacedBy {
        PacedBy::Time
    }

    /// Facts to store with the result: chosen sizes, fallbacks used.
    fn facts(&self) -> Params {
        Params::new()
    }
}

/// What a stressor counts to keep a partial intensity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacedBy {
    /// The time in which it is active.
    Time,
    /// Its work: it keeps its own rate, and catches up after a short pause.
    Work,
    /// The larger of the two: a peer works off a buffer while it pauses, so that more is done in a burst than the time says.
    TimeOrWork,
}

/// Receives the latencies of a kernel's operations.
pub trait Sink {
    /// Records that one operation took `value_ns`.
    fn latency(&mut self, value_ns: Nanos);
}

impl Sink for Recorder {
    fn latency(&mut self, value_ns: Nanos) {
        Recorder::latency(self, value_ns);
    }
}

/// The environment of a kernel. Paths are parameters so that tests and guests can replace them.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Parent of `/proc` and `/sys`: `/` except in tests.
    pub root: PathBuf,
    /// The sandbox's folder on a real disk. Kernels may create files there, and remove them on drop.
    pub work_dir: PathBuf,
    /// Seed for kernels that use random numbers.
    pub seed: u64,
    /// Worker thread, from 0.
    pub thread: u32,
    /// Number of worker threads that share the work.
    pub threads: u32,
}

/// Builds a kernel for a worker thread.
pub type Build = fn(&Params, &Environment) -> Result<Box<dyn Kernel>, KernelError>;

/// An entry in the list of kernels: name, description and constructor.
pub struct Entry {
    /// Name in scenarios, for example `memory-copy`.
    pub name: &'static str,
    /// Its description.
    pub info: fn() -> KernelInfo,
    /// Builds one for a worker thread. The error names an invalid parameter.
    pub build: Build,
}

/// Description of a kernel. Scenario checks and documentation use this catalogue.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KernelInfo {
    /// Name in scenarios.
    pub name: &'static str,
    /// The resource it uses.
    pub resource: Resource,
    /// Summary in one line, for a list.
    pub summary: &'static str,
    /// Activity of a neighbour that runs it, as one word before "neighbour": "memory-copying".
    pub doing: &'static str,
    /// What a victim that runs it loses, if the name of its resource does not fit: "memory access speed".
    pub loses: Option<&'static str>,
    /// Unit of its work.
    pub unit: Unit,
    /// How to display its rate of work.
    pub figure: Figure,
    /// The same rate by another convention, if there is one.
    pub also: Option<Figure>,
    /// Content of its latency histogram.
    pub latency: Latency,
    /// Permitted roles.
    pub roles: Roles,
    /// Time until its effect on a neighbour appears and disappears.
    pub settle: Settle,
    /// Memory that it holds and disk requests that it sends, as formulas over its parameters.
    pub needs: Needs,
    /// Warnings that depend on its facts.
    pub warnings: &'static [Warning],
    /// JSON Schema of its parameters.
    pub params: Schema,
}

/// The resource that a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// No resource: the A/A check.
    None,
    /// Execution units and scheduler time.
    Cpu,
    /// A cache level.
    Cache,
    /// The path to memory, as bandwidth or latency.
    MemoryBandwidth,
    /// Pages.
    MemoryCapacity,
    /// Pipes, sockets and shared memory within the host.
    LocalCommunication,
    /// Block storage.
    Disk,
    /// The network stack.
    Network,
    /// System calls, context switches, process creation.
    Kernel,
}

/// Unit of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes moved.
    Bytes,
    /// Memory accesses.
    Accesses,
    /// Operations of the kernel's kind: system calls, datagrams, requests, loops.
    Operations,
    /// Floating-point operations.
    Flops,
    /// Whetstone instructions.
    Whetstones,
    /// Dhrystone loops.
    Dhrystones,
    /// Seconds, for a kernel that only waits.
    Seconds,
}

/// How to display a rate (work per second).
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Figure {
    /// Displayed as `rate / divisor` with this label, such as `MB/s` or `GFLOPS`; more is better.
    Rate {
        /// For example `MB/s`.
        label: &'static str,
        /// For example `1e6`.
        divisor: f64,
    },
    /// Displayed as `1e9 / rate` nanoseconds with this label, such as `ns per access`; less is better.
    PerOperation {
        /// For example `ns per access`.
        label: &'static str,
    },
}

/// Content of a kernel's latency histogram.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", content = "of", rename_all = "snake_case")]
pub enum Latency {
    /// The duration of each step, measured by the caller. The text names the step: "a copy of 256 KiB".
    Step(&'static str),
    /// The kernel measures it. The text names the quantity: "lateness of a wake-up".
    Own(&'static str),
}

/// The roles that a kernel can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Roles {
    /// Only measured.
    Probe,
    /// Only paced.
    Stressor,
    /// Both.
    Both,
}

/// How long after a switch a neighbour is still affected by the state before it.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Settle {
    /// After switching on.
    pub rise_ns: u64,
    /// After switching off.
    pub release_ns: u64,
}

/// Reason why a kernel could not be built or could not continue.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// There is no kernel of that name.
    #[error("no kernel is called {name:?}; there are {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// An invalid parameter.
    #[error("parameter {key}: {value} {why}")]
    Parameter {
        /// Name of the parameter.
        key: &'static str,
        /// The given value.
        value: String,
        /// The problem and valid values.
        why: String,
    },
    /// Parameters that cannot be decoded: an unknown key, a wrong type.
    #[error("parameters: {0}")]
    Decode(#[from] serde_json::Error),
    /// An operation failed on this host.
    #[error("{what}: {source}")]
    Host {
        /// The operation and its object.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

impl KernelError {
    /// Adds the operation to an error of the host.
    pub fn host(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Host { what, source }
    }
}
