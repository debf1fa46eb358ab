//! What is to be traced, checked as far as values go.

use std::io;
use std::path::Path;

use partywall_bpf::{tc::Direction, Namespace};

/// A place on the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// How messages and results call it.
    pub name: String,
    /// A name of `ip netns`, the number of a process that is in it, or a path; the agent's own if none.
    pub namespace: Option<String>,
    /// The interface.
    pub interface: String,
    /// Where forward packets pass, and the only place looked at; both sides if none.
    pub hook: Option<Direction>,
    /// Records of this hop come from elsewhere.
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

/// An address and a port, as a tuple holds them: IPv4 within `::ffff:0:0/96`, both in the host's order; port 0 is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The address.
    pub address: std::net::Ipv6Addr,
    /// The port.
    pub port: u16,
}

/// Which packets are traced; all if nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// IP's number of the protocol.
    pub protocol: Option<u8>,
    /// The port of either end.
    pub port: Option<u16>,
    /// The address of either end.
    pub address: Option<std::net::Ipv6Addr>,
}

/// NAT on the way: what is `outside` on some hops is `inside` on others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// As seen on one side.
    pub outside: End,
    /// What it is called in results.
    pub inside: End,
}

/// What to trace, and within which bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The path, in forward order.
    pub hops: Vec<Hop>,
    /// How long a packet is waited for.
    pub horizon_ns: u64,
    /// How often a report is made.
    pub report_ns: u64,
    /// The share of the host's CPU time that tracing may take; above it, fewer flows are sampled.
    pub budget: Option<f64>,
    /// Which packets.
    pub only: Only,
    /// At most four.
    pub translations: Vec<Translation>,
    /// How many of the slowest packets of each way a report holds.
    pub slowest: usize,
    /// How many packets of each way a report holds besides, whatever became of them.
    pub packets: usize,
    /// Memory of each CPU's ring; half of the least power of two above is too little.
    pub ring_bytes: usize,
}

impl Settings {
    /// Whether only forward packets are traced: so it is as soon as one hop's hook is told.
    #[must_use]
    pub fn one_way(&self) -> bool {
        self.hops.iter().any(|hop| hop.hook.is_some())
    }
}
