#![forbid(unsafe_code)]
//! Who may use how much of one capacity: the two steps of DBA-VM (Amamou et al., ISCC 2012, section IV) made exact. Pure;
//! deliberately not here: what demand is, where it is measured, and what enforces the outcome.
//!
//! The paper takes interfaces in order and moves what one leaves to the next, so its outcome depends on where it starts. Here
//! the outcome is defined: capacity is poured in five stages, the first four by falling priority, and within one priority (a
//! service class) so that the smallest grant grows first (max-min fair):
//!
//! 1. what is wanted, up to the guarantee,
//! 2. what is wanted beyond it, up to the ceiling: idle guarantees are lent,
//! 3. what nobody is known to want, to those who are held back and may want more,
//! 4. what nobody wants now, up to the guarantee, and
//! 5. up to the ceiling, to all alike: new demand meets room at once and not a period later, whoever's it is.
//!
//! A unit is whatever the caller counts in: bit/s or packets/s.

mod share;
mod throttle;
mod want;

pub use share::by_use;
pub use throttle::Throttle;
pub use want::{Seen, Want, Wanted};

/// What one leaf is promised, may have, and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of its service class; higher is served first.
    pub priority: u32,
    /// Assured when wanted.
    pub guarantee: u64,
    /// Never exceeded, not even by the guarantee.
    pub ceiling: u64,
    /// Wanted now.
    pub demand: u64,
    /// What may be wanted at the most: more than `demand` while its sender is held back, for then nobody can tell.
    pub could_use: u64,
}

const STAGES: usize = 5;
const FOR_ALL_ALIKE: usize = STAGES - 1;

impl Claim {
    fn targets(&self) -> [u64; STAGES] {
        let guarantee = self.guarantee.min(self.ceiling);
        let demand = self.demand.min(self.ceiling);
        [demand.min(guarantee), demand, self.could_use.min(self.ceiling), guarantee, self.ceiling]
    }
}

/// The grants, in the order of `claims`.
#[must_use]
pub fn allocate(capacity: u64, claims: &[Claim]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(claims[at].priority));
    let mut grants = vec![0; claims.len()];
    let mut left = capacity;
    for stage in 0..STAGES {
        for class in order.chunk_by(|&a, &b| stage == FOR_ALL_ALIKE || claims[a].priority == claims[b].priority) {
            left -= pour(left, class, |at| claims[at].targets()[stage], &mut grants);
        }
    }
    grants
}

/// One that may still be raised: its place, what it has, and how far it may go.
struct Thirsty {
    at: usize,
    has: u64,
    target: u64,
}

/// Raises the grants of `class` towards their targets, the smallest first, by `left` at most; returns by how much in all.
fn pour(left: u64, class: &[usize], target: impl Fn(usize) -> u64, grants: &mut [u64]) -> u64 {
    if left == 0 {
        return 0;
    }
    let all = class.iter().map(|&at| Thirsty { at, has: grants[at], target: target(at) });
    let thirsty: Vec<Thirsty> = all.filter(|one| one.target > one.has).collect();
    let raised = |level: u64| -> u128 { thirsty.iter().map(|one| u128::from(level.min(one.target).saturating_sub(one.has))).sum() };
    // Everybody reaches his target at the highest one.
    let (mut afforded, mut too_high) = match thirsty.iter().map(|one| one.target).max() {
        None => return 0,
        Some(highest) if raised(highest) <= u128::from(left) => return lift(&thirsty, highest, grants),
        Some(highest) => (thirsty.iter().map(|one| one.has).min().unwrap_or(0), highest),
    };
    // The highest level that can be afforded; found by halving, for the total rises with the level.
    while too_high - afforded > 1 {
        let middle = afforded + (too_high - afforded) / 2;
        if raised(middle) <= u128::from(left) {
            afforded = middle;
        } else {
            too_high = middle;
        }
    }
    let used = lift(&thirsty, afforded, grants);
    // The next whole level would cost more than is left: its units go one each, in order.
    let short = thirsty.iter().filter(|one| one.has <= afforded && one.target > afforded);
    let takers: Vec<&Thirsty> = short.take((left - used) as usize).collect();
    for one in &takers {
        grants[one.at] += 1;
    }
    used + takers.len() as u64
}

fn lift(thirsty: &[Thirsty], level: u64, grants: &mut [u64]) -> u64 {
    let mut used = 0;
    for one in thirsty {
        let to = level.min(one.target).max(one.has);
        used += to - one.has;
        grants[one.at] = to;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(priority: u32, guarantee: u64, ceiling: u64, demand: u64) -> Claim {
        Claim { priority, guarantee, ceiling, demand, could_use: demand }
    }

    #[test]
    fn the_papers_first_scenario_gives_each_its_promise() {
        let claims = [claim(1, 150, 1000, 1000), claim(2, 700, 1000, 1000), claim(1, 150, 1000, 1000)];
        assert_eq!(allocate(1000, &claims), [150, 700, 150]);
    }

    #[test]
    fn what_a_small_packet_sender_cannot_use_is_lent_to_the_most_important() {
        // 20,000 packets/s of 64 bytes are 10 Mb/s: the rest of VM 1's 150 is spare.
        let claims = [claim(1, 150, 150, 10), claim(2, 700, 1000, 1000), claim(1, 150, 150, 31)];
        assert_eq!(allocate(1000, &claims), [10, 959, 31]);
    }

    #[test]
    fn within_a_service_class_the_smallest_grows_first() {
        let claims = [claim(1, 0, 1000, 1000), claim(1, 300, 1000, 1000), claim(1, 0, 50, 1000)];
        assert_eq!(allocate(600, &claims), [250, 300, 50]);
    }

    #[test]
    fn idle_capacity_waits_where_it_was_promised() {
        assert_eq!(allocate(1000, &[claim(1, 700, 1000, 0), claim(1, 100, 1000, 0)]), [700, 300]);
    }

    #[test]
    fn what_nobody_wants_or_was_promised_is_room_for_everybody_whatever_his_priority() {
        assert_eq!(allocate(1000, &[claim(2, 0, 1000, 10), claim(1, 0, 1000, 0), claim(1, 0, 100, 0)]), [450, 450, 100]);
    }

    #[test]
    fn what_nobody_is_known_to_want_goes_to_who_is_held_back_and_only_then_to_who_is_idle() {
        let held_back = Claim { could_use: u64::MAX, ..claim(1, 60, 1000, 120) };
        assert_eq!(allocate(200, &[held_back, claim(2, 140, 140, 1)]), [199, 1]);
        assert_eq!(allocate(200, &[claim(1, 60, 1000, 120), claim(2, 140, 140, 1)]), [120, 80]);
        assert_eq!(allocate(200, &[Claim { could_use: 150, ..held_back }, claim(2, 140, 140, 1)]), [150, 50]);
        // It is a guess, so it takes nothing from who is known to want it.
        assert_eq!(allocate(200, &[held_back, claim(1, 0, 1000, 1000)]), [100, 100]);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let one = (0u32..4, 0u64..2000, 0u64..2000, 0u64..3000, 0u64..2000)
            .prop_map(|(p, g, c, d, more)| Claim { could_use: d + more, ..claim(p, g, c, d) });
        proptest::collection::vec(one, 0..24)
    }

    proptest! {
        #[test]
        fn never_above_the_capacity_or_a_ceiling(capacity in 0u64..20_000, claims in claims()) {
            let grants = allocate(capacity, &claims);
            prop_assert!(grants.iter().sum::<u64>() <= capacity);
            prop_assert!(grants.iter().zip(&claims).all(|(&grant, claim)| grant <= claim.ceiling));
        }

        #[test]
        fn a_guarantee_that_is_wanted_is_met_whenever_the_sum_allows(capacity in 0u64..20_000, claims in claims()) {
            let wanted: Vec<u64> = claims.iter().map(|c| c.demand.min(c.guarantee).min(c.ceiling)).collect();
            prop_assume!(wanted.iter().sum::<u64>() <= capacity);
            for (grant, wanted) in allocate(capacity, &claims).iter().zip(wanted) {
                prop_assert!(*grant >= wanted);
            }
        }

        #[test]
        fn nothing_is_kept_back_while_somebody_may_have_it(capacity in 0u64..20_000, claims in claims()) {
            let most: u64 = claims.iter().map(|claim| claim.ceiling).sum();
            prop_assert_eq!(allocate(capacity, &claims).iter().sum::<u64>(), capacity.min(most));
        }

        #[test]
        fn who_is_less_important_gets_beyond_a_guarantee_only_what_the_more_important_do_not_want(
            capacity in 0u64..20_000, claims in claims()
        ) {
            let grants = allocate(capacity, &claims);
            for (high, high_grant) in claims.iter().zip(&grants) {
                let satisfied = *high_grant >= high.demand.min(high.ceiling);
                for (low, low_grant) in claims.iter().zip(&grants).filter(|(low, _)| low.priority < high.priority) {
                    let modest = *low_grant <= low.guarantee.min(low.demand);
                    prop_assert!(satisfied || modest, "{low:?} has {low_grant} while {high:?} has {high_grant}");
                }
            }
        }

        #[test]
        fn who_wants_more_never_gets_less(capacity in 0u64..20_000, claims in claims(), at: usize, more in 0u64..3000) {
            prop_assume!(!claims.is_empty());
            let at = at % claims.len();
            let before = allocate(capacity, &claims)[at];
            let mut greedier = claims.clone();
            greedier[at].demand += more;
            greedier[at].could_use += more;
            // A unit is how exactly a level is told in whole numbers.
            prop_assert!(allocate(capacity, &greedier)[at] + 1 >= before);
        }

        #[test]
        fn more_capacity_never_takes_away_what_was_wanted(capacity in 0u64..20_000, more in 0u64..5000, claims in claims()) {
            let (less, most) = (allocate(capacity, &claims), allocate(capacity + more, &claims));
            for ((less, most), claim) in less.iter().zip(&most).zip(&claims) {
                prop_assert!(most + 1 >= *less.min(&claim.demand));
            }
        }

        #[test]
        fn the_numbers_may_be_as_large_as_they_come(capacity: u64, claims in proptest::collection::vec(
            (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(p, g, c, d)| claim(p, g, c, d)), 0..6)
        ) {
            let total: u128 = allocate(capacity, &claims).iter().map(|&grant| u128::from(grant)).sum();
            prop_assert!(total <= u128::from(capacity));
        }
    }
}
