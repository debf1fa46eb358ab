//! Loops whose stores bypass the caches (`MOVNTPD` of x86-64): the line is not read first and displaces nothing. Loops with ordinary
//! stores need no `unsafe`, so callers implement them.

/// Proof that this CPU has non-temporal stores, with its widest ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonTemporal {
    avx: bool,
}

impl NonTemporal {
    /// Detects the CPU's stores. `None` on any CPU but x86-64.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return Some(Self { avx: is_x86_feature_detected!("avx") });
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// Bytes a store instruction writes.
    #[must_use]
    pub fn store_bytes(self) -> usize {
        if self.avx {
            32
        } else {
            16
        }
    }
}

/// Numbers in a cache line, the unit of the loops.
pub const LINE: usize = 8;

fn check(to: &[f64], from: &[&[f64]]) {
    assert!((to.as_ptr() as usize).is_multiple_of(64), "the destination must start a cache line");
    assert!(to.len().is_multiple_of(LINE), "the destination must be whole cache lines");
    assert!(from.iter().all(|source| source.len() == to.len()), "sources must be as long as the destination");
}

macro_rules! dispatch {
    ($self:ident, $name:ident ( $($argument:expr),* )) => {{
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `check` verified alignment and lengths. SSE2 is part of x86-64, and AVX was detected.
        unsafe {
            if $self.avx {
                avx::$name($($argument),*);
            } else {
                sse2::$name($($argument),*);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("`detect` gives no value on this architecture");
    }};
}

/// Each function panics if the destination does not start at a cache line, is not a whole number of lines, or differs in length.
#[allow(clippy::missing_panics_doc, reason = "said for all above")]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
impl NonTemporal {
    /// Sets all of `to` to `value`.
    pub fn fill(self, to: &mut [f64], value: f64) {
        check(to, &[]);
        dispatch!(self, fill(to, value));
    }

    /// Copies `from` to `to`.
    pub fn copy(self, to: &mut [f64], from: &[f64]) {
        check(to, &[from]);
        dispatch!(self, copy(to, from));
    }

    /// `to = factor * from`.
    pub fn scale(self, to: &mut [f64], from: &[f64], factor: f64) {
        check(to, &[from]);
        dispatch!(self, scale(to, from, factor));
    }

    /// `to = one + factor * other`.
    pub fn triad(self, to: &mut [f64], first: &[f64], second: &[f64], factor: f64) {
        check(to, &[first, second]);
        dispatch!(self, triad(to, first, second, factor));
    }
}

/// The four loops for one vector width. Each requires the feature and the conditions of `check`. Each ends with a fence, because
/// nothing else orders non-temporal stores.
#[cfg(target_arch = "x86_64")]
macro_rules! loops {
    ($module:ident, $feature:literal, $lanes:literal, $set:ident, $load:ident, $stream:ident, $multiply:ident, $add:ident) => {
        pub(crate) mod $module {
            use std::arch::x86_64::{_mm_sfence, $add, $load, $multiply, $set, $stream};

            #[target_feature(enable = $feature)]
            pub(crate) unsafe fn fill(to: &mut [f64], value: f64) {
                let value = $set(value);
                let end = to.len();
                let to = to.as_mut_ptr();
                for index in (0..end).step_by($lanes) {
                    // SAFETY: `index` is inside and a multiple of the vector's length, so the address is aligned.
                    unsafe { $stream(to.add(index), value) };
                }
                _mm_sfence();
            }

            #[target_feature(enable = $feature)]
            pub(super) unsafe fn copy(to: &mut [f64], from: &[f64]) {
                let end = to.len();
                let (to, from) = (to.as_mut_ptr(), from.as_ptr());
                for index in (0..end).step_by($lanes) {
                    // SAFETY: as in `fill`; `from` is as long as `to`, and loads need no alignment.
                    unsafe { $stream(to.add(index), $load(from.add(index))) };
                }
                _mm_sfence();
            }

            #[target_feature(enable = $feature)]
            pub(super) unsafe fn scale(to: &mut [f64], from: &[f64], factor: f64) {
                let factor = $set(factor);
                let end = to.len();
                let (to, from) = (to.as_mut_ptr(), from.as_ptr());
                for index in (0..end).step_by($lanes) {
                    // SAFETY: as in `copy`.
                    unsafe { $stream(to.add(index), $multiply(factor, $load(from.add(index)))) };
                }
                _mm_sfence();
            }

            #[target_feature(enable = $feature)]
            pub(super) unsafe fn triad(to: &mut [f64], first: &[f64], second: &[f64], factor: f64) {
                let factor = $set(factor);
                let end = to.len();
                let (to, first, second) = (to.as_mut_ptr(), first.as_ptr(), second.as_ptr());
                for index in (0..end).step_by($lanes) {
                    // SAFETY: as in `copy`, for both sources.
                    unsafe {
                        let product = $multiply(factor, $load(second.add(index)));
                        $stream(to.add(index), $add($load(first.add(index)), product));
                    }
                }
                _mm_sfence();
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
loops!(sse2, "sse2", 2, _mm_set1_pd, _mm_loadu_pd, _mm_stream_pd, _mm_mul_pd, _mm_add_pd);
#[cfg(target_arch = "x86_64")]
loops!(avx, "avx", 4, _mm256_set1_pd, _mm256_loadu_pd, _mm256_stream_pd, _mm256_mul_pd, _mm256_add_pd);

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::memory::Block;

    fn widths() -> Vec<NonTemporal> {
        let best = NonTemporal::detect().expect("x86-64 has non-temporal stores");
        if best.avx {
            vec![best, NonTemporal { avx: false }]
        } else {
            vec![best]
        }
    }

    fn block(value: impl Fn(usize) -> f64) -> Block {
        let mut block = Block::touched(4096).expect("a page");
        block.floats_mut().iter_mut().enumerate().for_each(|(index, number)| *number = value(index));
        block
    }

    #[test]
    fn each_loop_computes_what_it_says_in_every_width() {
        for stores in widths() {
            let (mut to, first, second) = (block(|_| 0.0), block(|index| index as f64), block(|index| 1000.0 - index as f64));
            let expect = |to: &Block, what: &dyn Fn(f64) -> f64| {
                for (index, &number) in to.floats().iter().enumerate() {
                    assert!((number - what(index as f64)).abs() < 1e-12, "{stores:?} {index}: {number}");
                }
            };
            stores.fill(to.floats_mut(), 2.5);
            expect(&to, &|_| 2.5);
            stores.copy(to.floats_mut(), first.floats());
            expect(&to, &|index| index);
            stores.scale(to.floats_mut(), first.floats(), 3.0);
            expect(&to, &|index| 3.0 * index);
            stores.triad(to.floats_mut(), first.floats(), second.floats(), 0.5);
            expect(&to, &|index| 0.5 * index + 500.0);
        }
    }

    #[test]
    #[should_panic(expected = "as long as the destination")]
    fn a_short_source_is_refused() {
        let (mut to, from) = (block(|_| 0.0), block(|_| 0.0));
        NonTemporal::detect().expect("x86-64").copy(to.floats_mut(), &from.floats()[8..]);
    }

    #[test]
    #[should_panic(expected = "start a cache line")]
    fn an_unaligned_destination_is_refused() {
        NonTemporal::detect().expect("x86-64").fill(&mut block(|_| 0.0).floats_mut()[1..9], 0.0);
    }
}
