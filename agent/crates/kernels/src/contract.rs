//! What a kernel is, says of itself, and may ask of its surroundings.

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
    /// Does one short, bounded piece of work (about 20 to 500 µs where the resource allows) and returns how much, in
    /// [`KernelInfo::unit`]. Kernels whose [`KernelInfo::latency`] is [`Latency::Own`] push latencies into `sink`.
    ///
    /// # Errors
    /// Only what makes going on pointless; the workload ends with it.
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError>;

    /// Called when a stressor is switched off: give back what would go on pressing. Most kernels hold nothing.
    ///
    /// # Errors
    /// As [`Kernel::step`].
    fn pause(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    /// Whether it holds a rate of its own, and makes up for a short pause: a stressor then paces it by its work and not by time.
    fn paces_itself(&self) -> bool {
        false
    }

    /// Facts worth keeping with the result: sizes chosen, fall-backs taken.
    fn facts(&self) -> Params {
        Params::new()
    }
}

/// Where a kernel pushes the latency of single operations.
pub trait Sink {
    /// One operation took `value_ns`.
    fn latency(&mut self, value_ns: Nanos);
}

impl Sink for Recorder {
    fn latency(&mut self, value_ns: Nanos) {
        Recorder::latency(self, value_ns);
    }
}

/// What a kernel may know of where it runs. Paths are parameters so that tests and guests can inject their own.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Where `/proc` and `/sys` are found: `/` but in tests.
    pub root: PathBuf,
    /// A folder of the sandbox's own on a real disk; kernels may make files there and remove them on drop.
    pub work_dir: PathBuf,
    /// Seed for kernels that use chance.
    pub seed: u64,
    /// Worker thread, from 0.
    pub thread: u32,
    /// How many worker threads share the job.
    pub threads: u32,
}

/// Builds a kernel for a worker thread.
pub type Build = fn(&Params, &Environment) -> Result<Box<dyn Kernel>, KernelError>;

/// A kernel in the list: its name, what it says of itself, and how to build it.
pub struct Entry {
    /// As users write it, for example `memory-copy`.
    pub name: &'static str,
    /// What it says of itself.
    pub info: fn() -> KernelInfo,
    /// Builds one for a worker thread, or says which parameter is wrong.
    pub build: Build,
}

/// What a kernel says of itself; the catalogue that scenario checks and documentation are made from.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct KernelInfo {
    /// As users write it.
    pub name: &'static str,
    /// The resource it uses.
    pub resource: Resource,
    /// One line for a list.
    pub summary: &'static str,
    /// What a neighbour that runs it is doing, in one word before "neighbour": "memory-copying".
    pub doing: &'static str,
    /// What a victim that runs it loses, where that is not what its resource is called: "memory access speed".
    pub loses: Option<&'static str>,
    /// What its work is counted in.
    pub unit: Unit,
    /// How a rate of work is shown to people.
    pub figure: Figure,
    /// The same rate as others count it, where that differs.
    pub also: Option<Figure>,
    /// What its latency histogram holds.
    pub latency: Latency,
    /// What it can be used as.
    pub roles: Roles,
    /// How long its effect on a neighbour takes to come and go.
    pub settle: Settle,
    /// Memory that it holds and requests that it sends to a disk, by its parameters.
    pub needs: Needs,
    /// Warnings that its facts call for.
    pub warnings: &'static [Warning],
    /// JSON Schema of its parameters.
    pub params: Schema,
}

/// What a kernel presses on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Presses on nothing: the A/A check.
    None,
    /// Execution units and the scheduler's time.
    Cpu,
    /// A cache level.
    Cache,
    /// The path to memory, in bytes a second or in latency.
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
    /// Seconds: a kernel that waits and does nothing.
    Seconds,
}

/// How a rate (work per second) is shown.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Figure {
    /// Shown as `rate / divisor` with this label, more is better: `MB/s`, `GFLOPS`.
    Rate {
        /// For example `MB/s`.
        label: &'static str,
        /// For example `1e6`.
        divisor: f64,
    },
    /// Shown as `1e9 / rate` nanoseconds with this label, less is better: `ns per access`.
    PerOperation {
        /// For example `ns per access`.
        label: &'static str,
    },
}

/// What a kernel's latency histogram holds.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", content = "of", rename_all = "snake_case")]
pub enum Latency {
    /// The duration of each step, measured by the caller; the text names the step: "a copy of 256 KiB".
    Step(&'static str),
    /// The kernel measures it itself; the text says what: "lateness of a wake-up".
    Own(&'static str),
}

/// What a kernel can be used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Roles {
    /// Measured only.
    Probe,
    /// Paced only.
    Stressor,
    /// Both.
    Both,
}

/// How long after a switch a neighbour still feels the state before it.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Settle {
    /// After switching on.
    pub rise_ns: u64,
    /// After switching off.
    pub release_ns: u64,
}

/// Why a kernel could not be built or go on.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No kernel of that name.
    #[error("no kernel is called {name:?}; there are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A parameter that cannot be used.
    #[error("parameter {key}: {value} {why}")]
    Parameter {
        /// Which.
        key: &'static str,
        /// As given.
        value: String,
        /// What is wrong and what would do.
        why: String,
    },
    /// Parameters that do not decode: an unknown key, a wrong type.
    #[error("parameters: {0}")]
    Decode(#[from] serde_json::Error),
    /// The host refused something.
    #[error("{what}: {source}")]
    Host {
        /// What was tried, on what.
        what: String,
        /// What the kernel of the operating system said.
        source: std::io::Error,
    },
}

impl KernelError {
    /// Says what was tried when the host refused.
    pub fn host(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Host { what, source }
    }
}
