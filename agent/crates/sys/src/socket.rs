//! What a socket still holds.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that were written to a stream socket and that its peer has not acknowledged. Source: `SIOCOUTQ` in tcp(7) and unix(7).
///
/// # Errors
/// For a descriptor that is no socket.
pub fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes a number that outlives it. `TIOCOUTQ` is the same request as `SIOCOUTQ`.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } {
        0 => Ok(bytes.max(0).cast_unsigned().into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn bytes_that_no_peer_has_room_for_are_unacknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unacknowledged_bytes(socket.as_fd()).unwrap(), 0);
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 14]).is_ok() {}
        assert!(unacknowledged_bytes(socket.as_fd()).unwrap() > 0);
    }

    #[test]
    fn a_file_is_refused() {
        assert!(unacknowledged_bytes(File::open("/proc/version").unwrap().as_fd()).is_err());
    }
}
