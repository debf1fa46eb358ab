//! Messages of the packet tracer.

use std::num::NonZeroU32;

use partywall_record::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A hook of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceHook {
    /// Packets that the interface receives, on ingress.
    In,
    /// Packets that the interface sends, on egress.
    Out,
}

/// A hop: a place on the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceHop {
    /// Its name in messages.
    pub name: String,
    /// Network namespace: a name of `ip netns`, a process ID or a path. Default: the agent's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The interface.
    pub interface: String,
    /// The hook that forward packets pass, and the only one that is traced. If not set, both are traced and the direction is detected. If
    /// any hop sets it, only forward packets are traced.
    #[serde(default)]
    pub hook: Option<TraceHook>,
    /// Its records arrive by `trace.feed`.
    #[serde(default)]
    pub remote: bool,
}

/// Selects the packets to trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceOnly {
    /// IP protocol number: 6 is TCP, 17 is UDP.
    #[serde(default)]
    pub protocol: Option<u8>,
    /// The port of either end.
    #[serde(default)]
    pub port: Option<u16>,
    /// The address of either end, version 4 or 6.
    #[serde(default)]
    pub address: Option<String>,
}

/// An address with an optional port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceEnd {
    /// Version 4 or 6.
    pub address: String,
    /// The port. Any port if not set.
    #[serde(default)]
    pub port: Option<u16>,
}

/// NAT on the path: `outside` at some hops is `inside` at others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceTranslation {
    /// Address on one side.
    pub outside: TraceEnd,
    /// Address on the other side, which results use.
    pub inside: TraceEnd,
}

/// `trace.start`: hooks the interfaces of a path and aligns the records of packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceStart {
    /// ID chosen by the controller. The hooks' names contain it.
    pub id: String,
    /// The path, in forward order: two to eight hops; one or more for a relay.
    pub hops: Vec<TraceHop>,
    /// Send records in `trace_records` instead of aligning them, because the path's other hops are on other hosts.
    #[serde(default)]
    pub relay: bool,
    /// Maximum wait for a packet, at most 4 s.
    pub horizon_ns: u64,
    /// Interval of `trace` notifications.
    pub report_ns: u64,
    /// Maximum share of the host's CPU time for tracing. Above it, fewer flows are sampled. Default: no limit.
    #[serde(default)]
    pub budget: Option<f64>,
    /// Record one packet in this many, and count the others at each hop. Default: record all.
    #[serde(default = "every")]
    pub one_in: NonZeroU32,
    /// Packets to trace. Default: all.
    #[serde(default)]
    pub only: TraceOnly,
    /// Address translations, at most four.
    #[serde(default)]
    pub translations: Vec<TraceTranslation>,
    /// Number of slowest packets in a report, per direction.
    pub slowest: usize,
    /// Number of further packets in a report, per direction.
    pub packets: usize,
    /// Size of each CPU's ring.
    pub ring_bytes: usize,
}

fn every() -> NonZeroU32 {
    NonZeroU32::MIN
}

/// Result of `trace.start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceStarted {
    /// Measured cost of one record in this kernel. Null if the program cannot be tested.
    pub record_ns: Option<u32>,
}

/// `trace.feed`: records of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceFeed {
    /// ID of the trace.
    pub id: String,
    /// Place on the path of each of the relay's hops.
    pub hops: Vec<usize>,
    /// The relay's records, unchanged.
    pub records: String,
    /// The relay's `told_ns`, unchanged.
    pub told_ns: u64,
    /// Offset to add to the relay's times.
    pub offset_ns: i64,
    /// Maximum error of the offset.
    pub bound_ns: u64,
}

/// `trace.sample`: a relay only records flows if the upper 32 bits of their hash are below a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceSample {
    /// ID of the trace.
    pub id: String,
    /// The limit. 2^32 includes all flows.
    pub below: u64,
}

/// Result of `trace.close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceClosed {
    /// By this time all packets in transit have arrived or are lost.
    pub until_ns: u64,
}

/// Delays between two places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceDelay {
    /// Delays that were not negative.
    pub histogram: Histogram,
    /// Sum of these delays.
    pub sum_ns: u64,
    /// The shortest of these.
    pub min_ns: Option<u64>,
    /// The longest of these.
    pub max_ns: Option<u64>,
    /// Number of negative delays, which clock errors cause.
    pub negative: u64,
    /// The most negative delay, as a positive number.
    pub negative_max_ns: u64,
}

/// Events between the previous hop and this one, in the packets' direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceStep {
    /// Packets seen here.
    pub packets: u64,
    /// Their bytes of payload.
    pub bytes: u64,
    /// Packets seen at the previous hop, but neither here nor later.
    pub lost: u64,
    /// Lost packets of flows that never reached this hop.
    pub astray: u64,
    /// Packets seen here again.
    pub duplicates: u64,
    /// Packets overtaken since the previous hop.
    pub reordered: u64,
    /// Packets not seen here, but later.
    pub skipped: u64,
    /// Packets first seen here although their flow passes the first hop.
    pub stray: u64,
    /// Delay from the previous hop to this one.
    pub delay: TraceDelay,
}

/// One packet's times on the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracePacket {
    /// Its flow, as in `flows`, in hexadecimal.
    pub flow: String,
    /// Its tag. For TCP, the unwrapped sequence number of its first byte.
    pub tag: u64,
    /// Bytes of payload.
    pub length: u32,
    /// Whether the tag counts bytes of a stream.
    pub stream: bool,
    /// Its time at each hop, in the packet's direction.
    pub at_ns: Vec<Option<u64>>,
    /// What became of it.
    pub fate: TraceFate,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TraceFate {
    /// Seen at the first hop and at the last.
    Delivered,
    /// Seen at a hop and at none after it.
    Lost,
    /// Lost, of a flow that never reached the next hop.
    Astray,
    /// Not seen at the first hop, although its flow passes it.
    Stray,
    /// Of a flow that was never seen at the first hop.
    Other,
    /// In transit at the end, or cut off when fewer flows were sampled.
    Unfinished,
}

/// One direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceWay {
    /// Hops in the packets' direction.
    pub steps: Vec<TraceStep>,
    /// Delay from the first hop to the last.
    pub total: TraceDelay,
    /// Packets seen at the first hop and the last.
    pub delivered: u64,
    /// Packets in transit at the end, or cut off when fewer flows were sampled.
    pub unfinished: u64,
    /// Packets of flows that were never seen at the first hop.
    pub other: u64,
    /// Packets identical to others of their flow in transit: counted, but in no delay.
    #[serde(default)]
    pub alike: u64,
    /// Packets given up before the horizon, for lack of memory.
    pub forced: u64,
    /// The slowest packets, slowest first.
    pub slowest: Vec<TracePacket>,
    /// A selection of packets with any fate.
    pub packets: Vec<TracePacket>,
}

/// What the tracer recorded and missed at one hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceMissed {
    /// Number of records.
    pub recorded: u64,
    /// Packets without a record because a ring was full.
    pub missed: u64,
    /// Packets of protocols that are not traced.
    pub untraced: u64,
    /// Packets of traced flows that the interface received, as segments on the wire, recorded or not.
    #[serde(default)]
    pub counted_in: u64,
    /// Those that it sent.
    #[serde(default)]
    pub counted_out: u64,
    /// Whether the interface is gone, so that no more packets are recorded there.
    #[serde(default)]
    pub gone: bool,
}

/// The addresses of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceFlow {
    /// The flow, in hexadecimal.
    pub flow: String,
    /// IP protocol number.
    pub protocol: u8,
    /// Address of the sender.
    pub from: String,
    /// Its port, or 0 if there is none.
    pub from_port: u16,
    /// Address of the receiver.
    pub to: String,
    /// Its port, or 0 if there is none.
    pub to_port: u16,
}

/// Notification `trace`: results since the last one. A packet is counted after the horizon has passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// ID of the trace.
    pub id: String,
    /// Start of the period.
    pub start_ns: u64,
    /// End of the period.
    pub end_ns: u64,
    /// Forward and backward.
    pub ways: Vec<TraceWay>,
    /// Counts by hop, in the order of the request.
    pub hops: Vec<TraceMissed>,
    /// The hook that forward packets pass at each hop. Null while it is being detected.
    pub hooks: Option<Vec<TraceHook>>,
    /// The share of flows recorded; 1 is all.
    pub sampled: f64,
    /// The share of the host's CPU time that tracing took.
    pub cost: Option<f64>,
    /// Packets that are in transit.
    pub live: u64,
    /// Addresses of flows that appear for the first time.
    pub flows: Vec<TraceFlow>,
}

/// Notification `trace_records`: records of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceRecords {
    /// ID of the trace.
    pub id: String,
    /// Four 64-bit words a record, least byte first, in base 64: monotonic time, flow, tag, and bytes (32), kind (8) and place (8).
    pub records: String,
    /// All records before this time have been sent.
    pub told_ns: u64,
    /// Counts by hop of the relay, since the start.
    pub hops: Vec<TraceMissed>,
    /// Addresses of flows seen for the first time.
    pub flows: Vec<TraceFlow>,
}
