#![forbid(unsafe_code)]
//! Keeps a policy's promises on the network: sees what each vif offers, grants rates, has eBPF enforce them where packets
//! leave their sender, and looks at the interfaces themselves to see that it holds. Deliberately not here: reading a policy
//! file, and who reads the reports.
//!
//! The kernel holds hooks, buckets and queues; this process only changes rates. If it dies they stay, and fall back to the
//! guarantees by themselves if the policy says so; a second process then puts queues where TCP needs them, and ends.

mod change;
mod check;
mod delay;
mod error;
mod guard;
mod heir;
mod place;
mod plane;
mod round;

pub use error::GuardError;
pub use guard::{Guard, Report};
pub use heir::inherit;
pub use place::remove;
pub use plane::{Counters, Grant, Hold, Plane};
pub use round::Rounds;
