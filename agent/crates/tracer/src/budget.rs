//! Keeps the cost of tracing within a share of the host's CPU time by sampling fewer flows. A flow is traced completely or not at
//! all, so loss and order stay exact for traced flows. Sampling never increases again, because a flow that returned would start in
//! its middle.

/// All flows are below this value.
pub(crate) const ALL: u64 = 1 << 32;
/// A step goes slightly further than needed, so that another need not follow at once.
const MARGIN: f64 = 0.9;

/// The cost of tracing in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spent {
    pub elapsed_ns: u64,
    pub cpus: usize,
    pub records: u64,
    /// Packets without a record.
    pub others: u64,
    pub price: Price,
    /// The agent's own CPU time.
    pub own_ns: u64,
}

/// The cost of a packet in the program, in nanoseconds, without the kernel's part of the hook and cache misses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Price {
    /// With a record.
    pub record_ns: f64,
    /// Without a record, because its flow is not sampled or not requested.
    pub other_ns: f64,
}

impl Spent {
    /// The share of the host's CPU time.
    pub(crate) fn share(&self) -> f64 {
        let kernel_ns = self.records as f64 * self.price.record_ns + self.others as f64 * self.price.other_ns;
        (kernel_ns + self.own_ns as f64) / (self.elapsed_ns.max(1) as f64 * self.cpus.max(1) as f64)
    }
}

/// The new limit on hashes of recorded flows, given the present limit and the share of CPU time that tracing took.
pub(crate) fn next(below: u64, share: f64, budget: f64) -> u64 {
    if share <= budget {
        return below;
    }
    ((below as f64 * budget / share * MARGIN) as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_share_counts_kernel_and_agent_over_all_cpus() {
        let price = Price { record_ns: 100.0, other_ns: 50.0 };
        let spent = Spent { elapsed_ns: 1_000_000_000, cpus: 2, records: 1_000_000, others: 0, price, own_ns: 100_000_000 };
        assert!((spent.share() - 0.1).abs() < 1e-9);
        // Packets of unsampled flows are inspected too.
        assert!((Spent { others: 2_000_000, ..spent }.share() - 0.15).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn sampling_only_shrinks_and_only_above_the_budget(below in 1..=ALL, share in 0.0..4.0_f64, budget in 0.001..1.0_f64) {
            let after = next(below, share, budget);
            prop_assert!(after <= below && after >= 1);
            prop_assert_eq!(share <= budget, after == below && (share <= budget || below == 1));
        }
    }
}
