//! Requested and actual activity of a worker thread at partial intensities.

use std::ops::AddAssign;

use partywall_clock::Nanos;
use serde_json::{json, Map, Value};

/// Sums over all periods of partial intensity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dose {
    /// Duration of these periods.
    pub held_ns: Nanos,
    /// Requested active time.
    pub requested_ns: f64,
    /// Actual active time.
    pub pressed_ns: f64,
    /// CPU time of the thread, including pacing.
    pub cpu_ns: Nanos,
    /// Number of pauses.
    pub pauses: u64,
}

impl AddAssign for Dose {
    fn add_assign(&mut self, other: Self) {
        self.held_ns += other.held_ns;
        self.requested_ns += other.requested_ns;
        self.pressed_ns += other.pressed_ns;
        self.cpu_ns += other.cpu_ns;
        self.pauses += other.pauses;
    }
}

impl Dose {
    /// The facts, as shares of the time. Empty if there was no partial intensity.
    #[must_use]
    pub fn facts(&self) -> Map<String, Value> {
        if self.held_ns == 0 {
            return Map::new();
        }
        let held_ns = self.held_ns as f64;
        let facts = json!({
            "held_ns": self.held_ns,
            "asked_share": self.requested_ns / held_ns,
            "pressed_share": self.pressed_ns / held_ns,
            "cpu_share": self.cpu_ns as f64 / held_ns,
            "pauses_per_s": self.pauses as f64 * 1e9 / held_ns,
        });
        Map::from_iter([("dose".to_owned(), facts)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_refer_to_the_time_at_partial_intensities() {
        let mut dose = Dose::default();
        assert!(dose.facts().is_empty());
        dose += Dose { held_ns: 3_000_000_000, requested_ns: 1.5e9, pressed_ns: 1.2e9, cpu_ns: 600_000_000, pauses: 600 };
        let facts = &dose.facts()["dose"];
        assert_eq!((&facts["asked_share"], &facts["pressed_share"]), (&json!(0.5), &json!(0.4)));
        assert_eq!((&facts["cpu_share"], &facts["pauses_per_s"]), (&json!(0.2), &json!(200.0)));
    }
}
