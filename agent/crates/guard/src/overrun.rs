//! What a rate queue passes beyond its grants, and the rate at which it pays that back. Pure.
//!
//! The kernel fills the bucket of such a queue whenever its rate changes (`sch_tbf`), so each change passes a burst that nobody was
//! granted. With a change in every round, that is a fifth of the rate and more. So the rate follows the grant only where it would be
//! off by about a burst, and stays below it until the burst is paid back.

use std::ops::RangeInclusive;

use partywall_clock::Nanos;

/// So many bursts are paid back within this time, so that a step in a grant is followed to a few per cent at once.
const BURSTS: i64 = 2;
const PAY_NS: Nanos = 1_000_000_000;
/// What is owed beyond them is paid back within so many rounds, so that it does not grow with a change in every round.
const PAY_ROUNDS: Nanos = 2;
/// The length of a round, as far as it is taken for that of the next one: a host may stand still.
const ROUND_NS: RangeInclusive<Nanos> = 10_000_000..=200_000_000;
/// What is paid back is at most this part of the grant.
const MOST: u64 = 4;
/// No more is owed than some bursts and what is granted in this time: a tenant that is granted little must not pay for long for what
/// its queue passed while it was granted much.
const OWED_NS: Nanos = 500_000_000;
const OWED_BURSTS: i64 = 3;

/// The account of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrun {
    /// Bytes that it passed beyond its grants. Below 0: what it passed too little, two bursts at most, because senders are not owed
    /// what they could not send long ago.
    bytes: i64,
    /// The least since the last change.
    least: i64,
    granted_bps: u64,
    /// 0 if it has not begun.
    at: Nanos,
    /// How long the last round took. A change of the policy may come just after one.
    round: Nanos,
    /// The queue's counter at that time.
    passed_bytes: u64,
}

/// What a queue is to do now. `short`: its senders want more than they are granted. `burst`: bytes that a change passes at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub bps: u64,
    pub short: bool,
    pub burst: u64,
}

impl Overrun {
    /// The account of a queue that is not there yet. `bytes`: what passed before it, and waits for nothing.
    pub fn after(bytes: u64) -> Self {
        Self { bytes: bytes.cast_signed(), ..Self::default() }
    }

    /// The rate for the queue: the present one while it is good enough. `queue_bps`: the present one, if it is known. `passed_bytes`:
    /// what the queue has passed so far.
    ///
    /// Where all that is sent was granted, and nothing is owed, it follows the grant at once.
    pub fn rate(&mut self, now: Nanos, queue_bps: Option<u64>, passed_bytes: u64, granted: Granted) -> u64 {
        let (elapsed, burst) = (if self.at == 0 { 0 } else { now.saturating_sub(self.at) }, granted.burst.cast_signed());
        // A counter that went back is another queue's.
        let passed = if self.at == 0 { 0 } else { passed_bytes.saturating_sub(self.passed_bytes).cast_signed() };
        // A grant of little to senders that want little forgives nothing.
        let most = if granted.short { OWED_BURSTS * burst + beyond(granted.bps, 0, OWED_NS) } else { i64::MAX };
        self.bytes = (self.bytes + passed - beyond(self.granted_bps, 0, elapsed)).clamp(-2 * burst, most);
        self.least = self.least.min(self.bytes);
        let round = elapsed.max(self.round).clamp(*ROUND_NS.start(), *ROUND_NS.end());
        (self.at, self.granted_bps, self.round, self.passed_bytes) = (now, granted.bps, elapsed, passed_bytes);
        let follows = !granted.short && self.bytes <= burst / 2;
        let Some(queue_bps) = queue_bps.filter(|_| !follows) else { return below(granted, self.bytes, round) };
        let then = self.bytes + beyond(queue_bps, granted.bps, round);
        if (-burst..=self.least.max(0) + burst / 2).contains(&then) {
            return queue_bps;
        }
        below(granted, self.bytes + burst, round)
    }

    /// Takes note of a change, which filled the bucket. `waits`: bytes that waited, and pass at once.
    pub fn filled(&mut self, burst: u64, waits: u64) {
        self.least = self.bytes + waits.min(burst).cast_signed();
    }
}

/// The rate that pays back what is owed.
fn below(granted: Granted, owed: i64, round: Nanos) -> u64 {
    let owed = owed.max(0);
    let soon = (owed - BURSTS * granted.burst.cast_signed()).max(0);
    let paid_bps = bps(owed - soon, PAY_NS) + bps(soon, PAY_ROUNDS * round);
    granted.bps - paid_bps.min(granted.bps / MOST)
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
    /// The clock of a booted machine is never 0.
    const BEGUN: Nanos = 1_000_000_000;

    /// As a queue for TCP has it: 20 ms at its rate, between two frames and 72 KiB.
    fn burst(bps: u64) -> u64 {
        (bps / 8 / 50).clamp(3028, 73_984).max(bps / 8 / 500)
    }

    fn backlogged(bps: u64) -> Granted {
        Granted { bps, short: true, burst: burst(bps) }
    }

    /// A queue in which packets wait.
    struct Queue {
        overrun: Overrun,
        bps: u64,
        now: Nanos,
        passed: u64,
        changes: usize,
    }

    impl Queue {
        fn new(bps: u64) -> Self {
            Self { overrun: Overrun::default(), bps, now: BEGUN, passed: 0, changes: 0 }
        }

        /// A round under a grant; what it passes.
        fn round(&mut self, granted: Granted, period: Nanos) -> i64 {
            let rate = self.overrun.rate(self.now, Some(self.bps), self.passed, granted);
            let mut bytes = 0;
            if rate.abs_diff(self.bps) > self.bps / 500 {
                (self.bps, self.changes) = (rate, self.changes + 1);
                self.overrun.filled(granted.burst, granted.burst);
                bytes = granted.burst.cast_signed();
            }
            bytes += beyond(self.bps, 0, period);
            self.now += period;
            self.passed += bytes.cast_unsigned();
            bytes
        }
    }

    /// What a backlogged queue passes in each round, and how often its rate changes.
    fn passed(grants: &[u64], period: Nanos) -> (Vec<i64>, usize) {
        let mut queue = Queue::new(grants[0]);
        let rounds = grants.iter().map(|&bps| queue.round(backlogged(bps), period)).collect();
        (rounds, queue.changes)
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
    fn a_step_is_followed_at_once_also_just_after_a_round() {
        for late in [MS, 50 * MS] {
            for (before, after) in [(20_000_000, 2_500_000), (2_500_000, 20_000_000), (100_000_000, 20_000_000), (1_000_000, 900_000_000)] {
                let mut queue = Queue::new(before);
                queue.round(backlogged(before), 50 * MS);
                queue.round(backlogged(before), late);
                queue.round(backlogged(after), 50 * MS);
                assert!(queue.bps <= after && queue.bps >= after / 100 * 94, "{before} {after}: {}", queue.bps);
            }
        }
    }

    #[test]
    fn what_was_passed_at_a_high_rate_is_paid_back_at_a_low_one_with_a_part_of_it() {
        let low = 500_000;
        let mut queue = Queue::new(30_000_000);
        queue.round(backlogged(30_000_000), 50 * MS);
        // A bucket that is still as large as before.
        queue.round(Granted { burst: burst(30_000_000), ..backlogged(low) }, 50 * MS);
        let mut rounds = 0;
        while queue.bps < low / 10 * 9 {
            rounds += 1;
            queue.round(backlogged(low), 50 * MS);
            assert!(queue.bps >= low - low / MOST);
            assert!(rounds < 100, "{:?}", queue.overrun);
        }
    }

    #[test]
    fn senders_that_want_no_more_than_they_are_granted_get_it_at_once() {
        let mut overrun = Overrun::default();
        for (round, granted) in [2_000_000, 60_000, 900_000, 100_000].into_iter().enumerate() {
            // Less is sent than that.
            let (now, sent) = (BEGUN + round as Nanos * 50 * MS, round as u64 * 300);
            assert_eq!(overrun.rate(now, Some(1_000_000), sent, Granted { bps: granted, short: false, burst: 3028 }), granted);
        }
    }

    proptest! {
        #[test]
        fn in_no_window_does_more_pass_than_granted_and_eight_bursts(
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
            let bursts = 8 * burst(ceiling).cast_signed();
            prop_assert!(most <= bursts, "{} > {}", most, bursts);
            // Nor much less: a round of one grant, and what is left out of it.
            let round = beyond(ceiling, 0, period);
            let granted: i64 = grants.iter().map(|&grant| beyond(grant, 0, period)).sum();
            prop_assert!(ahead >= -(granted / 20 + bursts + round), "{} of {}", ahead, granted);
        }
    }
}
