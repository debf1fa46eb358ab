//! `pipe`, `unix-socket`, `tcp-loopback` and `tcp-stream`: a stream of messages to a reader that discards them. Without `to` the
//! reader is a thread of the kernel. `tcp-request` waits for responses.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use partywall_clock::{self as clock, Nanos};
use partywall_sys::socket;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::batch::STEP_NS;
use crate::peer::Peer;
use crate::{
    address, limits, noise, Build, Entry, Figure, Held, Holder, Kernel, KernelError, KernelInfo, Latency, Needs, PacedBy, Resource, Roles,
    Settle, Sink, Unit,
};

const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Maximum wait for a remote peer that does not read, so that the worker can stop.
const PATIENCE: Duration = Duration::from_millis(100);
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
enum Kind {
    Pipe,
    UnixSocket,
    TcpLoopback,
    TcpStream,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LocalParams {
    /// Bytes per call, up to 16 MiB.
    #[schemars(range(min = 1, max = 16_777_216))]
    message_bytes: usize,
}

impl Default for LocalParams {
    fn default() -> Self {
        Self { message_bytes: 64 << 10 }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct TcpParams {
    /// Bytes per call, up to 16 MiB.
    #[schemars(range(min = 1, max = 16_777_216))]
    message_bytes: usize,
    /// Address and port of a peer that reads and discards. Default: a thread of the kernel on loopback.
    to: Option<String>,
}

impl Default for TcpParams {
    fn default() -> Self {
        Self { message_bytes: 128 << 10, to: None }
    }
}

struct Stream {
    // Declared before `reader`, because closing this end stops the reader.
    out: Box<dyn Out>,
    reader: Option<Reader>,
    message: Vec<u8>,
    /// Number of bytes sent of the current message.
    at: usize,
    /// When its transmission started.
    begun_ns: Nanos,
    sent_bytes: u64,
    to: Option<SocketAddr>,
}

/// The end of a stream that is written to.
trait Out: Write + Send {
    /// Bytes that were written and that the peer has not taken. A pipe holds too few to matter.
    fn held_bytes(&self) -> u64 {
        0
    }
}

impl Out for File {}

impl Out for UnixStream {}

impl Out for TcpStream {
    fn held_bytes(&self) -> u64 {
        socket::unacknowledged_bytes(self.as_fd()).unwrap_or(0)
    }
}

struct Reader {
    received_bytes: Arc<AtomicU64>,
    _peer: Peer,
}

impl Reader {
    fn start(mut from: impl Read + Send + 'static, message_bytes: usize) -> io::Result<Self> {
        let received_bytes = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received_bytes);
        let mut buffer = vec![0; message_bytes.clamp(4096, 1 << 20)];
        let peer = Peer::spawn("stream reader", move || loop {
            match from.read(&mut buffer) {
                Ok(0) => return,
                Ok(bytes) => _ = count.fetch_add(bytes as u64, Ordering::Relaxed),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The writer's next call reports the closed stream.
                Err(_) => return,
            }
        })?;
        Ok(Self { received_bytes, _peer: peer })
    }
}

impl Stream {
    fn new(out: Box<dyn Out>, reader: Option<Reader>, message_bytes: usize, to: Option<SocketAddr>) -> Self {
        let mut message = vec![0; message_bytes];
        noise::fill(&mut message, 1);
        Self { out, reader, message, at: 0, begun_ns: 0, sent_bytes: 0, to }
    }

    fn local(kind: Kind, message_bytes: usize) -> io::Result<Self> {
        let (out, reader): (Box<dyn Out>, _) = match kind {
            Kind::Pipe => {
                let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
                (Box::new(File::from(to)), Reader::start(File::from(from), message_bytes)?)
            }
            Kind::UnixSocket => {
                let (from, to) = UnixStream::pair()?;
                (Box::new(to), Reader::start(from, message_bytes)?)
            }
            Kind::TcpLoopback | Kind::TcpStream => {
                let (to, from) = connected_pair()?;
                (Box::new(to), Reader::start(from, message_bytes)?)
            }
        };
        Ok(Self::new(out, Some(reader), message_bytes, None))
    }

    fn remote(to: SocketAddr, message_bytes: usize) -> io::Result<Self> {
        let out = TcpStream::connect_timeout(&to, CONNECT_PATIENCE)?;
        out.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::new(Box::new(out), None, message_bytes, Some(to)))
    }

    /// Sends as much of the current message as the stream accepts. Returns 0 if it accepts nothing for now.
    fn send(&mut self) -> Result<usize, KernelError> {
        match self.out.write(&self.message[self.at..]) {
            Ok(bytes) => Ok(bytes),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => Ok(0),
            Err(error) => Err(KernelError::host("sending a message")(error)),
        }
    }
}

/// Both ends of a TCP connection on loopback. No other process can have connected to it.
pub(crate) fn connected_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    loop {
        let (theirs, from) = listener.accept()?;
        if from == ours.local_addr()? {
            return Ok((ours, theirs));
        }
    }
}

impl Kernel for Stream {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let begin = clock::monotonic();
        let mut total = 0;
        if self.at == 0 {
            self.begun_ns = begin;
        }
        loop {
            let sent = self.send()?;
            total += sent;
            self.at += sent;
            let now = clock::monotonic();
            if self.at == self.message.len() {
                sink.latency(now - self.begun_ns);
                (self.at, self.begun_ns) = (0, now);
            }
            if sent == 0 || now - begin >= STEP_NS {
                self.sent_bytes += total as u64;
                return Ok(total as f64);
            }
        }
    }

    fn pending(&self) -> f64 {
        self.out.held_bytes() as f64
    }

    fn paced_by(&self) -> PacedBy {
        PacedBy::TimeOrWork
    }

    fn facts(&self) -> crate::Params {
        let received = self.reader.as_ref().map(|reader| reader.received_bytes.load(Ordering::Relaxed));
        let mut facts = crate::Params::new();
        facts.insert("message_bytes".into(), json!(self.message.len()));
        facts.insert("to".into(), json!(self.to.map(|to| to.to_string())));
        facts.insert("sent_bytes".into(), json!(self.sent_bytes));
        facts.insert("received_bytes".into(), json!(received));
        facts
    }
}

fn build_local(kind: Kind, params: &crate::Params) -> Result<Box<dyn Kernel>, KernelError> {
    let LocalParams { message_bytes } = serde_json::from_value(params.clone().into())?;
    let message_bytes = limits::within("message_bytes", message_bytes, 1..=MAX_MESSAGE_BYTES)?;
    let stream = Stream::local(kind, message_bytes).map_err(KernelError::host("opening a stream within the host"))?;
    Ok(Box::new(stream))
}

fn build_tcp(params: &crate::Params) -> Result<Box<dyn Kernel>, KernelError> {
    let TcpParams { message_bytes, to } = serde_json::from_value(params.clone().into())?;
    let message_bytes = limits::within("message_bytes", message_bytes, 1..=MAX_MESSAGE_BYTES)?;
    let stream = match address::parse(to.as_deref())? {
        Some(to) => Stream::remote(to, message_bytes).map_err(KernelError::host(format!("connecting to {to}")))?,
        None => Stream::local(Kind::TcpStream, message_bytes).map_err(KernelError::host("connecting on loopback"))?,
    };
    Ok(Box::new(stream))
}

/// The reader empties buffers of some hundred kilobytes within a millisecond or two after the last call.
const LOCAL_SETTLE: Settle = Settle { rise_ns: 1_000_000, release_ns: 2_000_000 };
/// A connection on a real link opens its window over some tens of round trips, and queues on the path drain.
const NETWORK_SETTLE: Settle = Settle { rise_ns: 10_000_000, release_ns: 10_000_000 };

fn info_local(name: &'static str, summary: &'static str, doing: &'static str) -> KernelInfo {
    KernelInfo {
        name,
        resource: Resource::LocalCommunication,
        summary,
        doing,
        loses: None,
        unit: Unit::Bytes,
        figure: Figure::Rate { label: "MB/s", divisor: 1e6 },
        also: None,
        latency: Latency::Own("sending one message: until the operating system has taken all of it"),
        roles: Roles::Both,
        settle: LOCAL_SETTLE,
        // The sender's message and the receiver's copy.
        needs: Needs { memory: &[Held { by: Holder::EachThread, times: 2, parameters: &["message_bytes"] }], ..Needs::NOTHING },
        warnings: &[],
        params: schema_for!(LocalParams),
    }
}

const fn local(name: &'static str, info: fn() -> KernelInfo, build: Build) -> Entry {
    Entry { name, info, build }
}

pub(crate) const PIPE: Entry = local(
    "pipe",
    || info_local("pipe", "sends messages to another thread through a pipe", "pipe-writing"),
    |params, _| build_local(Kind::Pipe, params),
);

pub(crate) const UNIX_SOCKET: Entry = local(
    "unix-socket",
    || info_local("unix-socket", "sends messages to another thread through a Unix stream socket", "socket-writing"),
    |params, _| build_local(Kind::UnixSocket, params),
);

pub(crate) const TCP_LOOPBACK: Entry = local(
    "tcp-loopback",
    || info_local("tcp-loopback", "sends messages to another thread over TCP on loopback", "loopback-sending"),
    |params, _| build_local(Kind::TcpLoopback, params),
);

pub(crate) const TCP_STREAM: Entry = Entry {
    name: "tcp-stream",
    info: || KernelInfo {
        resource: Resource::Network,
        settle: NETWORK_SETTLE,
        params: schema_for!(TcpParams),
        ..info_local("tcp-stream", "sends a TCP stream to a peer, or to itself on loopback", "stream-sending")
    },
    build: |params, _| build_tcp(params),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, error, fact, steps, Latencies};

    #[test]
    fn every_byte_arrives_and_every_message_has_a_latency() {
        for name in ["pipe", "unix-socket", "tcp-loopback", "tcp-stream"] {
            for message_bytes in [1, 5000, 300_000] {
                let mut kernel = build(name, json!({ "message_bytes": message_bytes }));
                let mut latencies = Latencies::default();
                let work = steps(kernel.as_mut(), 20, &mut latencies);
                assert_eq!(latencies.count(), work as usize / message_bytes, "{name}");
                let deadline = clock::monotonic() + 10_000_000_000;
                while fact(kernel.as_ref(), "received_bytes") < work && clock::monotonic() < deadline {
                    std::thread::yield_now();
                }
                assert!((fact(kernel.as_ref(), "received_bytes") - work).abs() < 0.5, "{name}");
            }
        }
    }

    #[test]
    fn a_stream_to_a_given_peer_arrives_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut kernel = build("tcp-stream", json!({ "to": listener.local_addr().unwrap().to_string(), "message_bytes": 1000 }));
        let (mut peer, _) = listener.accept().unwrap();
        let work = steps(kernel.as_mut(), 1, &mut Latencies::default());
        drop(kernel);
        assert_eq!(peer.read_to_end(&mut Vec::new()).unwrap(), work as usize);
    }

    #[test]
    fn bytes_that_a_peer_has_not_taken_are_pending() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut kernel = build("tcp-stream", json!({ "to": listener.local_addr().unwrap().to_string(), "message_bytes": 1 << 20 }));
        assert!(kernel.pending() < 1.0);
        let work = steps(kernel.as_mut(), 1, &mut Latencies::default());
        // The peer acknowledges what fits into its buffer, although nobody reads.
        assert!(kernel.pending() > 0.0 && kernel.pending() <= work, "{} of {work}", kernel.pending());
    }

    #[test]
    fn a_peer_that_does_not_read_blocks_no_step() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut kernel = build("tcp-stream", json!({ "to": listener.local_addr().unwrap().to_string(), "message_bytes": 1 << 24 }));
        let mut work = 1.0;
        while work > 0.0 {
            work = steps(kernel.as_mut(), 1, &mut Latencies::default());
        }
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert_eq!(error("pipe", json!({ "message_bytes": 0 })), "parameter message_bytes: 0 is out of range; give 1 to 16777216");
        assert!(error("pipe", json!({ "to": "127.0.0.1:1" })).contains("unknown field `to`"));
        assert!(error("tcp-stream", json!({ "to": "somewhere" })).contains("parameter to: somewhere is not an address with a port"));
        assert!(error("tcp-stream", json!({ "to": "127.0.0.1:0" })).contains("has port 0"));
    }
}
