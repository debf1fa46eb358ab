#![forbid(unsafe_code)]
//! Enforces a network policy. It measures the offered load of each vif and grants rates. eBPF enforces them at the vif, and an
//! independent check reads the interfaces' own counters. It does not read policy files, and does not know who reads the reports.
//!
//! The kernel holds hooks, buckets and queues; this process only changes rates. If it dies, they stay. If the policy says so,
//! they fall back to the guarantees without help. A fallback process then adds queues where TCP needs them, and exits.

mod change;
mod check;
mod delay;
mod error;
mod fallback;
#[cfg(test)]
mod fluid;
mod guard;
mod overrun;
mod place;
mod plane;
mod round;
mod whereabouts;

pub use error::GuardError;
pub use fallback::run as run_fallback;
pub use guard::{Guard, Report};
pub use place::remove;
pub use plane::{Counters, Grant, Hold, Plane};
pub use round::Rounds;
