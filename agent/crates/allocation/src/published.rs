//! The algorithm of DBA-VM as its authors print it (Amamou et al., ISCC 2012, section IV), so that it can be measured beside [`allocate`].
//! Not for use: it reserves the guarantee of an idle interface, hands what is left to the first interface of the highest class whether
//! it wants it or not, and gives no packets to an interface that sent none.
//!
//! Three places of the text are read in the sense of the sentences around them: the range "B max < B < B min" is the range between the
//! minimum and the maximum; "B min is readjusted to B" raises the bandwidth to the minimum; and an interface is pushed back only from
//! above its minimum. The text does not say how much of what is left an interface gets: here it gets all, up to its maximum.
//!
//! [`allocate`]: crate::allocate

/// A virtual interface: its class's priority, its SLA, and the bandwidth at which it transmits. Interfaces are listed in the order of
/// their creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Higher is served first.
    pub priority: u32,
    /// The guaranteed bandwidth.
    pub least: u64,
    /// The bandwidth that is never exceeded.
    pub most: u64,
    /// The bandwidth in the last period.
    pub used: u64,
}

/// Step 1: the new bandwidth of each interface. If the interfaces transmitted more than the capacity, the link dropped packets of all
/// alike, so each one used its part of the capacity.
#[must_use]
pub fn published(capacity: u64, interfaces: &[Interface]) -> Vec<u64> {
    let mut bandwidth = carried(capacity, interfaces);
    let mut spare = capacity - bandwidth.iter().sum::<u64>();
    let order = by_class(interfaces);
    for &at in &order {
        let Interface { least, most, .. } = interfaces[at];
        let least = least.min(most);
        if bandwidth[at] > most {
            spare += bandwidth[at] - most;
            bandwidth[at] = most;
        } else if bandwidth[at] < least {
            let lacks = least - bandwidth[at];
            spare += push_back(lacks.saturating_sub(spare), at, &order, interfaces, &mut bandwidth);
            let borrowed = lacks.min(spare);
            bandwidth[at] += borrowed;
            spare -= borrowed;
        }
    }
    for &at in &order {
        let more = spare.min(interfaces[at].most - bandwidth[at]);
        bandwidth[at] += more;
        spare -= more;
    }
    bandwidth
}

/// Step 2: the packets/s of a virtual machine's interfaces, in proportion to the bandwidth that each used. Before any was used, all get
/// the same.
#[must_use]
pub fn published_packets(total: u64, used: &[u64]) -> Vec<u64> {
    let sum: u128 = used.iter().map(|&used| u128::from(used)).sum();
    let even = total / used.len().max(1) as u64;
    let part = |&used: &u64| (u128::from(total) * u128::from(used)).checked_div(sum).map_or(even, |part| part as u64);
    used.iter().map(part).collect()
}

/// What the link carried of each interface's traffic.
fn carried(capacity: u64, interfaces: &[Interface]) -> Vec<u64> {
    let sum: u128 = interfaces.iter().map(|each| u128::from(each.used)).sum();
    let part =
        |each: &Interface| if sum > u128::from(capacity) { (u128::from(each.used) * u128::from(capacity) / sum) as u64 } else { each.used };
    interfaces.iter().map(part).collect()
}

/// Indexes of the interfaces: the highest class first, and within a class the first created one first.
fn by_class(interfaces: &[Interface]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..interfaces.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(interfaces[at].priority));
    order
}

/// Sets interfaces above their minimum back to it, until `lacking` is freed: those of lower classes, the lowest class first; if there
/// is no lower class, the others of the same. Returns what was freed.
fn push_back(lacking: u64, of: usize, order: &[usize], interfaces: &[Interface], bandwidth: &mut [u64]) -> u64 {
    let own = interfaces[of].priority;
    let lowest = interfaces.iter().map(|each| each.priority).min().unwrap_or(own);
    let mut freed = 0;
    for class in order.chunk_by(|&a, &b| interfaces[a].priority == interfaces[b].priority).rev() {
        let priority = interfaces[class[0]].priority;
        if freed >= lacking || priority > own || (priority == own && own > lowest) {
            break;
        }
        for &at in class.iter().filter(|&&at| at != of) {
            let least = interfaces[at].least.min(interfaces[at].most);
            freed += bandwidth[at].saturating_sub(least);
            bandwidth[at] = bandwidth[at].min(least);
        }
    }
    freed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLD: u32 = 2;
    const SILVER: u32 = 1;

    fn interface(priority: u32, least: u64, most: u64, used: u64) -> Interface {
        Interface { priority, least, most, used }
    }

    #[test]
    fn the_papers_first_scenario_gives_each_its_guarantee() {
        let offered = [interface(SILVER, 150, 1000, 1000), interface(GOLD, 700, 1000, 1000), interface(SILVER, 150, 1000, 1000)];
        assert_eq!(published(1000, &offered), [150, 700, 150]);
        let settled = [interface(SILVER, 150, 1000, 150), interface(GOLD, 700, 1000, 700), interface(SILVER, 150, 1000, 150)];
        assert_eq!(published(1000, &settled), [150, 700, 150]);
    }

    #[test]
    fn bandwidth_above_the_maximum_is_cut_and_handed_to_the_highest_class() {
        assert_eq!(published(1000, &[interface(SILVER, 0, 200, 600), interface(GOLD, 100, 1000, 400)]), [200, 800]);
    }

    #[test]
    fn the_first_created_interface_of_a_class_gets_what_is_left_up_to_its_maximum() {
        assert_eq!(published(1000, &[interface(SILVER, 100, 600, 100), interface(SILVER, 100, 600, 100)]), [600, 400]);
    }

    #[test]
    fn an_idle_interface_keeps_its_guarantee_from_those_that_want_it() {
        assert_eq!(published(1000, &[interface(GOLD, 700, 700, 0), interface(SILVER, 150, 1000, 1000)]), [700, 300]);
    }

    #[test]
    fn the_lowest_class_is_pushed_back_first_and_only_as_far_as_needed() {
        let bronze = interface(0, 50, 1000, 300);
        let silver = interface(SILVER, 50, 1000, 600);
        assert_eq!(published(1000, &[bronze, silver, interface(GOLD, 200, 200, 100)]), [50, 750, 200]);
        assert_eq!(published(1000, &[bronze, silver, interface(GOLD, 700, 700, 100)]), [50, 250, 700]);
    }

    #[test]
    fn without_a_lower_class_the_others_of_the_same_are_pushed_back() {
        assert_eq!(published(1000, &[interface(SILVER, 500, 500, 0), interface(SILVER, 200, 1000, 1000)]), [500, 500]);
        assert_eq!(published(1000, &[interface(SILVER, 800, 800, 0), interface(SILVER, 200, 1000, 1000)]), [800, 200]);
    }

    #[test]
    fn a_guarantee_of_a_lower_class_is_not_taken_from_a_higher_one_that_borrowed() {
        assert_eq!(published(1000, &[interface(GOLD, 200, 1000, 1000), interface(SILVER, 300, 1000, 0)]), [1000, 0]);
    }

    #[test]
    fn packets_follow_the_bandwidth_used_and_an_idle_interface_gets_none() {
        assert_eq!(published_packets(20_000, &[300, 100, 0]), [15_000, 5_000, 0]);
        assert_eq!(published_packets(9_000, &[0, 0, 0]), [3_000, 3_000, 3_000]);
        assert_eq!(published_packets(9_000, &[]), [0; 0]);
    }

    fn interfaces() -> impl Strategy<Value = Vec<Interface>> {
        let each =
            (0u32..4, 0u64..2000, 0u64..2000, 0u64..3000).prop_map(|(priority, least, most, used)| interface(priority, least, most, used));
        proptest::collection::vec(each, 0..24)
    }

    proptest! {
        #[test]
        fn never_above_the_capacity_or_a_maximum(capacity in 0u64..20_000, interfaces in interfaces()) {
            let bandwidth = published(capacity, &interfaces);
            prop_assert!(bandwidth.iter().sum::<u64>() <= capacity);
            prop_assert!(bandwidth.iter().zip(&interfaces).all(|(&has, each)| has <= each.most));
        }

        #[test]
        fn the_highest_class_gets_its_guarantees_if_the_link_carries_those_of_all(interfaces in interfaces(), more in 0u64..1000) {
            let least = |each: &Interface| each.least.min(each.most);
            let capacity = interfaces.iter().map(least).sum::<u64>() + more;
            let highest = interfaces.iter().map(|each| each.priority).max();
            let alone = |each: &&Interface| interfaces.iter().filter(|other| other.priority == each.priority).count() == 1;
            for (&has, _) in published(capacity, &interfaces)
                .iter()
                .zip(&interfaces)
                .filter(|(_, each)| Some(each.priority) == highest && alone(each))
                .filter(|(&has, each)| has < least(each))
            {
                prop_assert!(false, "{has} is below the guarantee");
            }
        }

        #[test]
        fn large_numbers_do_not_overflow(capacity: u64, interfaces in proptest::collection::vec(
            (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(p, l, m, u)| interface(p, l, m, u)), 0..6)
        ) {
            let total: u128 = published(capacity, &interfaces).iter().map(|&has| u128::from(has)).sum();
            prop_assert!(total <= u128::from(capacity));
        }
    }
}
