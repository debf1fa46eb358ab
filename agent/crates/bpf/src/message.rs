//! Routing netlink, as little of it as hooks and counters need: requests, and what answers them. A socket belongs to the
//! namespace it was opened in, whichever thread uses it later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{bind, recv, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
/// Answer who asked, and not only who listens.
pub(crate) const ECHO: u16 = 0x8;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const DUMP: u16 = 0x300;

/// `NETLINK_ROUTE` is protocol 0, which is the default.
const NETLINK_ROUTE: Option<rustix::net::Protocol> = None;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;
/// The largest piece of a dump that kernels send.
const ROOM: usize = 64 << 10;

/// Kind and body of a message.
pub(crate) type Told = (u16, Vec<u8>);

/// A request under construction.
pub(crate) struct Message(Vec<u8>);

impl Message {
    /// A request of `kind`, with the fixed part `body` (a `tcmsg` or an `ifinfomsg`).
    pub fn new(kind: u16, flags: u16, body: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((REQUEST | flags).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        Self(bytes)
    }

    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// A text with the zero that ends it.
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.attribute(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub fn nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        let mut filled = fill(self);
        let length = (filled.0.len() - start) as u16;
        filled.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        filled
    }

    fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

/// A netlink socket; one exchange at a time.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: OwnedFd,
    sequence: Mutex<u32>,
}

impl Socket {
    /// Opened in the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Self::listening(0)
    }

    /// One that is also told what happens in `groups`.
    pub fn listening(groups: u32) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, NETLINK_ROUTE)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket, sequence: Mutex::new(0) })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Kind and body of what was told since the last call, and whether some of it was lost; never waits. It reads at most
    /// `most` datagrams, for others may send faster than this reads.
    pub fn told(&self, most: usize) -> io::Result<(Vec<Told>, bool)> {
        let (mut told, mut lost) = (Vec::new(), false);
        let mut room = vec![0; ROOM];
        for _ in 0..most {
            match recv(&self.socket, &mut *room, RecvFlags::DONTWAIT) {
                Ok((length, _)) => told.extend(messages(&room[..length])),
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS) => lost = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok((told, lost))
    }

    /// Sends a request and returns the bodies of what answers it, or the kernel's refusal.
    pub fn ask(&self, message: Message) -> io::Result<Vec<Vec<u8>>> {
        let mut sequence = self.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        *sequence = sequence.wrapping_add(1);
        send(&self.socket, &message.finish(*sequence), SendFlags::empty())?;
        let mut bodies = Vec::new();
        let mut room = vec![0; ROOM];
        loop {
            let (length, _) = recv(&self.socket, &mut *room, RecvFlags::empty())?;
            if collect(&room[..length], *sequence, &mut bodies)? {
                return Ok(bodies);
            }
        }
    }
}

/// Takes the messages out of one datagram; whether that was the last.
fn collect(mut datagram: &[u8], sequence: u32, bodies: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while datagram.len() >= HEADER {
        let length = u32_at(datagram, 0) as usize;
        let message = datagram.get(..length).filter(|message| message.len() >= HEADER).ok_or(io::ErrorKind::InvalidData)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        // What is left of an exchange that was given up.
        if u32_at(message, 8) != sequence {
            continue;
        }
        match u16_at(message, 4) {
            DONE => return Ok(true),
            ERROR => return acknowledged(&message[HEADER..]),
            _ => bodies.push(message[HEADER..].to_vec()),
        }
    }
    Ok(false)
}

fn messages(mut datagram: &[u8]) -> Vec<Told> {
    let mut found = Vec::new();
    while let Some(body) = datagram.get(HEADER..(u32_at(datagram, 0) as usize).max(HEADER)) {
        found.push((u16_at(datagram, 4), body.to_vec()));
        datagram = datagram.get((HEADER + body.len()).next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn acknowledged(body: &[u8]) -> io::Result<bool> {
    match body.get(..4).map(|code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]])) {
        Some(0) => Ok(true),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The attributes in `bytes`, by kind.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let length = usize::from(u16_at(bytes, 0));
        let Some(value) = bytes.get(4..length) else { break };
        found.push((u16_at(bytes, 2) & TYPE_MASK, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// The first attribute of `kind`.
pub(crate) fn attribute<'a>(all: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    all.iter().find(|(found, _)| *found == kind).map(|(_, value)| *value)
}

/// The text of an attribute, without the zero that ends it.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |part| u16::from_ne_bytes([part[0], part[1]]))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |part| u32::from_ne_bytes([part[0], part[1], part[2], part[3]]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back_as_they_were_written() {
        let message = Message::new(44, ACK, &[0; 20]).text(1, "bpf").nested(2, |m| m.number(3, 7).text(7, "name"));
        let bytes = message.finish(9);
        assert_eq!((u32_at(&bytes, 0) as usize, u32_at(&bytes, 8)), (bytes.len(), 9));
        let outer = attributes(&bytes[HEADER + 20..]);
        assert_eq!(text(attribute(&outer, 1).unwrap()), "bpf");
        let inner = attributes(attribute(&outer, 2).unwrap());
        assert_eq!((u32_at(attribute(&inner, 3).unwrap(), 0), text(attribute(&inner, 7).unwrap())), (7, "name".into()));
    }

    #[test]
    fn a_refusal_is_the_error_the_kernel_named() {
        let mut reply = vec![20, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        reply.extend((-17i32).to_ne_bytes());
        assert_eq!(collect(&reply, 5, &mut Vec::new()).unwrap_err().raw_os_error(), Some(17));
        assert!(!collect(&reply, 6, &mut Vec::new()).unwrap());
    }

    #[test]
    fn broken_messages_end_the_reading() {
        assert!(attributes(&[255, 255, 1, 0, 0]).is_empty());
        assert!(attributes(&[0, 0, 1, 0]).is_empty());
        assert!(collect(&[1; 16], 0, &mut Vec::new()).is_err());
    }
}
