//! The independent check: what the interface itself counted against what the hook says passed, and against what the policy
//! allows. Pure; `guard` reads the counters.
//!
//! Differences are summed from the beginning, so that a small one shows in the end: there is slack once, and not in each look.
//!
//! A packet meets the hook before the interface counts it (on the way in, a backlog later), so an interface that is read first
//! has never carried more than the hook saw. It counts a large segmented packet once, with one header, where the hook counts
//! one a segment: beside a segmented stream so much of it, some 4 %, could go round unseen. That a ceiling holds takes no slack
//! for counters read apart: it is one counter against one clock. Where the interface counts before the hook drops, it is what
//! the hook says passed, which with what it says it dropped must be what the interface carried.

use partywall_clock::Nanos;

/// Bytes that may lie between the interface's counter and the hook's, whatever the rate.
const SLACK_BYTES: u64 = 256 << 10;
/// What drivers may count and the hook does not: a VLAN's tag and the check sequence. A veth counts neither on the way out.
const PACKET_SLACK_BYTES: u64 = 8;
/// Clocks of kernel and agent are one; this is for rates rounded to whole numbers.
const RATE_SLACK: u64 = 1000;

/// Bytes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub bytes: u64,
    pub packets: u64,
}

/// What both sides had counted at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Before the first of them was read.
    pub from_ns: Nanos,
    /// After the last.
    pub at_ns: Nanos,
    /// The interface's own.
    pub interface: Count,
    /// What the hook let through.
    pub passed: Count,
    /// What it did not.
    pub dropped: Count,
    /// Of what passed, that which may be cut into segments later.
    pub tcp_bytes: u64,
    /// Whether the interface counts before the hook drops, and so what it dropped too.
    pub counts_dropped: bool,
    /// Whether the interface counts bytes as the hook does.
    pub exact: bool,
}

/// What a vif is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub ceiling_bps: u64,
    /// What may pass at once.
    pub burst_bytes: u64,
    /// What a queue may hold between the hook and the interface's counter.
    pub held_bytes: u64,
    pub ceiling_pps: Option<u64>,
    /// What may pass at once, with what a queue may hold.
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

/// What has come together since the first reading, or since the last finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    last: Reading,
    /// Carried and not seen; below zero by what a queue holds.
    unseen_bytes: i64,
    /// Carried and above the ceiling: how full a bucket is that is emptied at its rate.
    above_bytes: u64,
    above_packets: u64,
}

impl Account {
    /// `waiting_bytes`: in a queue, which a guard before saw.
    pub fn new(first: Reading, waiting_bytes: u64) -> Self {
        Self { last: first, unseen_bytes: -signed(waiting_bytes), above_bytes: 0, above_packets: 0 }
    }

    /// Judges what came since the last reading.
    pub fn judge(&mut self, now: Reading, allowed: Allowed) -> Judgement {
        let before = std::mem::replace(&mut self.last, now);
        // Counters begin anew with an interface.
        let Some(came) = now.since(before) else {
            *self = Self::new(now, 0);
            return Judgement::Fine;
        };
        self.unseen_bytes = (self.unseen_bytes + signed(came.carried_bytes) - signed(came.seen_bytes)).max(-signed(allowed.held_bytes));
        self.above_bytes = above(self.above_bytes, came.through.bytes, allowed.ceiling_bps / 8, came.ns);
        // An interface counts a packet once that will be many: what it says is too little then, and what may run ahead too much.
        self.above_packets = match allowed.ceiling_pps {
            Some(pps) if !came.any_tcp => above(self.above_packets, came.through.packets, pps, came.ns),
            _ => 0,
        };
        if self.unseen_bytes > signed(SLACK_BYTES) {
            return Judgement::Bypassed(std::mem::take(&mut self.unseen_bytes).unsigned_abs());
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

/// What came between two readings.
struct Came {
    /// At least so long: one counter, read at one moment within.
    ns: Nanos,
    carried_bytes: u64,
    /// What the interface carried should be no more.
    seen_bytes: u64,
    /// What is held against the ceiling.
    through: Count,
    any_tcp: bool,
}

impl Reading {
    /// None if a counter began anew.
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

/// A bucket that leaks at `rate` a second, after `more` came within `ns`.
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

    /// What each of so many seconds is judged, at rates in bytes.
    fn seconds(count: u64, interface: u64, hook: u64) -> Vec<Judgement> {
        let mut account = Account::new(reading(5, 100, 70), 0);
        let at = |second: u64| reading(5 + second * 1_000_000_000, 100 + interface * second, 70 + hook * second);
        (1..=count).map(|second| account.judge(at(second), ALLOWED)).collect()
    }

    #[test]
    fn what_passed_the_hook_and_no_more_is_fine_for_as_long_as_it_lasts() {
        assert!(seconds(1000, 10 * MEGA, 10 * MEGA).iter().all(|&judgement| judgement == Judgement::Fine));
        assert!(seconds(1000, 0, 5 * MEGA).iter().all(|&judgement| judgement == Judgement::Fine));
    }

    #[test]
    fn traffic_the_hook_never_saw_is_told_with_its_size_in_the_first_second() {
        assert_eq!(seconds(1, 9 * MEGA, MEGA), [Judgement::Bypassed(8 * MEGA)]);
    }

    #[test]
    fn a_trickle_round_the_hook_comes_together_until_it_is_told() {
        let found = seconds(6, 5 * MEGA + 50_000, 5 * MEGA);
        assert_eq!(found[5], Judgement::Bypassed(300_000), "{found:?}");
        assert!(found[..5].iter().all(|&judgement| judgement == Judgement::Fine), "{found:?}");
    }

    #[test]
    fn beside_many_small_packets_a_trickle_round_the_hook_hides_only_where_an_interface_counts_more_than_the_packet() {
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
    fn however_high_the_ceiling_45_megabits_round_the_hook_are_told_at_once() {
        let high = Allowed { ceiling_bps: 1000 * MEGA, burst_bytes: 1_250_000, held_bytes: 2_500_000, ..ALLOWED };
        let mut account = Account::new(reading(0, 0, 0), 0);
        let judged = account.judge(reading(1_000_000_000, 45 * MEGA / 8, 0), high);
        assert_eq!(judged, Judgement::Bypassed(5_625_000));
    }

    #[test]
    fn a_little_above_the_ceiling_is_told_though_the_hook_saw_it() {
        let found = seconds(10, 10 * MEGA + 110_000, 10 * MEGA + 110_000);
        assert!(found.iter().any(|judgement| matches!(judgement, Judgement::Exceeded(_))), "{found:?}");
        assert_eq!(found[0], Judgement::Fine);
    }

    #[test]
    fn at_a_low_ceiling_no_more_than_burst_and_queue_goes_unsaid() {
        let low = Allowed { ceiling_bps: MEGA, burst_bytes: 4_000, held_bytes: 2_500, ..ALLOWED };
        let within = |bytes| Account::new(reading(0, 0, 0), 0).judge(reading(1_000_000_000, bytes, bytes), low);
        assert_eq!(within(125_000 + 6_500), Judgement::Fine);
        assert!(matches!(within(125_000 + 7_000), Judgement::Exceeded(_)), "{:?}", within(132_000));
    }

    #[test]
    fn what_the_hook_of_a_tap_let_through_is_held_against_the_ceiling() {
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
    fn packets_above_their_ceiling_are_told_where_none_is_segmented() {
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
    fn a_reading_that_took_long_is_no_finding() {
        let mut account = Account::new(reading(0, 0, 0), 0);
        // The interface was read at its beginning, a second after the one before; its end says when by.
        let slow = Reading { from_ns: 1_000_000_000, at_ns: 1_500_000_000, ..reading(0, 10 * MEGA, 10 * MEGA) };
        assert_eq!(account.judge(slow, ALLOWED), Judgement::Fine);
        assert_eq!(account.judge(reading(2_000_000_000, 20 * MEGA, 20 * MEGA), ALLOWED), Judgement::Fine);
    }

    #[test]
    fn what_a_queue_holds_leaves_it_later_and_is_no_finding() {
        let mut account = Account::new(reading(0, 0, 0), 0);
        assert_eq!(account.judge(reading(1, 0, 200_000), ALLOWED), Judgement::Fine);
        assert_eq!(account.judge(reading(2_000_000_000, 450_000, 200_000), ALLOWED), Judgement::Fine);
    }

    #[test]
    fn an_interface_made_anew_counts_from_zero_and_is_no_finding() {
        let mut account = Account::new(reading(0, 900, 0), 0);
        assert_eq!(account.judge(reading(1, 10, 0), ALLOWED), Judgement::Fine);
    }
}
