//! Sends and receives many datagrams with one system call. The caller decides on content and time.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Datagrams of one size, to be sent or received together.
pub struct Batch {
    bytes: Vec<u8>,
    size: usize,
    headers: Vec<libc::mmsghdr>,
    pieces: Vec<libc::iovec>,
}

// SAFETY: the pointers in `headers` and `pieces` only point into `bytes` and `pieces`, which move along with the batch.
unsafe impl Send for Batch {}

impl Batch {
    /// Room for `count` datagrams of `size` bytes, all zero.
    #[must_use]
    pub fn new(count: usize, size: usize) -> Self {
        // SAFETY: `mmsghdr` is plain numbers and pointers, for which all zero is "nothing".
        let nothing = unsafe { std::mem::zeroed() };
        let pieces = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: size }; count];
        Self { bytes: vec![0; count * size], size, headers: vec![nothing; count], pieces }
    }

    /// The bytes of datagram `at`.
    pub fn datagram_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at * self.size..][..self.size]
    }

    /// Points the headers at the buffers. Called before each call, so that a move in between cannot invalidate them.
    fn aim(&mut self) {
        let start = self.bytes.as_mut_ptr();
        for (at, (header, piece)) in self.headers.iter_mut().zip(&mut self.pieces).enumerate() {
            piece.iov_base = start.wrapping_add(at * self.size).cast();
            piece.iov_len = self.size;
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
        }
    }

    /// Sends the first `count` datagrams over a connected socket. Returns the number of sent datagrams.
    ///
    /// # Errors
    /// The kernel's error if none was sent.
    pub fn send(&mut self, socket: &UdpSocket, count: usize) -> io::Result<usize> {
        self.aim();
        let count = count.min(self.headers.len()) as libc::c_uint;
        // SAFETY: `aim` made the first `count` headers describe live buffers of this batch, held exclusively through `&mut self`.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Waits for one datagram, takes all available ones, and returns their number and bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<(usize, u64)> {
        self.aim();
        let count = self.headers.len() as libc::c_uint;
        // SAFETY: as in `send`; the kernel writes at most `size` bytes into each buffer. A null timeout waits without end.
        let got =
            unsafe { libc::recvmmsg(socket.as_raw_fd(), self.headers.as_mut_ptr(), count, libc::MSG_WAITFORONE, std::ptr::null_mut()) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        Ok((got, self.headers[..got].iter().map(|header| u64::from(header.msg_len)).sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_received_also_when_empty() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        from.connect(to.local_addr().unwrap()).unwrap();
        for size in [0, 1, 16384] {
            let (mut out, mut back) = (Batch::new(4, size), Batch::new(4, size));
            assert_eq!(out.send(&from, 3).unwrap(), 3);
            let (mut count, mut bytes) = (0, 0);
            while count < 3 {
                let (more, sizes) = back.receive(&to).unwrap();
                (count, bytes) = (count + more, bytes + sizes);
            }
            assert_eq!((count, bytes), (3, 3 * size as u64));
        }
    }
}
