//! Holds a rate: says, after each piece of work, whether the next must wait.

use partywall_clock::Nanos;

/// Sleeping costs tens of microseconds and is late by as much; below this lead it is not worth it.
const LEAD_MIN_NS: f64 = 200_000.0;
/// Work that was missed is caught up within this; older debt is forgiven, so that a stall is not followed by a burst.
const DEBT_MAX_NS: f64 = 20_000_000.0;

/// The closed loop of a stressor: compares work done with work due, and so makes up for oversleeping.
#[derive(Clone, Debug)]
pub struct Pacer {
    ns_per_work: f64,
    due_ns: f64,
}

impl Pacer {
    /// Holds `rate` (work per second, above 0) from `start_ns` on.
    #[must_use]
    pub fn new(rate: f64, start_ns: Nanos) -> Self {
        Self { ns_per_work: 1e9 / rate, due_ns: start_ns as f64 }
    }

    /// Puts the first piece off by `part`, 0 to 1, of the time that a piece of `work` is worth, and says until when.
    ///
    /// What is switched on for less than that time would else press at its very beginning each time, and never later.
    pub fn put_off(&mut self, part: f64, work: f64, now_ns: Nanos) -> Option<Nanos> {
        self.pause_until(part * work, now_ns)
    }

    /// `work` was finished at `now_ns`: when the next may start, if that is worth a sleep.
    pub fn pause_until(&mut self, work: f64, now_ns: Nanos) -> Option<Nanos> {
        let now = now_ns as f64;
        self.due_ns = (self.due_ns + work * self.ns_per_work).max(now - DEBT_MAX_NS);
        (self.due_ns - now > LEAD_MIN_NS).then_some(self.due_ns as Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a worker whose steps take `step_ns` and which oversleeps by `late_ns`; returns work per second.
    fn simulate(rate: f64, step_ns: u64, work: f64, late_ns: u64) -> f64 {
        const END_NS: u64 = 2_000_000_000;
        let mut pacer = Pacer::new(rate, 0);
        let (mut now, mut total) = (0, 0.0);
        while now < END_NS {
            now += step_ns;
            total += work;
            if let Some(due) = pacer.pause_until(work, now) {
                now = due + late_ns;
            }
        }
        total * 1e9 / now as f64
    }

    proptest! {
        #[test]
        fn the_rate_is_held_in_spite_of_late_wake_ups(share in 0.02_f64..0.95, step_ns in 20_000_u64..500_000, late_ns in 0_u64..150_000) {
            let rate_max = 1e9 / step_ns as f64;
            // Close to the maximum a late wake-up cannot be made up for.
            prop_assume!(share < 0.8 || late_ns < 20_000);
            let got = simulate(share * rate_max, step_ns, 1.0, late_ns);
            prop_assert!((got / (share * rate_max) - 1.0).abs() < 0.02, "asked for {share}, got {}", got / rate_max);
        }

        #[test]
        fn a_rate_is_held_on_average_over_moments_too_short_for_one_piece(period_ns in 6_000_000_u64..60_000_000, step_ns in 100_000_u64..2_000_000) {
            const ON_NS: u64 = 6_000_000;
            const FROM_NS: u64 = 2_000_000;
            let (mut phase, mut worked) = (0.0_f64, 0_u64);
            for _ in 0..20_000 {
                let mut pacer = Pacer::new(1e9 / period_ns as f64, 0);
                phase = (phase + crate::PHASE_STEP).fract();
                let mut now = pacer.put_off(phase, 1.0, 0).unwrap_or(0);
                while now < ON_NS {
                    let end = now + step_ns;
                    worked += end.min(ON_NS).saturating_sub(now.max(FROM_NS));
                    now = pacer.pause_until(1.0, end).unwrap_or(end);
                }
            }
            let share = worked as f64 / (20_000.0 * (ON_NS - FROM_NS) as f64);
            // A piece that began in time before the window reaches into it, and one at its end beyond it: as much in as out.
            let asked = step_ns as f64 / period_ns as f64;
            prop_assert!((share / asked - 1.0).abs() < 0.05, "{share} of the time instead of {asked}");
        }

        #[test]
        fn a_stall_is_not_followed_by_a_burst_longer_than_the_debt(stall_ns in 100_000_000_u64..10_000_000_000) {
            let mut pacer = Pacer::new(1e6, 0);
            let mut now = stall_ns;
            let mut burst = 0.0;
            while pacer.pause_until(1.0, now).is_none() {
                burst += 1.0;
                now += 10;
            }
            prop_assert!(burst < 1e6 * (DEBT_MAX_NS + LEAD_MIN_NS) / 1e9 * 1.1, "{burst}");
        }
    }
}
