//! Maintains a partial intensity: decides after each piece of work whether the next must wait. Time is divided into beats. In each
//! beat a stressor is active for its share and pauses for the rest. [`crate::meter`] measures the active time.

use partywall_clock::Nanos;

/// One pause per beat. A pause costs some 20 µs of its CPU (a timer, two context switches, the neighbour's cache misses): at 200 per
/// second, 0.4 %. A longer beat costs less, but a slot of 50 ms would then contain only a few.
const BEAT_NS: f64 = 5_000_000.0;
/// Pieces of work for which a beat has room at least, unless it becomes too long. A device serves less in total while a second stream
/// comes and goes, and requests to it take long: with a few requests per beat, neighbours would lose more than the share.
const BEAT_PIECES: f64 = 20.0;
const BEAT_MAX_NS: f64 = 20_000_000.0;
/// Sleeps end tens of microseconds late, so a shorter pause is not useful.
const PAUSE_MIN_NS: f64 = 200_000.0;
/// Assumed length of a piece while it is not known.
const PIECE_MIN_NS: f64 = 10_000.0;
/// Maximum debt to catch up. Older debt is dropped, so that no burst follows a stall.
const DEBT_MAX_NS: f64 = 20_000_000.0;

/// The closed loop of a stressor: compares actual with due active time, and so compensates late wake-ups.
#[derive(Clone, Debug)]
pub struct Pacer {
    share: f64,
    due_ns: f64,
    /// Active time of its last piece of work.
    piece_ns: f64,
}

impl Pacer {
    /// Is active for `share` of the time (above 0, below 1) from `start_ns` on.
    #[must_use]
    pub fn new(share: f64, start_ns: Nanos) -> Self {
        Self { share, due_ns: start_ns as f64, piece_ns: PIECE_MIN_NS }
    }

    /// Begins at `part` (0 to 1) of a beat, and returns until when to wait first. `piece_ns` is the active time of a piece of work; each
    /// beat contains a whole number of pieces.
    ///
    /// So each moment of a short period is active with the same probability, except for the length of a piece at its start. A piece
    /// that would be in progress then is omitted.
    pub fn begin(&mut self, part: f64, piece_ns: f64, now_ns: Nanos) -> Option<Nanos> {
        let piece_ns = piece_ns.max(PIECE_MIN_NS);
        let pieces = (self.share * beat_ns(piece_ns) / piece_ns).ceil().max(1.0);
        let beat_ns = pieces * piece_ns / self.share;
        let at_ns = part * beat_ns;
        let done = (at_ns / piece_ns).ceil();
        let wait_ns = if done < pieces {
            self.due_ns += done * piece_ns / self.share - at_ns;
            done * piece_ns - at_ns
        } else {
            self.due_ns += beat_ns - at_ns;
            beat_ns - at_ns
        };
        (wait_ns > PIECE_MIN_NS).then_some(now_ns + wait_ns as Nanos)
    }

    /// Records `pressed_ns` of active time until `now_ns`. Returns when the next piece may start, if there is a pause before.
    pub fn pause_until(&mut self, pressed_ns: f64, now_ns: Nanos) -> Option<Nanos> {
        let now = now_ns as f64;
        if pressed_ns > 0.0 {
            self.piece_ns = pressed_ns;
        }
        self.due_ns = (self.due_ns + pressed_ns / self.share).max(now - DEBT_MAX_NS);
        let pause_ns = (beat_ns(self.piece_ns) * (1.0 - self.share)).max(PAUSE_MIN_NS);
        (self.due_ns - now >= pause_ns).then_some(self.due_ns as Nanos)
    }
}

fn beat_ns(piece_ns: f64) -> f64 {
    (BEAT_PIECES * piece_ns).clamp(BEAT_NS, BEAT_MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Simulates a worker whose steps take `step_ns` and which wakes up late by `late_ns`. Returns its share of the time, and pauses per
    /// second.
    fn simulate(share: f64, step_ns: u64, late_ns: u64) -> (f64, f64) {
        const END_NS: u64 = 4_000_000_000;
        let mut pacer = Pacer::new(share, 0);
        let (mut now, mut pressed, mut pauses) = (0, 0, 0);
        while now < END_NS {
            now += step_ns;
            pressed += step_ns;
            if let Some(due) = pacer.pause_until(step_ns as f64, now) {
                now = due + late_ns;
                pauses += 1;
            }
        }
        (pressed as f64 / now as f64, f64::from(pauses) * 1e9 / now as f64)
    }

    proptest! {
        #[test]
        fn the_share_is_kept_despite_late_wake_ups(share in 0.02_f64..0.95, step_ns in 20_000_u64..500_000, late_ns in 0_u64..150_000) {
            // Near the maximum, a late wake-up cannot be compensated.
            prop_assume!(share < 0.8 || late_ns < 20_000);
            let (got, _) = simulate(share, step_ns, late_ns);
            prop_assert!((got / share - 1.0).abs() < 0.02, "requested {share}, got {got}");
        }

        #[test]
        fn there_is_at_most_one_pause_in_a_beat(share in 0.01_f64..0.99, step_ns in 20_000_u64..500_000) {
            let (_, pauses) = simulate(share, step_ns, 50_000);
            prop_assert!(pauses <= 1e9 / BEAT_NS + 1.0, "{pauses} a second");
        }

        #[test]
        fn a_share_is_kept_on_average_over_periods_shorter_than_a_beat(share in 0.02_f64..0.9, step_ns in 20_000_u64..2_000_000) {
            const ON_NS: u64 = 6_000_000;
            const FROM_NS: u64 = 2_000_000;
            let (mut phase, mut worked) = (0.0_f64, 0_u64);
            for _ in 0..20_000 {
                let mut pacer = Pacer::new(share, 0);
                phase = (phase + crate::PHASE_STEP).fract();
                let mut now = pacer.begin(phase, step_ns as f64, 0).unwrap_or(0);
                while now < ON_NS {
                    let end = now + step_ns;
                    worked += end.min(ON_NS).saturating_sub(now.max(FROM_NS));
                    now = pacer.pause_until(step_ns as f64, end).unwrap_or(end);
                }
            }
            let got = worked as f64 / (20_000.0 * (ON_NS - FROM_NS) as f64);
            prop_assert!((got / share - 1.0).abs() < 0.05, "{got} of the time instead of {share}");
        }

        #[test]
        fn a_stall_is_not_followed_by_a_burst_longer_than_the_debt(share in 0.02_f64..0.95, stall_ns in 100_000_000_u64..10_000_000_000) {
            let mut pacer = Pacer::new(share, 0);
            let mut now = stall_ns;
            while pacer.pause_until(10_000.0, now).is_none() {
                now += 10_000;
                prop_assert!(now - stall_ns < 2_000_000_000, "no pause");
            }
            let most = (DEBT_MAX_NS + BEAT_NS) * share / (1.0 - share) + 20_000.0;
            prop_assert!(((now - stall_ns) as f64) < most, "{} instead of {most}", now - stall_ns);
        }
    }
}
