//! Latencies in log-linear buckets: 64 to each doubling, so a bucket is at most 1.6 % wide and two histograms merge
//! without loss. Values below 64 ns are exact.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const SUB_BITS: u32 = 6;

/// The bucket that holds `value_ns`.
#[must_use]
pub fn bucket_of(value_ns: u64) -> u32 {
    let magnitude = (u64::BITS - value_ns.leading_zeros()).saturating_sub(SUB_BITS + 1);
    (magnitude << SUB_BITS) + (value_ns >> magnitude) as u32
}

/// The smallest and largest value in nanoseconds of bucket `index`.
#[must_use]
pub fn bucket_bounds(index: u32) -> (u64, u64) {
    let magnitude = (index >> SUB_BITS).saturating_sub(1);
    let low = u64::from(index - (magnitude << SUB_BITS)) << magnitude;
    (low, low + (1 << magnitude) - 1)
}

/// Counts by bucket, sparse: pairs of bucket index and count, rising by index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Histogram(pub Vec<(u32, u32)>);

impl Histogram {
    /// Counts one latency.
    pub fn record(&mut self, value_ns: u64) {
        let bucket = bucket_of(value_ns);
        match self.0.binary_search_by_key(&bucket, |pair| pair.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(1),
            Err(at) => self.0.insert(at, (bucket, 1)),
        }
    }

    /// Number of latencies counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|pair| u64::from(pair.1)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        for shift in 0..64 {
            for offset in [0, 1, 7] {
                let value = (1_u64 << shift).saturating_add(offset);
                let (low, high) = bucket_bounds(bucket_of(value));
                assert!(low <= value && value <= high, "{value} not in {low}..={high}");
                assert!(high - low <= low / 64, "bucket of {value} is too wide");
            }
        }
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        for index in 0..3000 {
            assert_eq!(bucket_bounds(index).1 + 1, bucket_bounds(index + 1).0);
        }
    }
}
