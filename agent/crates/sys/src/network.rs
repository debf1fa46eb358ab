//! Configures a network interface: its address, the default route, and its state. Source: netdevice(7); rtnetlink is not needed for
//! this.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{socket, AddressFamily, SocketType};

/// Brings the interface called `name` up, as `ip link set NAME up` does.
///
/// # Errors
/// `ENODEV` if there is none of that name, `EPERM`, `EINVAL` for a name that is too long.
pub fn bring_up(name: &str) -> io::Result<()> {
    let socket = any_socket()?;
    let mut request = request_for(name)?;
    ask(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the call before has made the flags the union's content.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    ask(&socket, libc::SIOCSIFFLAGS, &mut request)
}

/// Gives the interface called `name` an address, as `ip address add ADDRESS/PREFIX dev NAME` does to one that has none.
///
/// # Errors
/// As for [`bring_up`], and `EINVAL` for a prefix of more than 32 bits.
pub fn set_address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mask = match prefix {
        0 => 0,
        1..=32 => u32::MAX << (32 - prefix),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let socket = any_socket()?;
    for (operation, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask))] {
        let mut request = request_for(name)?;
        request.ifr_ifru.ifru_addr = socket_address(value);
        ask(&socket, operation, &mut request)?;
    }
    Ok(())
}

/// Routes all other traffic to `gateway`, as `ip route add default via GATEWAY` does.
///
/// # Errors
/// `ENETUNREACH` if no interface leads to the gateway, `EPERM`.
pub fn add_default_route(gateway: Ipv4Addr) -> io::Result<()> {
    // SAFETY: a structure of plain numbers and pointers, for which all zeroes is a value.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    (route.rt_dst, route.rt_genmask) = (socket_address(Ipv4Addr::UNSPECIFIED), socket_address(Ipv4Addr::UNSPECIFIED));
    route.rt_gateway = socket_address(gateway);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    let socket = any_socket()?;
    // SAFETY: the call only reads a structure that outlives it.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCADDRT, &raw const route) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::INET, SocketType::DGRAM, None)?)
}

fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a structure of plain numbers, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero and terminates the name.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Ok(request)
}

fn ask(socket: &OwnedFd, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the call reads and writes a structure that outlives it.
    match unsafe { libc::ioctl(socket.as_raw_fd(), operation, &raw mut *request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A `sockaddr_in` in the general form: two bytes of port, which is 0, then the address.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        assert_eq!(bring_up("nosuchif0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(bring_up("a-name-that-is-far-too-long").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(set_address("nosuchif0", Ipv4Addr::new(192, 0, 2, 1), 24).is_err());
    }

    #[test]
    fn a_prefix_that_is_none_is_an_error() {
        let error = set_address("lo", Ipv4Addr::LOCALHOST, 33).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
