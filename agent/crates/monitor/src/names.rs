//! Looks up the few hundred names in each sample. The names come from the kernel, not from an adversary. So a hash with one
//! multiplication per byte (FNV-1a) suffices, at a third of the cost of the standard one.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Indexes of values, by the name at the start of a line.
pub(crate) type Places = HashMap<Vec<u8>, usize, BuildHasherDefault<Fnv>>;

pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    // Slices write their length before their bytes. Hashing it as eight bytes would double the cost.
    fn write_usize(&mut self, value: usize) {
        self.0 ^= value as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
