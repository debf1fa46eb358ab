//! What a kernel needs of a host, and which of its facts call for a warning, as data: formulas over its parameters that a controller
//! evaluates without knowing any kernel by name. Deliberately not here: what the host has.

use schemars::JsonSchema;
use serde::Serialize;

/// What a kernel needs by its parameters. Most kernels need nothing: [`Needs::NOTHING`].
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Needs {
    /// What parameters amount to that are not given and have no fixed default.
    pub implied: &'static [Implied],
    /// The least memory that it holds: the sum of these.
    pub memory: &'static [Held],
    /// What it requests from a disk; none if it does not use a disk, or only a file that is in memory.
    pub requests: Option<Requests>,
}

impl Needs {
    /// Less memory than the agent itself, and no disk.
    pub const NOTHING: Self = Self { implied: &[], memory: &[], requests: None };
}

/// What a parameter amounts to if it is not given.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Implied {
    /// Which parameter.
    pub parameter: &'static str,
    /// Where its value comes from.
    pub from: Source,
}

/// Where the value of a parameter comes from.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// Always the same.
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
    /// A share of the data cache of one level; nothing if the host does not show it.
    Cache {
        /// The parameter with the level: `L1`, `L2`, `L3`. It contradicts the parameter whose value is implied.
        level: &'static str,
        /// The level if that is not given either.
        otherwise: u8,
        /// The share.
        percent: u64,
    },
    /// A share of the largest data cache.
    LargestCache {
        /// The share.
        percent: u64,
        /// At least this.
        least: u64,
        /// The parameter with the most that it may be.
        most: &'static str,
    },
}

/// Bytes in memory: a factor times the product of parameters. A parameter that is neither given nor implied counts as 0.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Held {
    /// Who holds them.
    pub by: Holder,
    /// The factor.
    pub times: u64,
    /// The parameters; one may stand twice.
    pub parameters: &'static [&'static str],
}

/// Who holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Each worker thread has its own.
    EachThread,
    /// The worker threads share it.
    AllThreads,
}

/// What a kernel requests from a disk.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Requests {
    /// Whether it reads or writes.
    pub direction: Direction,
    /// The parameter with the size of a request.
    pub size: &'static str,
    /// The parameter with the number of requests in flight.
    pub depth: &'static str,
    /// What it waits for at a time, if that is more than a request.
    pub waits: Waits,
    /// Whether the device sees its requests as they are: past the page cache.
    pub direct: bool,
}

/// A direction of disk requests.
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
    /// What the operating system reads ahead.
    ReadAhead {
        /// Its size.
        bytes: u64,
    },
    /// Half of what may be written and not yet on the disk.
    WriteBack {
        /// The parameter with that bound.
        bound: &'static str,
    },
}

/// A warning beside the figure if a fact is too large beside another.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Warning {
    /// The warning, as the controller calls it.
    pub warning: &'static str,
    /// The fact.
    pub fact: &'static str,
    /// The fact that it is compared with.
    pub of: &'static str,
    /// The share above which the warning stands.
    pub above_percent: u64,
}
