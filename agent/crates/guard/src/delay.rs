//! Statistics of successive wait times: mean and jitter. Pure; `place` measures the waits.

use partywall_clock::Nanos;

/// Inverse weight of a new value in the running mean: each counts for an eighth.
const FOLLOWS: u64 = 8;

/// The waits of one queue since the last report, and the running mean that the loop uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    count: u64,
    sum: Nanos,
    steps: u64,
    differences: Nanos,
    last: Option<Nanos>,
    smooth: Option<(Nanos, Nanos)>,
}

/// Mean wait, and mean difference between successive waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    pub delay_ns: Nanos,
    pub jitter_ns: Nanos,
}

impl Wait {
    /// The sum of two waits in sequence.
    pub fn and(self, other: Self) -> Self {
        Self { delay_ns: self.delay_ns + other.delay_ns, jitter_ns: self.jitter_ns + other.jitter_ns }
    }

    /// The larger of both delays and of both jitters.
    pub fn most(self, other: Self) -> Self {
        Self { delay_ns: self.delay_ns.max(other.delay_ns), jitter_ns: self.jitter_ns.max(other.jitter_ns) }
    }
}

impl Waits {
    pub fn add(&mut self, wait: Nanos) {
        let difference = self.last.map(|last| last.abs_diff(wait));
        self.count += 1;
        self.sum += wait;
        if let Some(difference) = difference {
            self.steps += 1;
            self.differences += difference;
        }
        let (delay, jitter) = self.smooth.unwrap_or((wait, 0));
        let follow = |mean: Nanos, new: Nanos| mean - mean / FOLLOWS + new / FOLLOWS;
        self.smooth = Some((follow(delay, wait), follow(jitter, difference.unwrap_or(0))));
        self.last = Some(wait);
    }

    /// The running mean, without the noise of single readings. A queue that was empty at the last reading has no wait.
    pub fn running(&self) -> Option<Wait> {
        let (delay_ns, jitter_ns) = self.smooth?;
        Some(Wait { delay_ns: delay_ns.min(self.last?), jitter_ns })
    }

    /// The means since the last call. None if there was no reading.
    pub fn take(&mut self) -> Option<Wait> {
        let mean = Wait { delay_ns: self.sum.checked_div(self.count)?, jitter_ns: self.differences.checked_div(self.steps).unwrap_or(0) };
        (self.count, self.sum, self.steps, self.differences) = (0, 0, 0, 0);
        Some(mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_cover_the_readings_since_the_last_take() {
        let mut waits = Waits::default();
        for wait in [10, 30, 20] {
            waits.add(wait);
        }
        assert_eq!(waits.take(), Some(Wait { delay_ns: 20, jitter_ns: 15 }));
        assert_eq!(waits.take(), None);
        waits.add(60);
        // The difference also includes the last value before.
        assert_eq!(waits.take(), Some(Wait { delay_ns: 60, jitter_ns: 40 }));
    }

    #[test]
    fn the_running_mean_follows_within_some_tens_of_readings() {
        let mut waits = Waits::default();
        assert_eq!(waits.running(), None);
        waits.add(8000);
        for _ in 0..40 {
            waits.add(1000);
        }
        assert_eq!(waits.running().unwrap().delay_ns, 1000);
        waits.add(9000);
        assert!((1000..3000).contains(&waits.running().unwrap().delay_ns), "{waits:?}");
    }
}
