//! Offsets of requests: each place of the file once per lap, in ascending or shuffled order.

use super::job::Order;
use crate::noise::mix;

/// An endless sequence of offsets.
pub(super) struct Offsets {
    order: Order,
    count: u64,
    request: u64,
    seed: u64,
    at: u64,
}

impl Offsets {
    pub fn new(order: Order, count: u64, request: u64, seed: u64) -> Self {
        Self { order, count, request, seed, at: 0 }
    }

    /// Whether the next offset is the first of a lap.
    pub fn at_lap_start(&self) -> bool {
        self.at == 0
    }

    pub fn next(&mut self) -> u64 {
        let place = match self.order {
            Order::Sequential => self.at,
            Order::Random => shuffled(self.at, self.count, self.seed),
        };
        self.at = if self.at + 1 == self.count { 0 } else { self.at + 1 };
        place * self.request
    }
}

/// Position of `index` in a permutation of `0..count`, without a table. A Feistel network of four rounds over the next even number
/// of bits is repeated until the result is in range (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
fn shuffled(index: u64, count: u64, seed: u64) -> u64 {
    let half_bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half_bits) - 1;
    let mut place = index;
    loop {
        let (mut left, mut right) = (place >> half_bits, place & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(right ^ seed.wrapping_add(round << 56)) & mask));
        }
        place = (left << half_bits) | right;
        if place < count {
            return place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_use_each_place_once_a_lap() {
        for order in [Order::Sequential, Order::Random] {
            for count in [1, 2, 3, 100, 4096, 5000] {
                let mut offsets = Offsets::new(order, count, 10, 7);
                for _lap in 0..2 {
                    assert!(offsets.at_lap_start());
                    let mut lap: Vec<u64> = (0..count).map(|_| offsets.next()).collect();
                    lap.sort_unstable();
                    assert!(lap.iter().copied().eq((0..count).map(|place| place * 10)), "{order:?} {count}");
                }
            }
        }
    }

    #[test]
    fn the_random_order_depends_on_the_seed_and_has_few_neighbours() {
        let lap = |seed| {
            let mut offsets = Offsets::new(Order::Random, 4096, 1, seed);
            (0..4096).map(|_| offsets.next()).collect::<Vec<_>>()
        };
        assert_ne!(lap(1), lap(2));
        let neighbours = lap(1).windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(neighbours < 20, "{neighbours} of 4095 steps go to the next place");
    }
}
