//! Independent check: compares the interface's own counters with the hook's counters and with the policy. Pure; `guard` reads
//! the counters.
//!
//! Differences are summed from the first reading, so that small ones add up. The slack applies once, not to each reading.
//!
//! A packet passes the hook before the interface counts it (on ingress, by up to one backlog). So an interface that is read
//! first never shows more than the hook saw. The interface counts a large segmented packet once, with one header; the hook
//! counts the headers of each segment. Next to a segmented stream, as many bytes could therefore bypass the hook unseen: some 4 %
//! with full-sized segments, 8 % in a tunnel, and more with smaller ones.
//!
//! The check of a ceiling needs no slack for counters read at different times: it compares one counter with one clock. If the
//! interface counts before the hook drops, the check uses the bytes that the hook reports as passed. Passed and dropped bytes
//! together must then equal the bytes that the interface carried.

use partywall_clock::Nanos;

/// Bytes that may be between the interface's counter and the hook's, at any rate.
pub(crate) const SLACK_BYTES: u64 = 256 << 10;
/// Bytes that drivers may count and the hook does not: a VLAN tag and the frame check sequence. A veth counts neither on egress.
const PACKET_SLACK_BYTES: u64 = 8;
/// Slack for rates rounded to whole numbers. Kernel and agent use the same clock.
const RATE_SLACK: u64 = 1000;
/// How long the direction without a hook may carry as much again as the link before it is reported.
const PATIENCE_NS: Nanos = 1_000_000_000;

/// Bytes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub bytes: u64,
    pub packets: u64,
}

/// Counters of the interface and of the hook at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Before the first counter was read.
    pub from_ns: Nanos,
    /// After the last counter was read.
    pub at_ns: Nanos,
    /// The interface's own counters.
    pub interface: Count,
    /// Traffic that the hook passed.
    pub passed: Count,
    /// Traffic that the hook dropped.
    pub dropped: Count,
    /// Passed TCP bytes, which may be segmented later.
    pub tcp_bytes: u64,
    /// Whether the interface counts before the hook drops, so that its counters include dropped packets.
    pub counts_dropped: bool,
    /// Whether the interface counts bytes as the hook does.
    pub exact: bool,
}

/// The limits of a vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub ceiling_bps: u64,
    /// Maximum burst.
    pub burst_bytes: u64,
    /// Maximum bytes in a queue between the hook and the interface's counter.
    pub held_bytes: u64,
    pub ceiling_pps: Option<u64>,
    /// Maximum burst, including packets that a queue may hold.
    pub burst_packets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Fine,
    /// Bytes the interface carried and the hook never saw.
    Bypassed(u64),
    /// Bytes above ceiling and burst.
    Exceeded(u64),
    /// Packets above ceiling and burst.
    ExceededPackets(u64),
}

/// Sums since the first reading, or since the last finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    last: Reading,
    /// Bytes carried but not seen by the hook. Negative by the bytes that a queue holds.
    unseen_bytes: i64,
    /// Bytes above the ceiling: the fill level of a bucket that drains at its rate.
    above_bytes: u64,
    above_packets: u64,
}

impl Account {
    /// `waiting_bytes`: bytes in a queue, counted by an earlier guard.
    pub fn new(first: Reading, waiting_bytes: u64) -> Self {
        Self { last: first, unseen_bytes: -signed(waiting_bytes), above_bytes: 0, above_packets: 0 }
    }

    /// Of an interface that carried so many bytes before it was hooked.
    pub fn hooked_late(first: Reading, unseen_bytes: u64) -> Self {
        Self { unseen_bytes: signed(unseen_bytes), ..Self::new(first, 0) }
    }

    /// Judges only whether traffic bypassed the hook, and returns its bytes.
    pub fn bypassed(&mut self, now: Reading, held_bytes: u64) -> Option<u64> {
        self.until(now, held_bytes).and_then(|_| self.bypassed_bytes())
    }

    /// The traffic since the last reading. None if a counter restarted.
    fn until(&mut self, now: Reading, held_bytes: u64) -> Option<Came> {
        let before = std::mem::replace(&mut self.last, now);
        let Some(came) = now.since(before) else {
            // A new interface starts its counters at 0.
            *self = Self::new(now, 0);
            return None;
        };
        self.unseen_bytes = (self.unseen_bytes + signed(came.carried_bytes) - signed(came.seen_bytes)).max(-signed(held_bytes));
        Some(came)
    }

    fn bypassed_bytes(&mut self) -> Option<u64> {
        (self.unseen_bytes > signed(SLACK_BYTES)).then(|| std::mem::take(&mut self.unseen_bytes).unsigned_abs())
    }

    /// Judges the traffic since the last reading.
    pub fn judge(&mut self, now: Reading, allowed: Allowed) -> Judgement {
        let Some(came) = self.until(now, allowed.held_bytes) else { return Judgement::Fine };
        self.above_bytes = above(self.above_bytes, came.through.bytes, allowed.ceiling_bps / 8, came.ns);
        // An interface counts a packet once before segmentation: its count is too low then, and the permitted head start too large.
        self.above_packets = match allowed.ceiling_pps {
            Some(pps) if !came.any_tcp => above(self.above_packets, came.through.packets, pps, came.ns),
            _ => 0,
        };
        if let Some(bytes) = self.bypassed_bytes() {
            return Judgement::Bypassed(bytes);
        }
        if self.above_bytes > allowed.burst_bytes + allowed.held_bytes {
            return Judgement::Exceeded(std::mem::take(&mut self.above_bytes));
        }
        if self.above_packets > allowed.burst_packets {
            return Judgement::ExceededPackets(std::mem::take(&mut self.above_packets));
        }
        Judgement::Fine
    }
}

/// What passes in the direction that has no hook.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unhooked {
    read_ns: Nanos,
    bytes: u64,
    /// Bytes above the link's capacity, and since when.
    above_bytes: u64,
    above_ns: Nanos,
}

impl Unhooked {
    pub fn new(read_ns: Nanos, bytes: u64) -> Self {
        Self { read_ns, bytes, above_bytes: 0, above_ns: 0 }
    }

    /// The mean rate in bit/s, once more has passed than a link of this capacity carries, by what it carries in [`PATIENCE_NS`].
    pub fn judge(&mut self, now: Nanos, bytes: u64, capacity_bps: u64) -> Option<u64> {
        let Some(came) = bytes.checked_sub(self.bytes) else {
            // A new interface starts its counters at 0.
            *self = Self::new(now, bytes);
            return None;
        };
        let ns = now - self.read_ns;
        (self.read_ns, self.bytes) = (now, bytes);
        self.above_bytes = above(self.above_bytes, came, capacity_bps / 8, ns);
        if self.above_bytes == 0 {
            self.above_ns = 0;
            return None;
        }
        self.above_ns += ns;
        let per_second = |bytes: u64, ns: Nanos| (u128::from(bytes) * 8_000_000_000 / u128::from(ns.max(1))) as u64;
        let patience_bytes = u128::from(capacity_bps / 8) * u128::from(PATIENCE_NS) / 1_000_000_000;
        if u128::from(self.above_bytes) <= patience_bytes {
            return None;
        }
        let mean_bps = capacity_bps + per_second(self.above_bytes, self.above_ns);
        (self.above_bytes, self.above_ns) = (0, 0);
        Some(mean_bps)
    }
}

/// Traffic between two readings.
struct Came {
    /// Lower bound of the time between the two readings of one counter.
    ns: Nanos,
    carried_bytes: u64,
    /// Upper limit of the bytes that the interface should have carried.
    seen_bytes: u64,
    /// Traffic to compare with the ceiling.
    through: Count,
    any_tcp: bool,
}

impl Reading {
    /// None if a counter restarted.
    fn since(self, before: Self) -> Option<Came> {
        let less = |now: Count, before: Count| {
            Some(Count { bytes: now.bytes.checked_sub(before.bytes)?, packets: now.packets.checked_sub(before.packets)? })
        };
        let carried = less(self.interface, before.interface)?;
        let (passed, dropped) = (less(self.passed, before.passed)?, less(self.dropped, before.dropped)?);
        let also_seen = if self.counts_dropped { dropped } else { Count::default() };
        let seen_packets = passed.packets + also_seen.packets;
        Some(Came {
            ns: self.at_ns - before.from_ns,
            carried_bytes: carried.bytes,
            seen_bytes: passed.bytes + also_seen.bytes + if self.exact { 0 } else { seen_packets * PACKET_SLACK_BYTES },
            through: if self.counts_dropped { passed } else { carried },
            any_tcp: self.tcp_bytes != before.tcp_bytes,
        })
    }
}

/// Level of a bucket that drains at `rate` per second, after `more` arrived within `ns`.
fn above(held: u64, more: u64, rate: u64, ns: Nanos) -> u64 {
    let leaked = u128::from(rate + rate / RATE_SLACK + 1) * u128::from(ns) / 1_000_000_000;
    (held + more).saturating_sub(leaked as u64)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGA: u64 = 1_000_000;
    const ALLOWED: Allowed =
        Allowed { ceiling_bps: 80 * MEGA, burst_bytes: MEGA / 10, held_bytes: MEGA / 5, ceiling_pps: Some(1000), burst_packets: 50 };

    fn reading(at_ns: Nanos, interface_bytes: u64, hook_bytes: u64) -> Reading {
        let count = |bytes| Count { bytes, packets: 0 };
        let (interface, passed) = (count(interface_bytes), count(hook_bytes));
        Reading { from_ns: at_ns, at_ns, interface, passed, dropped: Count::default(), tcp_bytes: 0, counts_dropped: false, exact: false }
    }

    /// Judgements of `count` seconds, at rates in bytes per second.
    fn seconds(count: u64, interface: u64, hook: u64) -> Vec<Judgement> {
        let mut account = Account::new(reading(5, 100, 70), 0);
        let at = |second: u64| reading(5 + second * 1_000_000_000, 100 + interface * second, 70 + hook * second);
        (1..=count).map(|second| account.judge(at(second), ALLOWED)).collect()
    }

    #[test]
    fn traffic_that_only_passed_the_hook_is_fine_however_long_it_lasts() {
        assert!(seconds(1000, 10 * MEGA, 10 * MEGA).iter().all(|&judgement| judgement == Judgement::Fine));
        assert!(seconds(1000, 0, 5 * MEGA).iter().all(|&judgement| judgement == Judgement::Fine));
    }

    #[test]
    fn traffic_that_bypasses_the_hook_is_reported_with_its_size_in_the_first_second() {
        assert_eq!(seconds(1, 9 * MEGA, MEGA), [Judgement::Bypassed(8 * MEGA)]);
    }

    #[test]
    fn a_trickle_that_bypasses_the_hook_adds_up_until_it_is_reported() {
        let judged = seconds(6, 5 * MEGA + 50_000, 5 * MEGA);
        assert_eq!(judged[5], Judgement::Bypassed(300_000), "{judged:?}");
        assert!(judged[..5].iter().all(|&judgement| judgement == Judgement::Fine), "{judged:?}");
    }

    #[test]
    fn many_small_packets_hide_a_trickle_past_the_hook_only_if_the_interface_counts_extra_bytes() {
        let at = |seconds: u64, exact: bool| Reading {
            passed: Count { bytes: 3 * MEGA * seconds, packets: 50_000 * seconds },
            exact,
            ..reading(seconds * 1_000_000_000, (3 * MEGA + 100_000) * seconds, 0)
        };
        let judged = |exact| {
            let mut account = Account::new(at(0, exact), 0);
            (1..=5).map(|second| account.judge(at(second, exact), ALLOWED)).collect::<Vec<_>>()
        };
        assert!(matches!(judged(true)[2], Judgement::Bypassed(300_000)), "{:?}", judged(true));
        assert!(judged(false).iter().all(|&judgement| judgement == Judgement::Fine));
    }

    #[test]
    fn a_bypass_of_45_megabits_is_reported_at_once_however_high_the_ceiling() {
        let high = Allowed { ceiling_bps: 1000 * MEGA, burst_bytes: 1_250_000, held_bytes: 2_500_000, ..ALLOWED };
        let mut account = Account::new(reading(0, 0, 0), 0);
        let judged = account.judge(reading(1_000_000_000, 45 * MEGA / 8, 0), high);
        assert_eq!(judged, Judgement::Bypassed(5_625_000));
    }

    #[test]
    fn traffic_slightly_above_the_ceiling_is_reported_even_if_the_hook_saw_it() {
        let judged = seconds(10, 10 * MEGA + 110_000, 10 * MEGA + 110_000);
        assert!(judged.iter().any(|judgement| matches!(judgement, Judgement::Exceeded(_))), "{judged:?}");
        assert_eq!(judged[0], Judgement::Fine);
    }

    #[test]
    fn at_a_low_ceiling_only_burst_and_queue_stay_unreported() {
        let low = Allowed { ceiling_bps: MEGA, burst_bytes: 4_000, held_bytes: 2_500, ..ALLOWED };
        let within = |bytes| Account::new(reading(0, 0, 0), 0).judge(reading(1_000_000_000, bytes, bytes), low);
        assert_eq!(within(125_000 + 6_500), Judgement::Fine);
        assert!(matches!(within(125_000 + 7_000), Judgement::Exceeded(_)), "{:?}", within(132_000));
    }

    #[test]
    fn traffic_that_the_hook_of_a_tap_passed_is_compared_with_the_ceiling() {
        let tap = |seconds: u64, carried: u64, dropped: u64| Reading {
            dropped: Count { bytes: dropped * seconds, packets: 0 },
            counts_dropped: true,
            ..reading(seconds * 1_000_000_000, carried * seconds, (carried - dropped) * seconds)
        };
        let judged = |carried, dropped| {
            let mut account = Account::new(tap(0, carried, dropped), 0);
            (1..=20).map(|second| account.judge(tap(second, carried, dropped), ALLOWED)).collect::<Vec<_>>()
        };
        assert!(judged(50 * MEGA, 40 * MEGA).iter().all(|&judgement| judgement == Judgement::Fine));
        let broken = judged(50 * MEGA, 39 * MEGA);
        assert_eq!(broken[0], Judgement::Exceeded(989_999), "{broken:?}");
    }

    #[test]
    fn packets_above_their_ceiling_are_reported_if_none_is_segmented() {
        let at = |seconds: u64, pps: u64, tcp_bytes: u64| Reading {
            interface: Count { bytes: 100 * pps * seconds, packets: pps * seconds },
            passed: Count { bytes: 100 * pps * seconds, packets: pps * seconds },
            tcp_bytes: tcp_bytes * seconds,
            ..reading(seconds * 1_000_000_000, 0, 0)
        };
        let judged = |pps, tcp| {
            let mut account = Account::new(at(0, pps, tcp), 0);
            (1..=20).map(|second| account.judge(at(second, pps, tcp), ALLOWED)).collect::<Vec<_>>()
        };
        assert!(judged(1000, 0).iter().all(|&judgement| judgement == Judgement::Fine));
        assert!(judged(1100, 1).iter().all(|&judgement| judgement == Judgement::Fine));
        assert!(matches!(judged(1100, 0)[0], Judgement::ExceededPackets(98..=100)), "{:?}", judged(1100, 0));
        assert!(judged(1010, 0).iter().any(|judgement| matches!(judgement, Judgement::ExceededPackets(_))));
    }

    #[test]
    fn a_slow_reading_causes_no_finding() {
        let mut account = Account::new(reading(0, 0, 0), 0);
        // The interface was read at the start of this reading, one second after the one before. The reading ended half a second later.
        let slow = Reading { from_ns: 1_000_000_000, at_ns: 1_500_000_000, ..reading(0, 10 * MEGA, 10 * MEGA) };
        assert_eq!(account.judge(slow, ALLOWED), Judgement::Fine);
        assert_eq!(account.judge(reading(2_000_000_000, 20 * MEGA, 20 * MEGA), ALLOWED), Judgement::Fine);
    }

    #[test]
    fn bytes_that_leave_a_queue_later_cause_no_finding() {
        let mut account = Account::new(reading(0, 0, 0), 0);
        assert_eq!(account.judge(reading(1, 0, 200_000), ALLOWED), Judgement::Fine);
        assert_eq!(account.judge(reading(2_000_000_000, 450_000, 200_000), ALLOWED), Judgement::Fine);
    }

    #[test]
    fn a_direction_without_a_hook_that_carries_more_than_the_link_is_reported_with_its_rate() {
        let judged = |bps: u64| {
            let mut way = Unhooked::new(0, 0);
            (1..=60).filter_map(|second| way.judge(second * 1_000_000_000, bps / 8 * second, 30 * MEGA)).collect::<Vec<_>>()
        };
        assert!(judged(30 * MEGA).is_empty());
        assert_eq!(judged(31 * MEGA).len(), 1, "slowly, in half a minute");
        assert!((15_999 * MEGA..=16_000 * MEGA).contains(&judged(16_000 * MEGA)[0]), "{:?}", judged(16_000 * MEGA));
    }

    #[test]
    fn a_burst_in_the_direction_without_a_hook_is_not_reported() {
        let mut way = Unhooked::new(0, 0);
        assert_eq!(way.judge(1_000_000_000, 59 * MEGA / 8, 30 * MEGA), None);
        assert_eq!(way.judge(3_000_000_000, 61 * MEGA / 8, 30 * MEGA), None);
    }

    #[test]
    fn what_an_interface_carried_before_it_was_hooked_counts_as_bypassed() {
        let judged = |bytes| Account::hooked_late(reading(0, bytes, 0), bytes).judge(reading(1, bytes, 0), ALLOWED);
        assert_eq!(judged(300_000), Judgement::Bypassed(300_000));
        assert_eq!(judged(200_000), Judgement::Fine);
    }

    #[test]
    fn a_recreated_interface_counts_from_zero_and_causes_no_finding() {
        let mut account = Account::new(reading(0, 900, 0), 0);
        assert_eq!(account.judge(reading(1, 10, 0), ALLOWED), Judgement::Fine);
    }
}
