//! Messages of the guard: a flattened policy, where indexes replace names, and the guard's reports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `guard.start`: hooks the data plane to every vif and keeps the rates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardStart {
    /// ID chosen by the controller.
    pub id: String,
    /// Capacities to divide.
    pub pools: Vec<GuardPool>,
    /// Tenants' totals over several vifs.
    #[serde(default)]
    pub totals: Vec<GuardTotal>,
    /// Leaves that get a share. Rules and hooks refer to them by their index in this list.
    pub leaves: Vec<GuardLeaf>,
    /// Hooks that control packets.
    pub hooks: Vec<GuardHook>,
    /// Goals for delay and jitter of service classes.
    #[serde(default)]
    pub goals: Vec<GuardGoal>,
    /// Interval at which rates are updated.
    pub period_ns: u64,
    /// Interval of `guard` events.
    pub report_ns: u64,
    /// Interval at which hooks and the interfaces' own counters are checked.
    pub check_ns: u64,
    /// Age of the heartbeat at which every leaf falls back to its guarantee. If not set, the last rates stay.
    #[serde(default)]
    pub fallback_after_ns: Option<u64>,
    /// The kind of queue that holds packets back. Default: `fq` if the kernel has it.
    #[serde(default)]
    pub queue: Option<GuardQueue>,
    /// What a leaf's demand is estimated from.
    #[serde(default)]
    pub demand: GuardDemand,
    /// How capacities are divided.
    #[serde(default)]
    pub division: GuardDivision,
    /// Hooks and queues are removed when the guard ends, also if its controller is gone. Otherwise they stay, and keep guarantees.
    #[serde(default)]
    pub transient: bool,
}

/// One direction of one physical interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardPool {
    /// Name in messages and reports.
    pub name: String,
    /// Its capacity in bit/s.
    pub capacity_bps: u64,
    /// Packets/s that it, or the host, can carry. If not set, packets/s are not divided.
    #[serde(default)]
    pub capacity_pps: Option<u64>,
    /// The interface, whose queue is read.
    #[serde(default)]
    pub link: Option<GuardLink>,
}

/// An interface that all leaves of a pool leave by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardLink {
    /// File of its network namespace. Default: the agent's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Name of the interface in that namespace.
    pub interface: String,
}

/// Goals for delay and jitter of a service class, in queues that the guard can read. To meet them, others are granted less, down to
/// their guarantees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardGoal {
    /// Name of the service class.
    pub name: String,
    /// Index in `pools`.
    pub pool: usize,
    /// Maximum mean delay.
    #[serde(default)]
    pub delay_ns: Option<u64>,
    /// Maximum mean difference between successive delays.
    #[serde(default)]
    pub jitter_ns: Option<u64>,
    /// Indexes in `leaves`.
    pub leaves: Vec<usize>,
}

/// A ceiling for all leaves that refer to it together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardTotal {
    /// Name in messages and reports.
    pub name: String,
    /// Ceiling in bit/s.
    #[serde(default)]
    pub ceiling_bps: Option<u64>,
    /// Ceiling in packets/s, divided in proportion to use.
    #[serde(default)]
    pub ceiling_pps: Option<u64>,
}

/// A flow class of a vif, or the rest of a vif's packets. Each leaf is granted a rate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardLeaf {
    /// Name in messages and reports.
    pub name: String,
    /// Index in `pools`.
    pub pool: usize,
    /// Indexes in `totals`, the smaller total first.
    #[serde(default)]
    pub totals: Vec<usize>,
    /// Priority of its service class; higher is served first.
    pub priority: u32,
    /// Guarantee in bit/s.
    pub guarantee_bps: u64,
    /// Ceiling in bit/s.
    pub ceiling_bps: u64,
    /// Guarantee in packets/s, out of the pool's.
    #[serde(default)]
    pub guarantee_pps: u64,
    /// Ceiling in packets/s, for one leaf.
    #[serde(default)]
    pub ceiling_pps: Option<u64>,
    /// Maximum burst, as time at the granted rate.
    pub burst_ns: u64,
    /// Maximum wait of packets in a queue, where one is possible.
    pub hold_ns: u64,
    /// Its sender is held back before packets reach the hook, so it may want more than it offers.
    #[serde(default)]
    pub held_at_source: bool,
}

/// Direction of packets at a hook, seen from the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardDirection {
    /// Packets that the interface receives.
    Ingress,
    /// Packets that the interface sends.
    Egress,
}

/// One direction of one vif.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardHook {
    /// File of its network namespace. Default: the agent's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Name of the interface in that namespace.
    pub interface: String,
    /// Direction of the packets.
    pub direction: GuardDirection,
    /// Index in `leaves` of packets that match no rule.
    pub leaf: usize,
    /// The first matching rule applies.
    #[serde(default)]
    pub rules: Vec<GuardRule>,
    /// Hold datagrams back in a queue instead of dropping them, if they leave their sender's kernel at this hook. TCP is held back
    /// wherever there can be a queue.
    #[serde(default)]
    pub hold: bool,
    /// The tenant can access the interface and bypass its hook. So the ceilings also apply at the other end of the veth, on ingress.
    #[serde(default)]
    pub backstop: bool,
}

/// The packets of a flow class. A field that is not set matches all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardRule {
    /// Index in `leaves`.
    pub leaf: usize,
    /// IP protocol number.
    #[serde(default)]
    pub protocol: Option<u8>,
    /// First and last port, matched against source and destination.
    #[serde(default)]
    pub ports: Option<(u16, u16)>,
    /// Differentiated services code point.
    #[serde(default)]
    pub dscp: Option<u8>,
}

/// Result of `guard.start`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardStarted {
    /// How each hook treats excess packets.
    pub excess: Vec<GuardExcess>,
    /// The kind of queue that holds packets back.
    pub queue: GuardQueue,
    /// Indexes in `hooks` of hooks that lack their backstop, because the interface's other end was not found.
    #[serde(default)]
    pub without_backstop: Vec<usize>,
}

/// The kind of queue that delays packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardQueue {
    /// Fair queueing, which keeps each packet until the departure time set by the hook.
    Fq,
    /// A token bucket filter, slightly slower than the hook.
    Tbf,
}

/// What a leaf's demand is estimated from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardDemand {
    /// What arrived in the last period and what still waits: a sender with a full queue offers nothing.
    #[default]
    Waiting,
    /// Only what arrived, as in DBA-VM. It starves senders that wait for their queue, and is here to compare with.
    Arrived,
}

/// How a capacity is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardDivision {
    /// By demand: max-min fair within a service class, and idle guarantees are lent.
    #[default]
    MaxMin,
    /// As DBA-VM's authors print it: interface by interface in the order of classes and of creation. It is here to compare with.
    Published,
}

/// Treatment of excess packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardExcess {
    /// They wait in a queue that the sender's kernel sees: TCP slows down, and a sender of datagrams waits.
    Held,
    /// TCP waits in a queue. All other packets are dropped; ECN-capable ones are marked before that.
    TcpHeld,
    /// They are dropped. ECN-capable packets are marked before that.
    Dropped,
}

/// Result of `guard.adjust`, which replaces the policy of a running guard, whole or not at all. Vifs and flow classes must be those of
/// the running guard, and keep their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardAdjusted {
    /// The time from which the new policy holds. Reports that end before are of the old one.
    pub at_ns: u64,
}

/// Result of `guard.grants`: the rates of each leaf now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardGrants {
    /// In the order of the leaves of `guard.start`.
    pub grants: Vec<GuardGrant>,
}

/// The rates that a leaf is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardGrant {
    /// Bit/s.
    pub bps: u64,
    /// Packets/s. If not set, packets/s are not limited.
    pub pps: Option<u64>,
}

/// `guard.move`: moves vifs of a running guard to other places, because their sandboxes were restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardMoves {
    /// ID of the guard.
    pub id: String,
    /// Hooks with their new places; all other hooks stay.
    pub moves: Vec<GuardMove>,
}

/// One hook's new place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardMove {
    /// Index in the `hooks` of `guard.start`.
    pub hook: usize,
    /// File of the network namespace. Default: the agent's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Name of the interface in that namespace.
    pub interface: String,
}

/// `guard.remove`: removes the hooks and queues of any guard from these interfaces, and those of one policy from all interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GuardRemove {
    /// A policy whose hooks are removed from every interface of all accessible namespaces, even if it was renamed.
    #[serde(default)]
    pub id: Option<String>,
    /// Interfaces to search.
    pub hooks: Vec<GuardHook>,
}

/// Result of `guard.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardRemoved {
    /// Descriptions of the removed hooks and queues.
    pub removed: Vec<String>,
    /// Descriptions of the places that could not be searched.
    #[serde(default)]
    pub unseen: Vec<String>,
}

/// One leaf since the last report. Rates are per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardRow {
    /// Bit/s that arrived at the hook.
    pub offered_bps: u64,
    /// Bit/s that passed.
    pub passed_bps: u64,
    /// Packets/s that arrived at the hook.
    pub offered_pps: u64,
    /// Packets/s that passed.
    pub passed_pps: u64,
    /// Packets dropped.
    pub dropped_packets: u64,
    /// Packets marked with congestion experienced.
    pub marked_packets: u64,
    /// Current grant in bit/s.
    pub granted_bps: u64,
    /// Current grant in packets/s. None if packets are not limited.
    pub granted_pps: Option<u64>,
    /// Mean wait in the queues that the guard can read: the vif's own and the link's. None if no queue was read.
    #[serde(default)]
    pub delay_ns: Option<u64>,
    /// Mean difference between successive waits.
    #[serde(default)]
    pub jitter_ns: Option<u64>,
}

/// One pool since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardPoolRow {
    /// Capacity that is divided now: less than the whole while a delay goal requires that.
    pub divided_bps: u64,
    /// Mean wait in the link's queue. None if it was not read.
    #[serde(default)]
    pub delay_ns: Option<u64>,
}

/// A problem found by the independent check, or its repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardNote {
    /// The leaf of the hook, or the service class.
    pub about: String,
    /// Kind of the finding.
    pub kind: GuardFinding,
    /// Text for people.
    pub text: String,
}

/// Findings of the independent check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GuardFinding {
    /// Hook or queue had been removed, and was restored.
    Repaired,
    /// Hook or queue had been removed, and could not be restored.
    Lost,
    /// Another interface has the name of the vif's, which is called otherwise now. The hook stays where it was.
    Decoy,
    /// The direction without a hook carries more than the link, so the hook may be on the wrong side.
    WrongSide,
    /// More bytes passed the interface than the hook counted.
    Bypassed,
    /// More bytes passed the interface than the ceiling and a burst allow.
    Exceeded,
    /// A goal for delay or jitter is missed, although all capacity above the guarantees was withheld.
    Unmet,
    /// Packets waited for longer than `hold`, or than TCP may wait at the vif's share of the link.
    Waited,
}
