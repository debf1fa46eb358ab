#![forbid(unsafe_code)]
//! Divides one capacity: the two steps of DBA-VM (Amamou et al., ISCC 2012, section IV), defined exactly. Pure. The caller measures
//! demand and enforces the result. [`divide`] does so for several links, with totals over claims of any of them.
//!
//! The paper processes interfaces in order and passes the rest of one to the next, so its result depends on where it starts
//! ([`published()`] is that algorithm). Here capacity is distributed in six stages. All but the second and the last go by falling
//! priority. Within one priority (a service class), the smallest grant grows first (max-min fair):
//!
//! 1. demand up to the guarantee,
//! 2. what waits already, to all equally: a grant never falls faster than its queue can drain,
//! 3. demand above the guarantee, up to the ceiling: idle guarantees are lent,
//! 4. capacity without known demand, to leaves that are held back and may want more,
//! 5. capacity without demand, up to the guarantee, and
//! 6. up to the ceiling, to all equally: new demand finds capacity at once and not a period later.
//!
//! The unit is the caller's: bit/s or packets/s.

mod divide;
mod published;
mod share;
mod throttle;
mod want;

pub use divide::{divide, Limit};
pub use published::{published, published_packets, Interface};
pub use share::by_use;
pub use throttle::Throttle;
pub use want::{Seen, Want, Wanted};

/// Guarantee, ceiling and demand of one leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Priority of its service class; higher is served first.
    pub priority: u32,
    /// Assured if there is demand.
    pub guarantee: u64,
    /// Never exceeded, even if the guarantee is higher.
    pub ceiling: u64,
    /// Current demand.
    pub demand: u64,
    /// Part of the demand: the rate at which the packets that already wait leave within the time that they may wait.
    pub draining: u64,
    /// Maximum possible demand. It is above `demand` while the sender is held back, because the demand is unknown then.
    pub could_use: u64,
}

const STAGES: usize = 6;
/// Stages that do not go by priority.
const FOR_ALL_ALIKE: [usize; 2] = [1, STAGES - 1];

impl Claim {
    fn targets(&self) -> [u64; STAGES] {
        let guarantee = self.guarantee.min(self.ceiling);
        let demand = self.demand.min(self.ceiling);
        [demand.min(guarantee), demand.min(self.draining), demand, self.could_use.min(self.ceiling), guarantee, self.ceiling]
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
        for class in order.chunk_by(|&a, &b| FOR_ALL_ALIKE.contains(&stage) || claims[a].priority == claims[b].priority) {
            left -= pour(left, class, |at| claims[at].targets()[stage], &mut grants);
        }
    }
    grants
}

/// A leaf whose grant may still rise: its index, grant and target.
struct Thirsty {
    at: usize,
    has: u64,
    target: u64,
}

/// Raises the grants of `class` towards their targets, the smallest first, by at most `left` in total. Returns the total raise.
fn pour(left: u64, class: &[usize], target: impl Fn(usize) -> u64, grants: &mut [u64]) -> u64 {
    if left == 0 {
        return 0;
    }
    let all = class.iter().map(|&at| Thirsty { at, has: grants[at], target: target(at) });
    let thirsty: Vec<Thirsty> = all.filter(|each| each.target > each.has).collect();
    let raised = |level: u64| -> u128 { thirsty.iter().map(|each| u128::from(level.min(each.target).saturating_sub(each.has))).sum() };
    // At the highest target, every leaf reaches its own.
    let (mut afforded, mut too_high) = match thirsty.iter().map(|each| each.target).max() {
        None => return 0,
        Some(highest) if raised(highest) <= u128::from(left) => return lift(&thirsty, highest, grants),
        Some(highest) => (thirsty.iter().map(|each| each.has).min().unwrap_or(0), highest),
    };
    // Find the highest affordable level by bisection, because the total rises with the level.
    while too_high - afforded > 1 {
        let middle = afforded + (too_high - afforded) / 2;
        if raised(middle) <= u128::from(left) {
            afforded = middle;
        } else {
            too_high = middle;
        }
    }
    let used = lift(&thirsty, afforded, grants);
    // The next whole level would cost more than is left: distribute one unit each, in order.
    let short = thirsty.iter().filter(|each| each.has <= afforded && each.target > afforded);
    let takers: Vec<&Thirsty> = short.take((left - used) as usize).collect();
    for each in &takers {
        grants[each.at] += 1;
    }
    used + takers.len() as u64
}

fn lift(thirsty: &[Thirsty], level: u64, grants: &mut [u64]) -> u64 {
    let mut used = 0;
    for each in thirsty {
        let to = level.min(each.target).max(each.has);
        used += to - each.has;
        grants[each.at] = to;
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim(priority: u32, guarantee: u64, ceiling: u64, demand: u64) -> Claim {
        Claim { priority, guarantee, ceiling, demand, draining: 0, could_use: demand }
    }

    #[test]
    fn the_papers_first_scenario_gives_each_its_guarantee() {
        let claims = [claim(1, 150, 1000, 1000), claim(2, 700, 1000, 1000), claim(1, 150, 1000, 1000)];
        assert_eq!(allocate(1000, &claims), [150, 700, 150]);
    }

    #[test]
    fn capacity_that_a_small_packet_sender_cannot_use_is_lent_to_the_highest_priority() {
        // 20,000 packets/s of 64 bytes are 10 Mb/s, so the rest of VM 1's 150 is idle.
        let claims = [claim(1, 150, 150, 10), claim(2, 700, 1000, 1000), claim(1, 150, 150, 31)];
        assert_eq!(allocate(1000, &claims), [10, 959, 31]);
    }

    #[test]
    fn within_a_service_class_the_smallest_grows_first() {
        let claims = [claim(1, 0, 1000, 1000), claim(1, 300, 1000, 1000), claim(1, 0, 50, 1000)];
        assert_eq!(allocate(600, &claims), [250, 300, 50]);
    }

    #[test]
    fn idle_capacity_stays_where_it_is_guaranteed() {
        assert_eq!(allocate(1000, &[claim(1, 700, 1000, 0), claim(1, 100, 1000, 0)]), [700, 300]);
    }

    #[test]
    fn capacity_without_demand_or_guarantee_goes_to_all_whatever_their_priority() {
        assert_eq!(allocate(1000, &[claim(2, 0, 1000, 10), claim(1, 0, 1000, 0), claim(1, 0, 100, 0)]), [450, 450, 100]);
    }

    #[test]
    fn capacity_without_known_demand_goes_to_leaves_held_back_before_idle_ones() {
        let held_back = Claim { could_use: u64::MAX, ..claim(1, 60, 1000, 120) };
        assert_eq!(allocate(200, &[held_back, claim(2, 140, 140, 1)]), [199, 1]);
        assert_eq!(allocate(200, &[claim(1, 60, 1000, 120), claim(2, 140, 140, 1)]), [120, 80]);
        assert_eq!(allocate(200, &[Claim { could_use: 150, ..held_back }, claim(2, 140, 140, 1)]), [150, 50]);
        // Possible demand is a guess, so it takes nothing from known demand.
        assert_eq!(allocate(200, &[held_back, claim(1, 0, 1000, 1000)]), [100, 100]);
    }

    #[test]
    fn what_waits_is_let_out_before_a_higher_priority_borrows_and_after_guarantees() {
        let waits = Claim { draining: 300, ..claim(1, 0, 1000, 1000) };
        assert_eq!(allocate(1000, &[waits, claim(2, 600, 1000, 1000)]), [300, 700]);
        assert_eq!(allocate(1000, &[waits, claim(2, 800, 1000, 1000)]), [200, 800]);
        assert_eq!(allocate(1000, &[Claim { draining: 0, ..waits }, claim(2, 600, 1000, 1000)]), [0, 1000]);
    }

    fn claims() -> impl Strategy<Value = Vec<Claim>> {
        let each = (0u32..4, 0u64..2000, 0u64..2000, 0u64..3000, 0u64..1000, 0u64..2000).prop_map(|(p, g, c, d, draining, more)| Claim {
            draining,
            could_use: d + more,
            ..claim(p, g, c, d)
        });
        proptest::collection::vec(each, 0..24)
    }

    proptest! {
        #[test]
        fn never_above_the_capacity_or_a_ceiling(capacity in 0u64..20_000, claims in claims()) {
            let grants = allocate(capacity, &claims);
            prop_assert!(grants.iter().sum::<u64>() <= capacity);
            prop_assert!(grants.iter().zip(&claims).all(|(&grant, claim)| grant <= claim.ceiling));
        }

        #[test]
        fn a_guarantee_with_demand_is_met_whenever_the_sum_permits(capacity in 0u64..20_000, claims in claims()) {
            let wanted: Vec<u64> = claims.iter().map(|c| c.demand.min(c.guarantee).min(c.ceiling)).collect();
            prop_assume!(wanted.iter().sum::<u64>() <= capacity);
            for (grant, wanted) in allocate(capacity, &claims).iter().zip(wanted) {
                prop_assert!(*grant >= wanted);
            }
        }

        #[test]
        fn a_queue_drains_in_time_whenever_guarantees_leave_room_for_all_that_wait(capacity in 0u64..20_000, claims in claims()) {
            let wanted = |c: &Claim| c.demand.min(c.guarantee.max(c.draining)).min(c.ceiling);
            prop_assume!(claims.iter().map(wanted).sum::<u64>() <= capacity);
            prop_assert!(allocate(capacity, &claims).iter().zip(&claims).all(|(&grant, claim)| grant >= wanted(claim)));
        }

        #[test]
        fn no_capacity_is_withheld_while_a_leaf_may_have_it(capacity in 0u64..20_000, claims in claims()) {
            let most: u64 = claims.iter().map(|claim| claim.ceiling).sum();
            prop_assert_eq!(allocate(capacity, &claims).iter().sum::<u64>(), capacity.min(most));
        }

        #[test]
        fn a_lower_priority_gets_beyond_its_guarantee_only_what_a_higher_one_does_not_want(
            capacity in 0u64..20_000, claims in claims()
        ) {
            let grants = allocate(capacity, &claims);
            for (high, high_grant) in claims.iter().zip(&grants) {
                let satisfied = *high_grant >= high.demand.min(high.ceiling);
                for (low, low_grant) in claims.iter().zip(&grants).filter(|(low, _)| low.priority < high.priority) {
                    let modest = *low_grant <= low.guarantee.max(low.draining).min(low.demand);
                    prop_assert!(satisfied || modest, "{low:?} has {low_grant} while {high:?} has {high_grant}");
                }
            }
        }

        #[test]
        fn higher_demand_never_reduces_a_grant(capacity in 0u64..20_000, claims in claims(), at: usize, more in 0u64..3000) {
            prop_assume!(!claims.is_empty());
            let at = at % claims.len();
            let before = allocate(capacity, &claims)[at];
            let mut greedier = claims.clone();
            greedier[at].demand += more;
            greedier[at].could_use += more;
            // Levels in whole numbers are exact to one unit.
            prop_assert!(allocate(capacity, &greedier)[at] + 1 >= before);
        }

        #[test]
        fn more_capacity_never_reduces_a_grant_with_demand(capacity in 0u64..20_000, more in 0u64..5000, claims in claims()) {
            let (less, most) = (allocate(capacity, &claims), allocate(capacity + more, &claims));
            for ((less, most), claim) in less.iter().zip(&most).zip(&claims) {
                prop_assert!(most + 1 >= *less.min(&claim.demand));
            }
        }

        #[test]
        fn large_numbers_do_not_overflow(capacity: u64, claims in proptest::collection::vec(
            (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(p, g, c, d)| claim(p, g, c, d)), 0..6)
        ) {
            let total: u128 = allocate(capacity, &claims).iter().map(|&grant| u128::from(grant)).sum();
            prop_assert!(total <= u128::from(capacity));
        }
    }
}
