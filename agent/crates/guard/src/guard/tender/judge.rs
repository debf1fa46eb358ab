//! Judges what passed: by the counters of hooks and interfaces, against what was allowed; and writes the reports.

use partywall_clock::{self as clock, Nanos};
use partywall_wire::{GuardDirection, GuardFinding, GuardNote, GuardPoolRow, GuardQueue, GuardRow};

use crate::change::Finding;
use crate::check::{Account, Allowed, Count, Judgement, Reading, Unhooked, SLACK_BYTES};
use crate::delay::Wait;
use crate::guard::start::{backstop_of, ceiling_bps, ceiling_pps, leaves_of};
use crate::guard::tender::Tender;
use crate::guard::Report;
use crate::place::LARGEST;

/// Maximum datagrams in one segmented packet (`UDP_MAX_SEGMENTS`). A hook counts all of them at once.
const SEGMENTS: u64 = 128;

impl Tender {
    pub(super) fn compare(&mut self, at: usize) {
        // Of two counters, the one that a packet meets last is read first: the hook has already seen all bytes that it counts.
        let from_ns = clock::monotonic();
        let counted = self.vifs[at].place.counted().ok();
        let allowed = self.allowed(at);
        self.watch_other_end(at);
        let behind_bytes = std::mem::take(&mut self.vifs[at].behind_bytes);
        let judgement = counted.map_or(Judgement::Fine, |[way, other]| {
            self.compare_other_way(at, other.bytes);
            self.judge(at, Reading { from_ns, ..self.read(at, way) }, allowed)
        });
        match judgement {
            // The other end saw the same packets.
            Judgement::Bypassed(bytes) if bytes <= behind_bytes + SLACK_BYTES => {}
            Judgement::Bypassed(bytes) => self.bypassed(at, bytes - behind_bytes),
            Judgement::Fine => {}
            Judgement::Exceeded(bytes) => self.note(at, exceeded(bytes, "bytes")),
            Judgement::ExceededPackets(packets) => self.note(at, exceeded(packets, "packets")),
        }
    }

    fn judge(&mut self, at: usize, now: Reading, allowed: Allowed) -> Judgement {
        let vif = &mut self.vifs[at];
        let Some(account) = &mut vif.account else {
            vif.account = Some(Account::new(now, vif.place.waiting_bytes().unwrap_or(0)));
            return Judgement::Fine;
        };
        account.judge(now, allowed)
    }

    /// Finds what reached the other end of a veth past the hook. Reads only memory, so this is done in each turn.
    pub(super) fn watch_other_end(&mut self, at: usize) {
        if !self.vifs[at].place.has_backstop() {
            return;
        }
        let held_bytes = self.allowed(at).held_bytes;
        if let Some(bytes) = self.bypassed_at_other_end(at, held_bytes) {
            self.vifs[at].behind_bytes += bytes;
            self.bypassed(at, bytes);
        }
    }

    /// Bytes that reached the other end of a veth, and that the hook never saw: whatever the tenant did to its end.
    fn bypassed_at_other_end(&mut self, at: usize, held_bytes: u64) -> Option<u64> {
        let came = self.core.plane.counters(backstop_of(&self.start, at));
        let carried = Count { bytes: came.passed_bytes + came.dropped_bytes, packets: came.passed_packets + came.dropped_packets };
        let now = Reading { counts_dropped: false, exact: true, ..self.read(at, carried) };
        let vif = &mut self.vifs[at];
        let Some(account) = &mut vif.behind else {
            vif.behind = Some(Account::new(now, vif.place.waiting_bytes().unwrap_or(0)));
            return None;
        };
        account.bypassed(now, held_bytes)
    }

    /// Compares what passes in the direction without a hook with the link: more than it carries cannot be what the policy is about.
    fn compare_other_way(&mut self, at: usize, bytes: u64) {
        if self.vifs[at].has_both_ways {
            return;
        }
        let hook = &self.start.hooks[at];
        let capacity_bps = self.start.pools[self.start.leaves[hook.leaf].pool].capacity_bps;
        let now = clock::monotonic();
        let way = self.vifs[at].unhooked.get_or_insert_with(|| Unhooked::new(now, bytes));
        if let Some(bps) = way.judge(now, bytes, capacity_bps) {
            let text = wrong_side(hook.direction, bps, capacity_bps);
            self.note(at, Finding::of(GuardFinding::WrongSide, text));
        }
    }

    /// The counters of the hook, beside those of an interface that were read before.
    pub(super) fn read(&self, at: usize, interface: Count) -> Reading {
        let from_ns = clock::monotonic();
        let (mut passed, mut dropped, mut tcp_bytes) = (Count::default(), Count::default(), 0);
        for counted in leaves_of(&self.start, at).map(|leaf| self.core.plane.counters(leaf)) {
            passed.bytes += counted.passed_bytes;
            passed.packets += counted.passed_packets;
            dropped.bytes += counted.dropped_bytes;
            dropped.packets += counted.dropped_packets;
            tcp_bytes += counted.tcp_bytes;
        }
        let counts_dropped = self.vifs[at].place.counts_dropped();
        let exact = self.vifs[at].place.counts_exactly();
        Reading { from_ns, at_ns: clock::monotonic(), interface, passed, dropped, tcp_bytes, counts_dropped, exact }
    }

    fn bypassed(&mut self, at: usize, bytes: u64) {
        let text = format!("bypassed the hook{}", self.hold_at_other_end(at));
        self.note(at, Finding { kind: GuardFinding::Bypassed, amount: bytes, unit: "bytes", text });
    }

    /// Holds what passes no hook at the interface's other end, and says so.
    pub(super) fn hold_at_other_end(&self, at: usize) -> &'static str {
        if !self.vifs[at].place.has_backstop() {
            return "";
        }
        self.core.tighten(at);
        "; from now on the interface's other end lets pass no more than is granted"
    }

    pub(super) fn note(&mut self, at: usize, finding: Finding) {
        let kind = finding.kind;
        if let Some(text) = self.repeats.add(at, finding, clock::monotonic()) {
            self.report_finding(at, kind, text);
        }
    }

    pub(super) fn report_finding(&mut self, at: usize, kind: GuardFinding, text: String) {
        let about = self.start.leaves[self.start.hooks[at].leaf].name.clone();
        self.notes.push(GuardNote { about, kind, text });
    }

    pub(in crate::guard) fn allowed(&self, at: usize) -> Allowed {
        let ceiling_bps = ceiling_bps(&self.start, at);
        let during = |ns: Nanos| (u128::from(ceiling_bps) * u128::from(ns) / 8_000_000_000) as u64;
        let hook = &self.start.hooks[at];
        let leaf = &self.start.leaves[hook.leaf];
        // Each flow class has its own burst, and each may end with one packet that exceeds it.
        let bursts = 1 + hook.rules.len() as u64;
        let packets = ceiling_pps(&self.start, at);
        let at_once_ns = u128::from(bursts * leaf.burst_ns + leaf.hold_ns);
        let (tcp_bytes, queue) = {
            let kept = self.core.kept();
            (kept.rounds.tcp_packets(hook.leaf) * LARGEST, kept.rounds.queue())
        };
        // A `tbf` for TCP has a bucket for the largest packet, which is full after a pause. Its backlog, which corrects the hook's
        // account, is known to one packet.
        let bucket_bytes = if queue == GuardQueue::Tbf { 2 * LARGEST } else { 0 };
        Allowed {
            ceiling_bps,
            burst_bytes: bursts * (during(leaf.burst_ns) + LARGEST),
            held_bytes: during(leaf.hold_ns).max(tcp_bytes) + bucket_bytes,
            ceiling_pps: packets,
            burst_packets: bursts * SEGMENTS + packets.map_or(0, |pps| (u128::from(pps) * at_once_ns / 1_000_000_000) as u64),
        }
    }

    pub(in crate::guard) fn report(&mut self) -> Report {
        let (from_ns, at_ns) = (self.reported_ns, clock::monotonic());
        let links: Vec<Option<Wait>> = self.uplinks.iter_mut().map(|uplink| uplink.waits.take()).collect();
        let own: Vec<Option<Wait>> = self.vifs.iter_mut().map(|vif| vif.waits.take()).collect();
        let mut rows: Vec<GuardRow> = (0..self.start.leaves.len()).map(|leaf| self.row(leaf, at_ns - from_ns)).collect();
        for (at, own) in own.into_iter().enumerate() {
            self.judge_wait(at, own);
            let seen = together(own, links[self.start.leaves[self.start.hooks[at].leaf].pool]);
            for leaf in leaves_of(&self.start, at) {
                (rows[leaf].delay_ns, rows[leaf].jitter_ns) = (seen.map(|wait| wait.delay_ns), seen.map(|wait| wait.jitter_ns));
            }
        }
        let mut kept = self.core.kept();
        let pool = |(at, link): (usize, &Option<Wait>)| GuardPoolRow {
            divided_bps: kept.rounds.divided_bps(at),
            delay_ns: link.map(|wait| wait.delay_ns),
        };
        let pools = links.iter().enumerate().map(pool).collect();
        self.reported_ns = at_ns;
        let (round_ns_max, decide_ns_max) = (std::mem::take(&mut kept.round_ns_max), std::mem::take(&mut kept.decide_ns_max));
        let (from_ns, at_ns) = (self.session.at(from_ns), self.session.at(at_ns));
        Report { from_ns, at_ns, rows, pools, notes: std::mem::take(&mut self.notes), round_ns_max, decide_ns_max }
    }

    /// Reports packets that waited for longer than stated in two reports in succession: the guard itself held them back. While a goal
    /// holds others back, they wait because the policy says so.
    fn judge_wait(&mut self, at: usize, own: Option<Wait>) {
        let kept = self.core.kept();
        if kept.rounds.is_throttled(self.start.leaves[self.start.hooks[at].leaf].pool) {
            return;
        }
        let may_wait = |leaf: usize| kept.rounds.may_wait_ns(leaf);
        let Some(most) = leaves_of(&self.start, at).map(may_wait).max() else { return };
        let granted: u64 = leaves_of(&self.start, at).map(|leaf| kept.rounds.grants()[leaf].bps).sum();
        drop(kept);
        let finding = own.and_then(|own| waited(own.delay_ns, most, granted));
        let waited = &mut self.vifs[at].waited;
        *waited = if finding.is_some() { waited.saturating_add(1) } else { 0 };
        if let Some(finding) = finding.filter(|_| self.vifs[at].waited > 1) {
            self.note(at, finding);
        }
    }

    fn row(&mut self, leaf: usize, elapsed: Nanos) -> GuardRow {
        let now = self.core.plane.counters(leaf);
        let before = std::mem::replace(&mut self.reported[leaf], now);
        let rate = |count: u64| (u128::from(count) * 1_000_000_000 / u128::from(elapsed.max(1))) as u64;
        let (passed, dropped) = (now.passed_bytes - before.passed_bytes, now.dropped_bytes - before.dropped_bytes);
        let passed_packets = now.passed_packets - before.passed_packets;
        let dropped_packets = now.dropped_packets - before.dropped_packets;
        let granted = self.core.kept().rounds.grants()[leaf];
        GuardRow {
            offered_bps: rate((passed + dropped) * 8),
            passed_bps: rate(passed * 8),
            offered_pps: rate(passed_packets + dropped_packets),
            passed_pps: rate(passed_packets),
            dropped_packets,
            marked_packets: now.marked_packets - before.marked_packets,
            granted_bps: granted.bps,
            granted_pps: granted.pps,
            ..GuardRow::default()
        }
    }
}

fn exceeded(amount: u64, unit: &'static str) -> Finding {
    Finding { kind: GuardFinding::Exceeded, amount, unit, text: "above the ceiling".into() }
}

/// The finding of packets that waited, in the mean, for more than twice as long as they may. A mean up to that may come from a rate
/// that changed meanwhile.
fn waited(delay_ns: Nanos, most_ns: Nanos, granted_bps: u64) -> Option<Finding> {
    let ms = |ns: Nanos| ns / 1_000_000;
    let text = format!(
        "packets waited {} ms on average, and may wait {} ms; {:.3} Mbit/s are granted now: give the vif a guarantee, or a larger one",
        ms(delay_ns),
        ms(most_ns),
        granted_bps as f64 / 1e6
    );
    (delay_ns > 2 * most_ns).then(|| Finding::of(GuardFinding::Waited, text))
}

fn wrong_side(hooked: GuardDirection, bps: u64, capacity_bps: u64) -> String {
    let (went, side) = match hooked {
        GuardDirection::Egress => ("came in", "outside"),
        GuardDirection::Ingress => ("left", "inside"),
    };
    let mega = |bps: u64| bps as f64 / 1e6;
    let seen = format!("{:.0} Mbit/s {went} through the interface, more than the {:.0} Mbit/s of the link", mega(bps), mega(capacity_bps));
    format!("{seen}, and no hook limits that direction; if the tenant sends them, give the vif `side: {side}`, else limit `receive`")
}

/// The sum of the waits in two successive queues. A queue without a reading adds nothing.
fn together(own: Option<Wait>, link: Option<Wait>) -> Option<Wait> {
    Some(own.or(link)?.and(own.and(link).unwrap_or_default()))
}
