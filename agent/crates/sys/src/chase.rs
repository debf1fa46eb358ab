//! A circular linked list, one element per line, and a walk through it. Each load needs the result of the previous one, so only memory
//! latency is measured. The caller chooses the order of the elements.

use std::ptr::NonNull;

use crate::memory::Block;

/// Maximum chains that can be walked at once.
pub const CHAINS_MAX: usize = 16;

#[repr(C)]
struct Element {
    next: NonNull<Element>,
    passes: u64,
}

/// The list, and the current element of each chain of loads.
///
/// Invariant: every `next` and every entry of `at` points to the start of a line of `block`.
pub struct Ring {
    block: Block,
    line_bytes: usize,
    at: Vec<NonNull<Element>>,
}

// SAFETY: the pointers only point into `block`, which moves along with them.
unsafe impl Send for Ring {}

impl Ring {
    /// One element for each whole line of `block`, each its own successor; one chain, at element 0.
    ///
    /// # Panics
    /// If `line_bytes` is not a power of two of at least 16, or the block holds less than one line.
    #[must_use]
    pub fn new(block: Block, line_bytes: usize) -> Self {
        assert!(line_bytes.is_power_of_two() && line_bytes >= size_of::<Element>(), "lines of {line_bytes} bytes");
        assert!(block.bytes().len() >= line_bytes, "no room for a line");
        let mut ring = Self { block, line_bytes, at: Vec::with_capacity(CHAINS_MAX) };
        for index in 0..ring.len() {
            let element = ring.element(index);
            // SAFETY: `element` is in the block and aligned; `&mut ring` makes the write exclusive.
            unsafe { element.write(Element { next: element, passes: 0 }) };
        }
        ring.stand(&[0]);
        ring
    }

    /// Number of elements.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a ring has at least one element")]
    pub fn len(&self) -> usize {
        self.block.bytes().len() / self.line_bytes
    }

    /// Swaps the successors of two elements. This joins two cycles, or splits one.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn swap(&mut self, first: usize, second: usize) {
        let (first, second) = (self.element(first).as_ptr(), self.element(second).as_ptr());
        // SAFETY: both are initialised elements of the block, and `&mut self` makes the access exclusive. They may be the same
        // element, which
        // `ptr::swap` permits. It only swaps pointers that the invariant covers.
        unsafe { std::ptr::swap(&raw mut (*first).next, &raw mut (*second).next) };
    }

    /// Places one chain on each of these elements.
    ///
    /// # Panics
    /// If there is no such element, or if their number is 0, above [`CHAINS_MAX`] or not a power of two.
    pub fn stand(&mut self, elements: &[usize]) {
        assert!(elements.len().is_power_of_two() && elements.len() <= CHAINS_MAX, "{} chains", elements.len());
        self.at = elements.iter().map(|&index| self.element(index)).collect();
    }

    /// Advances every chain by `accesses` elements. All chains advance together, so the host can serve one access of each at a time. With
    /// `write` each access is counted in its element, which makes the line dirty.
    pub fn walk(&mut self, accesses: usize, write: bool) {
        match (self.at.len(), write) {
            (1, false) => self.chase::<1, false>(accesses),
            (1, true) => self.chase::<1, true>(accesses),
            (2, false) => self.chase::<2, false>(accesses),
            (2, true) => self.chase::<2, true>(accesses),
            (4, false) => self.chase::<4, false>(accesses),
            (4, true) => self.chase::<4, true>(accesses),
            (8, false) => self.chase::<8, false>(accesses),
            (8, true) => self.chase::<8, true>(accesses),
            (_, false) => self.chase::<CHAINS_MAX, false>(accesses),
            (_, true) => self.chase::<CHAINS_MAX, true>(accesses),
        }
    }

    fn chase<const CHAINS: usize, const WRITE: bool>(&mut self, accesses: usize) {
        let mut at: [NonNull<Element>; CHAINS] = std::array::from_fn(|chain| self.at[chain]);
        for _ in 0..accesses {
            for element in &mut at {
                let here = element.as_ptr();
                // SAFETY: by the invariant `here` is an initialised element of the block and so is its successor;
                // `&mut self` makes the access exclusive.
                unsafe {
                    if WRITE {
                        (*here).passes = (*here).passes.wrapping_add(1);
                    }
                    *element = (*here).next;
                }
            }
        }
        self.at.copy_from_slice(&at);
    }

    /// The current element of `chain`.
    ///
    /// # Panics
    /// If there is no such chain.
    #[must_use]
    pub fn position(&self, chain: usize) -> usize {
        (self.at[chain].as_ptr() as usize - self.block.bytes().as_ptr() as usize) / self.line_bytes
    }

    /// How often walks with `write` accessed an element.
    ///
    /// # Panics
    /// If there is no such element.
    #[must_use]
    pub fn passes(&self, index: usize) -> u64 {
        // SAFETY: an initialised element of the block; `&self` excludes writers.
        unsafe { (*self.element(index).as_ptr()).passes }
    }

    fn element(&self, index: usize) -> NonNull<Element> {
        assert!(index < self.len(), "element {index} of {}", self.len());
        // SAFETY: line `index` is inside the block by the assertion; the block is page-aligned, so the line is aligned.
        unsafe { self.block.start().byte_add(index * self.line_bytes).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(lines: usize) -> Ring {
        Ring::new(Block::new(lines * 64).expect("a small block"), 64)
    }

    #[test]
    fn elements_start_as_their_own_successors() {
        let mut ring = ring(4);
        ring.stand(&[2]);
        ring.walk(5, true);
        assert_eq!(ring.position(0), 2);
        assert_eq!((0..4).map(|index| ring.passes(index)).collect::<Vec<_>>(), [0, 0, 5, 0]);
    }

    #[test]
    fn swaps_join_elements_into_one_cycle() {
        let mut ring = ring(5);
        for index in 1..5 {
            ring.swap(index, index - 1);
        }
        let path: Vec<_> = (0..6)
            .map(|_| {
                let here = ring.position(0);
                ring.walk(1, false);
                here
            })
            .collect();
        assert_eq!(path, [0, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn every_number_of_chains_moves_all_of_them() {
        for chains in [1, 2, 4, 8, 16] {
            let mut ring = ring(32);
            for index in 1..32 {
                ring.swap(index, index - 1);
            }
            ring.stand(&(0..chains).collect::<Vec<_>>());
            ring.walk(3, true);
            ring.walk(2, false);
            assert_eq!((0..chains).map(|chain| ring.position(chain)).collect::<Vec<_>>(), (5..chains + 5).collect::<Vec<_>>());
            assert_eq!((0..32).map(|index| ring.passes(index)).sum::<u64>(), 3 * chains as u64);
        }
    }

    #[test]
    #[should_panic(expected = "element 4 of 4")]
    fn an_element_outside_is_refused() {
        ring(4).swap(0, 4);
    }

    #[test]
    #[should_panic(expected = "3 chains")]
    fn a_number_of_chains_that_has_no_loop_is_refused() {
        ring(4).stand(&[0, 1, 2]);
    }
}
