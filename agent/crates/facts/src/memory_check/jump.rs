//! Finds where a series of durations jumps: from some point on, most of them are many times the median before. Pure. It takes one
//! duration at a time, so that a caller that touches memory can stop at the jump.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Definition of a jump.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Minimum ratio to the median before.
    pub ratio: f64,
    /// Durations that are evaluated together. A jump needs more than half of them above the ratio, so that spikes (an interrupt, a huge
    /// page being cleared, a moment without the CPU) do not count.
    pub window: usize,
    /// Number of durations before the window for the reference median. With fewer than `window` there is no comparison.
    pub history: usize,
}

/// A jump.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Jump {
    /// Index of the first duration above the ratio.
    pub at: usize,
    /// Median of the durations before, in nanoseconds.
    pub before_ns: f64,
    /// Median of the durations from the jump on, in nanoseconds.
    pub after_ns: f64,
}

/// Finds the first jump in durations that arrive one by one.
pub struct JumpFinder {
    rule: Rule,
    history: VecDeque<f64>,
    window: VecDeque<f64>,
    seen: usize,
}

impl JumpFinder {
    /// A finder without data.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self { rule, history: VecDeque::new(), window: VecDeque::new(), seen: 0 }
    }

    /// Adds a duration. Returns the jump once the window that shows it is full.
    pub fn push(&mut self, duration_ns: f64) -> Option<Jump> {
        self.seen += 1;
        self.window.push_back(duration_ns);
        if self.window.len() <= self.rule.window {
            return None;
        }
        self.history.extend(self.window.pop_front());
        if self.history.len() > self.rule.history {
            self.history.pop_front();
        }
        if self.history.len() < self.rule.window {
            return None;
        }
        self.compare()
    }

    fn compare(&mut self) -> Option<Jump> {
        let after_ns = median(self.window.make_contiguous())?;
        let before_ns = median(self.history.make_contiguous())?;
        let threshold = before_ns * self.rule.ratio;
        let first = self.window.iter().position(|&duration| duration > threshold)?;
        (after_ns > threshold).then_some(Jump { at: self.seen - self.rule.window + first, before_ns, after_ns })
    }
}

/// The first jump of a whole series.
#[must_use]
pub fn find(durations_ns: &[f64], rule: Rule) -> Option<Jump> {
    let mut finder = JumpFinder::new(rule);
    durations_ns.iter().find_map(|&duration| finder.push(duration))
}

/// The middle value (the lower of two). `None` if there is none.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const RULE: Rule = Rule { ratio: 4.0, window: 16, history: 256 };

    /// Durations of touching one group: within a factor of two of each other.
    fn calm(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f64>> {
        vec(100.0..200.0f64, length)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_steady_series_has_no_jump(series in calm(0..800)) {
            prop_assert_eq!(find(&series, RULE), None);
        }

        #[test]
        fn a_step_is_found_at_its_place(before in calm(32..600), after in vec(2000.0..20_000.0f64, 16..100)) {
            let series = [before.clone(), after].concat();
            let jump = find(&series, RULE).expect("a step of ten times and more");
            prop_assert_eq!(jump.at, before.len());
            prop_assert!((100.0..200.0).contains(&jump.before_ns));
            prop_assert!(jump.after_ns > 800.0);
        }

        #[test]
        fn spikes_of_any_height_are_no_jump(series in calm(100..600), height in 10.0..1e6f64, spacing in 3usize..40) {
            let mut series = series;
            for spike in series.iter_mut().step_by(spacing) {
                *spike *= height;
            }
            prop_assert_eq!(find(&series, RULE), None);
        }

        #[test]
        fn a_burst_shorter_than_half_the_window_is_no_jump(series in calm(100..600), at in 0usize..80, length in 1usize..8) {
            let mut series = series;
            for spike in &mut series[at..at + length] {
                *spike *= 1000.0;
            }
            prop_assert_eq!(find(&series, RULE), None);
        }

        #[test]
        fn a_slow_drift_is_no_jump(length in 100usize..2000) {
            // A factor of twenty in total, but never much within one history.
            let series: Vec<f64> = (0..length).map(|i| 100.0 * (1.0 + 0.002 * i as f64)).collect();
            prop_assert_eq!(find(&series, RULE), None);
        }

        #[test]
        fn spikes_before_a_step_do_not_move_it_far(before in calm(200..400), after in vec(2000.0..20_000.0f64, 32..64), spacing in 9usize..30) {
            let length = before.len();
            let mut series = [before, after].concat();
            for spike in series[..length].iter_mut().step_by(spacing) {
                *spike *= 100.0;
            }
            let jump = find(&series, RULE).expect("a step of ten times and more");
            prop_assert!(jump.at <= length && jump.at + RULE.window >= length, "{} for {}", jump.at, length);
        }
    }

    #[test]
    fn the_median_of_two_is_the_lower() {
        assert_eq!(median(&[3.0, 1.0]), Some(1.0));
        assert_eq!(median(&[]), None);
    }
}
