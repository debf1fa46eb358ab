//! What a guard is told and what it tells: a policy made flat, where names have become numbers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `guard.start`: hooks the data plane to every vif and keeps the rates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardStart {
    /// Chosen by the controller.
    pub id: String,
    /// What is divided.
    pub pools: Vec<GuardPool>,
    /// Tenants' totals over several vifs.
    #[serde(default)]
    pub totals: Vec<GuardTotal>,
    /// Who gets a share; rules and hooks name them by their place in this list.
    pub leaves: Vec<GuardLeaf>,
    /// Where packets are met.
    pub hooks: Vec<GuardHook>,
    /// What delay and jitter service classes are to have.
    #[serde(default)]
    pub goals: Vec<GuardGoal>,
    /// How often rates are set anew.
    pub period_ns: u64,
    /// How often `guard` events are sent.
    pub report_ns: u64,
    /// How often the hooks and the interfaces' own counters are looked at.
    pub check_ns: u64,
    /// After how long without a heartbeat every leaf falls back to its guarantee; never, and the last rates stay, without it.
    #[serde(default)]
    pub fallback_after_ns: Option<u64>,
    /// What is to hold packets back; `fq` where the kernel has it, without it.
    #[serde(default)]
    pub queue: Option<GuardQueue>,
}

/// One direction of one physical interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardPool {
    /// For people.
    pub name: String,
    /// What it carries.
    pub capacity_bps: u64,
    /// Packets/s that it, or the host, carries; not divided without it.
    #[serde(default)]
    pub capacity_pps: Option<u64>,
    /// The interface itself, whose queue is looked at.
    #[serde(default)]
    pub link: Option<GuardLink>,
}

/// An interface that all leaves of a pool leave by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardLink {
    /// File that stands for its network namespace; the agent's own without it.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Its name there.
    pub interface: String,
}

/// The delay and jitter that a service class is to have, in queues that the guard can see. For the sake of it others are
/// granted less, down to their guarantees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardGoal {
    /// The service class, for people.
    pub name: String,
    /// Place in `pools`.
    pub pool: usize,
    /// Longest mean delay.
    #[serde(default)]
    pub delay_ns: Option<u64>,
    /// Largest mean difference between delays measured one after the other.
    #[serde(default)]
    pub jitter_ns: Option<u64>,
    /// Places in `leaves`.
    pub leaves: Vec<usize>,
}

/// A ceiling over all leaves that name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardTotal {
    /// For people.
    pub name: String,
    /// Ceiling in bit/s.
    #[serde(default)]
    pub ceiling_bps: Option<u64>,
    /// Ceiling in packets/s, split by use.
    #[serde(default)]
    pub ceiling_pps: Option<u64>,
}

/// What is granted a rate: a flow class of a vif, or the rest of a vif's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardLeaf {
    /// For people.
    pub name: String,
    /// Place in `pools`.
    pub pool: usize,
    /// Places in `totals`, the narrower first.
    #[serde(default)]
    pub totals: Vec<usize>,
    /// Of its service class; higher is served first.
    pub priority: u32,
    /// Assured bit/s.
    pub guarantee_bps: u64,
    /// Never exceeded, bit/s.
    pub ceiling_bps: u64,
    /// Assured packets/s, of the pool's.
    #[serde(default)]
    pub guarantee_pps: u64,
    /// Never exceeded, packets/s.
    #[serde(default)]
    pub ceiling_pps: Option<u64>,
    /// What may pass at once, as time at the granted rate.
    pub burst_ns: u64,
    /// How long packets may wait in a queue, where there can be one.
    pub hold_ns: u64,
}

/// Which way packets pass a hook, seen from the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardDirection {
    /// The interface takes them in.
    Ingress,
    /// The interface gives them out.
    Egress,
}

/// One direction of one vif.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardHook {
    /// File that stands for its network namespace; the agent's own without it.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Its name there.
    pub interface: String,
    /// Which way.
    pub direction: GuardDirection,
    /// Place in `leaves` of what no rule takes.
    pub leaf: usize,
    /// The first that fits decides.
    #[serde(default)]
    pub rules: Vec<GuardRule>,
    /// Hold packets back in a queue rather than drop them, where they leave the sender's own kernel here.
    #[serde(default)]
    pub hold: bool,
    /// The interface is in its tenant's reach, who may send by ways that pass no hook there: the other end of a veth, on the
    /// way in, is held to the ceilings as well.
    #[serde(default)]
    pub backstop: bool,
}

/// Which packets are a flow class. What is not given fits all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardRule {
    /// Place in `leaves`.
    pub leaf: usize,
    /// IP protocol number.
    #[serde(default)]
    pub protocol: Option<u8>,
    /// First and last port, of source or destination.
    #[serde(default)]
    pub ports: Option<(u16, u16)>,
    /// Differentiated services code point.
    #[serde(default)]
    pub dscp: Option<u8>,
}

/// Answer to `guard.start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardStarted {
    /// What becomes of what may not pass, at each hook.
    pub excess: Vec<GuardExcess>,
    /// What holds packets back where they are held.
    pub queue: GuardQueue,
    /// Places in `hooks` of those that were to have a backstop and have none, for the interface's other end was not found.
    #[serde(default)]
    pub without_backstop: Vec<usize>,
}

/// What holds packets back that may not pass yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardQueue {
    /// Fair queueing, which keeps each packet until the departure time that the hook gave it.
    Fq,
    /// A token bucket filter, a little slower than the hook.
    Tbf,
}

/// What becomes of packets that may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardExcess {
    /// They wait in a queue that the sender's kernel sees fill: TCP slows down, and who sends datagrams waits.
    Held,
    /// They are dropped; what understands ECN is marked before.
    Dropped,
}

/// `guard.move`: vifs of a running guard are at other places now, for what stood for them was started anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardMoves {
    /// Which guard.
    pub id: String,
    /// Hooks and where they are to be; all others stay.
    pub moves: Vec<GuardMove>,
}

/// One hook's new place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardMove {
    /// Place in `hooks` of what the guard was started with.
    pub hook: usize,
    /// File that stands for the network namespace; the agent's own without it.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Its name there.
    pub interface: String,
}

/// `guard.remove`: removes every hook and queue of a guard's from these interfaces, whoever made them, and a policy's from all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardRemove {
    /// A policy whose hooks are removed from every interface of the namespaces that are looked into, whatever its name is now.
    #[serde(default)]
    pub id: Option<String>,
    /// Where to look.
    pub hooks: Vec<GuardHook>,
}

/// Answer to `guard.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardRemoved {
    /// What was there, in words.
    pub removed: Vec<String>,
    /// Places that could not be looked at, in words.
    #[serde(default)]
    pub unseen: Vec<String>,
}

/// One leaf over the time since the last report. Rates are a second's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardRow {
    /// Bit/s that came to the hook.
    pub offered_bps: u64,
    /// Bit/s that passed it.
    pub passed_bps: u64,
    /// Packets/s that came.
    pub offered_pps: u64,
    /// Packets/s that passed.
    pub passed_pps: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
    /// Packets marked with congestion experienced.
    pub marked_packets: u64,
    /// What it is granted now.
    pub granted_bps: u64,
    /// What it is granted now; none if packets are not limited.
    pub granted_pps: Option<u64>,
    /// Mean wait in the queues the guard can see: the vif's own and the link's; none if no queue was looked at.
    #[serde(default)]
    pub delay_ns: Option<u64>,
    /// Mean difference between waits measured one after the other.
    #[serde(default)]
    pub jitter_ns: Option<u64>,
}

/// One pool over the time since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardPoolRow {
    /// What is divided now: less than the capacity while a goal in delay asks for it.
    pub divided_bps: u64,
    /// Mean wait in the link's queue; none if it was not looked at.
    #[serde(default)]
    pub delay_ns: Option<u64>,
}

/// Something found wrong by looking at the interfaces themselves, or put right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardNote {
    /// The leaf whose hook it is, or the service class.
    pub about: String,
    /// What it is.
    pub kind: GuardFinding,
    /// In words.
    pub text: String,
}

/// What the independent check can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardFinding {
    /// Hook or queue had been removed, and is there again.
    Repaired,
    /// Hook or queue had been removed, and could not be put back.
    Lost,
    /// The interface is gone.
    Gone,
    /// More bytes passed the interface than the hook saw.
    Bypassed,
    /// More bytes passed the interface than the ceiling and a burst allow.
    Exceeded,
    /// A goal in delay or jitter does not hold, though all above the guarantees was taken away.
    Unmet,
}
