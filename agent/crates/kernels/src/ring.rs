//! Shared by `cache` and `memory-latency`: a ring of elements, one per cache line, in one cycle through all of them, and the kernel
//! that walks it. Each kernel chooses the size of its ring.

use partywall_sys::chase::{Ring, CHAINS_MAX};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::blocks::{self, Pages};
use crate::chance::Chance;
use crate::limits::within;
use crate::{Environment, Kernel, KernelError, Params, Sink};

/// Cache line of all common CPUs. Used if the host does not report its size.
pub(crate) const LINE_BYTES: usize = 64;

/// Order of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// By address: hardware prefetchers run ahead.
    Sequential,
    /// Random, in one cycle: no prefetcher can predict the next element.
    Random,
}

/// Action per element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Access {
    /// Reads the element.
    Read,
    /// Counts the access in the element: the line becomes dirty and is written back when it is displaced.
    Write,
}

/// Plan of a ring.
pub(crate) struct Plan {
    pub(crate) bytes: usize,
    pub(crate) line_bytes: usize,
    pub(crate) order: Order,
    pub(crate) chains: usize,
    pub(crate) visit: Access,
    pub(crate) pages: Pages,
    pub(crate) facts: Params,
}

pub(crate) struct RingWalk {
    ring: Ring,
    chains: usize,
    visit: Access,
    rounds: usize,
    facts: Params,
}

impl RingWalk {
    pub(crate) fn build(plan: Plan, environment: &Environment) -> Result<Self, KernelError> {
        check_chains(plan.chains)?;
        within("bytes", plan.bytes, plan.line_bytes * plan.chains.max(2)..=blocks::BYTES_MAX)?;
        let rounds = accesses(&plan) / plan.chains;
        let mut facts = plan.facts;
        let block = blocks::untouched("bytes", plan.bytes, plan.pages, environment, &mut facts)?;
        let mut ring = Ring::new(block, plan.line_bytes);
        link(&mut ring, plan.order, Chance::new(environment.seed, environment.thread));
        let lines = ring.len();
        ring.stand(&(0..plan.chains).map(|chain| chain * lines / plan.chains).collect::<Vec<_>>());
        facts.extend([
            ("ring_bytes".into(), json!(lines * plan.line_bytes)),
            ("line_bytes".into(), json!(plan.line_bytes)),
            ("elements".into(), json!(lines)),
            ("accesses_per_step".into(), json!(rounds * plan.chains)),
        ]);
        Ok(Self { ring, chains: plan.chains, visit: plan.visit, rounds, facts })
    }
}

impl Kernel for RingWalk {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        self.ring.walk(self.rounds, self.visit == Access::Write);
        Ok((self.rounds * self.chains) as f64)
    }

    fn facts(&self) -> Params {
        self.facts.clone()
    }
}

/// Accesses in a step of 20 to 300 µs. Each takes a few nanoseconds if the ring is small or a prefetcher helps, and some 100 ns if
/// one chain waits for memory.
fn accesses(plan: &Plan) -> usize {
    const MANY: usize = 16_384;
    const FEW: usize = 2048;
    if plan.bytes <= 2 << 20 || plan.order == Order::Sequential {
        MANY
    } else {
        MANY.min(FEW * plan.chains)
    }
}

fn check_chains(chains: usize) -> Result<(), KernelError> {
    if chains.is_power_of_two() && chains <= CHAINS_MAX {
        return Ok(());
    }
    Err(KernelError::Parameter { key: "chains", value: chains.to_string(), why: "is not supported; give 1, 2, 4, 8 or 16".into() })
}

/// Links all elements into one cycle. Sattolo's algorithm (Information Processing Letters 22, 1986) draws each of the (n − 1)!
/// cycles with the same probability. A plain shuffle would leave several short cycles.
fn link(ring: &mut Ring, order: Order, mut chance: Chance) {
    for element in 1..ring.len() {
        let other = match order {
            Order::Sequential => element - 1,
            Order::Random => chance.below(element),
        };
        ring.swap(element, other);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use partywall_sys::memory::Block;

    use super::*;

    fn linked(lines: usize, order: Order, seed: u64) -> Ring {
        let mut ring = Ring::new(Block::new(lines * LINE_BYTES).expect("a block"), LINE_BYTES);
        link(&mut ring, order, Chance::new(seed, 0));
        ring
    }

    fn path(ring: &mut Ring, steps: usize) -> Vec<usize> {
        let step = |_| {
            ring.walk(1, false);
            ring.position(0)
        };
        (0..steps).map(step).collect()
    }

    #[test]
    fn one_turn_passes_every_element_once_in_either_order() {
        for order in [Order::Sequential, Order::Random] {
            for lines in [2, 3, 64, 1000] {
                let mut ring = linked(lines, order, 9);
                ring.walk(lines, true);
                assert!((0..lines).all(|index| ring.passes(index) == 1), "{order:?}, {lines} elements");
                assert_eq!(ring.position(0), 0);
            }
        }
    }

    #[test]
    fn sequential_order_follows_the_addresses() {
        assert_eq!(path(&mut linked(5, Order::Sequential, 0), 5), [1, 2, 3, 4, 0]);
    }

    #[test]
    fn random_order_depends_on_the_seed_and_rarely_follows_the_addresses() {
        let first = path(&mut linked(1000, Order::Random, 1), 1000);
        assert_eq!(first, path(&mut linked(1000, Order::Random, 1), 1000));
        assert_ne!(first, path(&mut linked(1000, Order::Random, 2), 1000));
        assert!(first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 20);
    }

    #[test]
    fn every_cycle_of_four_elements_is_drawn() {
        let cycles: HashSet<_> = (0..200).map(|seed| path(&mut linked(4, Order::Random, seed), 4)).collect();
        assert_eq!(cycles.len(), 6);
    }

    #[test]
    fn a_number_of_chains_without_an_implementation_is_refused() {
        for chains in [0, 3, 32] {
            let error = check_chains(chains).expect_err("no loop").to_string();
            assert!(error.contains("1, 2, 4, 8 or 16"), "{error}");
        }
    }
}
