//! The machine's network interfaces: loopback, and the one assigned by the host, if any.

use std::io;
use std::net::Ipv4Addr;

use partywall_sys::network;

/// Without a device manager, an interface keeps the kernel's name.
const INTERFACE: &str = "eth0";

/// The host's settings for the machine's own interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: Ipv4Addr,
    prefix: u8,
    gateway: Ipv4Addr,
}

impl Network {
    /// Reads an address with its prefix, such as 192.0.2.7/24.
    ///
    /// # Errors
    /// In words, if it is none.
    pub fn parse(address: &str, gateway: Ipv4Addr) -> Result<Self, String> {
        let parts = address.split_once('/').and_then(|(address, prefix)| Some((address.parse().ok()?, prefix.parse().ok()?)));
        match parts {
            Some((address, prefix @ 0..=32)) => Ok(Self { address, prefix, gateway }),
            _ => Err(format!("{address:?} is not an IPv4 address with a prefix; write for example 192.0.2.7/24")),
        }
    }
}

/// Brings up loopback, and the machine's own interface if it has one.
pub(crate) fn bring_up(own: Option<Network>) -> io::Result<()> {
    network::bring_up("lo")?;
    let Some(own) = own else { return Ok(()) };
    network::set_address(INTERFACE, own.address, own.prefix)?;
    network::bring_up(INTERFACE)?;
    network::add_default_route(own.gateway)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_its_prefix() {
        let gateway = Ipv4Addr::new(192, 0, 2, 1);
        let own = Network::parse("192.0.2.7/24", gateway).unwrap();
        assert_eq!(own, Network { address: Ipv4Addr::new(192, 0, 2, 7), prefix: 24, gateway });
        for wrong in ["192.0.2.7", "192.0.2.7/33", "192.0.2/24", "/24", ""] {
            assert!(Network::parse(wrong, gateway).unwrap_err().contains("is not an IPv4 address"), "{wrong}");
        }
    }
}
