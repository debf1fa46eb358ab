//! Counts the first piece of work after a pause like those that follow it.
//!
//! A stressor that reads a disk finds a neighbour's request half served when it comes back from a pause, so its first request waits for
//! half a request. Those that follow wait for a whole one. A first piece therefore takes less time than it takes from the neighbour.
//! Paced by time alone, a stressor with many short bursts would do too many of them.

use partywall_clock::Nanos;

/// Pieces over which a mean reaches back.
const MEMORY: f64 = 1_000.0;
/// First pieces after which the worth of the following ones is measured again, if bursts contain only one.
const ALONE_MOST: u32 = 8;

/// The bursts of one worker thread: pieces without a pause between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Burst {
    first: Mean,
    following: Mean,
    has_begun: bool,
    alone: u32,
}

impl Burst {
    /// What an active time is worth: that of a first piece includes what first pieces lack on average. 0 stands for a piece that is not
    /// complete.
    pub(crate) fn worth(&mut self, pressed_ns: Nanos) -> Nanos {
        if pressed_ns == 0 {
            return 0;
        }
        if std::mem::replace(&mut self.has_begun, true) {
            self.following.add(pressed_ns as f64);
            self.alone = 0;
            return pressed_ns;
        }
        self.first.add(pressed_ns as f64);
        self.alone += 1;
        pressed_ns + self.lacking()
    }

    /// Whether another piece must follow at once, because little is known of following pieces.
    pub(crate) fn needs_another(&self) -> bool {
        self.has_begun && self.alone >= ALONE_MOST
    }

    /// A pause begins.
    pub(crate) fn pause(&mut self) {
        self.has_begun = false;
    }

    /// A first piece that takes longer than others, because caches are cold, is worth what it took.
    fn lacking(&self) -> Nanos {
        match (self.first.value(), self.following.value()) {
            (Some(first), Some(following)) => (following - first).max(0.0).round() as Nanos,
            _ => 0,
        }
    }
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        let kept = 1.0 - 1.0 / MEMORY;
        (self.sum, self.weight) = (self.sum * kept + value, self.weight * kept + 1.0);
    }

    fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pacer;
    use proptest::prelude::*;

    /// A device that serves one request after the other, of a victim that always has one waiting and of a stressor beside it. Returns the
    /// part of the requests that were the stressor's, as a share of the half that it has at full intensity.
    fn beside_a_victim(share: f64, request_ns: Nanos, count_first_like_others: bool) -> f64 {
        const END_NS: Nanos = 10_000_000_000;
        let mut pacer = Pacer::new(share, 0);
        let mut burst = Burst::default();
        // The victim's request is in service until `free_ns`.
        let (mut now, mut free_ns, mut served, mut chance) = (0, 0, 0, 1_u64);
        while now < END_NS {
            // Sleeps end late by various times, so that a request arrives at any moment of the victim's.
            while free_ns <= now {
                free_ns += request_ns;
            }
            let begun = now;
            // The victim's next request waits behind this one.
            now = free_ns + request_ns;
            free_ns = now + request_ns;
            served += 1;
            let pressed_ns = now - begun;
            let worth_ns = if count_first_like_others { burst.worth(pressed_ns) } else { pressed_ns };
            let due = pacer.pause_until(worth_ns as f64, now);
            if let Some(due_ns) = due.filter(|_| !burst.needs_another()) {
                // A linear congruential generator of Knuth's.
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                now = due_ns + (chance >> 32) % request_ns;
                burst.pause();
            }
        }
        2.0 * (served * request_ns) as f64 / now as f64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_share_of_a_device_is_kept(share in 0.05_f64..0.9, request_ns in 50_000_u64..1_000_000) {
            let got = beside_a_victim(share, request_ns, true);
            prop_assert!((got - share).abs() < 0.015, "requested {share}, got {got}");
        }
    }

    #[test]
    fn without_it_a_share_is_exceeded() {
        let got = beside_a_victim(0.05, 1_000_000, false);
        assert!(got > 0.06, "{got}");
    }

    #[test]
    fn a_first_piece_that_takes_longer_than_others_is_worth_its_time() {
        let mut burst = Burst::default();
        for _ in 0..100 {
            assert_eq!(burst.worth(200), 200);
            assert_eq!(burst.worth(100), 100);
            burst.pause();
        }
    }

    #[test]
    fn a_second_piece_is_done_now_and_then_to_learn_what_it_takes() {
        let mut burst = Burst::default();
        let mut pairs = 0;
        for _ in 0..80 {
            burst.worth(100);
            if burst.needs_another() {
                pairs += 1;
                burst.worth(200);
            }
            burst.pause();
        }
        assert_eq!(pairs, 10);
        assert_eq!(burst.worth(100), 200);
    }
}
