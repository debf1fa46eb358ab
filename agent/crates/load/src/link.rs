//! One connection of one user: a non-blocking socket with its unsent bytes. It does not interpret what it carries.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use partywall_clock::Nanos;
use partywall_wire::load::LoadErrorKind;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{self, sockopt, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::Timespec;
use rustls::ClientConnection;

use crate::http1::Response;
use crate::http2::Http2;
use crate::tls;

/// Destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Ip(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// The local address from which the user with this number connects, one of the same family. None if there is none.
    pub(crate) fn local_for(&self, locals: &[String], number: u64) -> Option<IpAddr> {
        let Self::Ip(to) = self else { return None };
        let parsed = locals.iter().filter_map(|text| text.parse().ok());
        let same: Vec<IpAddr> = parsed.filter(|ip: &IpAddr| ip.is_ipv4() == to.is_ipv4()).collect();
        same.get(number as usize % same.len().max(1)).copied()
    }

    /// Whether a socket that can connect to one can connect to the other.
    pub(crate) fn is_of_family(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ip(one), Self::Ip(other)) => one.is_ipv4() == other.is_ipv4(),
            (Self::Unix(_), Self::Unix(_)) => true,
            _ => false,
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    /// In the TLS handshake.
    Handshaking,
    /// No request is pending.
    Idle,
    /// A response is pending.
    Busy,
    /// The last response was read. The server closes first, so that its port enters `TIME_WAIT` and not the local one.
    Draining,
}

slotmap::new_key_type! {
    /// Identifies a connection, and no later one.
    pub(crate) struct LinkKey;
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    pub user: u32,
    pub place: u16,
    pub phase: Phase,
    /// It has already served a request.
    pub kept: bool,
    /// The server said that it did not process the request.
    pub unprocessed: bool,
    pub started_ns: Nanos,
    pub response: Response,
    tls: Option<Box<ClientConnection>>,
    /// Set if HTTP/2 is used instead of HTTP/1.1.
    pub http2: Option<Box<Http2>>,
    unsent: Vec<u8>,
    unsent_from: usize,
}

impl Link {
    /// Starts to connect.
    pub(crate) fn open(address: &Address, local: Option<IpAddr>, user: u32, place: u16, now_ns: Nanos) -> Result<Self, Errno> {
        let family = match address {
            Address::Ip(SocketAddr::V4(_)) => AddressFamily::INET,
            Address::Ip(SocketAddr::V6(_)) => AddressFamily::INET6,
            Address::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        let connected = match address {
            Address::Ip(address) => {
                // Requests are written whole. A delay to fill packets would only add latency.
                sockopt::set_tcp_nodelay(&socket, true)?;
                if let Some(local) = local {
                    net::bind(&socket, &SocketAddr::new(local, 0))?;
                }
                net::connect(&socket, address)
            }
            Address::Unix(path) => net::connect(&socket, &SocketAddrUnix::new(path)?),
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let response = Response::default();
        let phase = Phase::Connecting;
        let (tls, http2, unsent) = (None, None, Vec::new());
        Ok(Self {
            socket,
            user,
            place,
            phase,
            kept: false,
            unprocessed: false,
            started_ns: now_ns,
            response,
            tls,
            http2,
            unsent,
            unsent_from: 0,
        })
    }

    /// Registers for all future events at once.
    pub(crate) fn watch(&self, poll: &OwnedFd, key: u64) -> Result<(), Errno> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(poll, &self.socket, EventData::new_u64(key), flags)
    }

    /// Whether connecting has succeeded or failed.
    pub(crate) fn connected(&self) -> Result<(), Errno> {
        sockopt::socket_error(&self.socket)?
    }

    /// Whether the peer has already closed the connection, even if its end has not been read yet.
    pub(crate) fn is_closed_by_peer(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Starts the TLS handshake.
    pub(crate) fn secure(&mut self, mut connection: Box<ClientConnection>) -> Result<(), Errno> {
        let hello = tls::seal(&mut connection, &[]);
        self.tls = Some(connection);
        self.phase = Phase::Handshaking;
        self.send_plain(&hello).map(drop)
    }

    /// Whether TLS negotiated HTTP/2. None without TLS.
    pub(crate) fn agreed_on_http2(&self) -> Option<bool> {
        self.tls.as_ref().map(|connection| tls::agreed_on_http2(connection))
    }

    /// Sends HTTP/2's pending bytes, for a request or the protocol itself. Returns whether the socket took all.
    pub(crate) fn flush_http2(&mut self) -> Result<bool, Errno> {
        match self.http2.as_mut().map(|http2| http2.take_unsent()) {
            Some(said) if !said.is_empty() => self.send(&said),
            _ => Ok(true),
        }
    }

    pub(crate) fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Decrypts bytes, sends the protocol's replies, and appends the plain text. Returns whether the handshake is complete.
    pub(crate) fn unseal(&mut self, mut sealed: &[u8], into: &mut Vec<u8>) -> Result<bool, String> {
        let Some(connection) = &mut self.tls else { return Ok(true) };
        while !sealed.is_empty() {
            connection.read_tls(&mut sealed).map_err(|error| error.to_string())?;
            let state = connection.process_new_packets();
            let state = state.map_err(|error| error.to_string())?;
            let start = into.len();
            into.resize(start + state.plaintext_bytes_to_read(), 0);
            connection.reader().read_exact(&mut into[start..]).map_err(|error| error.to_string())?;
        }
        let agreed = !connection.is_handshaking();
        let answer = tls::seal(connection, &[]);
        if !answer.is_empty() {
            self.send_plain(&answer).map_err(|error| error.to_string())?;
        }
        Ok(agreed)
    }

    /// Sends `bytes`, encrypted if the connection is, and buffers what the socket does not accept. Returns whether it accepted all.
    #[inline]
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<bool, Errno> {
        match &mut self.tls {
            None => self.send_plain(bytes),
            Some(connection) => {
                let sealed = tls::seal(connection, bytes);
                self.send_plain(&sealed)
            }
        }
    }

    #[inline]
    fn send_plain(&mut self, bytes: &[u8]) -> Result<bool, Errno> {
        if self.unsent_from < self.unsent.len() {
            self.unsent.extend_from_slice(bytes);
            return Ok(false);
        }
        let sent = match net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        if sent < bytes.len() {
            self.unsent.clear();
            self.unsent.extend_from_slice(&bytes[sent..]);
            self.unsent_from = 0;
        }
        Ok(sent == bytes.len())
    }

    /// Continues to send buffered bytes.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while self.unsent_from < self.unsent.len() {
            match net::send(&self.socket, &self.unsent[self.unsent_from..], SendFlags::NOSIGNAL) {
                Ok(sent) => self.unsent_from += sent,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent = Vec::new();
        self.unsent_from = 0;
        Ok(())
    }

    /// Whether no bytes are buffered.
    pub(crate) fn is_flushed(&self) -> bool {
        self.unsent_from >= self.unsent.len()
    }

    /// Reads available bytes, up to the length of `into`. Returns 0 at the end of the stream.
    #[inline]
    pub(crate) fn receive(&self, into: &mut [u8]) -> Result<usize, Errno> {
        net::recv(&self.socket, into, RecvFlags::empty()).map(|(taken, _)| taken)
    }
}

/// The kind of request failure for an error of the system.
pub(crate) fn kind_of(error: Errno) -> LoadErrorKind {
    match error {
        Errno::CONNREFUSED | Errno::NOENT => LoadErrorKind::ConnectionRefused,
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::NETDOWN => LoadErrorKind::Unreachable,
        Errno::TIMEDOUT => LoadErrorKind::ConnectTimeout,
        Errno::ADDRNOTAVAIL | Errno::ADDRINUSE => LoadErrorKind::NoPorts,
        Errno::MFILE | Errno::NFILE => LoadErrorKind::NoFiles,
        Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => LoadErrorKind::Reset,
        _ => LoadErrorKind::System,
    }
}
