//! Messages of the packet tracer.

use partywall_record::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which hook of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceHook {
    /// Packets the interface takes in.
    In,
    /// Packets the interface gives out.
    Out,
}

/// A place on the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceHop {
    /// How messages call it.
    pub name: String,
    /// A name of `ip netns`, the number of a process, or a path; the agent's own namespace if none.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The interface.
    pub interface: String,
    /// Where forward packets pass, and the only hook looked at; both are, and it is found out, if none. Once one hop has one,
    /// only forward packets are traced.
    #[serde(default)]
    pub hook: Option<TraceHook>,
    /// Its records come by `trace.feed`.
    #[serde(default)]
    pub remote: bool,
}

/// Which packets are traced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceOnly {
    /// IP's number of the protocol: 6 is TCP, 17 UDP.
    #[serde(default)]
    pub protocol: Option<u8>,
    /// The port of either end.
    #[serde(default)]
    pub port: Option<u16>,
    /// The address of either end, version 4 or 6.
    #[serde(default)]
    pub address: Option<String>,
}

/// An address, and a port if it matters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceEnd {
    /// Version 4 or 6.
    pub address: String,
    /// Any if none.
    #[serde(default)]
    pub port: Option<u16>,
}

/// NAT on the way: what is `outside` at some hops is `inside` at others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceTranslation {
    /// As seen on one side.
    pub outside: TraceEnd,
    /// What it is called in results.
    pub inside: TraceEnd,
}

/// `trace.start`: hooks to the interfaces of a path and aligns what passes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// Chosen by the controller; the hooks carry it in their name.
    pub id: String,
    /// The path, in forward order: two to eight hops; one or more for a relay.
    pub hops: Vec<TraceHop>,
    /// Hand records on in `trace_records` instead of aligning them: the path's other hops are elsewhere.
    #[serde(default)]
    pub relay: bool,
    /// How long a packet is waited for, at most 4 s.
    pub horizon_ns: u64,
    /// How often `trace` is sent.
    pub report_ns: u64,
    /// The share of the host's CPU time tracing may take; above it fewer flows are sampled. No bound if none.
    #[serde(default)]
    pub budget: Option<f64>,
    /// Which packets; all if nothing is said.
    #[serde(default)]
    pub only: TraceOnly,
    /// At most four.
    #[serde(default)]
    pub translations: Vec<TraceTranslation>,
    /// How many of the slowest packets a report holds, each way.
    pub slowest: usize,
    /// How many packets a report holds besides, each way.
    pub packets: usize,
    /// Memory of each CPU's ring.
    pub ring_bytes: usize,
}

/// Answer to `trace.start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceStarted {
    /// What one record costs in the kernel here, tried on a packet; null where the program cannot be tried.
    pub record_ns: Option<u32>,
}

/// `trace.feed`: records of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceFeed {
    /// Which trace.
    pub id: String,
    /// Of each of the relay's hops, its place on the path.
    pub hops: Vec<usize>,
    /// As the relay sent them.
    pub records: String,
    /// As the relay sent it.
    pub told_ns: u64,
    /// What to add to the relay's times.
    pub offset_ns: i64,
    /// How far that may be off.
    pub bound_ns: u64,
}

/// `trace.sample`: a relay records only flows whose hash's upper 32 bits are below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceSample {
    /// Which trace.
    pub id: String,
    /// 2^32 is all.
    pub below: u64,
}

/// Answer to `trace.close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceClosed {
    /// By then all that is on its way has arrived or is lost.
    pub until_ns: u64,
}

/// Delays between two places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceDelay {
    /// Those that were not negative.
    pub histogram: Histogram,
    /// Their sum.
    pub sum_ns: u64,
    /// The shortest.
    pub min_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
    /// How many were negative, which clocks make.
    pub negative: u64,
    /// The most negative, as a positive number.
    pub negative_max_ns: u64,
}

/// What happened between the hop before and this one, in the order in which these packets pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceStep {
    /// Packets seen here.
    pub packets: u64,
    /// Their bytes of payload.
    pub bytes: u64,
    /// Seen at the hop before, and not here nor later.
    pub lost: u64,
    /// The same, of flows that never came here.
    pub astray: u64,
    /// Seen here once more.
    pub duplicates: u64,
    /// Overtaken since the hop before.
    pub reordered: u64,
    /// Not seen here, but later.
    pub skipped: u64,
    /// First seen here though its flow begins at the first hop.
    pub stray: u64,
    /// From the hop before to here.
    pub delay: TraceDelay,
}

/// A packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracePacket {
    /// Its flow, as in `flows`; hexadecimal.
    pub flow: String,
    /// Its tag; of TCP the number of the first byte, unwrapped.
    pub tag: u64,
    /// Bytes of payload.
    pub length: u32,
    /// Whether the tag counts bytes of a stream.
    pub stream: bool,
    /// When it was at each hop, in the order in which it passes them.
    pub at_ns: Vec<Option<u64>>,
    /// `delivered`, `lost`, `astray`, `stray` or `unfinished`.
    pub fate: String,
}

/// One direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceWay {
    /// In the order in which these packets pass.
    pub steps: Vec<TraceStep>,
    /// From the first hop to the last.
    pub total: TraceDelay,
    /// Seen at the first and the last.
    pub delivered: u64,
    /// Still on their way at the end, or cut off as fewer flows were sampled.
    pub unfinished: u64,
    /// Of flows that never were at the first hop.
    pub other: u64,
    /// Looked like others of their flow on their way: counted, and in no delay.
    #[serde(default)]
    pub alike: u64,
    /// Given up before the horizon, for want of room.
    pub forced: u64,
    /// Slowest first.
    pub slowest: Vec<TracePacket>,
    /// Some packets, whatever became of them.
    pub packets: Vec<TracePacket>,
}

/// What the tracer could not see at one hop, as given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceMissed {
    /// Records taken down.
    pub recorded: u64,
    /// Packets not taken down because a ring was full.
    pub missed: u64,
    /// Packets of protocols that are not traced.
    pub untraced: u64,
    /// Whether the interface is gone: nothing more will be seen there.
    #[serde(default)]
    pub gone: bool,
}

/// The addresses behind a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceFlow {
    /// Hexadecimal.
    pub flow: String,
    /// IP's number of the protocol.
    pub protocol: u8,
    /// Who sent.
    pub from: String,
    /// Its port; 0 where there is none.
    pub from_port: u16,
    /// To whom.
    pub to: String,
    /// Its port; 0 where there is none.
    pub to_port: u16,
}

/// Notification `trace`: what was found since the last. A packet is counted when the horizon has passed over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// Which trace.
    pub id: String,
    /// From when.
    pub start_ns: u64,
    /// Until when.
    pub end_ns: u64,
    /// Forward and backward.
    pub ways: Vec<TraceWay>,
    /// By hop, as given.
    pub hops: Vec<TraceMissed>,
    /// The hook forward packets pass at each hop; null while it is being found out.
    pub hooks: Option<Vec<TraceHook>>,
    /// The share of flows recorded; 1 is all.
    pub sampled: f64,
    /// The share of the host's CPU time that tracing took.
    pub cost: Option<f64>,
    /// Packets on their way.
    pub live: u64,
    /// Addresses of flows named here for the first time.
    pub flows: Vec<TraceFlow>,
}

/// Notification `trace_records`: what a relay saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceRecords {
    /// Which trace.
    pub id: String,
    /// Four 64-bit words a record, least byte first, in base 64: monotonic time, flow, tag, and bytes (32), kind (8) and place (8).
    pub records: String,
    /// All before was told.
    pub told_ns: u64,
    /// By hop of the relay, since the start.
    pub hops: Vec<TraceMissed>,
    /// Addresses of flows seen for the first time.
    pub flows: Vec<TraceFlow>,
}
