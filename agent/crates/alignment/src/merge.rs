//! Merges records of several sources, each in order of time, into one sequence.

use std::collections::VecDeque;

use crate::Seen;

/// Holds records back until every source has reported everything up to their time. A source can be delayed. So with uncertain clocks, a
/// packet's record there comes after those of the previous hops.
#[derive(Debug)]
pub struct Merge {
    sources: Vec<Source>,
    waiting: usize,
    waiting_max: usize,
}

/// Maximum waiting records of all sources together: a source that reports no time holds the others back.
const WAITING_MAX: usize = 1 << 21;

#[derive(Debug, Default)]
struct Source {
    waiting: VecDeque<Seen>,
    /// No earlier record will arrive.
    reached_ns: u64,
    behind_ns: u64,
}

impl Source {
    fn head(&self) -> Option<u64> {
        self.waiting.front().map(|seen| seen.time_ns.saturating_add(self.behind_ns))
    }
}

impl Merge {
    /// A merge of this many sources.
    #[must_use]
    pub fn new(sources: usize) -> Self {
        Self { sources: (0..sources).map(|_| Source::default()).collect(), waiting: 0, waiting_max: WAITING_MAX }
    }

    /// Delays a source by this time from now on.
    pub fn set_behind(&mut self, source: usize, bound_ns: u64) {
        self.sources[source].behind_ns = bound_ns;
    }

    /// Adds a record, unless too many are waiting. Returns whether it did. Times of one source never decrease.
    #[must_use]
    pub fn push(&mut self, source: usize, seen: Seen) -> bool {
        let room = self.waiting < self.waiting_max;
        if room {
            self.sources[source].waiting.push_back(seen);
            self.waiting += 1;
        }
        room
    }

    /// Source `source` has reported all records before `time_ns`.
    pub fn advance(&mut self, source: usize, time_ns: u64) {
        let reached_ns = &mut self.sources[source].reached_ns;
        *reached_ns = (*reached_ns).max(time_ns);
    }

    /// Passes on, in order, all records that no source can precede. Returns the time up to which it did.
    pub fn release(&mut self, mut take: impl FnMut(&Seen)) -> u64 {
        let safe_ns = self.sources.iter().map(|source| source.reached_ns.saturating_add(source.behind_ns)).min().unwrap_or(0);
        self.release_until(safe_ns, &mut take);
        safe_ns
    }

    /// Passes on all remaining records, in order.
    pub fn finish(&mut self, mut take: impl FnMut(&Seen)) {
        self.release_until(u64::MAX, &mut take);
    }

    /// Takes records from the earliest source until another one is earlier.
    fn release_until(&mut self, safe_ns: u64, take: &mut impl FnMut(&Seen)) {
        loop {
            let mut first: Option<(u64, usize)> = None;
            let mut bound_ns = safe_ns;
            for (number, head) in self.sources.iter().enumerate().filter_map(|(n, source)| Some((n, source.head()?))) {
                match first {
                    Some((time_ns, _)) if time_ns <= head => bound_ns = bound_ns.min(head.saturating_add(1)),
                    _ => {
                        bound_ns = first.map_or(bound_ns, |(time_ns, _)| bound_ns.min(time_ns.saturating_add(1)));
                        first = Some((head, number));
                    }
                }
            }
            let Some((_, number)) = first.filter(|&(time_ns, _)| time_ns < safe_ns) else { return };
            let source = &mut self.sources[number];
            while source.head().is_some_and(|head| head < bound_ns) {
                if let Some(seen) = source.waiting.pop_front() {
                    self.waiting -= 1;
                    take(&seen);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use proptest::prelude::*;

    fn seen(time_ns: u64, source: usize) -> Seen {
        Seen { time_ns, flow: source as u64, tag: 0, length: 0, hop: 0, kind: Kind::Whole }
    }

    #[test]
    fn nothing_is_released_before_all_sources_have_reported() {
        let mut merge = Merge::new(2);
        let mut out = Vec::new();
        assert!(merge.push(0, seen(5, 0)));
        merge.advance(0, 10);
        assert_eq!(merge.release(|s| out.push(s.time_ns)), 0);
        assert!(merge.push(1, seen(4, 1)));
        merge.advance(1, 6);
        assert_eq!(merge.release(|s| out.push(s.time_ns)), 6);
        assert_eq!(out, [4, 5]);
    }

    #[test]
    fn a_source_with_an_uncertain_clock_comes_later() {
        let mut merge = Merge::new(2);
        merge.set_behind(1, 100);
        assert!(merge.push(0, seen(50, 0)));
        assert!(merge.push(1, seen(10, 1)));
        let mut out = Vec::new();
        merge.finish(|s| out.push(s.time_ns));
        assert_eq!(out, [50, 10]);
    }

    #[test]
    fn a_source_that_reports_no_time_holds_back_a_bounded_number_of_records() {
        let mut merge = Merge { waiting_max: 10, ..Merge::new(2) };
        let taken = (0..25).filter(|&time_ns| merge.push(0, seen(time_ns, 0))).count();
        merge.advance(0, 100);
        merge.advance(1, 0);
        assert_eq!((taken, merge.release(|_| panic!("released"))), (10, 0));
        merge.advance(1, u64::MAX);
        merge.set_behind(1, 5);
        let mut out = 0;
        merge.release(|_| out += 1);
        assert_eq!(out, 10);
        assert!(merge.push(0, seen(100, 0)), "there is room again");
    }

    proptest! {
        #[test]
        fn all_comes_out_once_and_in_order(sources in proptest::collection::vec(proptest::collection::vec(0_u64..100, 0..40), 1..5)) {
            let mut merge = Merge::new(sources.len());
            let mut expected = Vec::new();
            let mut out = Vec::new();
            for (number, times) in sources.iter().enumerate() {
                let mut times = times.clone();
                times.sort_unstable();
                for &time in &times {
                    prop_assert!(merge.push(number, seen(time, number)));
                }
                merge.advance(number, 50);
                expected.extend(times);
            }
            merge.release(|s| out.push(s.time_ns));
            prop_assert!(out.iter().all(|&time| time < 50));
            merge.finish(|s| out.push(s.time_ns));
            expected.sort_unstable();
            prop_assert_eq!(out, expected);
        }
    }
}
