//! Switching a network interface on.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{socket, AddressFamily, SocketType};

/// Brings the interface called `name` up, as `ip link set NAME up` does.
///
/// # Errors
/// `ENODEV` if there is none of that name, `EPERM`, `EINVAL` for a name that is too long.
pub fn bring_up(name: &str) -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: a structure of plain numbers, for which all zeroes is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte stays zero, which ends the name.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the call reads the name of and writes the flags into a structure that outlives it.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call before has made the flags the union's content.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    // SAFETY: the call only reads a structure that outlives it.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        assert_eq!(bring_up("nosuchif0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(bring_up("a-name-that-is-far-too-long").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
