//! The part of routing netlink that hooks and counters need: requests and their responses. A socket belongs to the namespace in
//! which it was opened, on any thread.
//!
//! Any process with `CAP_NET_ADMIN` in that namespace can send messages to this socket. Three measures prevent forged messages.
//! The socket is connected to the kernel, which then refuses unicast messages from others. A message counts only if its
//! sender is the kernel. A response counts only if it has the request's number, which other processes cannot guess.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use partywall_clock::{self as clock, Nanos};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    bind, connect, recvfrom, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType,
};

pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
/// Send the response to the requester too, not only to listeners.
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
/// The kernel's address among netlink sockets.
const KERNEL: u32 = 0;
/// Maximum wait for a response. The kernel responds before `send` returns, except for the later pieces of a dump.
const ANSWERS_WITHIN_NS: Nanos = 5_000_000_000;

/// Kind and body of a message.
pub(crate) type Received = (u16, Vec<u8>);

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

    /// A text with its terminating zero.
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

/// A netlink socket. It handles one request at a time.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// Requests so far.
    count: Mutex<u64>,
    /// Turns each count into a number that only this process can know.
    secret: RandomState,
}

impl Socket {
    /// Opens a socket in the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Self::listening(0)
    }

    /// Opens a socket that also receives the events of `groups`.
    pub fn listening(groups: u32) -> io::Result<Self> {
        let bound = Self::bound(groups)?;
        connect(&bound.fd, &SocketAddrNetlink::new(KERNEL, 0))?;
        Ok(bound)
    }

    fn bound(groups: u32) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, NETLINK_ROUTE)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd: socket, count: Mutex::new(0), secret: RandomState::new() })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Kind and body of the messages since the last call, and whether messages were lost. Never waits. It reads at most `most`
    /// datagrams, because others may send faster than this reads.
    pub fn received(&self, most: usize) -> io::Result<(Vec<Received>, bool)> {
        let (mut received, mut lost) = (Vec::new(), false);
        let mut room = vec![0; ROOM];
        for _ in 0..most {
            match self.receive(&mut room) {
                Ok(Some(datagram)) => received.extend(messages(datagram)),
                Ok(None) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::NOBUFS) => lost = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok((received, lost))
    }

    /// Sends a request and returns the bodies of the response, or the kernel's error. `ETIMEDOUT` without a response.
    pub fn ask(&self, message: Message) -> io::Result<Vec<Vec<u8>>> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count += 1;
        let sequence = self.secret.hash_one(*count) as u32;
        send(&self.fd, &message.finish(sequence), SendFlags::empty())?;
        let mut bodies = Vec::new();
        let mut room = vec![0; ROOM];
        let until = clock::monotonic() + ANSWERS_WITHIN_NS;
        loop {
            self.wait(until)?;
            match self.receive(&mut room) {
                Ok(Some(datagram)) => {
                    if collect(datagram, sequence, &mut bodies)? {
                        return Ok(bodies);
                    }
                }
                Ok(None) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self, until: Nanos) -> io::Result<()> {
        let left = until.saturating_sub(clock::monotonic());
        if left == 0 {
            // Other processes may send continuously.
            return Err(Errno::TIMEDOUT.into());
        }
        let left = Timespec { tv_sec: (left / 1_000_000_000).cast_signed(), tv_nsec: (left % 1_000_000_000).cast_signed() };
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&left)) {
            Ok(0) => Err(Errno::TIMEDOUT.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next datagram, without waiting. None if its sender is not the kernel.
    fn receive<'a>(&self, room: &'a mut [u8]) -> rustix::io::Result<Option<&'a [u8]>> {
        let (length, _, sender) = recvfrom(&self.fd, &mut *room, RecvFlags::DONTWAIT)?;
        Ok(sender.is_some_and(is_kernel).then_some(&room[..length]))
    }
}

fn is_kernel(sender: SocketAddrAny) -> bool {
    SocketAddrNetlink::try_from(sender).is_ok_and(|sender| sender.pid() == KERNEL)
}

/// Appends the messages of one datagram to `bodies`. Returns whether the response is complete.
fn collect(mut datagram: &[u8], sequence: u32, bodies: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    while datagram.len() >= HEADER {
        let length = u32_at(datagram, 0) as usize;
        let message = datagram.get(..length).filter(|message| message.len() >= HEADER).ok_or(io::ErrorKind::InvalidData)?;
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
        // A late message of a request that timed out.
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

fn messages(mut datagram: &[u8]) -> Vec<Received> {
    let mut bodies = Vec::new();
    while let Some(body) = datagram.get(HEADER..(u32_at(datagram, 0) as usize).max(HEADER)) {
        bodies.push((u16_at(datagram, 4), body.to_vec()));
        datagram = datagram.get((HEADER + body.len()).next_multiple_of(4)..).unwrap_or_default();
    }
    bodies
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
    let mut all = Vec::new();
    while bytes.len() >= 4 {
        let length = usize::from(u16_at(bytes, 0));
        let Some(value) = bytes.get(4..length) else { break };
        all.push((u16_at(bytes, 2) & TYPE_MASK, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// The first attribute of `kind`.
pub(crate) fn attribute<'a>(all: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    all.iter().find(|(each, _)| *each == kind).map(|(_, value)| *value)
}

/// The text of an attribute, without its terminating zero.
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
    fn a_refusal_is_the_error_that_the_kernel_named() {
        let mut reply = vec![20, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        reply.extend((-17i32).to_ne_bytes());
        assert_eq!(collect(&reply, 5, &mut Vec::new()).unwrap_err().raw_os_error(), Some(17));
        assert!(!collect(&reply, 6, &mut Vec::new()).unwrap());
    }

    /// Sends `length` bytes of a forged response to `to` from another socket of this namespace, with each number from 0 on.
    fn forge(to: &Socket, numbers: std::ops::Range<u32>) -> rustix::io::Result<()> {
        let forger = Socket::bound(0).unwrap();
        let port = SocketAddrNetlink::try_from(rustix::net::getsockname(&to.fd)?)?;
        for number in numbers {
            let answer = Message::new(16, 0, b"forged").finish(number);
            let done = Message::new(DONE, 0, &[0; 4]).finish(number);
            rustix::net::sendto(&forger.fd, &[answer, vec![0; 2], done].concat(), SendFlags::empty(), &port)?;
        }
        Ok(())
    }

    fn interfaces(socket: &Socket) -> Vec<Vec<u8>> {
        socket.ask(Message::new(18, DUMP, &[0; 16])).unwrap()
    }

    fn fresh<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
        let namespace = crate::Namespace::fresh().map_err(|why| eprintln!("skipped: a new network namespace: {why}")).ok()?;
        Some(namespace.inside(|| Ok(act())).unwrap())
    }

    #[test]
    fn a_forged_response_is_ignored() {
        let answered = fresh(|| {
            let socket = Socket::bound(0).unwrap();
            forge(&socket, 0..16).unwrap();
            interfaces(&socket)
        });
        let Some(answered) = answered else { return };
        assert!(answered.len() == 1 && answered[0] != b"forged", "the namespace has one interface, not {answered:?}");
    }

    #[test]
    fn only_the_kernel_can_send_to_a_socket_or_fill_it() {
        let refused = fresh(|| {
            let socket = Socket::open().unwrap();
            let refused = forge(&socket, 0..1);
            assert_eq!(interfaces(&socket).len(), 1);
            refused
        });
        let Some(refused) = refused else { return };
        assert_eq!(refused, Err(Errno::CONNREFUSED));
    }

    #[test]
    fn a_forged_event_is_ignored() {
        let received = fresh(|| {
            let socket = Socket::bound(0).unwrap();
            forge(&socket, 0..16).unwrap();
            socket.received(64).unwrap()
        });
        let Some(received) = received else { return };
        assert_eq!(received, (vec![], false));
    }

    #[test]
    fn two_sockets_number_their_requests_differently() {
        let numbers = |socket: &Socket| (1..5_u64).map(|count| socket.secret.hash_one(count)).collect::<Vec<_>>();
        assert_ne!(numbers(&Socket::open().unwrap()), numbers(&Socket::open().unwrap()));
    }

    #[test]
    fn broken_messages_end_the_parsing() {
        assert!(attributes(&[255, 255, 1, 0, 0]).is_empty());
        assert!(attributes(&[0, 0, 1, 0]).is_empty());
        assert!(collect(&[1; 16], 0, &mut Vec::new()).is_err());
    }
}
