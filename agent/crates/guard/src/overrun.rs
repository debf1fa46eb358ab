//! What a rate queue passes beyond its grants, and the rate at which it pays that back. Pure.
//!
//! The kernel fills the bucket of such a queue whenever its rate changes (`sch_tbf`), so each change passes a burst that nobody was
//! granted. With a change in every round, that is a fifth of the rate and more. So the rate follows the grant only where it would be
//! off by about a burst, and stays below it until the burst is paid back.

use partywall_clock::Nanos;

/// So many bursts are paid back within this time, so that a step in a grant is followed to a few per cent at once.
const BURSTS: i64 = 2;
const PAY_NS: Nanos = 1_000_000_000;
/// What is owed beyond them is paid back within so many rounds, so that it does not grow with a change in every round.
const PAY_ROUNDS: Nanos = 2;
/// A grant divided by this is what its queue passes at least.
const LEAST: u64 = 8;

/// The account of a queue whose senders are held back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrun {
    /// Bytes that it may have passed beyond its grants. Below 0: what it passed too little, two bursts at most: senders are not
    /// owed what they could not send long ago.
    bytes: i64,
    /// The least since the last change.
    least: i64,
    granted_bps: u64,
    at: Nanos,
}

impl Overrun {
    /// An account that begins now. Its queue follows this grant.
    pub fn new(now: Nanos, granted_bps: u64) -> Self {
        Self { granted_bps, at: now, ..Self::default() }
    }

    /// The rate for the queue under a new grant: the present one, `queue_bps`, while it is good enough. `burst`: bytes that a change
    /// passes.
    pub fn rate(&mut self, now: Nanos, queue_bps: u64, granted_bps: u64, burst: u64) -> u64 {
        let (elapsed, burst) = (now.saturating_sub(self.at), burst.cast_signed());
        self.bytes = (self.bytes + beyond(queue_bps, self.granted_bps, elapsed)).max(-2 * burst);
        self.least = self.least.min(self.bytes);
        (self.at, self.granted_bps) = (now, granted_bps);
        // The next round will be about as long.
        let then = self.bytes + beyond(queue_bps, granted_bps, elapsed);
        if (-burst..=self.least.max(0) + burst / 2).contains(&then) {
            return queue_bps;
        }
        let owed = (self.bytes + burst).max(0);
        let soon = (owed - BURSTS * burst).max(0);
        let paid_bps = bps(owed - soon, PAY_NS) + bps(soon, PAY_ROUNDS * elapsed);
        granted_bps.saturating_sub(paid_bps).max(granted_bps / LEAST)
    }

    /// Takes note of a change, which passed a burst.
    pub fn passed(&mut self, burst: u64) {
        self.bytes += burst.cast_signed();
        self.least = self.bytes;
    }
}

/// The rate at which bytes, not below 0, take a time.
fn bps(bytes: i64, during: Nanos) -> u64 {
    (u128::from(bytes.cast_unsigned()) * 8_000_000_000 / u128::from(during.max(1))) as u64
}

/// Bytes that a rate passes beyond a grant.
fn beyond(bps: u64, granted_bps: u64, during: Nanos) -> i64 {
    ((i128::from(bps) - i128::from(granted_bps)) * i128::from(during) / 8_000_000_000) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Nanos = 1_000_000;

    /// As a queue for TCP has it: 20 ms at its rate, between two frames and 72 KiB.
    fn burst(bps: u64) -> u64 {
        (bps / 8 / 50).clamp(3028, 73_984).max(bps / 8 / 500)
    }

    /// What a backlogged queue passes in each round, and how often its rate changes.
    fn passed(grants: &[u64], period: Nanos) -> (Vec<i64>, usize) {
        let (mut overrun, mut queue, mut changes) = (Overrun::new(0, grants[0]), grants[0], 0);
        let mut rounds = Vec::new();
        for (at, &granted) in grants.iter().enumerate() {
            let rate = overrun.rate(at as Nanos * period, queue, granted, burst(granted));
            let mut bytes = 0;
            if rate.abs_diff(queue) > queue / 500 {
                (queue, changes) = (rate, changes + 1);
                overrun.passed(burst(granted));
                bytes = burst(granted).cast_signed();
            }
            rounds.push(bytes + beyond(queue, 0, period));
        }
        (rounds, changes)
    }

    #[test]
    fn a_grant_that_jitters_in_every_round_changes_the_queue_rarely_and_is_not_exceeded() {
        // As seen with bbr at a ceiling of 5 Mbit/s: every second grant is 8 % below it.
        let grants: Vec<u64> = (0..400).map(|at| 5_000_000 - 400_000 * (at % 2)).collect();
        let (rounds, changes) = passed(&grants, 50 * MS);
        let granted: i64 = grants.iter().map(|&grant| beyond(grant, 0, 50 * MS)).sum();
        let sum: i64 = rounds.iter().sum();
        assert!(changes <= 60, "{changes} of 400");
        assert!((sum - granted).abs() <= 3 * burst(5_000_000).cast_signed(), "{sum} {granted}");
    }

    #[test]
    fn a_step_is_followed_at_once() {
        for (before, after) in [(5_000_000, 2_500_000), (2_500_000, 5_000_000), (100_000_000, 20_000_000), (1_000_000, 900_000_000)] {
            let mut overrun = Overrun::new(0, before);
            let rate = overrun.rate(50 * MS, before, after, burst(after));
            assert!(rate <= after && rate >= after / 100 * 97, "{before} {after}: {rate}");
        }
    }

    proptest! {
        #[test]
        fn in_no_window_does_more_pass_than_granted_and_six_bursts(
            shares in proptest::collection::vec(0.05..1.0_f64, 2..400),
            held in 1_usize..20,
            ceiling in 200_000_u64..2_000_000_000,
            period_ms in 5_u64..200,
        ) {
            let grants: Vec<u64> = shares.iter().flat_map(|share| vec![(share * ceiling as f64) as u64; held]).collect();
            let period = period_ms * MS;
            let (rounds, _) = passed(&grants, period);
            // The most beyond the grants in any window is the largest rise of their difference.
            let (mut ahead, mut lowest, mut most) = (0_i64, 0_i64, 0_i64);
            for (&bytes, &grant) in rounds.iter().zip(&grants) {
                ahead += bytes - beyond(grant, 0, period);
                most = most.max(ahead - lowest);
                lowest = lowest.min(ahead);
            }
            let bursts = 6 * burst(ceiling).cast_signed();
            prop_assert!(most <= bursts, "{} > {}", most, bursts);
            // Nor much less: a round of one grant, and what is left out of it.
            let round = beyond(ceiling, 0, period);
            let granted: i64 = grants.iter().map(|&grant| beyond(grant, 0, period)).sum();
            prop_assert!(ahead >= -(granted / 20 + bursts + round), "{} of {}", ahead, granted);
        }
    }
}
