#![forbid(unsafe_code)]
//! eBPF for the capabilities on the network's path: the compiled programs, network namespaces, and programs hooked to an interface
//! at tc. What the programs do is in `agent/bpf`; how their data is used is in the capabilities.
//!
//! A filter ([`tc`]) belongs to the interface and outlives this process. Its name begins with [`NAME_PREFIX`], by which
//! [`tc::Network::filters`] finds it again. A [`Link`] belongs to this process and ends with it.

mod layout;
mod link;
mod message;
mod namespace;
mod object;
pub mod tc;
mod watch;

pub use layout::Layout;
pub use link::Link;
pub use namespace::Namespace;
pub use object::{built, object, Absent, REMEDY};
pub use watch::{Change, Watch};

/// Prefix of the names of all of Partywall's filters.
pub const NAME_PREFIX: &str = "partywall_";
