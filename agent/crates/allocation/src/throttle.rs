//! How much of a capacity is divided to meet a delay goal: less while the goal is missed, and slowly more again when it is met with
//! room. Reduced sending drains queues, so this works on every queue that all of a pool's packets pass.

/// The part of a capacity that is divided now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// In units of 1 / `WHOLE`.
    part: u64,
    failed: u32,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { part: Self::WHOLE, failed: 0 }
    }
}

impl Throttle {
    const WHOLE: u64 = 1 << 20;
    /// Strain of a goal that is just met.
    pub const MET: u64 = 1024;
    /// Below this strain there is room for more.
    const ROOMY: u64 = Self::MET * 3 / 4;
    /// Divisor of the maximum reduction per round, relative to the current part.
    const CUT: u64 = 16;
    /// Increase per round, relative to the whole: about a second for a tenth.
    const BACK: u64 = Self::WHOLE / 512;
    /// A goal cannot be met if it is missed for this many consecutive rounds at the floor.
    pub const PATIENCE: u32 = 20;

    /// Updates the part from a measurement. `strain` is the measured value over its goal, in units of [`Throttle::MET`]. The divided
    /// capacity never falls below `floor`, the guarantees with demand.
    pub fn update(&mut self, strain: u64, capacity: u64, floor: u64) {
        let at_floor = self.divided(capacity, floor) <= floor.min(capacity);
        if strain > Self::MET {
            let excess = (strain - Self::MET).min(Self::MET);
            self.failed = if at_floor { self.failed.saturating_add(1) } else { 0 };
            if !at_floor {
                self.part -= self.part * excess / Self::MET / Self::CUT;
            }
        } else {
            self.failed = 0;
            if strain < Self::ROOMY {
                self.part = (self.part + Self::BACK).min(Self::WHOLE);
            }
        }
    }

    /// How much of `capacity` is divided.
    #[must_use]
    pub fn divided(&self, capacity: u64, floor: u64) -> u64 {
        let part = (u128::from(capacity) * u128::from(self.part) / u128::from(Self::WHOLE)) as u64;
        part.max(floor.min(capacity))
    }

    /// Whether nothing more can be reduced although the goal is missed.
    #[must_use]
    pub fn gave_up(&self) -> bool {
        self.failed >= Self::PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Simulates a link with capacity `real` and a queue before it. Returns the wait of each round.
    fn waits(real: u64, goal: u64, rounds: usize, floor: u64) -> (Vec<u64>, Throttle) {
        let (mut throttle, mut queued, mut waits) = (Throttle::default(), 0u64, Vec::new());
        for _ in 0..rounds {
            queued = (queued + throttle.divided(1000, floor)).saturating_sub(real).min(10 * real);
            let wait = queued * 1000 / real;
            throttle.update(wait * Throttle::MET / goal, 1000, floor);
            waits.push(wait);
        }
        (waits, throttle)
    }

    #[test]
    fn a_link_with_less_capacity_is_throttled_and_its_queue_drains() {
        let (waits, throttle) = waits(900, 200, 2000, 0);
        let late: u64 = waits[1000..].iter().sum::<u64>() / 1000;
        assert!(late <= 200, "waits {late} in the mean");
        assert!(throttle.divided(1000, 0) >= 800, "divides {}", throttle.divided(1000, 0));
        assert!(!throttle.gave_up());
    }

    #[test]
    fn guarantees_are_kept_and_a_goal_that_they_break_is_given_up() {
        let (waits, throttle) = waits(900, 200, 500, 950);
        assert!(throttle.divided(1000, 950) == 950 && throttle.gave_up(), "{throttle:?} {:?}", waits.last());
    }

    #[test]
    fn a_goal_that_holds_costs_nothing() {
        let (waits, throttle) = waits(1000, 200, 100, 0);
        assert_eq!((waits.iter().max(), throttle), (Some(&0), Throttle::default()));
    }

    proptest! {
        #[test]
        fn the_divided_capacity_is_between_floor_and_capacity(strains in proptest::collection::vec(0u64..100_000, 0..200),
            capacity in 1u64..1 << 50, floor in 0u64..1 << 50) {
            let mut throttle = Throttle::default();
            for strain in strains {
                throttle.update(strain, capacity, floor);
                let divided = throttle.divided(capacity, floor);
                prop_assert!(divided <= capacity && divided >= floor.min(capacity));
            }
        }
    }
}
