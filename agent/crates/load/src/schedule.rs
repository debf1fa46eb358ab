//! When users and requests arrive: levels over time, and the arrivals of the open model. All times are nanoseconds since the load
//! began. It uses no clock, and does not carry out the schedule.

use partywall_wire::load::{Arrivals, Stage};

use crate::pacing::Seat;

const NANOS: f64 = 1e9;
/// Deviation of a level that moves no user, so that rounding errors do not make users arrive and leave indefinitely.
const TOLERANCE: f64 = 1e-6;

/// A level over time: straight lines from stage to stage, starting from 0, and 0 again after the last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Levels(Vec<Line>);

#[derive(Clone, Copy, Debug)]
struct Line {
    start_ns: u64,
    end_ns: u64,
    from: f64,
    to: f64,
}

impl Line {
    fn at(&self, time_ns: u64) -> f64 {
        if self.end_ns == self.start_ns {
            return self.to;
        }
        let share = (time_ns - self.start_ns) as f64 / (self.end_ns - self.start_ns) as f64;
        self.from + (self.to - self.from) * share
    }

    fn per_ns(&self) -> f64 {
        (self.to - self.from) / (self.end_ns - self.start_ns) as f64
    }

    /// When the line reaches `level`, which lies between its ends.
    fn reaches(&self, level: f64) -> u64 {
        let at_ns = self.start_ns as f64 + (level - self.from) / self.per_ns();
        (at_ns.ceil() as u64).clamp(self.start_ns, self.end_ns)
    }

    /// The first time from `after_ns` on, within the line, at which the absent user `number` must arrive.
    fn comes(&self, after_ns: u64, number: f64) -> Option<u64> {
        let start_ns = after_ns.max(self.start_ns);
        let rises = self.to > self.from;
        if !rises {
            return (self.at(start_ns) > number + TOLERANCE).then_some(start_ns);
        }
        (self.to > number).then(|| if self.at(start_ns) >= number { start_ns } else { self.reaches(number).max(start_ns) })
    }

    /// The first time from `after_ns` on, within the line, at which the present user `number` must leave.
    fn leaves(&self, after_ns: u64, number: f64) -> Option<u64> {
        let start_ns = after_ns.max(self.start_ns);
        if self.to > self.from {
            return (self.at(start_ns) < number - TOLERANCE).then_some(start_ns);
        }
        if self.at(start_ns) <= number + TOLERANCE {
            return Some(start_ns);
        }
        (self.to <= number).then(|| self.reaches(number).max(start_ns))
    }
}

impl Levels {
    pub(crate) fn new(stages: &[Stage]) -> Self {
        let (mut start_ns, mut from) = (0, 0.0);
        let line = |stage: &Stage| {
            let line = Line { start_ns, end_ns: start_ns.saturating_add(stage.for_ns), from, to: stage.to };
            (start_ns, from) = (line.end_ns, stage.to);
            line
        };
        Self(stages.iter().map(line).filter(|line| line.end_ns > line.start_ns).collect())
    }

    /// These levels, but `level` from `from_ns` until the end of the last stage.
    pub(crate) fn held(&self, from_ns: u64, level: f64) -> Self {
        let line = Line { start_ns: from_ns, end_ns: self.end_ns(), from: level, to: level };
        Self(if line.end_ns > line.start_ns { vec![line] } else { Vec::new() })
    }

    /// End of the last stage.
    pub(crate) fn end_ns(&self) -> u64 {
        self.0.last().map_or(0, |line| line.end_ns)
    }

    /// The level at a time.
    pub(crate) fn at(&self, time_ns: u64) -> f64 {
        self.0.iter().find(|line| time_ns < line.end_ns).map_or(0.0, |line| line.at(time_ns.max(line.start_ns)))
    }

    /// The first time from `after_ns` on at which the absent user `number` must arrive. Users are numbered from 0, and are present while
    /// the level is above their number.
    pub(crate) fn comes(&self, after_ns: u64, number: f64) -> Option<u64> {
        self.0.iter().filter(|line| line.end_ns > after_ns).find_map(|line| line.comes(after_ns, number))
    }

    /// The first time from `after_ns` on at which the present user `number` must leave. At the latest after the last stage.
    pub(crate) fn leaves(&self, after_ns: u64, number: f64) -> u64 {
        let leaves_ns = self.0.iter().filter(|line| line.end_ns > after_ns).find_map(|line| line.leaves(after_ns, number));
        leaves_ns.unwrap_or_else(|| after_ns.max(self.end_ns()))
    }

    /// The time at which the integral of the level since `after_ns` reaches `count` (level times seconds).
    pub(crate) fn time_of_count(&self, after_ns: u64, mut count: f64) -> Option<u64> {
        for line in self.0.iter().filter(|line| line.end_ns > after_ns) {
            let start_ns = after_ns.max(line.start_ns);
            let (level, seconds) = (line.at(start_ns), (line.end_ns - start_ns) as f64 / NANOS);
            let area = f64::midpoint(level, line.to) * seconds;
            if count <= area {
                return Some(start_ns + (seconds_until(count, level, line.per_ns() * NANOS) * NANOS).round() as u64);
            }
            count -= area;
        }
        None
    }
}

/// Time until the integral of a level that starts at `level` and changes by `slope` per second reaches `count`.
fn seconds_until(count: f64, level: f64, slope: f64) -> f64 {
    // The root of slope/2 t² + level t = count, in the form without cancellation for small slopes.
    let root = (level * level + 2.0 * slope * count).max(0.0).sqrt();
    if level + root > 0.0 {
        2.0 * count / (level + root)
    } else {
        0.0
    }
}

/// The arrivals of one of several workers. A worker beyond them gets none.
#[derive(Clone, Debug)]
pub(crate) struct ArrivalTimes {
    levels: Levels,
    spacing: Arrivals,
    workers: f64,
    intensity: f64,
    chance: fastrand::Rng,
    next_ns: Option<u64>,
}

impl ArrivalTimes {
    pub(crate) fn new(levels: Levels, spacing: Arrivals, seat: Seat, seed: u64) -> Self {
        let chance = fastrand::Rng::with_seed(seed ^ (seat.number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let levels = if seat.number < seat.of { levels } else { Levels::default() };
        let mut times = Self { levels, spacing, workers: seat.of as f64, intensity: 1.0, chance, next_ns: None };
        // Workers take evenly spaced arrivals in turn.
        let first = match spacing {
            Arrivals::Constant => seat.number as f64,
            Arrivals::Poisson => times.step(),
        };
        times.next_ns = times.levels.time_of_count(0, first);
        times
    }

    /// When the next arrival is due; None after the last.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next_ns
    }

    /// Advances to the next arrival.
    pub(crate) fn advance(&mut self) {
        if let Some(last_ns) = self.next_ns {
            self.next_ns = self.after(last_ns, 1.0);
        }
    }

    /// From `now_ns` on, arrivals occur at `intensity` times the schedule's rate.
    pub(crate) fn switch(&mut self, now_ns: u64, intensity: f64) {
        self.intensity = intensity;
        let share = if self.spacing == Arrivals::Constant { self.chance.f64() } else { 1.0 };
        self.next_ns = self.after(now_ns, share);
    }

    /// From `now_ns` on, arrivals occur at `level` a second.
    pub(crate) fn set_level(&mut self, now_ns: u64, level: f64) {
        self.levels = self.levels.held(now_ns, level);
        self.switch(now_ns, self.intensity);
    }

    fn after(&mut self, last_ns: u64, share: f64) -> Option<u64> {
        if self.intensity <= 0.0 {
            return None;
        }
        let count = self.step() * share / self.intensity;
        self.levels.time_of_count(last_ns, count)
    }

    fn step(&mut self) -> f64 {
        match self.spacing {
            Arrivals::Constant => self.workers,
            Arrivals::Poisson => self.workers * exponential(&mut self.chance),
        }
    }
}

/// Exponentially distributed with mean 1.
pub(crate) fn exponential(chance: &mut fastrand::Rng) -> f64 {
    -(1.0 - chance.f64()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn levels(stages: &[(f64, u64)]) -> Levels {
        Levels::new(&stages.iter().map(|&(to, for_ns)| Stage { to, for_ns }).collect::<Vec<_>>())
    }

    #[test]
    fn users_arrive_one_by_one_in_a_ramp_and_leave_in_reverse() {
        let levels = levels(&[(4.0, 4 * SECOND), (4.0, SECOND), (0.0, 4 * SECOND)]);
        let starts: Vec<_> = (0..5).map(|user| levels.comes(0, f64::from(user)).map(|t| t / SECOND)).collect();
        assert_eq!(starts, [Some(0), Some(1), Some(2), Some(3), None]);
        let leaves: Vec<_> = (0..4).map(|user| levels.leaves(4 * SECOND, f64::from(user)) / SECOND).collect();
        assert_eq!(leaves, [9, 8, 7, 6]);
    }

    #[test]
    fn a_jump_starts_all_users_at_once() {
        let levels = levels(&[(3.0, 0), (3.0, SECOND)]);
        assert_eq!((0..4).map(|user| levels.comes(0, f64::from(user))).collect::<Vec<_>>(), [Some(0), Some(0), Some(0), None]);
        assert_eq!(levels.leaves(0, 2.0), SECOND);
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced_and_shared_among_workers() {
        let all = |number, of| {
            let mut times = ArrivalTimes::new(levels(&[(10.0, 0), (10.0, SECOND)]), Arrivals::Constant, Seat { number, of }, 1);
            std::iter::from_fn(move || times.next().inspect(|_| times.advance())).collect::<Vec<_>>()
        };
        assert_eq!(all(0, 1), (0..=10).map(|n| n * SECOND / 10).collect::<Vec<_>>());
        assert_eq!(all(1, 2), (0..5).map(|n| (2 * n + 1) * SECOND / 10).collect::<Vec<_>>());
    }

    #[test]
    fn poisson_arrivals_have_the_requested_number_and_the_variance_of_chance() {
        let mut times = ArrivalTimes::new(levels(&[(1000.0, 0), (1000.0, 100 * SECOND)]), Arrivals::Poisson, Seat { number: 0, of: 1 }, 7);
        let mut gaps = Vec::new();
        let mut last = 0;
        while let Some(at) = times.next() {
            gaps.push((at - last) as f64 / 1e6);
            last = at;
            times.advance();
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((gaps.len() as f64 - 100_000.0).abs() < 2_000.0, "{} arrivals", gaps.len());
        assert!((variance / (mean * mean) - 1.0).abs() < 0.05, "variance {variance}, mean {mean}");
    }

    #[test]
    fn no_arrival_occurs_while_switched_off() {
        let mut times = ArrivalTimes::new(levels(&[(10.0, 0), (10.0, 10 * SECOND)]), Arrivals::Constant, Seat { number: 0, of: 1 }, 1);
        times.switch(SECOND, 0.0);
        assert_eq!(times.next(), None);
        times.switch(2 * SECOND, 0.5);
        assert!(times.next().is_some_and(|at| (2 * SECOND..=2 * SECOND + SECOND / 5).contains(&at)));
    }

    #[test]
    fn a_level_that_is_set_holds_until_the_end_of_the_last_stage() {
        let levels = levels(&[(4.0, 0), (4.0, 4 * SECOND), (0.0, 4 * SECOND)]).held(2 * SECOND, 6.0);
        assert_eq!((levels.at(3 * SECOND), levels.at(7 * SECOND), levels.at(8 * SECOND), levels.end_ns()), (6.0, 6.0, 0.0, 8 * SECOND));
        assert_eq!((levels.comes(2 * SECOND, 5.0), levels.comes(2 * SECOND, 6.0)), (Some(2 * SECOND), None));
        assert_eq!(levels.held(9 * SECOND, 1.0).comes(9 * SECOND, 0.0), None);
    }

    #[test]
    fn arrivals_follow_a_level_that_is_set() {
        let mut times = ArrivalTimes::new(levels(&[(10.0, 0), (10.0, 10 * SECOND)]), Arrivals::Constant, Seat { number: 0, of: 1 }, 1);
        times.set_level(5 * SECOND, 100.0);
        let later = std::iter::from_fn(move || times.next().inspect(|_| times.advance())).collect::<Vec<_>>();
        assert!((499..=501).contains(&later.len()) && later[0] >= 5 * SECOND, "{}", later.len());
        let mut none = ArrivalTimes::new(levels(&[(10.0, 0), (10.0, SECOND)]), Arrivals::Constant, Seat { number: 2, of: 2 }, 1);
        none.set_level(0, 100.0);
        assert_eq!(none.next(), None);
    }

    fn any_stages() -> impl Strategy<Value = Levels> {
        proptest::collection::vec((0.0..200.0_f64, prop_oneof![Just(0), 1..20 * SECOND]), 1..6).prop_map(|stages| levels(&stages))
    }

    proptest! {
        #[test]
        fn users_are_present_while_the_level_is_above_their_number(levels in any_stages(), number in 0..150_u32, look in 0..60 * SECOND) {
            let (number, mut at, mut there, mut changes) = (f64::from(number), 0, false, 0);
            while let Some(next) = if there { Some(levels.leaves(at, number)) } else { levels.comes(at, number) } {
                if next > look {
                    break;
                }
                (at, there, changes) = (next, !there, changes + 1);
                prop_assert!(changes < 20, "comes and leaves without end at {at}");
            }
            let level = levels.at(look);
            prop_assert!(there == (level > number) || (level - number).abs() < 1e-4, "level {level} at {look}");
        }

        #[test]
        fn counts_add_up(levels in any_stages(), first in 0.0..500.0_f64, second in 0.0..500.0_f64) {
            let (Some(half), Some(whole)) = (levels.time_of_count(0, first), levels.time_of_count(0, first + second)) else { return Ok(()) };
            let again = levels.time_of_count(half, second);
            prop_assert!(again.is_some_and(|t| t.abs_diff(whole) < 10_000_000), "{again:?} {whole}");
        }
    }
}
