//! A hash table from a key's hash to a packet's slot. It uses open addressing and stores part of the hash with each slot, so that a
//! probe rarely reads the packet. It is at most half full, and deletion leaves no tombstones, so it never needs a rebuild.

/// Empty cells are zero. Others hold 32 bits of the hash and the slot's low 31 bits, below a bit that is always set.
#[derive(Debug)]
pub(crate) struct Table {
    cells: Vec<u64>,
    mask: usize,
    len: usize,
}

const LEAST: usize = 1024;
const SLOT_BITS: u32 = 31;
const SLOTS: u64 = 1 << SLOT_BITS;

/// The slot at or after `base` whose low bits are in `cell`. Fewer than 2^31 packets are in transit at any time.
fn slot_of(cell: u64, base: u64) -> u64 {
    base + ((cell.wrapping_sub(base)) & (SLOTS - 1))
}

fn cell_of(hash: u64, slot: u64) -> u64 {
    (hash << 32) | SLOTS | (slot & (SLOTS - 1))
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { cells: vec![0; LEAST], mask: LEAST - 1, len: 0 }
    }

    fn home(&self, cell: u64) -> usize {
        (cell >> 32) as usize & self.mask
    }

    /// The slot with `hash` for which `is_it` is true. All slots are at or after `base`.
    pub(crate) fn find(&self, hash: u64, base: u64, mut is_it: impl FnMut(u64) -> bool) -> Option<u64> {
        let print = hash & u64::from(u32::MAX);
        let mut at = print as usize & self.mask;
        loop {
            let cell = self.cells[at];
            if cell == 0 {
                return None;
            }
            if cell >> 32 == print && is_it(slot_of(cell, base)) {
                return Some(slot_of(cell, base));
            }
            at = (at + 1) & self.mask;
        }
    }

    pub(crate) fn insert(&mut self, hash: u64, slot: u64) {
        if (self.len + 1) * 2 > self.cells.len() {
            self.grow();
        }
        self.put(cell_of(hash, slot));
        self.len += 1;
    }

    fn put(&mut self, cell: u64) {
        let mut at = self.home(cell);
        while self.cells[at] != 0 {
            at = (at + 1) & self.mask;
        }
        self.cells[at] = cell;
    }

    fn grow(&mut self) {
        let larger = vec![0; self.cells.len() * 2];
        let before = std::mem::replace(&mut self.cells, larger);
        self.mask = self.cells.len() - 1;
        before.into_iter().filter(|&cell| cell != 0).for_each(|cell| self.put(cell));
    }

    /// Removes `slot`, which must exist.
    pub(crate) fn remove(&mut self, hash: u64, slot: u64) {
        self.close_hole(self.index(hash, slot));
        self.len -= 1;
    }

    /// Puts `other` in the place of `slot`, which must exist.
    pub(crate) fn replace(&mut self, hash: u64, slot: u64, other: u64) {
        let at = self.index(hash, slot);
        self.cells[at] = cell_of(hash, other);
    }

    fn index(&self, hash: u64, slot: u64) -> usize {
        let wanted = cell_of(hash, slot);
        let mut at = self.home(wanted);
        while self.cells[at] != wanted {
            debug_assert_ne!(self.cells[at], 0, "slot {slot} is not in the table");
            at = (at + 1) & self.mask;
        }
        at
    }

    /// Moves back the entries that a probe would no longer find behind the hole (Knuth, volume 3, section 6.4, algorithm R).
    fn close_hole(&mut self, mut hole: usize) {
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let cell = self.cells[at];
            if cell == 0 {
                self.cells[hole] = 0;
                return;
            }
            let probed = at.wrapping_sub(self.home(cell)) & self.mask;
            if probed >= at.wrapping_sub(hole) & self.mask {
                self.cells[hole] = cell;
                hole = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_distinguished_beyond_31_bits() {
        let mut table = Table::new();
        let base = SLOTS * 5 - 2;
        for slot in base..base + 4 {
            table.insert(slot, slot);
        }
        for slot in base..base + 4 {
            assert_eq!(table.find(slot, base, |_| true), Some(slot));
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_would_hold(steps in proptest::collection::vec((0_u64..64, any::<bool>()), 0..3000)) {
            // Few hashes, so that probes collide.
            let mut table = Table::new();
            let mut live = std::collections::BTreeSet::new();
            for (number, (hash, insert)) in steps.into_iter().enumerate() {
                if insert {
                    let slot = number as u64;
                    table.insert(hash, slot);
                    live.insert((hash, slot));
                } else if let Some(&(hash, slot)) = live.iter().find(|pair| pair.0 == hash) {
                    table.remove(hash, slot);
                    live.remove(&(hash, slot));
                }
            }
            for &(hash, slot) in &live {
                prop_assert_eq!(table.find(hash, 0, |each| each == slot), Some(slot));
            }
            for hash in 0..64 {
                let (mut slots, expected) = (Vec::new(), live.iter().filter(|pair| pair.0 == hash).count());
                table.find(hash, 0, |slot| { slots.push(slot); false });
                prop_assert_eq!(slots.len(), expected);
            }
        }
    }
}
