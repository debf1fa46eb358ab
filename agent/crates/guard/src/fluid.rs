//! A model of tenants that send through hooks and queues, for tests of the rates that [`Rounds`] grants. Packets are not copied, and no
//! time passes: one step is a millisecond. Senders follow their congestion control from acknowledgements, losses and marks.
//!
//! The model leaves out what the rates do not depend on: retransmissions, timeouts, and the path behind the queues, which is a delay.

use std::cell::RefCell;
use std::collections::VecDeque;

use partywall_clock::Nanos;
use partywall_wire::GuardQueue;
use proptest::prelude::*;

use crate::overrun::{Granted, Overrun};
use crate::place::{QueueRate, LARGEST};
use crate::plane::{owed_at_new_cost, Counters, Grant, Hold};
use crate::round::{Buckets, Rounds};

const STEP_NS: Nanos = 1_000_000;
const MSS: f64 = 1514.0;
/// The delay of the path, without any queue.
const PATH_NS: Nanos = 2_000_000;
const LARGEST_PIECE: f64 = 65_536.0;
const BURST_NS: Nanos = 10_000_000;

/// How a sender reacts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Control {
    Reno,
    Cubic,
    Bbr,
    Dctcp,
    /// Sends at a constant rate, whatever happens.
    Datagrams {
        bps: f64,
    },
    /// Reno that sends some bytes, waits until all are delivered, and pauses.
    Service {
        bytes: f64,
        pause_ns: Nanos,
    },
}

#[derive(Debug)]
struct Sender {
    control: Control,
    window: f64,
    threshold: f64,
    in_flight: f64,
    /// What is left of a request. Infinite for a stream.
    left: f64,
    resumes_ns: Nanos,
    reduced_ns: Nanos,
    /// Cubic: the window before the last reduction, in segments.
    highest: f64,
    /// BBR: delivered bytes by round trip, and the highest rate of ten of them, in bytes per second.
    delivered: f64,
    trip_ns: Nanos,
    rates: VecDeque<f64>,
    full: u32,
    /// DCTCP: part of the bytes that were marked.
    marked: f64,
}

impl Sender {
    fn new(control: Control) -> Self {
        let left = if let Control::Service { bytes, .. } = control { bytes } else { f64::INFINITY };
        Self {
            control,
            window: 10.0 * MSS,
            threshold: f64::INFINITY,
            in_flight: 0.0,
            left,
            resumes_ns: 0,
            reduced_ns: 0,
            highest: 0.0,
            delivered: 0.0,
            trip_ns: 0,
            rates: VecDeque::new(),
            full: 0,
            marked: 0.0,
        }
    }

    fn is_tcp(&self) -> bool {
        !matches!(self.control, Control::Datagrams { .. })
    }

    /// BBR's estimate of the bottleneck's rate, in bytes per second.
    fn bottleneck(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// The bytes that it sends in this step.
    fn sends(&mut self, now: Nanos) -> f64 {
        let step_s = STEP_NS as f64 * 1e-9;
        if let Control::Datagrams { bps } = self.control {
            return bps / 8.0 * step_s;
        }
        if now < self.resumes_ns {
            return 0.0;
        }
        let room = (self.window - self.in_flight).max(0.0).min(self.left);
        if self.control != Control::Bbr || self.rates.is_empty() {
            return room;
        }
        let gain = match (self.full < 3, (now / PATH_NS) % 8) {
            (true, _) => 2.89,
            (_, 0) => 1.25,
            (_, 1) => 0.75,
            _ => 1.0,
        };
        room.min((self.bottleneck() * gain * step_s).max(MSS))
    }

    fn acknowledged(&mut self, bytes: f64, marked: bool, now: Nanos, trip_ns: Nanos) {
        self.in_flight = (self.in_flight - bytes).max(0.0);
        let segments = self.window / MSS;
        match self.control {
            Control::Bbr => self.measure(bytes, now, trip_ns),
            _ if self.window < self.threshold => self.window += bytes,
            Control::Cubic => {
                let since_s = (now - self.reduced_ns) as f64 * 1e-9;
                let inflection = (self.highest * 0.3 / 0.4).cbrt();
                let target = 0.4 * (since_s - inflection).powi(3) + self.highest;
                // Never slower than Reno.
                self.window += (MSS * bytes / self.window).max((target - segments).clamp(0.0, segments / 2.0) * bytes / segments);
            }
            _ => self.window += MSS * bytes / self.window,
        }
        if self.control == Control::Dctcp {
            self.marked += (f64::from(u8::from(marked)) - self.marked) / 16.0 * (bytes / self.window).min(1.0);
            if marked && now >= self.reduced_ns + trip_ns {
                self.reduce(1.0 - self.marked / 2.0, now);
            }
        }
        if self.left <= 0.0 && self.in_flight < 1.0 {
            if let Control::Service { bytes, pause_ns } = self.control {
                (self.left, self.resumes_ns) = (bytes, now + pause_ns);
            }
        }
    }

    fn measure(&mut self, bytes: f64, now: Nanos, trip_ns: Nanos) {
        self.delivered += bytes;
        let took_ns = now - self.trip_ns;
        if took_ns < trip_ns.max(STEP_NS) {
            return;
        }
        let (rate, before) = (self.delivered / (took_ns as f64 * 1e-9), self.bottleneck());
        self.full = if rate < before * 1.25 { self.full + 1 } else { 0 };
        self.rates.push_back(rate);
        if self.rates.len() > 10 {
            self.rates.pop_front();
        }
        (self.delivered, self.trip_ns) = (0.0, now);
        let gain = if self.full < 3 { 2.89 } else { 2.0 };
        self.window = (gain * self.bottleneck() * PATH_NS as f64 * 1e-9).max(4.0 * MSS);
    }

    fn reduce(&mut self, by: f64, now: Nanos) {
        self.highest = self.window / MSS;
        self.window = (self.window * by).max(2.0 * MSS);
        (self.threshold, self.reduced_ns) = (self.window, now);
    }

    fn lost(&mut self, bytes: f64, now: Nanos, trip_ns: Nanos) {
        self.in_flight = (self.in_flight - bytes).max(0.0);
        self.left += bytes;
        let once = now >= self.reduced_ns + trip_ns;
        match self.control {
            Control::Cubic if once => self.reduce(0.7, now),
            Control::Reno | Control::Dctcp | Control::Service { .. } if once => self.reduce(0.5, now),
            _ => {}
        }
    }
}

/// Bytes on their way.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: f64,
    marked: bool,
    sent_ns: Nanos,
    /// Assigned by a departure-time queue.
    departs_ns: Nanos,
}

/// One leaf: its sender, its bucket of bytes, and its queue.
#[derive(Debug)]
struct Tenant {
    sender: Sender,
    counters: Counters,
    grant: Grant,
    due_ns: Nanos,
    departure_ns: Nanos,
    hold: Hold,
    queue: VecDeque<Piece>,
    paced_bps: f64,
    /// What a rate queue lets pass at once, and at most, in bytes. It is full after a pause and after a change.
    tokens: f64,
    bucket: f64,
    overrun: Overrun,
    /// The longest that a piece waited since this was last read.
    waited_ns: Nanos,
    /// On its way back to the sender: when it arrives, the piece, and whether it was lost.
    answers: VecDeque<(Nanos, Piece, bool)>,
    delivered: f64,
}

impl Tenant {
    fn new(control: Control, grant: Grant) -> Self {
        Self {
            sender: Sender::new(control),
            counters: Counters::default(),
            grant,
            due_ns: 0,
            departure_ns: 0,
            hold: Hold::default(),
            queue: VecDeque::new(),
            paced_bps: grant.bps as f64,
            tokens: burst(grant.bps) as f64,
            bucket: burst(grant.bps) as f64,
            overrun: Overrun::default(),
            waited_ns: 0,
            answers: VecDeque::new(),
            delivered: 0.0,
        }
    }

    fn waiting_bytes(&self) -> f64 {
        self.queue.iter().map(|piece| piece.bytes).sum()
    }

    fn wait_ns(&self) -> Nanos {
        (self.waiting_bytes() * 8e9 / self.paced_bps.max(1.0)) as Nanos
    }

    /// Sends, lets the hook decide on each piece, and takes answers.
    fn step(&mut self, now: Nanos, queue: GuardQueue) {
        while self.answers.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, piece, lost) = self.answers.pop_front().expect("there is one");
            let trip_ns = now - piece.sent_ns;
            if lost {
                self.sender.lost(piece.bytes, now, trip_ns);
            } else {
                self.sender.acknowledged(piece.bytes, piece.marked, now, trip_ns);
            }
        }
        let mut bytes = self.sender.sends(now);
        while bytes >= 1.0 {
            let piece = bytes.min(LARGEST_PIECE);
            bytes -= piece;
            self.offer(piece, now);
        }
        self.drain(now, queue);
    }

    fn offer(&mut self, bytes: f64, now: Nanos) {
        let tcp = self.sender.is_tcp();
        self.sender.left -= bytes;
        self.sender.in_flight += bytes;
        let hold_ns = if tcp { self.hold.tcp_ns } else { self.hold.others_ns };
        let from = self.due_ns.max(now.saturating_sub(self.grant.burst_ns));
        let (count, packets) = (bytes as u64, (bytes / MSS).ceil() as u64);
        let marks = self.sender.control == Control::Dctcp;
        let mut piece = Piece { bytes, marked: marks && from > now + hold_ns / 2, sent_ns: now, departs_ns: from };
        if from > now + hold_ns {
            self.counters.dropped_bytes += count;
            self.counters.dropped_packets += packets;
            if tcp {
                self.answers.push_back((now + self.wait_ns() + PATH_NS, piece, true));
            }
            return;
        }
        self.counters.passed_bytes += count;
        self.counters.passed_packets += packets;
        self.counters.tcp_bytes += if tcp { count } else { 0 };
        self.due_ns = from + (bytes * 8e9 / self.grant.bps.max(1) as f64) as Nanos;
        self.departure_ns = self.departure_ns.max(from);
        piece.departs_ns = from;
        self.queue.push_back(piece);
    }

    /// Lets packets out of the queue. Without one, all leave at once.
    fn drain(&mut self, now: Nanos, queue: GuardQueue) {
        self.tokens = (self.tokens + self.paced_bps / 8.0 * STEP_NS as f64 * 1e-9).min(self.bucket);
        let limited = queue == GuardQueue::Tbf && self.hold != Hold::default();
        let mut budget = if limited { self.tokens } else { f64::INFINITY };
        while let Some(front) = self.queue.front_mut() {
            let held = queue == GuardQueue::Fq && self.hold != Hold::default() && front.departs_ns > now;
            if held || budget < 1.0 {
                break;
            }
            let leaves = front.bytes.min(budget);
            (front.bytes, budget) = (front.bytes - leaves, budget - leaves);
            self.waited_ns = self.waited_ns.max(now - front.sent_ns);
            let left = Piece { bytes: leaves, ..*front };
            if front.bytes < 1.0 {
                self.queue.pop_front();
            }
            self.delivered += leaves;
            if self.sender.is_tcp() {
                self.answers.push_back((now + PATH_NS, left, false));
            }
        }
        if limited {
            self.tokens = budget;
        }
    }

    /// Sets the rate of its queue, as a place does. The kernel fills the bucket at each change.
    fn pace(&mut self, now: Nanos, bps: u64, short: bool, queue: GuardQueue) {
        let strict = self.sender.is_tcp();
        if queue != GuardQueue::Tbf || !strict {
            self.paced_bps = bps as f64;
            return;
        }
        let burst = burst(bps);
        let before = self.paced_bps as u64;
        let rate = self.overrun.rate(now, Some(before), self.delivered as u64, Granted { bps, short, burst });
        if rate.abs_diff(before) > before / 500 {
            self.paced_bps = rate as f64;
            // It shrinks only while nothing waits.
            self.bucket = if self.queue.is_empty() { burst as f64 } else { self.bucket.min(LARGEST as f64).max(burst as f64) };
            self.overrun.filled(self.bucket as u64, self.waiting_bytes() as u64);
            self.tokens = self.bucket;
            // Losses are noticed when what waited before them has arrived, which may be sooner now.
            let latest = now + PATH_NS + (((self.waiting_bytes() - self.tokens).max(0.0)) * 8e9 / self.paced_bps.max(1.0)) as Nanos;
            self.answers.iter_mut().filter(|(_, _, lost)| *lost).for_each(|(at, ..)| *at = latest.min(*at));
            self.answers.make_contiguous().sort_by_key(|(at, ..)| *at);
        }
    }

    /// As [`crate::plane::Plane::settle`].
    fn settle(&mut self, now: Nanos, hold_ns: Nanos) -> i64 {
        let (wait_ns, slack) = (self.wait_ns(), hold_ns / 4);
        let (observed, account) = (now + wait_ns, self.due_ns);
        if account > observed + slack || wait_ns > slack && account + slack < observed {
            self.due_ns = observed;
            return observed.cast_signed() - account.cast_signed();
        }
        0
    }
}

/// Of a queue that holds TCP back.
fn burst(bps: u64) -> u64 {
    QueueRate { bps, strict: true, tcp: true, short: true }.burst_bytes(MSS as u64, BURST_NS)
}

struct Model(RefCell<Vec<Tenant>>, GuardQueue);

impl Buckets for Model {
    fn counters(&self, leaf: usize) -> Counters {
        self.0.borrow()[leaf].counters
    }

    fn due(&self, leaf: usize, now: Nanos, grant: Grant) -> [Nanos; 2] {
        let earliest = |burst_ns| now.saturating_sub(burst_ns);
        [self.0.borrow()[leaf].due_ns.max(earliest(grant.burst_ns)), earliest(grant.packet_burst_ns)]
    }

    /// With its debt, as `Plane::owe`.
    fn grant(&self, leaf: usize, now: Nanos, grant: Grant) {
        let tenant = &mut self.0.borrow_mut()[leaf];
        let held = tenant.hold.tcp_ns.max(tenant.hold.others_ns);
        let (from, stays) = match self.1 {
            GuardQueue::Fq => (tenant.departure_ns.max(now), tenant.departure_ns.max(now)),
            GuardQueue::Tbf => (now, now + 2 * held),
        };
        if tenant.due_ns > stays {
            let cost = |bps: u64| (1 << 40) / bps.max(1);
            tenant.due_ns = owed_at_new_cost(tenant.due_ns, from, cost(tenant.grant.bps), cost(grant.bps));
        }
        tenant.grant = grant;
    }

    fn fill(&self, leaf: usize, now: Nanos, grant: Grant) {
        let tenant = &mut self.0.borrow_mut()[leaf];
        let full = now.saturating_sub(grant.burst_ns);
        if tenant.due_ns > full && tenant.due_ns <= now {
            tenant.due_ns = full;
        }
    }
}

/// What came of one leaf.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Bit/s delivered after the first seconds.
    bps: f64,
    /// The most rounds in succession in which packets waited and less was granted than its share.
    rounds_below: u32,
    /// Longest wait after the first seconds.
    wait_ns: Nanos,
}

const SECONDS: u64 = 12;
const SETTLED_NS: Nanos = 3_000_000_000;

fn simulated(start: &partywall_wire::GuardStart, controls: &[Control], queue: GuardQueue) -> Vec<Outcome> {
    // The clock of a booted machine is never 0.
    let mut now: Nanos = 3_600_000_000_000;
    let begun = now;
    let mut rounds = Rounds::new(start, queue, now);
    let tenants = controls.iter().zip(rounds.grants()).map(|(&control, &grant)| Tenant { due_ns: now, ..Tenant::new(control, grant) });
    let model = Model(RefCell::new(tenants.collect()), queue);
    let shares: Vec<u64> = rounds.grants().iter().map(|grant| grant.bps).collect();
    let mut outcomes = vec![Outcome::default(); controls.len()];
    let (mut below, mut waited) = (vec![0; controls.len()], vec![false; controls.len()]);
    let (mut next, mut again) = (now + start.period_ns, false);
    let mut delivered = vec![0.0; controls.len()];
    while now < begun + SECONDS * 1_000_000_000 {
        now += STEP_NS;
        model.0.borrow_mut().iter_mut().for_each(|tenant| tenant.step(now, queue));
        if now == begun + SETTLED_NS {
            delivered = model.0.borrow().iter().map(|tenant| tenant.delivered).collect();
        }
        for (outcome, tenant) in outcomes.iter_mut().zip(model.0.borrow_mut().iter_mut()) {
            let waited_ns = std::mem::take(&mut tenant.waited_ns);
            if now >= begun + SETTLED_NS {
                outcome.wait_ns = outcome.wait_ns.max(waited_ns);
            }
        }
        if now < next {
            continue;
        }
        rounds.run(&model, now);
        again = rounds.look_again() && !again;
        next = now + if again { start.period_ns / 2 } else { start.period_ns };
        for (at, tenant) in model.0.borrow_mut().iter_mut().enumerate() {
            let waits = tenant.waiting_bytes() > 4.0 * MSS;
            let short = waits && waited[at] && (rounds.grants()[at].bps as f64) < 0.95 * shares[at] as f64;
            (below[at], waited[at]) = (if short { below[at] + 1 } else { 0 }, waits);
            outcomes[at].rounds_below = outcomes[at].rounds_below.max(below[at]);
            rounds.queued(at, tenant.sender.is_tcp());
            tenant.hold = if tenant.sender.is_tcp() { rounds.ahead(at)[0] } else { Hold::default() };
            tenant.pace(now, rounds.pace_bps(at), rounds.wants_more(at), queue);
            if queue == GuardQueue::Tbf && tenant.sender.is_tcp() {
                rounds.settled(at, tenant.settle(now, start.leaves[at].hold_ns));
            }
        }
    }
    let seconds = SECONDS as f64 - SETTLED_NS as f64 * 1e-9;
    for ((outcome, tenant), before) in outcomes.iter_mut().zip(model.0.borrow().iter()).zip(delivered) {
        outcome.bps = (tenant.delivered - before) * 8.0 / seconds;
    }
    outcomes
}

mod tests {
    use partywall_wire::{GuardDemand, GuardDivision, GuardLeaf, GuardPool, GuardStart};

    use super::*;

    /// Rounds that a leaf whose packets wait may stay below its share: its demand doubles from the trickle.
    const ROUNDS: u32 = 8;
    /// The same if leaves of a lower priority have queues, which drain first.
    const ROUNDS_AFTER_LOWER: u32 = 28;

    /// Packets of a share below which a model of a few seconds shows no rate: one packet more or less is more than the tolerance.
    const COUNTABLE: u32 = 50;

    /// What a packet may wait in addition if its sender was idle: it was granted a trickle, and a departure time is not taken back.
    const RESUMES_NS: Nanos = 200_000_000;

    fn start(link: u64, promises: &[(u64, u64)]) -> GuardStart {
        let leaf = |(at, &(guarantee, ceiling)): (usize, &(u64, u64))| GuardLeaf {
            name: at.to_string(),
            pool: 0,
            totals: vec![],
            priority: 1,
            guarantee_bps: guarantee,
            ceiling_bps: ceiling,
            guarantee_pps: 0,
            ceiling_pps: None,
            burst_ns: BURST_NS,
            hold_ns: 20_000_000,
            held_at_source: false,
        };
        GuardStart {
            id: "g".into(),
            pools: vec![GuardPool { name: "nic".into(), capacity_bps: link, capacity_pps: None, link: None }],
            totals: vec![],
            leaves: promises.iter().enumerate().map(leaf).collect(),
            hooks: vec![],
            goals: vec![],
            period_ns: 50_000_000,
            report_ns: 1_000_000_000,
            check_ns: 1_000_000_000,
            fallback_after_ns: None,
            queue: None,
            demand: GuardDemand::Waiting,
            division: GuardDivision::default(),
            transient: false,
        }
    }

    const CAPPED: [(u64, u64); 2] = [(20_000_000, 30_000_000), (0, 5_000_000)];

    #[test]
    fn bbr_below_a_ceiling_gets_it_beside_a_guarantee_with_each_kind_of_queue() {
        for queue in [GuardQueue::Tbf, GuardQueue::Fq] {
            for control in [Control::Reno, Control::Cubic, Control::Bbr, Control::Dctcp] {
                let outcomes = simulated(&start(30_000_000, &CAPPED), &[control, control], queue);
                assert!(outcomes[0].bps > 0.95 * 25e6 && outcomes[1].bps > 0.95 * 5e6, "{queue:?} {control:?} {outcomes:?}");
            }
        }
    }

    #[test]
    fn the_rule_of_arrivals_leaves_it_below_its_share_for_long() {
        let policy = GuardStart { demand: GuardDemand::Arrived, ..start(30_000_000, &[(0, 30_000_000), (0, 2_000_000)]) };
        let outcomes = simulated(&policy, &[Control::Reno; 2], GuardQueue::Tbf);
        assert!(outcomes[1].bps < 0.9 * 2e6 && outcomes[1].rounds_below > ROUNDS, "{outcomes:?}");
    }

    fn controls() -> impl Strategy<Value = Control> {
        prop_oneof![
            Just(Control::Reno),
            Just(Control::Cubic),
            Just(Control::Bbr),
            Just(Control::Dctcp),
            (1e6..200e6).prop_map(|bps| Control::Datagrams { bps }),
            (2e3..2e6, 1_000_000u64..300_000_000).prop_map(|(bytes, pause_ns)| Control::Service { bytes, pause_ns }),
        ]
    }

    #[test]
    fn a_leaf_whose_share_is_a_packet_a_minute_waits_for_its_turn_and_is_not_starved() {
        let mut policy = start(10_000_000, &[(0, 1_000_000), (0, 9_000_000), (729, 1_000_000), (0, 9_000_000)]);
        policy.leaves.iter_mut().enumerate().for_each(|(at, leaf)| leaf.priority = at as u32 % 2);
        let outcomes = simulated(&policy, &[Control::Reno; 4], GuardQueue::Fq);
        assert!(outcomes[2].rounds_below <= ROUNDS_AFTER_LOWER, "{outcomes:?}");
    }

    /// Its answers take longer than a period, and each ends in a pause, so it never uses a whole grant.
    #[test]
    fn a_service_whose_packets_wait_at_each_round_gets_its_share_though_it_pauses_between_answers() {
        let service = Control::Service { bytes: 205_457.644_315_272, pause_ns: 21_000_001 };
        let policy = start(211_294_303, &[(0, 205_520_606), (0, 196_031_543), (0, 110_382_444)]);
        let outcomes = simulated(&policy, &[service, Control::Reno, Control::Reno], GuardQueue::Tbf);
        assert!(outcomes[0].rounds_below <= ROUNDS, "{outcomes:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn no_leaf_whose_packets_wait_stays_below_its_share(
            link in 10_000_000u64..400_000_000,
            tenants in proptest::collection::vec((controls(), 0.0..1.0, 0.02..1.0), 2..17),
            priorities in prop_oneof![Just(1u32), Just(2u32)],
            queue in prop_oneof![Just(GuardQueue::Tbf), Just(GuardQueue::Fq)],
        ) {
            let count = tenants.len() as f64;
            let promise = |&(_, guarantee, ceiling): &(Control, f64, f64)| {
                let guaranteed = link as f64 * 0.9 * guarantee / count;
                (guaranteed as u64, (link as f64 * ceiling).max(guaranteed).max(1e6) as u64)
            };
            let promises: Vec<(u64, u64)> = tenants.iter().map(promise).collect();
            let controls: Vec<Control> = tenants.iter().map(|&(control, ..)| control).collect();
            let mut policy = start(link, &promises);
            policy.leaves.iter_mut().enumerate().for_each(|(at, leaf)| leaf.priority = at as u32 % priorities);
            let most_rounds = if priorities == 1 { ROUNDS } else { ROUNDS_AFTER_LOWER };
            let rounds = Rounds::new(&policy, queue, 0);
            for (at, outcome) in simulated(&policy, &controls, queue).into_iter().enumerate() {
                let (share, most) = (rounds.grants()[at].bps as f64, rounds.may_wait_ns(at));
                let what = format!("leaf {at} {:?}, share {share}, may wait {most}: {outcome:?}", controls[at]);
                prop_assert!(outcome.rounds_below <= most_rounds, "{what}");
                // A leaf to which higher priorities leave less waits for longer, and the guard reports that.
                let carries_largest = share >= LARGEST as f64 * 8.0;
                // A queue that pays back a burst passes three quarters of its grant at least.
                prop_assert!(!carries_largest || outcome.wait_ns <= 2 * most * 4 / 3 + RESUMES_NS, "{what}");
                let fills = matches!(controls[at], Control::Reno | Control::Cubic | Control::Bbr | Control::Dctcp);
                if fills && share * SECONDS as f64 >= f64::from(COUNTABLE) * MSS * 8.0 {
                    // A window that halves leaves some of a share unused, also without a guard.
                    prop_assert!(outcome.bps >= 0.8 * share, "{what}");
                }
                // Beside one packet of the largest size in the whole time.
                let most = 1.02 * promises[at].1 as f64 + LARGEST as f64 * 8e9 / (SECONDS * 1_000_000_000 - SETTLED_NS) as f64;
                prop_assert!(outcome.bps <= most, "{what}");
            }
        }
    }
}
