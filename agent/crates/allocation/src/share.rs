//! Divides a total in proportion to use: the paper's second step, where a virtual machine's packets/s go to its interfaces by the share
//! of bandwidth that each used.

/// Divides `total` in proportion to `used`, but gives none more than it wants while another wants more. Capacity without demand goes to
/// all by the same shares, so that new demand finds room. One tenth of the shares is equal for all, so that an idle interface can
/// start. The paper has neither rule, and would keep an idle interface at 0. Rounding loses less than a unit for each.
#[must_use]
pub fn by_use(total: u64, used: &[u64], wanted: &[u64]) -> Vec<u64> {
    let shares = shares(used);
    let mut parts = vec![0; used.len()];
    // Smallest demand relative to its share first: the rest of its share is for those after it.
    let mut order: Vec<usize> = (0..used.len()).collect();
    order.sort_by(|&a, &b| (wanted[a] as f64 / shares[a]).total_cmp(&(wanted[b] as f64 / shares[b])));
    let left = pour(total, &order, &shares, |at| wanted[at], &mut parts);
    pour(left, &order, &shares, |_| u64::MAX, &mut parts);
    parts
}

/// The shares. Their sum is 1, and none is 0.
fn shares(used: &[u64]) -> Vec<f64> {
    let even = 1.0 / used.len() as f64;
    let sum: f64 = used.iter().map(|&used| used as f64).sum();
    used.iter().map(|&used| if sum > 0.0 { even / 10.0 + 0.9 * used as f64 / sum } else { even }).collect()
}

/// Gives each its share of the rest, up to `most`. Returns what is left.
fn pour(mut left: u64, order: &[usize], shares: &[f64], most: impl Fn(usize) -> u64, parts: &mut [u64]) -> u64 {
    let mut of: f64 = shares.iter().sum();
    for (place, &at) in order.iter().enumerate() {
        let share = if place + 1 == order.len() { left } else { (left as f64 * (shares[at] / of).min(1.0)) as u64 };
        let given = share.min(left).min(most(at));
        parts[at] += given;
        left -= given;
        of -= shares[at];
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_follow_use_and_an_idle_interface_can_start() {
        assert_eq!(by_use(20_000, &[300, 100, 0], &[u64::MAX; 3]), [14_166, 5_167, 667]);
        assert!(by_use(9000, &[0, 0, 0], &[0; 3]).iter().all(|part| part.abs_diff(3000) <= 2));
    }

    #[test]
    fn an_unused_share_goes_to_those_with_demand() {
        // One uses much bandwidth in few large packets, the other little in many small ones.
        assert_eq!(by_use(20_000, &[900, 100], &[1000, 50_000]), [1000, 19_000]);
    }

    fn parties() -> impl Strategy<Value = Vec<(u64, u64)>> {
        proptest::collection::vec((0u64..1 << 40, 0u64..1 << 30), 1..9)
    }

    proptest! {
        #[test]
        fn the_parts_never_exceed_the_total(total: u64, parties in proptest::collection::vec(any::<(u64, u64)>(), 0..9)) {
            let (used, wanted): (Vec<u64>, Vec<u64>) = parties.into_iter().unzip();
            let sum: u128 = by_use(total, &used, &wanted).iter().map(|&part| u128::from(part)).sum();
            prop_assert!(sum <= u128::from(total));
        }

        #[test]
        fn no_capacity_is_withheld_while_there_is_demand(total in 0u64..1 << 34, parties in parties()) {
            let (used, wanted): (Vec<u64>, Vec<u64>) = parties.iter().copied().unzip();
            let parts = by_use(total, &used, &wanted);
            let useful: u64 = parts.iter().zip(&wanted).map(|(&part, &wanted)| part.min(wanted)).sum();
            let slack = parts.len() as u64;
            prop_assert!(useful + slack >= total.min(wanted.iter().sum()), "{parts:?}");
            prop_assert!(parts.iter().sum::<u64>() + slack >= total, "{parts:?}");
        }

        #[test]
        fn higher_use_and_demand_never_reduce_a_part(total in 0u64..1 << 34, parties in parties()) {
            let (used, wanted): (Vec<u64>, Vec<u64>) = parties.iter().copied().unzip();
            let parts = by_use(total, &used, &wanted);
            for (at, &(used, wanted)) in parties.iter().enumerate() {
                for (other, &(less_used, less_wanted)) in parties.iter().enumerate() {
                    if used >= less_used && wanted >= less_wanted {
                        prop_assert!(parts[at] + parts.len() as u64 >= parts[other], "{parts:?}");
                    }
                }
            }
        }
    }
}
