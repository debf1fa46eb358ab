//! `tcp-request` and `udp-request`: times a request and its response. Without `to` the other side is a thread of the kernel on
//! loopback. A remote peer answers `response_bytes` to every `request_bytes`; with equal sizes any echo server does. Datagrams begin
//! with a number of eight bytes that the response must repeat, so that a late response is not mistaken for the next one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use partywall_clock::{self as clock, Nanos};
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::batch::STEP_NS;
use crate::peer::Peer;
use crate::stream::connected_pair;
use crate::{address, limits, schema, Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

const MAX_TCP_BYTES: usize = 1 << 20;
const MAX_DATAGRAM_BYTES: usize = 16384;
const TAG_BYTES: usize = 8;
/// Wait of a step between checks whether it must stop.
const NAP: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(5);
/// A datagram without a response counts as lost after this time. Long compared to any queue, short compared to a run.
const LOST_AFTER_NS: Nanos = 1_000_000_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Bytes of a request: 1 to 1 MiB over TCP, 8 to 16384 over UDP.
    #[schemars(range(min = 1, max = 1_048_576))]
    request_bytes: usize,
    /// Bytes of a response, in the same limits.
    #[schemars(range(min = 1, max = 1_048_576))]
    response_bytes: usize,
    /// Address and port of a peer that answers. Default: a thread of the kernel on loopback.
    to: Option<String>,
}

impl Default for Params {
    fn default() -> Self {
        Self { request_bytes: 64, response_bytes: 64, to: None }
    }
}

impl Params {
    fn decode(params: &crate::Params, least: usize, most: usize) -> Result<(Sizes, Option<SocketAddr>), KernelError> {
        let Self { request_bytes, response_bytes, to } = serde_json::from_value(params.clone().into())?;
        let request = limits::within("request_bytes", request_bytes, least..=most)?;
        let response = limits::within("response_bytes", response_bytes, least..=most)?;
        Ok((Sizes { request, response }, address::parse(to.as_deref())?))
    }
}

/// Sizes of requests and responses.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    request: usize,
    response: usize,
}

/// The sizes in these parameters, for either kernel.
pub(crate) fn sizes(params: &crate::Params) -> Result<Sizes, KernelError> {
    let mut params = params.clone();
    params.remove("to");
    Ok(Params::decode(&params, 1, MAX_TCP_BYTES)?.0)
}

/// A way to send a request and receive its response.
trait Exchange: Send {
    fn ask(&mut self) -> io::Result<()>;

    /// Waits a short time for the rest of the response. Returns whether it is complete.
    fn answered(&mut self) -> io::Result<bool>;

    /// Called if there was no response for `waited_ns`. Returns whether to repeat the request.
    fn lost(&mut self, waited_ns: Nanos) -> io::Result<bool>;
}

struct Request {
    exchange: Box<dyn Exchange>,
    sent_ns: Option<Nanos>,
    sizes: Sizes,
    to: Option<SocketAddr>,
    answered: u64,
    lost: u64,
}

impl Kernel for Request {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let begin = clock::monotonic();
        let mut answered = 0;
        loop {
            let sent_ns = self.ask().map_err(KernelError::host("sending a request"))?;
            let complete = self.exchange.answered().map_err(KernelError::host("receiving a response"))?;
            let now = clock::monotonic();
            if complete {
                sink.latency(now - sent_ns);
                self.sent_ns = None;
                answered += 1;
            } else if self.exchange.lost(now - sent_ns).map_err(KernelError::host("waiting for a response"))? {
                self.sent_ns = None;
                self.lost += 1;
            }
            if !complete || now - begin >= STEP_NS {
                self.answered += answered;
                return Ok(answered as f64);
            }
        }
    }

    fn facts(&self) -> crate::Params {
        let mut facts = crate::Params::new();
        facts.insert("request_bytes".into(), json!(self.sizes.request));
        facts.insert("response_bytes".into(), json!(self.sizes.response));
        facts.insert("to".into(), json!(self.to.map(|to| to.to_string())));
        facts.insert("answered".into(), json!(self.answered));
        facts.insert("moved_bytes".into(), json!(self.answered * (self.sizes.request + self.sizes.response) as u64));
        facts.insert("lost".into(), json!(self.lost));
        facts
    }
}

impl Request {
    /// When the current request was sent. Sends one if there is none.
    fn ask(&mut self) -> io::Result<Nanos> {
        if let Some(sent_ns) = self.sent_ns {
            return Ok(sent_ns);
        }
        let now = clock::monotonic();
        self.exchange.ask()?;
        self.sent_ns = Some(now);
        Ok(now)
    }
}

fn not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

struct Tcp {
    // Declared before the responder, because closing this end stops the responder.
    stream: TcpStream,
    _responder: Option<Peer>,
    request: Vec<u8>,
    response: Vec<u8>,
    got: usize,
}

impl Tcp {
    fn connect(sizes: Sizes, to: Option<SocketAddr>) -> io::Result<Self> {
        let (stream, responder) = if let Some(to) = to {
            (TcpStream::connect_timeout(&to, PATIENCE)?, None)
        } else {
            let (ours, theirs) = connected_pair()?;
            theirs.set_nodelay(true)?;
            (ours, Some(Peer::spawn("tcp responder", move || respond(theirs, sizes))?))
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(NAP))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, _responder: responder, request: vec![1; sizes.request], response: vec![0; sizes.response], got: 0 })
    }
}

/// Answers until the other end closes.
pub(crate) fn respond(mut stream: TcpStream, sizes: Sizes) {
    let (mut request, response) = (vec![0; sizes.request], vec![2; sizes.response]);
    while stream.read_exact(&mut request).and_then(|()| stream.write_all(&response)).is_ok() {}
}

impl Exchange for Tcp {
    fn ask(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.request)
    }

    fn answered(&mut self) -> io::Result<bool> {
        while self.got < self.response.len() {
            match self.stream.read(&mut self.response[self.got..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => self.got += bytes,
                Err(error) if not_yet(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.got = 0;
        Ok(true)
    }

    fn lost(&mut self, waited_ns: Nanos) -> io::Result<bool> {
        if u128::from(waited_ns) > PATIENCE.as_nanos() {
            let why = format!(
                "only {} of {} bytes arrived within {} s; check that the peer sends that many",
                self.got,
                self.response.len(),
                PATIENCE.as_secs()
            );
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
        Ok(false)
    }
}

/// Answers every datagram that is a request, from any sender, until the process ends.
pub(crate) fn respond_to_datagrams(socket: &UdpSocket, sizes: Sizes) {
    let (mut request, mut response) = (vec![0; sizes.request.max(TAG_BYTES)], vec![2; sizes.response.max(TAG_BYTES)]);
    loop {
        let Ok((TAG_BYTES.., from)) = socket.recv_from(&mut request) else { continue };
        response[..TAG_BYTES].copy_from_slice(&request[..TAG_BYTES]);
        let _ = socket.send_to(&response, from);
    }
}

struct Udp {
    socket: UdpSocket,
    _responder: Option<UdpResponder>,
    request: Vec<u8>,
    // One byte longer than a response, to detect a longer one.
    response: Vec<u8>,
    tag: u64,
}

impl Udp {
    fn connect(sizes: Sizes, to: Option<SocketAddr>) -> io::Result<Self> {
        let (socket, responder) = if let Some(to) = to {
            (towards(to)?, None)
        } else {
            let (ours, theirs) = udp_pair()?;
            (ours, Some(UdpResponder::start(theirs, sizes)?))
        };
        socket.set_read_timeout(Some(NAP))?;
        Ok(Self { socket, _responder: responder, request: vec![1; sizes.request], response: vec![0; sizes.response + 1], tag: 0 })
    }
}

/// A socket that sends to `to` and receives from no other address.
pub(crate) fn towards(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match to {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?,
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?,
    };
    socket.connect(to)?;
    Ok(socket)
}

/// Two sockets on loopback that receive only from each other.
pub(crate) fn udp_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let ours = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let theirs = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    ours.connect(theirs.local_addr()?)?;
    theirs.connect(ours.local_addr()?)?;
    Ok((ours, theirs))
}

/// Ends a thread's wait in `recv` on a datagram socket. A datagram may be empty, so the flag identifies the stop.
pub(crate) fn stop_receiving(socket: &UdpSocket, stop: &AtomicBool) {
    stop.store(true, Ordering::Release);
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

struct UdpResponder {
    socket: Arc<UdpSocket>,
    stop: Arc<AtomicBool>,
    _peer: Peer,
}

impl UdpResponder {
    fn start(socket: UdpSocket, sizes: Sizes) -> io::Result<Self> {
        let (socket, stop) = (Arc::new(socket), Arc::new(AtomicBool::new(false)));
        let (theirs, stopped) = (Arc::clone(&socket), Arc::clone(&stop));
        let peer = Peer::spawn("udp responder", move || {
            let (mut request, mut response) = (vec![0; sizes.request], vec![2; sizes.response]);
            while !stopped.load(Ordering::Acquire) {
                if theirs.recv(&mut request).is_ok_and(|bytes| bytes >= TAG_BYTES) {
                    response[..TAG_BYTES].copy_from_slice(&request[..TAG_BYTES]);
                    // A response that cannot be sent counts as lost at the other end.
                    let _ = theirs.send(&response);
                }
            }
        })?;
        Ok(Self { socket, stop, _peer: peer })
    }
}

impl Drop for UdpResponder {
    fn drop(&mut self) {
        stop_receiving(&self.socket, &self.stop);
    }
}

impl Exchange for Udp {
    fn ask(&mut self) -> io::Result<()> {
        self.tag += 1;
        self.request[..TAG_BYTES].copy_from_slice(&self.tag.to_le_bytes());
        self.socket.send(&self.request).map(|_| ())
    }

    fn answered(&mut self) -> io::Result<bool> {
        loop {
            match self.socket.recv(&mut self.response) {
                Ok(bytes) if self.response[..bytes].starts_with(&self.tag.to_le_bytes()) => return self.whole(bytes),
                // The response to a request that was given up.
                Ok(_) => {}
                Err(error) if not_yet(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    fn lost(&mut self, waited_ns: Nanos) -> io::Result<bool> {
        Ok(waited_ns > LOST_AFTER_NS)
    }
}

impl Udp {
    fn whole(&self, bytes: usize) -> io::Result<bool> {
        let wanted = self.response.len() - 1;
        if bytes == wanted {
            return Ok(true);
        }
        Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("the peer sent {bytes} bytes or more; set response_bytes, now {wanted}, to the size of its responses"),
        ))
    }
}

type Connect = fn(Sizes, Option<SocketAddr>) -> io::Result<Box<dyn Exchange>>;

fn build(connect: Connect, params: &crate::Params, least: usize, most: usize) -> Result<Box<dyn Kernel>, KernelError> {
    let (sizes, to) = Params::decode(params, least, most)?;
    let place = to.map_or_else(|| "itself on loopback".into(), |to| to.to_string());
    let exchange = connect(sizes, to).map_err(KernelError::host(format!("connecting to {place}")))?;
    Ok(Box::new(Request { exchange, sent_ns: None, sizes, to, answered: 0, lost: 0 }))
}

fn info(name: &'static str, summary: &'static str, doing: &'static str, bytes: RangeInclusive<usize>) -> KernelInfo {
    let params = schema::bounded(schema_for!(Params), "request_bytes", bytes.clone());
    KernelInfo {
        name,
        resource: Resource::Network,
        summary,
        doing,
        loses: None,
        unit: Unit::Operations,
        figure: Figure::PerOperation { label: "ns per round trip" },
        also: None,
        latency: Latency::Own("a round trip: from sending a request until its response is complete"),
        roles: Roles::Both,
        // One request at a time: there is no queue that could outlast it.
        settle: Settle { rise_ns: 1_000_000, release_ns: 2_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema::bounded(params, "response_bytes", bytes),
    }
}

pub(crate) const TCP_REQUEST: Entry = Entry {
    name: "tcp-request",
    info: || info("tcp-request", "sends a request over TCP and waits for its response", "request-exchanging", 1..=MAX_TCP_BYTES),
    build: |params, _| build(|sizes, to| Ok(Box::new(Tcp::connect(sizes, to)?)), params, 1, MAX_TCP_BYTES),
};

pub(crate) const UDP_REQUEST: Entry = Entry {
    name: "udp-request",
    info: || {
        info("udp-request", "sends a datagram and waits for the one that answers it", "datagram-exchanging", TAG_BYTES..=MAX_DATAGRAM_BYTES)
    },
    build: |params, _| build(|sizes, to| Ok(Box::new(Udp::connect(sizes, to)?)), params, TAG_BYTES, MAX_DATAGRAM_BYTES),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, error, fact, steps, Latencies};

    #[test]
    fn every_request_is_answered_and_timed() {
        for name in ["tcp-request", "udp-request"] {
            for (request, response) in [(8, 8), (16384, 100), (64, 9000)] {
                let mut kernel = build(name, json!({ "request_bytes": request, "response_bytes": response }));
                let mut latencies = Latencies::default();
                let work = steps(kernel.as_mut(), 10, &mut latencies);
                assert!(work >= 1.0, "{name}");
                assert_eq!(latencies.count(), work as usize, "{name}");
                let bytes = work * f64::from(request + response);
                assert!((fact(kernel.as_ref(), "moved_bytes") - bytes).abs() < 0.5, "{name}");
            }
        }
    }

    #[test]
    fn a_datagram_without_response_is_lost_and_the_next_one_is_sent() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut kernel = build("udp-request", json!({ "to": silent.local_addr().unwrap().to_string() }));
        while fact(kernel.as_ref(), "lost") < 1.0 {
            assert!(steps(kernel.as_mut(), 1, &mut Latencies::default()) < 0.5);
        }
        let (mut first, mut second) = ([0; 64], [0; 64]);
        let (_, from) = silent.recv_from(&mut first).unwrap();
        steps(kernel.as_mut(), 1, &mut Latencies::default());
        silent.recv_from(&mut second).unwrap();
        assert_ne!(first[..TAG_BYTES], second[..TAG_BYTES]);
        // A late response to the first request is ignored; the response to the second is accepted.
        silent.send_to(&first, from).unwrap();
        silent.send_to(&second, from).unwrap();
        let mut latencies = Latencies::default();
        assert!((steps(kernel.as_mut(), 1, &mut latencies) - 1.0).abs() < 0.5);
        assert_eq!(latencies.count(), 1);
    }

    #[test]
    fn a_peer_that_responds_with_another_size_is_an_error() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut kernel = build("udp-request", json!({ "to": peer.local_addr().unwrap().to_string(), "response_bytes": 9 }));
        let mut request = [0; 64];
        steps(kernel.as_mut(), 1, &mut Latencies::default());
        let (_, from) = peer.recv_from(&mut request).unwrap();
        peer.send_to(&request, from).unwrap();
        let error = kernel.step(&mut Latencies::default()).unwrap_err().to_string();
        assert!(error.contains("set response_bytes, now 9"), "{error}");
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert!(error("udp-request", json!({ "request_bytes": 7 })).contains("parameter request_bytes: 7 is out of range; give 8 to 16384"));
        assert!(
            error("tcp-request", json!({ "response_bytes": 0 })).contains("parameter response_bytes: 0 is out of range; give 1 to 1048576")
        );
        assert!(error("tcp-request", json!({ "port": 1 })).contains("unknown field `port`"));
    }
}
