//! Seeded pseudo-random numbers for kernels: the same seed gives the same accesses.
//! Not for statistics and not for secrets.

use crate::noise;

/// The `SplitMix64` generator (Steele, Lea and Flood, OOPSLA 2014).
pub(crate) struct Chance(u64);

impl Chance {
    /// A separate sequence for each worker thread.
    pub(crate) fn new(seed: u64, thread: u32) -> Self {
        Self(seed ^ u64::from(thread).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// A number below `limit`, which must not be 0. The bias is below `limit` / 2⁶⁴.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit as u128) >> 64) as usize
    }

    fn next(&mut self) -> u64 {
        noise::next(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_returns_the_published_first_numbers() {
        let mut chance = Chance(1_234_567);
        let first: Vec<_> = (0..3).map(|_| chance.next()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_stay_below_the_limit_and_reach_all_values() {
        let mut chance = Chance::new(1, 0);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[chance.below(7)] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }

    #[test]
    fn threads_get_different_sequences_from_one_seed() {
        assert_ne!(Chance::new(5, 0).next(), Chance::new(5, 1).next());
    }
}
