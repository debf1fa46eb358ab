//! A kernel's needs on a host, and the warnings that depend on its facts, as data: formulas over its parameters. A controller
//! evaluates them without knowing any kernel by name.

use schemars::JsonSchema;
use serde::Serialize;

/// The needs of a kernel, by its parameters. Most kernels need nothing: [`Needs::NOTHING`].
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Needs {
    /// Values of parameters that are not given and have no fixed default.
    pub implied: &'static [Implied],
    /// Minimum memory that it holds: the sum of these.
    pub memory: &'static [Held],
    /// Its disk requests. None if it uses no disk, or only a file in memory.
    pub requests: Option<Requests>,
}

impl Needs {
    /// Less memory than the agent itself, and no disk.
    pub const NOTHING: Self = Self { implied: &[], memory: &[], requests: None };
}

/// The value of a parameter that is not given.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Implied {
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Source of its value.
    pub from: Source,
}

/// Source of a parameter's value.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// A constant.
    Constant {
        /// The value.
        value: u64,
    },
    /// A multiple of another parameter.
    Parameter {
        /// The other parameter.
        parameter: &'static str,
        /// Its value if it is not given either.
        otherwise: u64,
        /// The factor.
        times: u64,
    },
    /// A share of the data cache of one level. Nothing if the host does not report it.
    Cache {
        /// The parameter with the level: `L1`, `L2`, `L3`. It excludes the parameter whose value is implied.
        level: &'static str,
        /// The level if it is not given either.
        otherwise: u8,
        /// The share.
        percent: u64,
    },
    /// A share of the largest data cache.
    LargestCache {
        /// The share.
        percent: u64,
        /// Minimum value.
        least: u64,
        /// The parameter with the maximum value.
        most: &'static str,
    },
}

/// Bytes in memory: a factor times the product of parameters. A parameter that is neither given nor implied counts as 0.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Held {
    /// The owner of the memory.
    pub by: Holder,
    /// The factor.
    pub times: u64,
    /// The parameters; one may occur twice.
    pub parameters: &'static [&'static str],
}

/// Owner of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Each worker thread has its own.
    EachThread,
    /// The worker threads share it.
    AllThreads,
}

/// Disk requests of a kernel.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Requests {
    /// Whether it reads or writes.
    pub direction: Direction,
    /// The parameter with the size of a request.
    pub size: &'static str,
    /// The parameter with the number of requests in flight.
    pub depth: &'static str,
    /// What it waits for at a time, if more than a request.
    pub waits: Waits,
    /// Whether requests reach the device unchanged, bypassing the page cache.
    pub direct: bool,
}

/// Direction of disk requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// What a kernel waits for at a time.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Waits {
    /// One request.
    Request,
    /// The operating system's read-ahead.
    ReadAhead {
        /// Its size.
        bytes: u64,
    },
    /// Half of the limit on bytes that are written but not yet on disk.
    WriteBack {
        /// The parameter with that limit.
        bound: &'static str,
    },
}

/// A warning that applies if one fact is too large relative to another.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Warning {
    /// Name of the warning in the controller.
    pub warning: &'static str,
    /// The fact.
    pub fact: &'static str,
    /// The fact that it is compared with.
    pub of: &'static str,
    /// The share above which the warning applies.
    pub above_percent: u64,
}
