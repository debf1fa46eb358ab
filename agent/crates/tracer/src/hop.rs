//! The parameters of a trace, with checked values.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;

use partywall_bpf::{tc::Direction, Namespace};

/// A place on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its name in messages and results.
    pub name: String,
    /// A name of `ip netns`, the ID of a process in it, or a path; None for the agent's own.
    pub namespace: Option<String>,
    /// The interface.
    pub interface: String,
    /// Where forward packets pass, and the only place to trace; both sides if None.
    pub hook: Option<Direction>,
    /// Records of this hop come from another agent.
    pub remote: bool,
}

impl Hop {
    pub(crate) fn open_namespace(&self) -> io::Result<Namespace> {
        match self.namespace.as_deref() {
            None => Namespace::current(),
            Some(path) if path.starts_with('/') => Namespace::at(Path::new(path)),
            Some(name) => match name.parse() {
                Ok(pid) => Namespace::of_process(pid),
                Err(_) => Namespace::named(name),
            },
        }
    }
}

/// An address and a port, as in a tuple: IPv4 within `::ffff:0:0/96`, both in host byte order; port 0 matches any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: std::net::Ipv6Addr,
    /// The port.
    pub port: u16,
}

/// Which packets to trace; all by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// The protocol's number in IP.
    pub protocol: Option<u8>,
    /// The port of either end.
    pub port: Option<u16>,
    /// The address of either end.
    pub address: Option<std::net::Ipv6Addr>,
}

/// NAT on the path: `outside` at some hops is `inside` at others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// As seen on one side.
    pub outside: End,
    /// Its name in results.
    pub inside: End,
}

/// What to trace, and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The path, in forward order.
    pub hops: Vec<Hop>,
    /// A packet not seen for this long is lost.
    pub horizon_ns: u64,
    /// The interval between reports.
    pub report_ns: u64,
    /// The share of the host's CPU time that tracing may take. Above it, fewer flows are sampled.
    pub budget: Option<f64>,
    /// Records one packet in this many, and counts the others.
    pub one_in: NonZeroU32,
    /// Which packets.
    pub only: Only,
    /// At most four.
    pub translations: Vec<Translation>,
    /// Number of slowest packets in each direction in a report.
    pub slowest: usize,
    /// Number of further packets in each direction in a report, with any fate.
    pub packets: usize,
    /// Memory of each CPU's ring, rounded down to a power of two.
    pub ring_bytes: usize,
}

impl Settings {
    /// True if only forward packets are traced, because a hop names its hook.
    #[must_use]
    pub fn one_way(&self) -> bool {
        self.hops.iter().any(|hop| hop.hook.is_some())
    }
}
