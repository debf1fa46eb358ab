#![forbid(unsafe_code)]
//! The contract between controller and agent: JSON-RPC 2.0, one message per line, over any stream of bytes. It does not implement
//! the methods.
//!
//! Every method is declared once, in the table [`methods`]. Dispatch, schema, tests and fuzzing are generated from it.
//!
//! The controller sends [`Request`]s. The agent answers each with a [`Response`], and also sends [`Notification`]s. Both sides refuse
//! unknown fields. [`PROTOCOL`] changes whenever an old reader would misread a new message.

mod envelope;
mod guard;
pub mod load;
mod message;
mod methods;
pub mod trace;

pub use envelope::{
    decode, Fault, Notification, Request, Response, CODES, CODE_DENIED, CODE_FAILED, CODE_INTERNAL, CODE_LACKING, CODE_METHOD, CODE_PARAMS,
    CODE_PARSE, CODE_PASSING, CODE_REQUEST, CODE_USAGE, LONG_LINE, MAX_LINE,
};
pub use guard::{
    GuardAdjusted, GuardDemand, GuardDirection, GuardDivision, GuardExcess, GuardFinding, GuardGoal, GuardGrant, GuardGrants, GuardHook,
    GuardLeaf, GuardLink, GuardMove, GuardMoves, GuardNote, GuardPool, GuardPoolRow, GuardQueue, GuardRemove, GuardRemoved, GuardRow,
    GuardRule, GuardStart, GuardStarted, GuardTotal,
};
pub use message::{
    Calibrate, Calibrated, Clock, ClockAdjust, Command, Ended, Event, Hello, HelloReply, Kernel, Line, MemoryChanges, MemoryCheck,
    MonitorAt, MonitorStart, Outcome, Pace, Schedule, Slices, Start, Started, Stop, Stopped, Stream, Switch, Used, Work,
};
pub use methods::{Capability, Method, Privilege, METHODS};

/// Version of the messages. Raised when an old reader would misread a new message.
pub const PROTOCOL: u32 = 1;
