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

/// Sparse counts: pairs of bucket index and count, ascending by index.
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

/// A [`DenseHistogram`] counts latencies above this, about 18 minutes, in its last bucket.
const DENSE_LONGEST_NS: u64 = (1 << 40) - 1;

/// Dense counts, one per bucket, for loops that record too often for a search per value.
#[derive(Clone, Debug)]
pub struct DenseHistogram {
    counts: Box<[u32]>,
    // Range of buckets that may be non-zero, so that a narrow histogram is taken quickly.
    low: usize,
    high: usize,
}

impl Default for DenseHistogram {
    fn default() -> Self {
        Self { counts: vec![0; bucket_of(DENSE_LONGEST_NS) as usize + 1].into(), low: usize::MAX, high: 0 }
    }
}

impl DenseHistogram {
    /// Counts one latency.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        let bucket = bucket_of(value_ns.min(DENSE_LONGEST_NS)) as usize;
        self.counts[bucket] += 1;
        self.low = self.low.min(bucket);
        self.high = self.high.max(bucket);
    }

    /// Returns the counts since the last call.
    #[must_use]
    pub fn take(&mut self) -> Histogram {
        let mut pairs = Vec::new();
        if self.low <= self.high {
            for (offset, count) in self.counts[self.low..=self.high].iter_mut().enumerate() {
                if *count > 0 {
                    pairs.push(((self.low + offset) as u32, std::mem::take(count)));
                }
            }
        }
        (self.low, self.high) = (usize::MAX, 0);
        Histogram(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_histogram_counts_as_a_sparse_one_does_and_is_empty_once_taken() {
        let (mut dense, mut sparse) = (DenseHistogram::default(), Histogram::default());
        for value in [0, 5, 5, 63, 64, 1_000, 1_000_000, 1_000_001, 70_000_000_000] {
            dense.record(value);
            sparse.record(value);
        }
        assert_eq!((dense.take(), dense.take()), (sparse, Histogram::default()));
    }

    #[test]
    fn a_latency_too_long_for_a_dense_histogram_is_still_counted() {
        let mut dense = DenseHistogram::default();
        dense.record(u64::MAX);
        assert_eq!(dense.take().count(), 1);
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
