//! Estimates demand for the next period from the last one: above the offered load, and steady while the load is.

/// One period of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Offered rate.
    pub offered: u64,
    /// Granted rate.
    pub granted: u64,
    /// What waited at the start of the period, as the rate at which it leaves within one. A sender whose packets wait may offer
    /// nothing, and still wants at least what waits.
    pub waited: u64,
    /// Part of the grant that expired unused because the sender was silent. Not the rest at the end of the period: a sender that
    /// waits for a queue wakes up at intervals, and then sends much at once.
    pub unused: u64,
    /// Whether its sender slows down when held back, so that its offered rate says little about its demand.
    pub elastic: bool,
}

/// Demand estimate of a leaf, which changes only with evidence. It rises at once, and falls after a lower load was seen twice in a row,
/// because a sender without CPU for a moment wants no less. For the same reason, a leaf counts as held back as soon as that is seen,
/// until it was not seen twice in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    rate: u64,
    held_back: bool,
    doubted: bool,
}

/// Estimated demand of a leaf in the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// As far as it is known.
    pub rate: u64,
    /// Its sender slows down and uses its whole grant, so it may want any higher rate.
    pub held_back: bool,
    /// Part of the rate that was not seen in the last period, for the first time.
    pub doubted: u64,
}

impl Wanted {
    /// The uncertain part of a grant: the part above the rate that is still seen.
    #[must_use]
    pub fn doubted_of(self, granted: u64) -> u64 {
        granted.min(self.rate).saturating_sub(self.rate - self.doubted)
    }
}

impl Want {
    /// Headroom above the offered rate, in sixteenths.
    const HEADROOM: u64 = 1;
    /// A leaf is held back if it leaves at most this part of its grant unused, and half of its grant was offered or had waited. A
    /// leaf with a steady load below its grant leaves one part of 17 unused. A silent leaf also leaves nothing unused while its bucket
    /// recovers from a burst.
    const ALL: u64 = 32;
    /// Rates that differ by less than this part count as equal.
    const STEADY: u64 = 12;

    /// The demand for the next period.
    pub fn update(&mut self, seen: Seen) -> Wanted {
        let present = seen.offered.saturating_add(seen.waited);
        let held_back = seen.elastic && present >= seen.granted / 2 && seen.unused <= seen.granted / Self::ALL;
        let wanted = if held_back { seen.granted.saturating_mul(2) } else { 0 };
        let wanted = wanted.max(present.saturating_add(seen.offered / 16 * Self::HEADROOM));
        let steady = wanted.abs_diff(self.rate) <= self.rate / Self::STEADY;
        let falls = !steady && wanted < self.rate;
        self.doubted = !self.doubted && (falls || self.held_back && !held_back);
        self.held_back = held_back || self.held_back && self.doubted;
        let stays = steady || falls && self.doubted;
        self.rate = if stays { self.rate } else { wanted };
        let doubted = if falls && self.doubted { self.rate - wanted } else { 0 };
        Wanted { rate: self.rate, held_back: self.held_back, doubted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(offered: u64) -> Seen {
        Seen { offered, granted: u64::MAX, waited: 0, unused: u64::MAX - offered, elastic: false }
    }

    #[test]
    fn a_steady_offer_with_noise_gives_one_steady_want() {
        let mut want = Want::default();
        let first = want.update(offer(1000));
        assert!([980, 1010, 1030, 990].iter().all(|&noisy| want.update(offer(noisy)) == first));
    }

    #[test]
    fn a_rise_is_followed_at_once_and_a_drop_after_it_was_seen_twice() {
        let mut want = Want::default();
        want.update(offer(100));
        assert!(want.update(offer(1000)).rate >= 1000);
        let at_first = want.update(offer(100));
        assert!(at_first.rate >= 1000 && at_first.rate - at_first.doubted < 110);
        // Demand above the grant has no effect.
        assert_eq!((at_first.doubted_of(100), at_first.doubted_of(u64::MAX)), (0, at_first.doubted));
        assert_eq!(want.update(offer(0)), Wanted { rate: 0, held_back: false, doubted: 0 });
    }

    #[test]
    fn a_short_silence_is_no_drop() {
        let mut want = Want::default();
        want.update(offer(1000));
        for offered in [600, 1000, 0, 1000, 500, 1010] {
            assert!(want.update(offer(offered)).rate >= 1000);
        }
    }

    #[test]
    fn an_elastic_sender_that_uses_its_whole_grant_is_assumed_to_want_more() {
        let mut want = Want::default();
        let seen = Seen { offered: 100, granted: 100, waited: 0, unused: 1, elastic: true };
        assert_eq!(want.update(seen), Wanted { rate: 200, held_back: true, doubted: 0 });
        let modest = Want::default().update(Seen { offered: 50, unused: 50, ..seen });
        assert!(modest.rate < 60 && !modest.held_back);
    }

    #[test]
    fn a_sender_that_sends_much_now_and_then_and_lets_nothing_go_by_is_held_back_all_the_time() {
        let mut want = Want::default();
        let seen = Seen { offered: 0, granted: 100, waited: 0, unused: 0, elastic: true };
        for offered in [93, 93, 111, 93] {
            assert!(want.update(Seen { offered, ..seen }).held_back);
        }
        assert!(want.update(seen).held_back, "he may not have got to run");
        assert!(!want.update(seen).held_back, "he makes up for a burst, and sends nothing");
    }

    #[test]
    fn who_offers_nothing_because_packets_wait_wants_at_least_these() {
        let mut want = Want::default();
        want.update(Seen { offered: 500, granted: 500, waited: 0, unused: 0, elastic: true });
        // Its window is full of packets that wait, and each round must not lower its grant further.
        for granted in [500, 100, 20, 2] {
            let seen = Seen { offered: 0, granted, waited: 300, unused: 0, elastic: true };
            let wanted = want.update(seen);
            assert!(wanted.held_back && wanted.rate >= 300, "at {granted}: {wanted:?}");
        }
    }

    #[test]
    fn a_sender_that_did_not_get_to_run_for_a_moment_is_held_back_all_the_same() {
        let mut want = Want::default();
        let seen = Seen { offered: 100, granted: 100, waited: 0, unused: 1, elastic: true };
        for unused in [1, 8, 1, 20] {
            assert!(want.update(Seen { offered: 100 - unused, unused, ..seen }).held_back);
        }
        assert!(!want.update(Seen { offered: 80, unused: 20, ..seen }).held_back);
    }

    #[test]
    fn who_was_granted_more_and_did_not_get_to_run_for_a_moment_is_held_back_all_the_same() {
        for (offered, rate) in [(160, 170), (110, 120)] {
            let mut want = Want::default();
            let seen = Seen { offered: 60, granted: 60, waited: 0, unused: 0, elastic: true };
            assert_eq!(want.update(seen), Wanted { rate: 120, held_back: true, doubted: 0 });
            let more = Seen { offered, granted: 200, waited: 0, unused: 200 - offered, ..seen };
            assert_eq!(want.update(more), Wanted { rate, held_back: true, doubted: 0 });
            assert!(!want.update(more).held_back);
        }
    }

    #[test]
    fn who_is_cut_is_held_back_at_once_also_while_its_want_is_doubted() {
        let mut want = Want::default();
        want.update(Seen { offered: 900, granted: 2000, waited: 0, unused: 1100, elastic: true });
        let cut = want.update(Seen { offered: 300, granted: 300, waited: 0, unused: 0, elastic: true });
        assert_eq!((cut.rate, cut.held_back), (956, true));
    }

    #[test]
    fn an_elastic_sender_that_has_all_it_wants_is_not_taken_to_be_held_back() {
        let mut want = Want::default();
        let mut granted = 0;
        for round in 0..20 {
            let wanted =
                want.update(Seen { offered: 1_000_000, granted, waited: 0, unused: granted.saturating_sub(1_000_000), elastic: true });
            granted = wanted.rate;
            assert!(round < 2 || !wanted.held_back, "in round {round}");
        }
    }

    proptest! {
        #[test]
        fn demand_is_never_less_than_nine_tenths_of_the_offered_rate(offers in proptest::collection::vec(0u64..1 << 40, 1..20)) {
            let mut want = Want::default();
            for offered in offers {
                prop_assert!(want.update(offer(offered)).rate >= offered - offered / 10);
            }
        }
    }
}
