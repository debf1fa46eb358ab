//! `udp-send`: datagrams of one size, at a set rate or as fast as possible (VITS, section 4.5 and figure 10). Without `to` they go
//! to a thread of the kernel on loopback, which reads and counts them. The work is the number of sent datagrams. Datagrams may be
//! lost; on loopback the facts contain how many arrived.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use partywall_clock::{self as clock, Nanos};
use partywall_sys::datagrams::Batch;
use rustix::io::Errno;
use rustix::net::sockopt;
use schemars::{schema_for, JsonSchema};
use serde::Deserialize;
use serde_json::json;

use crate::pace::{Turn, Turns};
use crate::peer::Peer;
use crate::request::{stop_receiving, towards, udp_pair};
use crate::{
    address, limits, noise, Entry, Environment, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, PacedBy, Resource, Roles, Settle,
    Sink, Unit,
};

const MAX_BATCH: usize = 256;
/// The kernel stores twice the size, for its own data beside the datagrams, as a 32-bit number.
const MAX_SEND_BUFFER: usize = 1 << 29;
/// Maximum wait of a step for its turn, or for room in the device's queue, before it checks whether it must stop.
const NAP_NS: Nanos = 10_000_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Params {
    /// Bytes of data in a datagram, 0 to 16384, without headers.
    #[schemars(range(min = 0, max = 16_384))]
    datagram_bytes: usize,
    /// Datagrams per second of all worker threads together. Default: as fast as possible.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1_000_000_000))]
    rate_pps: Option<f64>,
    /// Maximum datagrams per system call, 1 to 256.
    #[schemars(range(min = 1, max = 256))]
    batch: usize,
    /// Whether each datagram begins with a marker and a counter, by which `partywall trace` recognises it on its path. They take 16
    /// bytes of the data.
    marker: bool,
    /// Bytes of sent datagrams that the socket may hold while they wait, 1 to 536870912. If a queue holds less, the sender never waits,
    /// and what the queue cannot take is lost. More than `net.core.wmem_max` needs root. Default: the operating system's.
    #[schemars(range(min = 1, max = 536_870_912))]
    send_buffer_bytes: Option<usize>,
    /// Address and port of a peer. Default: a thread of the kernel on loopback.
    to: Option<String>,
}

impl Default for Params {
    fn default() -> Self {
        Self { datagram_bytes: 1024, rate_pps: None, batch: 16, marker: false, send_buffer_bytes: None, to: None }
    }
}

struct UdpSend {
    socket: UdpSocket,
    receiver: Option<Receiver>,
    datagrams: Batch,
    datagram_bytes: usize,
    batch: usize,
    pace: Option<Turns>,
    marker: Option<Marker>,
    to: Option<SocketAddr>,
    sent: u64,
    /// Calls that sent less than was due, because nothing listens there or a queue is full.
    short_calls: u64,
}

/// Marker that `agent/bpf/trace.bpf.c` expects at the start of a payload; a big-endian number follows.
const MAGIC: [u8; 8] = *b"PWALLTAG";
const MARKER_BYTES: usize = 16;

/// Numbers datagrams from 0. Datagrams that were not sent keep their number for the next call.
struct Marker {
    next: u64,
}

impl Marker {
    fn write(&self, datagrams: &mut Batch, count: usize) {
        for at in 0..count {
            let head = &mut datagrams.datagram_mut(at)[..MARKER_BYTES];
            head[..8].copy_from_slice(&MAGIC);
            head[8..].copy_from_slice(&(self.next + at as u64).to_be_bytes());
        }
    }
}

impl UdpSend {
    /// Number of datagrams due now. Waits a short time if there are none.
    fn due(&mut self) -> usize {
        let Some(pace) = &mut self.pace else { return self.batch };
        let now = clock::monotonic();
        match pace.turn(now, self.batch) {
            Turn::Due(count) => count,
            Turn::Wait(until) => {
                clock::sleep_until(until.min(now + NAP_NS));
                match pace.turn(clock::monotonic(), self.batch) {
                    Turn::Due(count) => count,
                    Turn::Wait(_) => 0,
                }
            }
        }
    }
}

impl UdpSend {
    /// Sends a single datagram by the plain call, which avoids the header of a batch.
    fn hand_over(&mut self, count: usize) -> io::Result<usize> {
        if count == 1 {
            return self.socket.send(self.datagrams.datagram_mut(0)).map(|_| 1);
        }
        self.datagrams.send(&self.socket, count)
    }
}

impl Kernel for UdpSend {
    fn step(&mut self, sink: &mut dyn Sink) -> Result<f64, KernelError> {
        let due = self.due();
        if due == 0 {
            return Ok(0.0);
        }
        if let Some(marker) = &self.marker {
            marker.write(&mut self.datagrams, due);
        }
        let start_ns = clock::monotonic();
        match self.hand_over(due) {
            Ok(sent) => {
                if let Some(marker) = &mut self.marker {
                    marker.next += sent as u64;
                }
                sink.latency(clock::monotonic() - start_ns);
                self.short_calls += u64::from(sent < due);
                self.sent += sent as u64;
                Ok(sent as f64)
            }
            // A host reported that nothing listens there. Earlier datagrams were sent, and later ones can be.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                self.short_calls += 1;
                Ok(0.0)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0.0),
            Err(error) => Err(KernelError::host(format!("sending datagrams of {} bytes", self.datagram_bytes))(error)),
        }
    }

    fn paced_by(&self) -> PacedBy {
        if self.pace.is_some() {
            PacedBy::Work
        } else {
            PacedBy::TimeOrWork
        }
    }

    fn facts(&self) -> crate::Params {
        let received =
            |count: fn(&Counts) -> &AtomicU64| self.receiver.as_ref().map(|receiver| count(&receiver.counts).load(Ordering::Relaxed));
        let mut facts = crate::Params::new();
        facts.insert("datagram_bytes".into(), json!(self.datagram_bytes));
        facts.insert("to".into(), json!(self.to.map(|to| to.to_string())));
        facts.insert("sent_datagrams".into(), json!(self.sent));
        facts.insert("sent_bytes".into(), json!(self.sent * self.datagram_bytes as u64));
        facts.insert("short_calls".into(), json!(self.short_calls));
        facts.insert("received_datagrams".into(), json!(received(|counts| &counts.datagrams)));
        facts.insert("received_bytes".into(), json!(received(|counts| &counts.bytes)));
        facts
    }
}

#[derive(Default)]
struct Counts {
    datagrams: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

struct Receiver {
    socket: Arc<UdpSocket>,
    counts: Arc<Counts>,
    _peer: Peer,
}

impl Receiver {
    fn start(socket: UdpSocket, datagram_bytes: usize) -> io::Result<Self> {
        let (socket, counts) = (Arc::new(socket), Arc::new(Counts::default()));
        let (theirs, shared) = (Arc::clone(&socket), Arc::clone(&counts));
        let mut datagrams = Batch::new(64, datagram_bytes);
        let peer = Peer::spawn("udp receiver", move || loop {
            let received = datagrams.receive(&theirs);
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            if let Ok((count, bytes)) = received {
                shared.datagrams.fetch_add(count as u64, Ordering::Relaxed);
                shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        })?;
        Ok(Self { socket, counts, _peer: peer })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        stop_receiving(&self.socket, &self.counts.stop);
    }
}

fn rate(params: &Params, environment: &Environment) -> Result<Option<Turns>, KernelError> {
    match params.rate_pps {
        Some(rate) if !(rate > 0.0 && rate <= 1e9) => Err(KernelError::Parameter {
            key: "rate_pps",
            value: rate.to_string(),
            why: "is out of range; give a number above 0, at most 1e9, or leave it out for full speed".into(),
        }),
        rate => Ok(rate.map(|rate| Turns::new(rate / f64::from(environment.threads.max(1))))),
    }
}

fn marker(params: &Params) -> Result<Option<Marker>, KernelError> {
    if params.marker && params.datagram_bytes < MARKER_BYTES {
        let why = format!("needs datagram_bytes of at least {MARKER_BYTES}, not {}; give more", params.datagram_bytes);
        return Err(KernelError::Parameter { key: "marker", value: "true".into(), why });
    }
    Ok(params.marker.then_some(Marker { next: 0 }))
}

/// Sets the size of the send buffer. The kernel silently reduces a size that this process may not set.
fn set_send_buffer(socket: &UdpSocket, bytes: usize) -> Result<(), KernelError> {
    let set = || match sockopt::set_socket_send_buffer_size_force(socket, bytes) {
        Err(Errno::PERM) => sockopt::set_socket_send_buffer_size(socket, bytes),
        done => done,
    };
    let stored = set().and_then(|()| sockopt::socket_send_buffer_size(socket));
    let most = stored.map_err(io::Error::from).map_err(KernelError::host("setting the send buffer of a socket"))? / 2;
    if most < bytes {
        let why = format!("is more than this process may set; run as root, raise net.core.wmem_max, or give at most {most}");
        return Err(KernelError::Parameter { key: "send_buffer_bytes", value: bytes.to_string(), why });
    }
    Ok(())
}

fn build(params: &crate::Params, environment: &Environment) -> Result<Box<dyn Kernel>, KernelError> {
    let params: Params = serde_json::from_value(params.clone().into())?;
    let datagram_bytes = limits::within("datagram_bytes", params.datagram_bytes, 0..=16384)?;
    let batch = limits::within("batch", params.batch, 1..=MAX_BATCH)?;
    let pace = rate(&params, environment)?;
    let marker = marker(&params)?;
    let send_buffer = params.send_buffer_bytes.map(|bytes| limits::within("send_buffer_bytes", bytes, 1..=MAX_SEND_BUFFER)).transpose()?;
    let to = address::parse(params.to.as_deref())?;
    let (socket, receiver) = open(to, datagram_bytes).map_err(KernelError::host("opening a datagram socket"))?;
    if let Some(bytes) = send_buffer {
        set_send_buffer(&socket, bytes)?;
    }
    let mut datagrams = Batch::new(batch, datagram_bytes);
    for at in 0..batch {
        noise::fill(datagrams.datagram_mut(at), environment.seed.wrapping_add(at as u64));
    }
    Ok(Box::new(UdpSend { socket, receiver, datagrams, datagram_bytes, batch, pace, marker, to, sent: 0, short_calls: 0 }))
}

fn open(to: Option<SocketAddr>, datagram_bytes: usize) -> io::Result<(UdpSocket, Option<Receiver>)> {
    let (socket, receiver) = if let Some(to) = to {
        (towards(to)?, None)
    } else {
        let (ours, theirs) = udp_pair()?;
        (ours, Some(Receiver::start(theirs, datagram_bytes)?))
    };
    socket.set_write_timeout(Some(Duration::from_nanos(NAP_NS)))?;
    Ok((socket, receiver))
}

pub(crate) const ENTRY: Entry = Entry {
    name: "udp-send",
    info: || KernelInfo {
        name: "udp-send",
        resource: Resource::Network,
        summary: "sends datagrams to a peer, or to itself on loopback",
        doing: "datagram-sending",
        loses: None,
        unit: Unit::Operations,
        figure: Figure::Rate { label: "kpps", divisor: 1e3 },
        also: None,
        latency: Latency::Own("one system call that hands over up to `batch` datagrams"),
        roles: Roles::Both,
        // The queues of a socket and of a device hold some hundred kilobytes each: empty within milliseconds at 1 Gb/s.
        settle: Settle { rise_ns: 2_000_000, release_ns: 5_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build, error, fact, steps, Latencies};

    #[test]
    fn datagrams_of_every_size_arrive() {
        for datagram_bytes in [0, 1, 1024, 16384] {
            // One at a time, so that the receiver's buffer cannot overflow before it is read.
            let mut kernel = build("udp-send", json!({ "datagram_bytes": datagram_bytes, "batch": 1 }));
            let mut latencies = Latencies::default();
            for count in 1..=20 {
                assert!((steps(kernel.as_mut(), 1, &mut latencies) - 1.0).abs() < 0.5);
                let deadline = clock::monotonic() + 10_000_000_000;
                while fact(kernel.as_ref(), "received_datagrams") < f64::from(count) && clock::monotonic() < deadline {
                    std::thread::yield_now();
                }
            }
            assert_eq!(latencies.count(), 20);
            assert_eq!(
                (fact(kernel.as_ref(), "received_datagrams") as usize, fact(kernel.as_ref(), "received_bytes") as usize),
                (20, 20 * datagram_bytes)
            );
        }
    }

    #[test]
    fn a_missing_listener_ends_nothing() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut kernel = build("udp-send", json!({ "to": closed.to_string() }));
        assert!(steps(kernel.as_mut(), 20, &mut Latencies::default()) > 0.0);
        assert!(fact(kernel.as_ref(), "short_calls") > 0.0);
    }

    #[test]
    fn a_set_rate_is_a_ceiling() {
        let mut kernel = build("udp-send", json!({ "rate_pps": 2000.0 }));
        let start = clock::monotonic();
        let sent = steps(kernel.as_mut(), 100, &mut Latencies::default());
        let most = (clock::monotonic() - start) as f64 / 1e9 * 2000.0 + 1.0;
        assert!(sent > 0.0 && sent <= most, "{sent} sent, {most} were due");
    }

    #[test]
    fn a_send_buffer_is_as_large_as_requested_or_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_send_buffer(&socket, 10_000).unwrap();
        assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 20_000);
        let large = MAX_SEND_BUFFER;
        match set_send_buffer(&socket, large) {
            Ok(()) => assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 2 * large),
            Err(refused) => assert!(refused.to_string().contains("run as root, raise net.core.wmem_max"), "{refused}"),
        }
    }

    #[test]
    fn marked_datagrams_count_up_without_a_gap() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        to.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let params = json!({ "to": to.local_addr().unwrap().to_string(), "datagram_bytes": 20, "batch": 5, "marker": true });
        let mut kernel = build("udp-send", params);
        let sent = steps(kernel.as_mut(), 4, &mut Latencies::default()) as u64;
        let mut datagram = [0; 20];
        for number in 0..sent {
            to.recv(&mut datagram).unwrap();
            assert_eq!((&datagram[..8], &datagram[8..16]), (&MAGIC[..], &number.to_be_bytes()[..]));
        }
        assert!(error("udp-send", json!({ "marker": true, "datagram_bytes": 15 })).contains("needs datagram_bytes of at least 16"));
    }

    #[test]
    fn wrong_parameters_are_named() {
        assert_eq!(
            error("udp-send", json!({ "datagram_bytes": 16385 })),
            "parameter datagram_bytes: 16385 is out of range; give 0 to 16384"
        );
        assert!(error("udp-send", json!({ "rate_pps": 0 })).contains("leave it out for full speed"));
        assert!(error("udp-send", json!({ "batch": 0 })).contains("parameter batch: 0"));
        assert!(error("udp-send", json!({ "send_buffer_bytes": 0 })).contains("give 1 to 536870912"));
    }
}
