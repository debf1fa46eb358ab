//! The independent check: what the interface itself counted against what the hook says passed, and against what the policy
//! allows. Pure; `guard` reads the counters.
//!
//! Differences are summed from the beginning, so that a small one shows in the end: there is slack once, and not in each look.
//!
//! A packet meets the hook before the interface counts it (on the way in, a backlog later), so an interface that is read first
//! has never carried more than the hook saw. It counts a large segmented packet once, with one header, where the hook counts
//! one a segment: beside a segmented stream so much of it, some 4 %, could go round unseen.

use partywall_clock::Nanos;

/// Bytes that may lie between a counter and the hook, whatever the rate.
const SLACK_BYTES: u64 = 256 << 10;
/// What drivers may count and the hook does not: a VLAN's tag and the check sequence.
const PACKET_SLACK_BYTES: u64 = 8;
/// Clocks of kernel and agent are one; this is for rates rounded to whole numbers.
const RATE_SLACK: u64 = 1000;

/// What both sides had counted at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub at_ns: Nanos,
    /// The interface's own.
    pub interface_bytes: u64,
    /// What the hook let through, and where the interface counts before the hook drops, what it dropped too.
    pub hook_bytes: u64,
    /// The same in packets.
    pub hook_packets: u64,
}

/// What a vif is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub ceiling_bps: u64,
    /// What may pass at once.
    pub burst_bytes: u64,
    /// What a queue may hold between the hook and the interface's counter.
    pub held_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Fine,
    /// Bytes the interface carried and the hook never saw.
    Bypassed(u64),
    /// Bytes above ceiling and burst.
    Exceeded(u64),
}

/// What has come together since the first reading, or since the last finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    last: Reading,
    /// Carried and not seen; below zero by what a queue holds.
    unseen_bytes: i64,
    /// Carried and above the ceiling: how full a bucket is that is emptied at its rate.
    above_bytes: u64,
}

impl Account {
    /// `waiting_bytes`: in a queue, which a guard before saw.
    pub fn new(first: Reading, waiting_bytes: u64) -> Self {
        Self { last: first, unseen_bytes: -signed(waiting_bytes), above_bytes: 0 }
    }

    /// Judges what came since the last reading. `limited`: whether the interface counts only what passed.
    pub fn judge(&mut self, now: Reading, allowed: Allowed, limited: bool) -> Judgement {
        let before = std::mem::replace(&mut self.last, now);
        // Counters begin anew with an interface.
        let Some(carried) = now.interface_bytes.checked_sub(before.interface_bytes) else {
            *self = Self::new(now, 0);
            return Judgement::Fine;
        };
        let since = |count: fn(&Reading) -> u64| count(&now).saturating_sub(count(&before));
        let seen = since(|r| r.hook_bytes) + since(|r| r.hook_packets) * PACKET_SLACK_BYTES;
        self.unseen_bytes = (self.unseen_bytes + signed(carried) - signed(seen)).max(-signed(allowed.held_bytes));
        let rate = allowed.ceiling_bps + allowed.ceiling_bps / RATE_SLACK;
        let ceiling = (u128::from(rate) * u128::from(now.at_ns - before.at_ns) / 8_000_000_000) as u64;
        self.above_bytes = if limited { (self.above_bytes + carried).saturating_sub(ceiling) } else { 0 };
        if self.unseen_bytes > signed(SLACK_BYTES) {
            return Judgement::Bypassed(std::mem::take(&mut self.unseen_bytes).unsigned_abs());
        }
        if self.above_bytes > allowed.burst_bytes + allowed.held_bytes + SLACK_BYTES {
            return Judgement::Exceeded(std::mem::take(&mut self.above_bytes));
        }
        Judgement::Fine
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGA: u64 = 1_000_000;
    const ALLOWED: Allowed = Allowed { ceiling_bps: 80 * MEGA, burst_bytes: MEGA / 10, held_bytes: MEGA / 5 };

    fn reading(at_ns: Nanos, interface_bytes: u64, hook_bytes: u64) -> Reading {
        Reading { at_ns, interface_bytes, hook_bytes, hook_packets: 0 }
    }

    /// What each of so many seconds is judged, at rates in bytes.
    fn seconds(count: u64, interface: u64, hook: u64) -> Vec<Judgement> {
        let mut account = Account::new(reading(5, 100, 70), 0);
        let at = |second: u64| reading(5 + second * 1_000_000_000, 100 + interface * second, 70 + hook * second);
        (1..=count).map(|second| account.judge(at(second), ALLOWED, true)).collect()
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
    fn however_high_the_ceiling_45_megabits_round_the_hook_are_told_at_once() {
        let high = Allowed { ceiling_bps: 1000 * MEGA, burst_bytes: 1_250_000, held_bytes: 2_500_000 };
        let mut account = Account::new(reading(0, 0, 0), 0);
        let judged = account.judge(reading(1_000_000_000, 45 * MEGA / 8, 0), high, true);
        assert_eq!(judged, Judgement::Bypassed(5_625_000));
    }

    #[test]
    fn a_little_above_the_ceiling_is_told_though_the_hook_saw_it() {
        let found = seconds(10, 10 * MEGA + 110_000, 10 * MEGA + 110_000);
        assert!(found.iter().any(|judgement| matches!(judgement, Judgement::Exceeded(_))), "{found:?}");
        assert_eq!(found[0], Judgement::Fine);
    }

    #[test]
    fn what_a_queue_holds_leaves_it_later_and_is_no_finding() {
        let mut account = Account::new(reading(0, 0, 0), 0);
        assert_eq!(account.judge(reading(1, 0, 200_000), ALLOWED, true), Judgement::Fine);
        assert_eq!(account.judge(reading(2_000_000_000, 450_000, 200_000), ALLOWED, true), Judgement::Fine);
    }

    #[test]
    fn an_interface_made_anew_counts_from_zero_and_is_no_finding() {
        let mut account = Account::new(reading(0, 900, 0), 0);
        assert_eq!(account.judge(reading(1, 10, 0), ALLOWED, true), Judgement::Fine);
    }
}
