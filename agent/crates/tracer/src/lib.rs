#![forbid(unsafe_code)]
//! Traces packets along a path of interfaces: hooks on each interface, reading of records, and their alignment. The matching itself
//! is in `partywall_alignment`.
//!
//! [`Tracer`] traces a path whose records come from this host's kernel and, for remote hops, from a [`Relay`] there. Forward is the
//! order of the given hops. Packets in the other direction are aligned separately.

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
