//! Latencies in log-linear buckets: 256 per doubling. So a bucket is at most 0.4 % wide, and histograms merge without loss. Values
//! below 256 ns are exact.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const SUB_BITS: u32 = 8;

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

/// Sparse counts, as they are stored and sent: pairs of bucket index and count, ascending by index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Histogram(pub Vec<(u32, u32)>);

impl Histogram {
    /// Number of latencies counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|pair| u64::from(pair.1)).sum()
    }
}

/// Counts latencies, one number per bucket up to the longest latency so far, at most 58 KiB. Recording allocates only for a latency
/// longer than all before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    counts: Vec<u32>,
    // Non-zero counts lie in these buckets, so that a narrow histogram is taken quickly.
    used: std::ops::Range<usize>,
}

impl LatencyCounts {
    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        let bucket = bucket_of(value_ns) as usize;
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.used = if self.used.is_empty() { bucket..bucket + 1 } else { self.used.start.min(bucket)..self.used.end.max(bucket + 1) };
    }

    /// Returns the counts since the last call.
    #[must_use]
    pub fn take(&mut self) -> Histogram {
        let used = std::mem::take(&mut self.used);
        let counts = self.counts[used.clone()].iter_mut().zip(used).filter(|(count, _)| **count > 0);
        Histogram(counts.map(|(count, bucket)| (bucket as u32, std::mem::take(count))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_each_bucket_and_start_again_once_taken() {
        let mut counts = LatencyCounts::default();
        for value in [1_000_000, 5, 63, 5, u64::MAX, 1_000_001] {
            counts.record(value);
        }
        let taken = counts.take();
        assert_eq!(taken.0, [(5, 2), (63, 1), (bucket_of(1_000_000), 2), (bucket_of(u64::MAX), 1)]);
        assert_eq!((taken.count(), counts.take()), (6, Histogram::default()));
        counts.record(7);
        assert_eq!(counts.take().0, [(7, 1)]);
    }

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        for shift in 0..64 {
            for offset in [0, 1, 7] {
                let value = (1_u64 << shift).saturating_add(offset);
                let (low, high) = bucket_bounds(bucket_of(value));
                assert!(low <= value && value <= high, "{value} not in {low}..={high}");
                assert!(high - low <= low / 256, "bucket of {value} is too wide");
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
