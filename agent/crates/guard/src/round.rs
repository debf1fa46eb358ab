//! One round of the loop: reads counters and writes grants. It only touches the data plane's memory, so that it can be timed and
//! tested without a network.

use partywall_allocation::{allocate, by_use, divide, published, published_packets, Claim, Interface, Limit, Seen, Throttle, Want, Wanted};
use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardDemand, GuardDirection, GuardDivision, GuardHook, GuardLeaf, GuardPool, GuardQueue, GuardStart, GuardTotal};

use crate::place::LARGEST;
use crate::plane::{Counters, Grant, Hold, Plane};

/// Part of its guarantee that an idle leaf keeps, so that its first packets pass and reveal its demand: a thousandth.
const TRICKLE_PART: u64 = 1000;
const TRICKLE_BPS: u64 = 64_000;
const TRICKLE_PPS: u64 = 50;
/// Demand is read again soon if more than this part of the divided capacity moves between leaves.
const TRIFLE_PART: u64 = 32;
/// Datagrams of a vif wait up to this rate. A queue wakes up for each packet it releases; above this rate, that costs more than
/// dropping. Between the two thresholds, a vif keeps its current mode.
pub(crate) const WAITS_UP_TO_PPS: u64 = 25_000;
const DROPS_FROM_PPS: u64 = 30_000;
/// Maximum time to departure that TCP gets for its largest packet. The time does not shrink if the leaf is granted more
/// meanwhile. The rate of a rate queue does change.
const DEPARTS_WITHIN_NS: Nanos = 200_000_000;
/// However low its rate, no leaf's packets should wait for longer. It is the largest `hold` of a policy.
const WAITS_AT_MOST_NS: Nanos = 1_000_000_000;
/// A leaf that lost packets below its guarantee is granted the full guarantee for this time. A TCP sender that loses everything in
/// flight is silent for 200 ms, then twice as long, and so on. If that silence counted as no demand, it would find little
/// capacity on its return and never recover.
const PRESSED_NS: Nanos = 1_000_000_000;
/// Packets of the largest size that TCP may have waiting on a detour. Its sender may not see the queue fill, and only slows down when
/// packets are lost. Enough must then wait behind a lost one.
const TCP_PACKETS_AFAR: u64 = 3;
/// Assumed packet size before any packet was seen, and for the packets/s that come with a bit/s guarantee.
pub(crate) const PACKET_BITS: u64 = 12_000;

/// A queue of datagrams in which more waits than leaves in this part of a period shows that its sender wants more than its grant.
const FULL_PART: u64 = 16;

/// Rates of one leaf in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    offered_bps: u64,
    passed_bps: u64,
    offered_pps: u64,
    /// Granted but not used.
    unused_bps: u64,
    unused_pps: u64,
    /// What waited at the start, in bits and packets: as much to send as what arrived meanwhile.
    waited_bits: u64,
    waited_packets: u64,
    /// What still waits, in bits.
    waiting_bits: u64,
    any_tcp: bool,
    /// Most of the passed traffic.
    tcp: bool,
    /// Its sender slows down when it is held back.
    elastic: bool,
}

/// State of the queue behind a leaf's hook.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    there: bool,
    /// Datagrams wait in it.
    waits: bool,
    tcp: bool,
}

impl Rates {
    /// Whether the offered load reaches the limits, or nearly does.
    fn limited(self, granted: Grant) -> bool {
        let near = |offered: u64, granted: u64| offered > granted - granted / 16;
        near(self.offered_bps, granted.bps) || granted.pps.is_some_and(|pps| near(self.offered_pps, pps))
    }
}

/// Estimators of a leaf's demand for bits and packets.
#[derive(Clone, Copy, Debug, Default)]
struct Wants {
    bps: Want,
    pps: Want,
}

/// Estimated demand of one leaf.
#[derive(Clone, Copy, Debug)]
struct Demand {
    bps: Wanted,
    pps: Wanted,
    /// The rate at which what waits leaves in time.
    drains_bps: u64,
    /// What passed the hook.
    passed_bps: u64,
}

const ALL: Wanted = Wanted { rate: u64::MAX, held_back: false, doubted: 0 };
const EVERYTHING: Demand = Demand { bps: ALL, pps: ALL, drains_bps: 0, passed_bps: u64::MAX };

struct Pool {
    capacity_bps: u64,
    capacity_pps: Option<u64>,
    members: Vec<usize>,
    throttle: Throttle,
    /// Guarantees that had demand in the last round.
    floor_bps: u64,
    divided_bps: u64,
}

struct Total {
    ceiling_bps: Option<u64>,
    ceiling_pps: Option<u64>,
    members: Vec<usize>,
}

/// The configuration and state of a leaf.
struct Leaf {
    config: GuardLeaf,
    /// Assured packets/s, in addition to guaranteed ones, because a bit/s guarantee needs packets to be usable.
    assured_pps: u64,
    fallback: Grant,
    /// Minimum number of packets of the largest size that its TCP may have waiting.
    tcp_packets: u64,
    /// Its datagrams may wait in a queue.
    holds_datagrams: bool,
    before: Counters,
    /// When the traffic up to the last round would have left at its rates, by bytes and by packets.
    due: [Nanos; 2],
    wants: Wants,
    packet_bits: u64,
    queued: Queued,
    limited: bool,
    pressed_until_ns: Nanos,
    speaks_tcp: bool,
    /// What arrived in the last round, in packets/s.
    offered_pps: u64,
}

impl Leaf {
    fn new(config: &GuardLeaf, assured_pps: u64, fallback: Grant, now: Nanos) -> Self {
        Self {
            config: config.clone(),
            assured_pps,
            fallback,
            tcp_packets: 1,
            holds_datagrams: true,
            before: Counters::default(),
            due: [now; 2],
            wants: Wants::default(),
            packet_bits: PACKET_BITS,
            queued: Queued::default(),
            limited: false,
            pressed_until_ns: 0,
            speaks_tcp: false,
            offered_pps: 0,
        }
    }
}

/// State kept between rounds: counters, demand and grants.
pub struct Rounds {
    leaves: Vec<Leaf>,
    pools: Vec<Pool>,
    totals: Vec<Total>,
    /// Vif totals before tenant totals: the unused part of a tenant's total is only known after the vif's own total was applied.
    narrow_first: Vec<usize>,
    /// Per leaf, of the last round.
    wants: Vec<Demand>,
    /// Per leaf.
    grants: Vec<Grant>,
    /// Rates of each leaf if all leaves want all they may have.
    shares: Vec<Grant>,
    look_again: bool,
    queue: GuardQueue,
    demand: GuardDemand,
    division: GuardDivision,
    period_ns: Nanos,
    at_ns: Nanos,
}

/// The buckets of all leaves, as the data plane keeps them. A trait, so that a model can take the place of the kernel.
pub(crate) trait Buckets {
    /// See [`Plane::counters`].
    fn counters(&self, leaf: usize) -> Counters;
    /// See [`Plane::due`].
    fn due(&self, leaf: usize, now: Nanos, grant: Grant) -> [Nanos; 2];
    /// See [`Plane::grant`].
    fn grant(&self, leaf: usize, now: Nanos, grant: Grant);
    /// See [`Plane::fill`].
    fn fill(&self, leaf: usize, now: Nanos, grant: Grant);
}

impl Buckets for Plane {
    fn counters(&self, leaf: usize) -> Counters {
        Self::counters(self, leaf)
    }

    fn due(&self, leaf: usize, now: Nanos, grant: Grant) -> [Nanos; 2] {
        Self::due(self, leaf, now, grant)
    }

    fn grant(&self, leaf: usize, now: Nanos, grant: Grant) {
        Self::grant(self, leaf, now, grant);
    }

    fn fill(&self, leaf: usize, now: Nanos, grant: Grant) {
        Self::fill(self, leaf, now, grant);
    }
}

impl Rounds {
    /// Demand is not known yet, so every leaf is assumed to want all it may have. `queue`: the kind of queue that holds packets back.
    #[must_use]
    pub fn new(start: &GuardStart, queue: GuardQueue, now: Nanos) -> Self {
        let (pools, totals) = (pools(&start.pools, &start.leaves), totals(&start.totals, &start.leaves));
        let assured = assured_pps(&start.pools, &start.leaves);
        let fallbacks = fall_back(&start.leaves, &assured, &pools, &totals);
        let leaves = start.leaves.iter().zip(assured).zip(fallbacks);
        let mut rounds = Self {
            leaves: leaves.map(|((config, assured), fallback)| Leaf::new(config, assured, fallback, now)).collect(),
            pools,
            totals,
            narrow_first: Vec::new(),
            wants: Vec::new(),
            grants: Vec::new(),
            shares: Vec::new(),
            look_again: false,
            queue,
            demand: start.demand,
            division: start.division,
            period_ns: start.period_ns,
            at_ns: now,
        };
        rounds.settle_leaves(start);
        rounds.wants = vec![EVERYTHING; start.leaves.len()];
        rounds.grants = rounds.decide();
        rounds.shares.clone_from(&rounds.grants);
        rounds
    }

    /// What goals and hooks say of the leaves.
    fn settle_leaves(&mut self, start: &GuardStart) {
        for hook in start.hooks.iter().filter(|hook| !holds_datagrams(hook)) {
            let leaves = hook.rules.iter().map(|rule| rule.leaf).chain([hook.leaf]);
            leaves.for_each(|leaf| self.leaves[leaf].holds_datagrams = false);
        }
        for hook in start.hooks.iter().filter(|hook| hook.direction == GuardDirection::Ingress) {
            let leaves = hook.rules.iter().map(|rule| rule.leaf).chain([hook.leaf]);
            leaves.for_each(|leaf| self.leaves[leaf].tcp_packets = TCP_PACKETS_AFAR);
        }
        start.goals.iter().flat_map(|goal| &goal.leaves).for_each(|&leaf| self.leaves[leaf].tcp_packets = 2);
        self.narrow_first = (0..self.totals.len()).collect();
        self.narrow_first.sort_by_key(|&at| self.totals[at].members.len());
    }

    /// Replaces the promises and limits of all leaves, pools and totals, and divides again by the demand of the last round. The
    /// leaves are the same ones: their counters, demand and queues stay.
    pub fn adjust(&mut self, start: &GuardStart, plane: &Plane, now: Nanos) {
        let mut fresh = Self::new(start, self.queue, now);
        for (leaf, before) in fresh.leaves.iter_mut().zip(self.leaves.drain(..)) {
            let Leaf { config, assured_pps, fallback, tcp_packets, .. } = std::mem::replace(leaf, before);
            (leaf.config, leaf.assured_pps, leaf.fallback, leaf.tcp_packets) = (config, assured_pps, fallback, tcp_packets);
        }
        for (pool, before) in fresh.pools.iter_mut().zip(self.pools.drain(..)) {
            pool.throttle = before.throttle;
        }
        (fresh.wants, fresh.at_ns) = (std::mem::take(&mut self.wants), self.at_ns);
        fresh.grants = std::mem::take(&mut self.grants);
        *self = fresh;
        for (at, leaf) in self.leaves.iter().enumerate() {
            plane.fall_back_to(at, leaf.fallback);
        }
        let grants = self.decide();
        self.give(plane, now, grants);
    }

    /// Writes the grants that changed.
    fn give(&mut self, plane: &impl Buckets, now: Nanos, grants: Vec<Grant>) {
        for at in cuts_first(&grants, &self.grants) {
            plane.grant(at, now, grants[at]);
        }
        self.grants = grants;
        for (at, leaf) in self.leaves.iter_mut().enumerate() {
            leaf.due = plane.due(at, now, self.grants[at]);
        }
    }

    /// The grants of all leaves.
    #[must_use]
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Sets whether there is a queue behind a leaf's hook.
    pub fn queued(&mut self, leaf: usize, there: bool) {
        self.leaves[leaf].queued.there = there;
        self.leaves[leaf].queued.waits = self.has_datagrams_wait(leaf);
    }

    /// The kind of queue that holds packets back.
    #[must_use]
    pub fn queue(&self) -> GuardQueue {
        self.queue
    }

    /// Whether packets of a leaf should wait instead of being dropped. TCP always should, from its first packet on, because a
    /// connection that suffers drops hardly starts. Datagrams should if their leaf is at its limits and the queue can hold
    /// them back. `apart`: whether the queue holds back each leaf of its hook separately.
    #[must_use]
    pub fn wants_queue(&self, leaf: usize, apart: bool) -> bool {
        self.leaves[leaf].speaks_tcp || apart && self.leaves[leaf].limited && self.may_wait(leaf, WAITS_UP_TO_PPS)
    }

    /// Number of packets of the largest size that TCP of a leaf may have waiting at least.
    #[must_use]
    pub fn tcp_packets(&self, leaf: usize) -> u64 {
        self.leaves[leaf].tcp_packets
    }

    /// Whether any TCP arrived in the last round.
    #[must_use]
    pub fn speaks_tcp(&self, leaf: usize) -> bool {
        self.leaves[leaf].speaks_tcp
    }

    /// Whether nothing arrived in the last round.
    #[must_use]
    pub fn is_idle(&self, leaf: usize) -> bool {
        self.leaves[leaf].offered_pps == 0
    }

    /// Whether datagrams of a leaf currently wait in its queue instead of being dropped.
    #[must_use]
    pub fn waits(&self, leaf: usize) -> bool {
        self.leaves[leaf].queued.waits
    }

    /// How far packets may run ahead of the granted and the fallback rates of a leaf with a queue behind its hook.
    #[must_use]
    pub fn ahead(&self, leaf: usize) -> [Hold; 2] {
        let ahead = self.ahead_of(leaf);
        let bits = match self.queue {
            GuardQueue::Fq => [self.pass_bps(leaf), self.fallback(leaf).bps],
            // One rate applies to both.
            GuardQueue::Tbf => [self.pass_bps(leaf); 2],
        };
        bits.map(|bps| ahead.at(bps, self.waits(leaf)))
    }

    /// The longest that packets of a leaf may wait, however many others want the link: at its share of the rate, and at most
    /// [`WAITS_AT_MOST_NS`].
    #[must_use]
    pub fn may_wait_ns(&self, leaf: usize) -> Nanos {
        let share = self.shares[leaf];
        let packets = share.pps.map_or(u64::MAX, |pps| pps.saturating_mul(self.leaves[leaf].packet_bits));
        let hold = self.ahead_of(leaf).at(share.bps.min(packets).max(TRICKLE_BPS), true);
        hold.tcp_ns.min(WAITS_AT_MOST_NS).max(hold.others_ns)
    }

    fn ahead_of(&self, leaf: usize) -> Ahead {
        Ahead { queue: self.queue, hold_ns: self.leaves[leaf].config.hold_ns, tcp_packets: self.leaves[leaf].tcp_packets }
    }

    /// Whether the queue behind a leaf's hook must hold back its senders.
    #[must_use]
    pub fn holds_back(&self, leaf: usize) -> bool {
        self.leaves[leaf].queued.waits || self.leaves[leaf].queued.tcp
    }

    /// Whether a leaf wants more than it was granted.
    #[must_use]
    pub fn wants_more(&self, leaf: usize) -> bool {
        self.wants[leaf].bps.rate > self.grants[leaf].bps
    }

    fn has_datagrams_wait(&self, leaf: usize) -> bool {
        let Queued { there, waits, .. } = self.leaves[leaf].queued;
        there && self.may_wait(leaf, if waits { DROPS_FROM_PPS } else { WAITS_UP_TO_PPS })
    }

    /// Whether datagrams of a leaf may wait. In a rate queue they may only if they are few and their bits are the limit. Such a queue
    /// limits nothing else, and cannot correct the hook's account of packets.
    fn may_wait(&self, leaf: usize, pps: u64) -> bool {
        if !self.leaves[leaf].holds_datagrams {
            return false;
        }
        if self.queue == GuardQueue::Fq {
            return true;
        }
        let granted = self.grants[leaf];
        are_few(granted.bps.max(self.fallback(leaf).bps) / self.leaves[leaf].packet_bits, granted.pps, pps)
    }

    /// The grant of a leaf after the heartbeat stops: its guarantee, and its part of every packet limit that it shares.
    #[must_use]
    pub fn fallback(&self, leaf: usize) -> Grant {
        self.leaves[leaf].fallback
    }

    /// The rate of a queue that holds back excess packets of a leaf. It is never below the fallback rate, because a queue cannot fall
    /// back when the heartbeat stops. A packet limit is converted to bits by the current packet size.
    ///
    /// If the queue must hold back its sender, the rate is slightly below what the hook passes. Otherwise it is above, because an
    /// empty queue would cause needless wake-ups.
    #[must_use]
    pub fn pace_bps(&self, leaf: usize) -> u64 {
        let bps = self.pass_bps(leaf);
        if self.holds_back(leaf) {
            held_back_bps(bps)
        } else {
            bps + bps / 64
        }
    }

    fn pass_bps(&self, leaf: usize) -> u64 {
        let (granted, fallback) = (self.grants[leaf], self.fallback(leaf));
        // A grant below the assured packets/s means low demand. The next packets must not wait for the next round.
        let packets =
            granted.pps.map_or(u64::MAX, |pps| pps.max(self.leaves[leaf].assured_pps).saturating_mul(self.leaves[leaf].packet_bits));
        granted.bps.max(fallback.bps).min(packets)
    }

    /// Whether less than the capacity of a pool is divided now, because of a goal.
    #[must_use]
    pub fn is_throttled(&self, pool: usize) -> bool {
        self.pools[pool].divided_bps < self.pools[pool].capacity_bps
    }

    /// The capacity of a pool that is divided now.
    #[must_use]
    pub fn divided_bps(&self, pool: usize) -> u64 {
        self.pools[pool].divided_bps
    }

    /// Sets the strain on the goals of a pool's service classes, in units of [`Throttle::MET`]. The divided capacity follows it.
    /// Returns true if nothing more can be done for the goals.
    pub fn strain(&mut self, pool: usize, strain: u64) -> bool {
        let pool = &mut self.pools[pool];
        pool.throttle.update(strain, pool.capacity_bps, pool.floor_bps);
        pool.throttle.gave_up()
    }

    /// Reads the counters, decides, and writes the grants that changed. Returns the time to decide.
    pub(crate) fn run(&mut self, plane: &impl Buckets, now: Nanos) -> Nanos {
        let elapsed = now.saturating_sub(self.at_ns).max(1);
        let rates = self.read(plane, now, elapsed);
        self.at_ns = now;
        self.press(&rates);
        let begun = clock::monotonic();
        self.wants = (0..self.leaves.len()).map(|at| self.want(at, rates[at])).collect();
        let grants = self.decide();
        let decided = clock::monotonic();
        self.look_again = self.in_motion(&grants);
        self.give(plane, now, grants);
        // The amount filled in is what was left of a whole period.
        if elapsed >= self.period_ns - self.period_ns / 4 {
            for (at, new) in self.grants.iter().enumerate() {
                if new.burst_ns.max(new.packet_burst_ns) > self.leaves[at].config.burst_ns {
                    plane.fill(at, now, *new);
                    self.leaves[at].due = plane.due(at, now, *new);
                }
            }
        }
        for (at, rates) in rates.iter().enumerate() {
            let hold = self.has_datagrams_wait(at);
            let leaf = &mut self.leaves[at];
            // A pause says nothing about the next sender.
            let tcp = if rates.offered_pps == 0 { leaf.queued.tcp } else { rates.tcp };
            leaf.queued = Queued { waits: hold, tcp, ..leaf.queued };
            leaf.limited = rates.limited(self.grants[at]);
            leaf.speaks_tcp = rates.any_tcp;
            leaf.offered_pps = rates.offered_pps;
        }
        decided - begun
    }

    /// Whether the last round moved more than a small part of a pool between leaves, or would have if it were certain of the demand.
    #[must_use]
    pub fn look_again(&self) -> bool {
        self.look_again
    }

    fn in_motion(&self, grants: &[Grant]) -> bool {
        if self.division == GuardDivision::Published {
            return false; // It has a fixed period.
        }
        let wants = &self.wants;
        self.pools.iter().any(|pool| {
            let sum = |of: &dyn Fn(usize) -> u64| pool.members.iter().map(|&at| of(at)).fold(0, u64::saturating_add);
            let rises = sum(&|at| grants[at].bps.saturating_sub(self.grants[at].bps));
            let doubted = sum(&|at| {
                let packets = grants[at].pps.map_or(0, |pps| wants[at].pps.doubted_of(pps));
                wants[at].bps.doubted_of(grants[at].bps).max(packets.saturating_mul(self.leaves[at].packet_bits))
            });
            rises.max(doubted) > pool.divided_bps / TRIFLE_PART
        })
    }

    /// Records a correction of the account behind a leaf's hook, in ns.
    pub fn settled(&mut self, leaf: usize, by: i64) {
        let [bytes, _] = &mut self.leaves[leaf].due;
        *bytes = bytes.saturating_add_signed(by);
    }

    /// Records which leaves lost packets below their guarantee.
    fn press(&mut self, rates: &[Rates]) {
        for (at, rates) in rates.iter().enumerate() {
            if rates.offered_bps > rates.passed_bps && self.grants[at].bps < self.leaves[at].config.guarantee_bps {
                self.leaves[at].pressed_until_ns = self.at_ns + PRESSED_NS;
            }
        }
    }

    fn read(&mut self, plane: &impl Buckets, now: Nanos, elapsed: Nanos) -> Vec<Rates> {
        // Precise enough, and much faster than 128-bit integers.
        let (from, elapsed) = (self.at_ns, elapsed as f64);
        let per_second = |count: u64| (count as f64 * 1e9 / elapsed) as u64;
        let rates_of = |(at, (leaf, granted)): (usize, (&mut Leaf, &Grant))| {
            let (counted, due) = (plane.counters(at), plane.due(at, now, *granted));
            let before = std::mem::replace(&mut leaf.before, counted);
            let passed = counted.passed_bytes - before.passed_bytes;
            let offered = passed + counted.dropped_bytes - before.dropped_bytes;
            let passed_packets = counted.passed_packets - before.passed_packets;
            let packets = passed_packets + counted.dropped_packets - before.dropped_packets;
            let tcp_bytes = counted.tcp_bytes - before.tcp_bytes;
            let tcp = tcp_bytes > passed / 2;
            let let_go =
                |bucket: usize, passed: u64, granted: u64| unused(due[bucket].saturating_sub(leaf.due[bucket]), passed, granted, elapsed);
            let waited = |bucket: usize, granted: u64| over(granted, leaf.due[bucket].saturating_sub(from));
            Rates {
                offered_bps: per_second(offered * 8),
                passed_bps: per_second(passed * 8),
                offered_pps: per_second(packets),
                unused_bps: let_go(0, passed * 8, granted.bps),
                unused_pps: granted.pps.map_or(0, |pps| let_go(1, passed_packets, pps)),
                waited_bits: waited(0, granted.bps),
                waited_packets: granted.pps.map_or(0, |pps| waited(1, pps)),
                waiting_bits: over(granted.bps, due[0].saturating_sub(now)),
                any_tcp: tcp_bytes > 0,
                tcp,
                elastic: tcp || leaf.queued.waits || leaf.config.held_at_source,
            }
        };
        self.leaves.iter_mut().zip(&self.grants).enumerate().map(rates_of).collect()
    }

    fn want(&mut self, at: usize, rates: Rates) -> Demand {
        if let Some(bits) = rates.offered_bps.checked_div(rates.offered_pps) {
            self.leaves[at].packet_bits = bits.max(1);
        }
        let Rates { offered_bps, offered_pps, unused_bps, unused_pps, elastic, .. } = rates;
        let granted = self.grants[at];
        let (waited, missed_bps, drains_bps) = match self.demand {
            GuardDemand::Waiting => {
                let in_a_period = |count: u64| within(count, self.period_ns);
                let waited = [in_a_period(rates.waited_bits), in_a_period(rates.waited_packets)];
                // What a sender left unused whose queue is full again, it would have sent if it had had a CPU. TCP may also have paused
                // between two answers, but not if packets waited before too, round after round: then it wants to be done sooner.
                let is_much = |bits: u64| in_a_period(bits) > granted.bps / FULL_PART;
                let was_full = if rates.any_tcp { is_much(rates.waited_bits) } else { self.leaves[at].queued.waits };
                let missed = if was_full && is_much(rates.waiting_bits) { unused_bps } else { 0 };
                (waited, missed, self.drains_bps(at, rates.waiting_bits))
            }
            GuardDemand::Arrived => ([0; 2], 0, 0),
        };
        let bits =
            Seen { offered: offered_bps + missed_bps, waited: waited[0], granted: granted.bps, unused: unused_bps - missed_bps, elastic };
        let bps = self.leaves[at].wants.bps.update(bits);
        let pps = match granted.pps {
            Some(granted) => {
                let packets = Seen { offered: offered_pps, waited: waited[1], granted, unused: unused_pps, elastic };
                self.leaves[at].wants.pps.update(packets)
            }
            None => Wanted { rate: offered_pps, held_back: false, doubted: 0 },
        };
        Demand { bps, pps, drains_bps, passed_bps: rates.passed_bps }
    }

    /// The rate at which what waits leaves within the time that it may wait, and a period. The time is at most
    /// [`DEPARTS_WITHIN_NS`], and what waits beyond it does not count: so the rate is always below the grant, by a fifth with the
    /// usual period, and others get their shares within a second. Without a queue, a debt waits, and no packets.
    fn drains_bps(&self, at: usize, waiting_bits: u64) -> u64 {
        if !self.leaves[at].queued.there {
            return 0;
        }
        let hold = self.ahead_of(at).at(self.pass_bps(at), self.waits(at));
        let hold_ns = hold.tcp_ns.max(hold.others_ns).min(DEPARTS_WITHIN_NS);
        within(waiting_bits.min(over(self.grants[at].bps, hold_ns)), hold_ns + self.period_ns)
    }

    /// Divides packets first: a leaf with few packets/s can use few bits, and others can use the rest.
    fn decide(&mut self) -> Vec<Grant> {
        let wants = &self.wants;
        let packets = self.packets(wants);
        let claims: Vec<Claim> = (0..self.leaves.len()).map(|at| self.claim(at, wants[at], packets[at])).collect();
        let without_bits = |(leaf, pps): (&Leaf, Option<u64>)| {
            let burst_ns = leaf.config.burst_ns;
            let packet_burst_ns = pps.map_or(burst_ns, |pps| reserve_ns(leaf.assured_pps, pps, burst_ns, self.period_ns));
            Grant { bps: 0, pps, burst_ns, packet_burst_ns }
        };
        let mut grants: Vec<Grant> = self.leaves.iter().zip(packets).map(without_bits).collect();
        for pool in &mut self.pools {
            let guaranteed = |&at: &usize| claims[at].demand.min(claims[at].guarantee).min(claims[at].ceiling);
            pool.floor_bps = pool.members.iter().map(guaranteed).sum();
            pool.divided_bps = pool.throttle.divided(pool.capacity_bps, pool.floor_bps);
        }
        let bits = match self.division {
            GuardDivision::MaxMin => self.bits(&claims),
            GuardDivision::Published => self.published_bits(),
        };
        for (at, bps) in bits.into_iter().enumerate() {
            let leaf = &self.leaves[at].config;
            grants[at].bps = bps;
            grants[at].burst_ns = reserve_ns(leaf.guarantee_bps, bps, leaf.burst_ns, self.period_ns);
        }
        grants
    }

    /// Bit/s of each leaf: its share of the capacity that its pool divides now.
    fn bits(&self, claims: &[Claim]) -> Vec<u64> {
        let pools: Vec<Limit> = self.pools.iter().map(|pool| Limit { most: pool.divided_bps, members: &pool.members }).collect();
        let limit = |total: &usize| {
            let Total { ceiling_bps, members, .. } = &self.totals[*total];
            Some(Limit { most: (*ceiling_bps)?, members })
        };
        let totals: Vec<Limit> = self.narrow_first.iter().filter_map(limit).collect();
        divide(claims, &pools, &totals)
    }

    /// Bit/s of each leaf by the published algorithm. It knows no totals and no goals, and a policy with it has none.
    fn published_bits(&self) -> Vec<u64> {
        let mut grants = vec![0; self.leaves.len()];
        for pool in &self.pools {
            let interface = |&at: &usize| {
                let GuardLeaf { priority, guarantee_bps, ceiling_bps, .. } = self.leaves[at].config;
                Interface { priority, least: guarantee_bps, most: ceiling_bps, used: self.wants[at].passed_bps }
            };
            let interfaces: Vec<Interface> = pool.members.iter().map(interface).collect();
            pool.members.iter().zip(published(pool.capacity_bps, &interfaces)).for_each(|(&at, bps)| grants[at] = bps);
        }
        grants
    }

    /// The parts of a tenant's packets/s for its leaves.
    fn parts(&self, total: &Total, ceiling: u64, wants: &[Demand]) -> Vec<u64> {
        if self.division == GuardDivision::Published {
            let used: Vec<u64> = total.members.iter().map(|&at| wants[at].passed_bps).collect();
            return published_packets(ceiling, &used);
        }
        let used: Vec<u64> = total.members.iter().map(|&at| self.used(at, wants[at].bps)).collect();
        let most = |at: usize| self.leaves[at].config.ceiling_pps.unwrap_or(u64::MAX);
        let wanted: Vec<u64> = total.members.iter().map(|&at| wants[at].pps.rate.max(TRICKLE_PPS).min(most(at))).collect();
        by_use(ceiling, &used, &wanted)
    }

    /// Packets/s of each leaf. A tenant's packets are divided among its leaves in proportion to their bandwidth, which is the paper's
    /// second step. A pool's packets are divided in the same way as its bits.
    fn packets(&self, wants: &[Demand]) -> Vec<Option<u64>> {
        let mut packets: Vec<Option<u64>> = self.leaves.iter().map(|leaf| leaf.config.ceiling_pps).collect();
        for total in &self.totals {
            let Some(ceiling) = total.ceiling_pps else { continue };
            for (&at, part) in total.members.iter().zip(self.parts(total, ceiling, wants)) {
                packets[at] = Some(packets[at].map_or(part, |own| own.min(part)));
            }
        }
        for pool in &self.pools {
            let Some(capacity) = pool.capacity_pps else { continue };
            let claim = |&at: &usize| self.packet_claim(at, wants[at].pps, packets[at].unwrap_or(capacity));
            let claims: Vec<Claim> = pool.members.iter().map(claim).collect();
            pool.members.iter().zip(allocate(capacity, &claims)).for_each(|(&at, pps)| packets[at] = Some(pps));
        }
        packets
    }

    /// Bandwidth that a leaf used, over more than the last period: a sender without CPU for a moment does not count as using less.
    fn used(&self, at: usize, want: Wanted) -> u64 {
        if want.held_back {
            self.grants[at].bps
        } else {
            want.rate
        }
    }

    fn packet_claim(&self, at: usize, want: Wanted, ceiling: u64) -> Claim {
        let Leaf { config: leaf, assured_pps: assured, .. } = &self.leaves[at];
        let assured = *assured;
        let trickle = (assured / TRICKLE_PART).max(TRICKLE_PPS);
        let Wanted { rate, held_back, .. } = want;
        let demand = rate.max(trickle);
        let could_use = if held_back { ceiling } else { demand };
        Claim { priority: leaf.priority, guarantee: assured, ceiling, demand, draining: 0, could_use }
    }

    fn claim(&self, at: usize, Demand { bps: want, drains_bps: draining, .. }: Demand, packets: Option<u64>) -> Claim {
        let leaf = &self.leaves[at].config;
        let usable = packets.map_or(u64::MAX, |pps| pps.saturating_mul(self.leaves[at].packet_bits));
        let trickle = (leaf.guarantee_bps / TRICKLE_PART).max(TRICKLE_BPS);
        let pressed = if self.at_ns < self.leaves[at].pressed_until_ns { leaf.guarantee_bps } else { 0 };
        let demand = want.rate.max(pressed).min(usable).max(trickle);
        let could_use = if want.held_back { usable.max(demand) } else { demand };
        Claim { priority: leaf.priority, guarantee: leaf.guarantee_bps, ceiling: leaf.ceiling_bps, demand, draining, could_use }
    }
}

/// The grants of all leaves after the heartbeat stops.
fn fall_back(leaves: &[GuardLeaf], assured_pps: &[u64], pools: &[Pool], totals: &[Total]) -> Vec<Grant> {
    let own_limits = |leaf: &GuardLeaf| {
        let part = |total: &Total| Some(total.ceiling_pps? / total.members.len() as u64);
        let pps = leaf.ceiling_pps.into_iter().chain(leaf.totals.iter().filter_map(|&at| part(&totals[at]))).min();
        Grant {
            bps: leaf.guarantee_bps.max(TRICKLE_BPS).min(leaf.ceiling_bps),
            pps,
            burst_ns: leaf.burst_ns,
            packet_burst_ns: leaf.burst_ns,
        }
    };
    let mut grants: Vec<Grant> = leaves.iter().map(own_limits).collect();
    for pool in pools {
        let Some(capacity) = pool.capacity_pps else { continue };
        // Packets/s that are not guaranteed are divided equally.
        let promised: u64 = pool.members.iter().map(|&at| assured_pps[at]).sum();
        let spare = capacity.saturating_sub(promised) / pool.members.len().max(1) as u64;
        for &at in &pool.members {
            let part = (assured_pps[at] + spare).max(TRICKLE_PPS);
            grants[at].pps = Some(grants[at].pps.map_or(part, |own| own.min(part)));
        }
    }
    grants
}

/// Assured packets/s: the guaranteed ones, plus as many as each leaf's guaranteed bits make in full frames. The latter come from the
/// pool's unguaranteed packets. If too few are left, all leaves get the same part of theirs.
fn assured_pps(pools: &[GuardPool], leaves: &[GuardLeaf]) -> Vec<u64> {
    let of_bits = |leaf: &GuardLeaf| leaf.guarantee_bps.div_ceil(PACKET_BITS).min(leaf.ceiling_pps.unwrap_or(u64::MAX));
    let beyond = |leaf: &GuardLeaf| of_bits(leaf).saturating_sub(leaf.guarantee_pps);
    let part = |(at, pool): (usize, &GuardPool)| {
        let of = || leaves.iter().filter(|leaf| leaf.pool == at);
        let left = pool.capacity_pps.unwrap_or(0).saturating_sub(of().map(|leaf| leaf.guarantee_pps).sum());
        (left as f64 / of().map(beyond).sum::<u64>().max(1) as f64).min(1.0)
    };
    let parts: Vec<f64> = pools.iter().enumerate().map(part).collect();
    leaves.iter().map(|leaf| leaf.guarantee_pps + (beyond(leaf) as f64 * parts[leaf.pool]) as u64).collect()
}

/// Whether datagrams may wait behind a hook. On ingress their sender would not notice, so that waiting only costs CPU time.
pub(crate) fn holds_datagrams(hook: &GuardHook) -> bool {
    hook.hold && hook.direction == GuardDirection::Egress
}

/// How far packets may run ahead of their rate where a queue holds them back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub queue: GuardQueue,
    pub hold_ns: Nanos,
    /// Minimum number of packets of the largest size that TCP may have waiting: two if a goal limits the wait of all other packets. A
    /// sender has that many in flight (TCP small queues). A sender that suffers drops does not get its guarantee.
    pub tcp_packets: u64,
}

impl Ahead {
    pub fn at(self, bps: u64, datagrams_wait: bool) -> Hold {
        Hold { tcp_ns: self.tcp_ns(bps), others_ns: if datagrams_wait { self.hold_ns } else { 0 } }
    }

    /// TCP may wait at least for its largest packet. Otherwise, at a low rate, one such packet would have all following ones dropped.
    fn tcp_ns(self, bps: u64) -> Nanos {
        let largest_ns = (u128::from(self.tcp_packets * LARGEST) * 8_000_000_000 / u128::from(bps.max(1))) as Nanos;
        let most_ns = match self.queue {
            GuardQueue::Fq => DEPARTS_WITHIN_NS,
            GuardQueue::Tbf => Nanos::MAX,
        };
        self.hold_ns.max(largest_ns.min(most_ns))
    }
}

/// The rate of a queue that must hold back what a hook passes at `bps`.
pub(crate) fn held_back_bps(bps: u64) -> u64 {
    bps - bps / 5000
}

/// Whether a bit rate is the binding limit, and the packets/s that follow from it are at most `most`.
pub(crate) fn are_few(by_bits: u64, limit: Option<u64>, most: u64) -> bool {
    by_bits <= most && limit.is_none_or(|limit| by_bits < limit)
}

/// What a rate per second makes in some time.
fn over(rate: u64, ns: Nanos) -> u64 {
    (rate as f64 * ns as f64 * 1e-9) as u64
}

/// The rate per second that lets `count` go within some time.
fn within(count: u64, ns: Nanos) -> u64 {
    (count as f64 * 1e9 / ns as f64) as u64
}

/// Unused part of a leaf's grant, per second. A bucket never lags behind the clock by more than the burst. So its time advances by
/// more than the passed traffic takes if some of the grant expires. Traffic that ran ahead of the clock, or catches up, is no loss.
fn unused(moved_ns: Nanos, passed: u64, granted: u64, elapsed_ns: f64) -> u64 {
    ((moved_ns as f64 * 1e-9 * granted as f64 - passed as f64) * 1e9 / elapsed_ns) as u64
}

/// The leaves whose grants changed, in the order of writing. Packets continue to pass during the writes, and the sum of all rates
/// never exceeds the larger of the sums before and after.
fn cuts_first(new: &[Grant], old: &[Grant]) -> impl Iterator<Item = usize> {
    let changed: Vec<usize> = (0..new.len()).filter(|&at| new[at] != old[at]).collect();
    let (cuts, rises): (Vec<usize>, Vec<usize>) = changed.into_iter().partition(|&at| new[at].bps < old[at].bps);
    cuts.into_iter().chain(rises)
}

/// Burst as time at the granted rate. A leaf with low demand is granted less than its guarantee, but keeps a burst of its
/// guarantee. Otherwise TCP would lose its first flight and be silent for 200 ms. The burst is filled once per period, by at
/// most what the leaf was granted below its guarantee. So the leaf never gets more than its guarantee.
fn reserve_ns(guarantee: u64, granted: u64, burst_ns: Nanos, period_ns: Nanos) -> Nanos {
    if granted >= guarantee || granted == 0 {
        return burst_ns;
    }
    let (guarantee, granted) = (guarantee as f64, granted as f64);
    let burst = burst_ns as f64 * guarantee / granted;
    let unused = period_ns as f64 * (guarantee - granted) / granted;
    burst_ns.max(burst.min(unused) as Nanos)
}

fn pools(pools: &[GuardPool], leaves: &[GuardLeaf]) -> Vec<Pool> {
    let pool_of = |(at, pool): (usize, &GuardPool)| Pool {
        capacity_bps: pool.capacity_bps,
        capacity_pps: pool.capacity_pps,
        members: (0..leaves.len()).filter(|&leaf| leaves[leaf].pool == at).collect(),
        throttle: Throttle::default(),
        floor_bps: 0,
        divided_bps: pool.capacity_bps,
    };
    pools.iter().enumerate().map(pool_of).collect()
}

fn totals(totals: &[GuardTotal], leaves: &[GuardLeaf]) -> Vec<Total> {
    let mut filled: Vec<Total> =
        totals.iter().map(|total| Total { ceiling_bps: total.ceiling_bps, ceiling_pps: total.ceiling_pps, members: Vec::new() }).collect();
    for (leaf, of) in leaves.iter().enumerate() {
        of.totals.iter().for_each(|&at| filled[at].members.push(leaf));
    }
    filled
}

#[cfg(test)]
mod tests;
