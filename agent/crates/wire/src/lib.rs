#![forbid(unsafe_code)]
//! The contract between controller and agent: JSON-RPC 2.0, one message a line, over any stream of bytes. Deliberately not
//! here: what the methods do.
//!
//! The controller sends [`Request`]s; the agent answers each with a [`Response`] and, unasked, sends [`Notification`]s. Both
//! sides refuse what they don't know, and [`PROTOCOL`] changes whenever an old reader would misread a new message.

mod envelope;
mod guard;
pub mod load;
mod message;
pub mod trace;

pub use envelope::{
    decode, Fault, Notification, Request, Response, CODE_DENIED, CODE_FAILED, CODE_METHOD, CODE_PARAMS, CODE_PARSE, CODE_REQUEST,
    LONG_LINE, MAX_LINE,
};
pub use guard::{
    GuardDirection, GuardExcess, GuardFinding, GuardGoal, GuardHook, GuardLeaf, GuardLink, GuardMove, GuardMoves, GuardNote, GuardPool,
    GuardPoolRow, GuardQueue, GuardRemove, GuardRemoved, GuardRow, GuardRule, GuardStart, GuardStarted, GuardTotal,
};
pub use message::{
    Calibrate, Calibrated, Clock, ClockAdjust, Command, Ended, Event, Hello, HelloReply, Kernel, Line, MemoryCheck, MonitorAt,
    MonitorStart, Outcome, Pace, Schedule, Slices, Start, Started, Stop, Stopped, Stream, Switch, Used, Work,
};

/// Version of the messages. Raised when an old reader would misread a new message.
pub const PROTOCOL: u32 = 1;
