//! Turns at a set rate, for kernels with their own rate. A late turn is caught up within a batch. A long pause, such as a
//! stressor that is switched off, is not caught up.

use partywall_clock::Nanos;

const FORGOTTEN_AFTER_NS: f64 = 50e6;

/// When the next turn is due.
#[derive(Debug)]
pub(crate) struct Turns {
    period_ns: f64,
    /// None before the first turn. A clock that has just begun stands near 0, so 0 would be a time to catch up from.
    next_ns: Option<f64>,
}

/// The action to take now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// This many turns are due.
    Due(usize),
    /// No turn is due before this time.
    Wait(Nanos),
}

impl Turns {
    pub fn new(rate_per_s: f64) -> Self {
        Self { period_ns: 1e9 / rate_per_s, next_ns: None }
    }

    /// The action at `now_ns`. Due turns, at most `batch`, count as taken.
    pub fn turn(&mut self, now_ns: Nanos, batch: usize) -> Turn {
        let now = now_ns as f64;
        let forgotten_ns = FORGOTTEN_AFTER_NS.max(self.period_ns);
        let next_ns = self.next_ns.filter(|next_ns| now - next_ns <= forgotten_ns).unwrap_or(now);
        if now < next_ns {
            return Turn::Wait(next_ns.ceil() as Nanos);
        }
        let due = ((now - next_ns) / self.period_ns) as usize + 1;
        let taken = due.min(batch);
        self.next_ns = Some(next_ns + taken as f64 * self.period_ns);
        Turn::Due(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    #[test]
    fn turns_come_at_the_rate_however_often_it_is_called() {
        for step_ns in [7_000, 100_000, 3_000_000] {
            let mut pace = Turns::new(10_000.0);
            let mut taken = 0;
            for now in (MS * 1000..MS * 2000).step_by(step_ns) {
                while let Turn::Due(turns) = pace.turn(now, 4) {
                    taken += turns;
                }
            }
            assert!((9_960..=10_001).contains(&taken), "{taken} turns in a second, called every {step_ns} ns");
        }
    }

    #[test]
    fn a_pause_is_not_caught_up() {
        let mut pace = Turns::new(1000.0);
        assert_eq!(pace.turn(MS * 1000, 64), Turn::Due(1));
        assert_eq!(pace.turn(MS * 5000, 64), Turn::Due(1));
        assert_eq!(pace.turn(MS * 5000, 64), Turn::Wait(MS * 5001));
    }

    #[test]
    fn nothing_is_due_from_before_the_first_turn_also_just_after_the_clock_began() {
        assert_eq!(Turns::new(1000.0).turn(MS * 40, 64), Turn::Due(1));
        assert_eq!(Turns::new(1.0).turn(MS * 900, 64), Turn::Due(1));
    }

    #[test]
    fn a_slow_rate_keeps_its_period() {
        let mut pace = Turns::new(2.0);
        assert_eq!(pace.turn(MS * 1000, 64), Turn::Due(1));
        assert_eq!(pace.turn(MS * 1100, 64), Turn::Wait(MS * 1500));
        assert_eq!(pace.turn(MS * 1510, 64), Turn::Due(1));
        assert_eq!(pace.turn(MS * 1511, 64), Turn::Wait(MS * 2000));
    }
}
