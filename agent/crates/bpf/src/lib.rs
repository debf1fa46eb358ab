#![forbid(unsafe_code)]
//! eBPF for the capabilities that stand on the network's path: the compiled programs, network namespaces, and programs
//! hooked to an interface at tc. Deliberately not here: what the programs do (`agent/bpf`) and what is made of it.
//!
//! A filter ([`tc`]) belongs to the interface, not to this process: it stays when the process dies, carries a name that begins
//! with [`NAME_PREFIX`], and is found again by [`tc::Network::filters`]. A [`Link`] belongs to this process and ends with it.

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

/// Begins the name of every filter that is Partywall's.
pub const NAME_PREFIX: &str = "partywall_";
