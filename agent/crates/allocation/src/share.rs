//! A total split over several by what each used: the paper's second step, where a virtual machine's packets/s go to its
//! interfaces by the share each had of its bandwidth.

/// Splits `total` over as many as there are in `used`, in proportion to it. One tenth goes to all alike, so that an interface
/// that was idle can begin; the paper has none, and an idle interface of its would stay shut. Nothing is lost to rounding but
/// less than a unit each.
#[must_use]
pub fn by_use(total: u64, used: &[u64]) -> Vec<u64> {
    let count = used.len() as u128;
    let sum: u128 = used.iter().map(|&used| u128::from(used)).sum();
    let share = |used: u64| match sum {
        0 => u128::from(total) / count,
        _ => u128::from(total) / 10 / count + u128::from(total - total / 10) * u128::from(used) / sum,
    };
    used.iter().map(|&used| share(used) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_follow_use_and_leave_an_idle_interface_a_way_to_begin() {
        assert_eq!(by_use(20_000, &[300, 100, 0]), [14_166, 5_166, 666]);
        assert_eq!(by_use(9, &[0, 0, 0]), [3, 3, 3]);
    }

    proptest! {
        #[test]
        fn the_parts_never_exceed_the_total(total: u64, used in proptest::collection::vec(any::<u64>(), 0..9)) {
            let sum: u128 = by_use(total, &used).iter().map(|&part| u128::from(part)).sum();
            prop_assert!(sum <= u128::from(total));
        }
    }
}
