#![forbid(unsafe_code)]
//! Traces packets along a path of interfaces: hooks on each, records out of the kernel, and what the alignment makes of them.
//! Deliberately not here: the matching itself (`partywall_alignment`), and who reads the reports.
//!
//! [`Tracer`] traces a path whose records come from this host's kernel and, for hops elsewhere, from a [`Relay`] there.
//! Forward is the order in which hops are given; packets that travel the other way are aligned apart.

mod budget;
mod engine;
mod error;
mod hooks;
mod hop;
mod kept;
mod order;
mod orientation;
mod record;
mod relay;
mod rings;
mod tracer;

pub use engine::{HopLoss, Report, Way};
pub use error::TraceError;
pub use hooks::unhook;
pub use hop::{End, Hop, Only, Settings, Translation};
pub use partywall_bpf::tc::Direction as Hook;
pub use record::{Raw, Tuple};
pub use relay::{Batch, Relay};
pub use tracer::{Tracer, Upshot};
