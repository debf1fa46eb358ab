//! Finds the hook of each hop that forward packets pass. Names of hops do not show it: a packet leaves a container at its
//! interface's egress and enters one at its ingress. Hooks given by the user are used as they are. The others are derived from
//! packets seen at two hops, and their order.

use std::collections::HashMap;

use partywall_bpf::tc::Direction;

use crate::record::Raw;

/// The direction along the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Forward,
    Backward,
}

/// Packets remembered while waiting for a second sighting.
const REMEMBERED: usize = 1 << 16;
/// Sightings that decide a hop, and the required majority.
const ENOUGH: u32 = 16;
const AGREEING: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Votes {
    ingress: u32,
    egress: u32,
}

impl Votes {
    /// The hook of forward packets, if the votes agree sufficiently.
    fn settled(self) -> Option<Direction> {
        let (more, fewer, hook) = if self.ingress > self.egress {
            (self.ingress, self.egress, Direction::Ingress)
        } else {
            (self.egress, self.ingress, Direction::Egress)
        };
        (more >= ENOUGH && more >= fewer * AGREEING).then_some(hook)
    }

    fn leaning(self) -> Option<Direction> {
        match self.ingress.cmp(&self.egress) {
            std::cmp::Ordering::Greater => Some(Direction::Ingress),
            std::cmp::Ordering::Less => Some(Direction::Egress),
            std::cmp::Ordering::Equal => None,
        }
    }
}

/// What is known about each hop's hooks.
pub(crate) struct Orientation {
    given: Vec<Option<Direction>>,
    usual: Vec<Direction>,
    votes: Vec<Votes>,
    first: HashMap<(u64, u64), (usize, Direction, u64)>,
}

impl Orientation {
    /// `given` is given by the user; `spaces` identify the hops' namespaces.
    pub(crate) fn new(given: Vec<Option<Direction>>, spaces: &[u64]) -> Self {
        let hops = given.len();
        Self { usual: usual(&given, spaces), given, votes: vec![Votes::default(); hops], first: HashMap::new() }
    }

    /// Inspects a record. Records need not be in order.
    pub(crate) fn watch(&mut self, raw: &Raw) {
        let key = (raw.flow(), raw.0[2]);
        let here = (raw.hop(), raw.hook(), raw.time_ns());
        match self.first.get(&key) {
            Some(&before) if before.0 != here.0 => self.vote(before, here),
            Some(_) => {}
            None if self.first.len() < REMEMBERED => {
                self.first.insert(key, here);
            }
            None => self.first.clear(),
        }
    }

    fn vote(&mut self, first: (usize, Direction, u64), second: (usize, Direction, u64)) {
        let (early, late) = if first.2 <= second.2 { (first, second) } else { (second, first) };
        let forward = early.0 < late.0;
        for (hop, hook, _) in [early, late] {
            let votes = &mut self.votes[hop];
            *(if (hook == Direction::Ingress) == forward { &mut votes.ingress } else { &mut votes.egress }) += 1;
        }
    }

    /// True if every hop is given or decided.
    pub(crate) fn is_settled(&self) -> bool {
        self.given.iter().zip(&self.votes).all(|(given, votes)| given.is_some() || votes.settled().is_some())
    }

    /// The hook of forward packets at each hop: given, decided by votes, or the default.
    pub(crate) fn hooks(&self) -> Vec<Direction> {
        let all = self.given.iter().zip(&self.votes).zip(&self.usual);
        all.map(|((given, votes), usual)| given.or(votes.leaning()).unwrap_or(*usual)).collect()
    }
}

/// The direction of a packet at `hook` of a hop where forward packets pass `forward`.
pub(crate) fn bound(forward: Direction, hook: Direction) -> Bound {
    if forward == hook {
        Bound::Forward
    } else {
        Bound::Backward
    }
}

/// The default without observations: packets enter a namespace at ingress, leave it at egress, and pass through it in by one
/// interface and out by the next.
fn usual(given: &[Option<Direction>], spaces: &[u64]) -> Vec<Direction> {
    let mut hooks: Vec<Direction> = Vec::new();
    for (hop, given) in given.iter().enumerate() {
        let entered = hop > 0 && spaces[hop] != spaces[hop - 1];
        let leaves = spaces.get(hop + 1).is_some_and(|next| *next != spaces[hop]);
        let after_in = hooks.last() == Some(&Direction::Ingress);
        let usual = match hop {
            0 if leaves => Direction::Egress,
            0 => Direction::Ingress,
            _ if entered => Direction::Ingress,
            _ if after_in => Direction::Egress,
            _ => Direction::Ingress,
        };
        hooks.push(given.unwrap_or(usual));
    }
    hooks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::place;
    use Direction::{Egress, Ingress};

    fn raw(time_ns: u64, tag: u64, hop: usize, hook: Direction) -> Raw {
        Raw([time_ns, 7, tag, u64::from(place(hop, hook)) << 40])
    }

    #[test]
    fn hooks_are_found_from_either_direction_of_traffic() {
        for backward in [false, true] {
            let mut orientation = Orientation::new(vec![None; 3], &[1, 2, 2]);
            let forward = [Egress, Ingress, Egress];
            assert!(!orientation.is_settled());
            for tag in 0..40 {
                for step in 0..3_usize {
                    let hop = if backward { 2 - step } else { step };
                    let hook = if (forward[hop] == Ingress) == backward { Egress } else { Ingress };
                    orientation.watch(&raw(tag * 100 + step as u64, tag, hop, hook));
                }
            }
            assert!(orientation.is_settled());
            assert_eq!(orientation.hooks(), forward);
        }
    }

    #[test]
    fn what_was_given_outweighs_what_is_seen() {
        let mut orientation = Orientation::new(vec![Some(Ingress), None], &[1, 1]);
        for tag in 0..40 {
            orientation.watch(&raw(tag * 10, tag, 0, Egress));
            orientation.watch(&raw(tag * 10 + 1, tag, 1, Ingress));
        }
        assert_eq!(orientation.hooks(), [Ingress, Ingress]);
    }

    #[test]
    fn without_traffic_the_usual_is_taken() {
        let hooks = |spaces: &[u64]| Orientation::new(vec![None; spaces.len()], spaces).hooks();
        assert_eq!(hooks(&[1, 2, 2, 3]), [Egress, Ingress, Egress, Ingress]);
        assert_eq!(hooks(&[1, 1]), [Ingress, Egress]);
        assert_eq!(hooks(&[2, 2, 3]), [Ingress, Egress, Ingress]);
    }
}
