//! Addresses of network kernels: a given peer, or their own on loopback.

use std::net::SocketAddr;

use crate::KernelError;

/// Parses the parameter `to`.
pub(crate) fn parse(to: Option<&str>) -> Result<Option<SocketAddr>, KernelError> {
    let wrong = |why: &str, value: &str| KernelError::Parameter { key: "to", value: value.to_owned(), why: why.into() };
    let Some(text) = to else { return Ok(None) };
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err(wrong("has port 0; give the port the peer listens on", text)),
        Ok(address) => Ok(Some(address)),
        Err(_) => Err(wrong("is not an address with a port; write for example 192.0.2.7:5001 or [2001:db8::7]:5001", text)),
    }
}
