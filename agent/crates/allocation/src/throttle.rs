//! How much of a capacity is divided while a goal in delay is at stake: less as long as the goal is missed, slowly more again
//! when it is met with room. A queue is emptied by what is not sent, so this works on every queue that all of a pool pass.

/// The part of a capacity that is divided now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// In parts of `WHOLE`.
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
    /// Below this there is room for more.
    const ROOMY: u64 = Self::MET * 3 / 4;
    /// The most that is taken away in a round, of what is there.
    const CUT: u64 = 16;
    /// What is given back in a round, of the whole: a second or so for a tenth.
    const BACK: u64 = Self::WHOLE / 512;
    /// So many rounds in a row at the floor are a goal that can't be met.
    pub const PATIENCE: u32 = 20;

    /// Follows what was measured: `strain` is the measured value over its goal, in parts of [`Throttle::MET`]. What is divided
    /// never falls below `floor`, the guarantees that are wanted.
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

    /// Nothing more can be taken away, and the goal is missed all the same.
    #[must_use]
    pub fn gave_up(&self) -> bool {
        self.failed >= Self::PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A link that carries `real` and a queue before it, one round after the other; returns the wait of each round.
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
    fn what_a_link_cannot_carry_after_all_is_no_longer_divided_and_its_queue_empties() {
        let (waits, throttle) = waits(900, 200, 2000, 0);
        let late: u64 = waits[1000..].iter().sum::<u64>() / 1000;
        assert!(late <= 200, "waits {late} in the mean");
        assert!(throttle.divided(1000, 0) >= 800, "divides {}", throttle.divided(1000, 0));
        assert!(!throttle.gave_up());
    }

    #[test]
    fn guarantees_are_never_taken_and_a_goal_that_they_break_is_given_up() {
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
        fn what_is_divided_lies_between_floor_and_capacity(strains in proptest::collection::vec(0u64..100_000, 0..200),
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
