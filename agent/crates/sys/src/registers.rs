//! Loops that load or store memory through registers of one kind, as `RAMspeed` does. Each instruction is stated, because a
//! compiler replaces loops over numbers by vectors of its choice. x86-64 only.

use crate::non_temporal::LINE;
#[cfg(target_arch = "x86_64")]
use crate::non_temporal::{avx, sse2};

/// The kind of register that data pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// A general register, 8 bytes.
    Integer,
    /// One floating-point number, 8 bytes.
    Float,
    /// Two numbers, 16 bytes (SSE).
    Vector16,
    /// Four numbers, 32 bytes (AVX).
    Vector32,
}

impl Register {
    fn exists(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self != Self::Vector32 || is_x86_feature_detected!("avx");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }
}

/// Loads of whole cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loads {
    register: Register,
    non_temporal: bool,
}

impl Loads {
    /// Loads into `register`. With `non_temporal` each line is prefetched 512 bytes ahead by `PREFETCHNTA`, which displaces little of
    /// the caches. `None` if this CPU does not have them.
    #[must_use]
    pub fn detect(register: Register, non_temporal: bool) -> Option<Self> {
        register.exists().then_some(Self { register, non_temporal })
    }

    /// Loads all of `from`.
    ///
    /// # Panics
    /// If `from` does not start at a cache line or is not a whole number of lines.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub fn run(self, from: &[f64]) {
        check(from);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `check` verified alignment and length, and `detect` the register.
        unsafe {
            match (self.register, self.non_temporal) {
                (Register::Integer, false) => x86::load_integers::<false>(from),
                (Register::Integer, true) => x86::load_integers::<true>(from),
                (Register::Float, false) => x86::load_floats::<false>(from),
                (Register::Float, true) => x86::load_floats::<true>(from),
                (Register::Vector16, false) => x86::load_vectors16::<false>(from),
                (Register::Vector16, true) => x86::load_vectors16::<true>(from),
                (Register::Vector32, false) => x86::load_vectors32::<false>(from),
                (Register::Vector32, true) => x86::load_vectors32::<true>(from),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("`detect` gives no value on this architecture");
    }
}

/// Stores of whole cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stores {
    register: Register,
    non_temporal: bool,
}

impl Stores {
    /// Stores from `register`, with `non_temporal` around the caches. `None` if this CPU does not have them. No CPU has a non-temporal
    /// store of one floating-point number, except some of AMD.
    #[must_use]
    pub fn detect(register: Register, non_temporal: bool) -> Option<Self> {
        let possible = !(register == Register::Float && non_temporal);
        (possible && register.exists()).then_some(Self { register, non_temporal })
    }

    /// Sets all of `to` to `value`.
    ///
    /// # Panics
    /// If `to` does not start at a cache line or is not a whole number of lines.
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub fn run(self, to: &mut [f64], value: f64) {
        check(to);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `check` verified alignment and length, and `detect` the register.
        unsafe {
            match (self.register, self.non_temporal) {
                (Register::Integer, false) => x86::store_integers(to, value),
                (Register::Integer, true) => x86::store_integers_around(to, value),
                (Register::Float, _) => x86::store_floats(to, value),
                (Register::Vector16, false) => x86::store_vectors16(to, value),
                (Register::Vector16, true) => sse2::fill(to, value),
                (Register::Vector32, false) => x86::store_vectors32(to, value),
                (Register::Vector32, true) => avx::fill(to, value),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("`detect` gives no value on this architecture");
    }
}

fn check(numbers: &[f64]) {
    assert!((numbers.as_ptr() as usize).is_multiple_of(64), "the block must start a cache line");
    assert!(numbers.len().is_multiple_of(LINE), "the block must be whole cache lines");
}

/// Each function requires the feature and the conditions of `check`.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{_mm256_set1_pd, _mm256_zeroupper, _mm_set1_pd, _mm_sfence};

    use super::LINE;

    macro_rules! load {
        ($name:ident, $feature:literal, $class:ident, [$($instruction:literal),*], $end:block) => {
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name<const NON_TEMPORAL: bool>(from: &[f64]) {
                for line in from.chunks_exact(LINE) {
                    let line = line.as_ptr();
                    if NON_TEMPORAL {
                        // SAFETY: a prefetch has no effect on memory, and none on an address that is not mapped.
                        unsafe { asm!("prefetchnta [{line} + 512]", line = in(reg) line, options(nostack, readonly, preserves_flags)) };
                    }
                    // SAFETY: reads exactly the 64 bytes of `line`, which is aligned.
                    unsafe {
                        asm!($($instruction),*, line = in(reg) line, to = out($class) _, options(nostack, readonly, preserves_flags));
                    }
                }
                $end
            }
        };
    }

    load!(
        load_integers,
        "sse2",
        reg,
        [
            "mov {to}, [{line}]",
            "mov {to}, [{line} + 8]",
            "mov {to}, [{line} + 16]",
            "mov {to}, [{line} + 24]",
            "mov {to}, [{line} + 32]",
            "mov {to}, [{line} + 40]",
            "mov {to}, [{line} + 48]",
            "mov {to}, [{line} + 56]"
        ],
        {}
    );
    load!(
        load_floats,
        "sse2",
        xmm_reg,
        [
            "movsd {to}, [{line}]",
            "movsd {to}, [{line} + 8]",
            "movsd {to}, [{line} + 16]",
            "movsd {to}, [{line} + 24]",
            "movsd {to}, [{line} + 32]",
            "movsd {to}, [{line} + 40]",
            "movsd {to}, [{line} + 48]",
            "movsd {to}, [{line} + 56]"
        ],
        {}
    );
    load!(
        load_vectors16,
        "sse2",
        xmm_reg,
        ["movapd {to}, [{line}]", "movapd {to}, [{line} + 16]", "movapd {to}, [{line} + 32]", "movapd {to}, [{line} + 48]"],
        {}
    );
    // Mixing with instructions of SSE is slow until the upper halves are cleared.
    load!(load_vectors32, "avx", ymm_reg, ["vmovapd {to}, [{line}]", "vmovapd {to}, [{line} + 32]"], {
        _mm256_zeroupper();
    });

    macro_rules! store {
        ($name:ident, $feature:literal, $class:ident, $value:expr, [$($instruction:literal),*], $end:block) => {
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(to: &mut [f64], value: f64) {
                let value = $value(value);
                for line in to.chunks_exact_mut(LINE) {
                    // SAFETY: writes exactly the 64 bytes of `line`, which is aligned.
                    unsafe {
                        let line = line.as_mut_ptr();
                        asm!($($instruction),*, line = in(reg) line, value = in($class) value, options(nostack, preserves_flags));
                    }
                }
                $end
            }
        };
    }

    store!(
        store_integers,
        "sse2",
        reg,
        f64::to_bits,
        [
            "mov [{line}], {value}",
            "mov [{line} + 8], {value}",
            "mov [{line} + 16], {value}",
            "mov [{line} + 24], {value}",
            "mov [{line} + 32], {value}",
            "mov [{line} + 40], {value}",
            "mov [{line} + 48], {value}",
            "mov [{line} + 56], {value}"
        ],
        {}
    );
    // Nothing but a fence orders non-temporal stores.
    store!(
        store_integers_around,
        "sse2",
        reg,
        f64::to_bits,
        [
            "movnti [{line}], {value}",
            "movnti [{line} + 8], {value}",
            "movnti [{line} + 16], {value}",
            "movnti [{line} + 24], {value}",
            "movnti [{line} + 32], {value}",
            "movnti [{line} + 40], {value}",
            "movnti [{line} + 48], {value}",
            "movnti [{line} + 56], {value}"
        ],
        { _mm_sfence() }
    );
    store!(
        store_floats,
        "sse2",
        xmm_reg,
        std::convert::identity,
        [
            "movsd [{line}], {value}",
            "movsd [{line} + 8], {value}",
            "movsd [{line} + 16], {value}",
            "movsd [{line} + 24], {value}",
            "movsd [{line} + 32], {value}",
            "movsd [{line} + 40], {value}",
            "movsd [{line} + 48], {value}",
            "movsd [{line} + 56], {value}"
        ],
        {}
    );
    store!(
        store_vectors16,
        "sse2",
        xmm_reg,
        _mm_set1_pd,
        ["movapd [{line}], {value}", "movapd [{line} + 16], {value}", "movapd [{line} + 32], {value}", "movapd [{line} + 48], {value}"],
        {}
    );
    store!(store_vectors32, "avx", ymm_reg, _mm256_set1_pd, ["vmovapd [{line}], {value}", "vmovapd [{line} + 32], {value}"], {
        _mm256_zeroupper();
    });
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::memory::Block;

    const ALL: [Register; 4] = [Register::Integer, Register::Float, Register::Vector16, Register::Vector32];

    #[test]
    fn every_kind_of_store_sets_every_number() {
        for stores in ALL.iter().flat_map(|&register| [false, true].map(|around| Stores::detect(register, around))).flatten() {
            let mut block = Block::touched(8192).expect("two pages");
            block.floats_mut().fill(0.0);
            stores.run(&mut block.floats_mut()[..512], 2.5);
            assert!(block.floats()[..512].iter().all(|number| number.to_bits() == 2.5_f64.to_bits()), "{stores:?}");
            assert!(block.floats()[512..].iter().all(|number| number.to_bits() == 0), "{stores:?} writes behind its end");
        }
    }

    #[test]
    fn every_kind_of_load_changes_nothing_up_to_the_end_of_the_mapping() {
        for loads in ALL.iter().flat_map(|&register| [false, true].map(|around| Loads::detect(register, around))).flatten() {
            let mut block = Block::touched(4096).expect("a page");
            block.floats_mut().fill(1.5);
            loads.run(block.floats());
            assert!(block.floats().iter().all(|number| number.to_bits() == 1.5_f64.to_bits()), "{loads:?}");
        }
    }

    #[test]
    fn one_floating_point_number_has_no_store_around_the_caches() {
        assert_eq!(Stores::detect(Register::Float, true), None);
        assert!(Stores::detect(Register::Float, false).is_some());
    }

    #[test]
    #[should_panic(expected = "start a cache line")]
    fn an_unaligned_block_is_refused() {
        let block = Block::touched(4096).expect("a page");
        Loads::detect(Register::Vector16, false).expect("x86-64").run(&block.floats()[1..9]);
    }
}
