//! A hash of a page that may change while it is read. Words are loaded one by one, so hashes of byte slices cannot be used. About one
//! change in 2⁶⁴ is missed. Not for secrets: an attacker can create pages that collide.

use std::sync::atomic::{AtomicU64, Ordering};

/// Enough independent products to keep a multiplier busy.
const LANES: usize = 8;
/// The golden ratio: about as many bits set as clear, without a pattern.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash of a whole page.
pub(super) fn of_page(words: &[AtomicU64]) -> u64 {
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| lane as u64 + 1);
    for line in words.chunks_exact(LANES) {
        for (lane, word) in lanes.iter_mut().zip(line) {
            *lane = step(*lane, word.load(Ordering::Relaxed));
        }
    }
    lanes.into_iter().fold(0, step)
}

/// Combines both halves of a product: the upper half preserves the top bits that the lower half loses.
fn step(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn page(words: &[u64]) -> Vec<AtomicU64> {
        (0..512).map(|at| AtomicU64::new(words.get(at).copied().unwrap_or(0))).collect()
    }

    proptest! {
        #[test]
        fn one_changed_word_changes_the_hash(words in proptest::collection::vec(any::<u64>(), 512), at in 0_usize..512, other: u64) {
            let before = page(&words);
            let after = page(&words);
            after[at].store(other, Ordering::Relaxed);
            prop_assert_eq!(of_page(&before) == of_page(&after), words[at] == other);
        }
    }

    #[test]
    fn pages_that_differ_in_a_few_bits_have_different_hashes() {
        let mut seen = HashSet::from([of_page(&page(&[]))]);
        for first in (0..512 * 64_usize).step_by(7) {
            let page = page(&[]);
            page[first / 64].store(1 << (first % 64), Ordering::Relaxed);
            assert!(seen.insert(of_page(&page)), "bit {first}");
            // Weak products cancel each other in the top bit of two words.
            page[(first / 64 + 8) % 512].fetch_xor(1 << 63, Ordering::Relaxed);
            assert!(seen.insert(of_page(&page)), "bit {first} and a top bit");
        }
    }

    #[test]
    fn swapped_words_change_the_hash() {
        assert_ne!(of_page(&page(&[1, 2])), of_page(&page(&[2, 1])));
        assert_ne!(of_page(&page(&[1, 0, 0, 0, 0, 0, 0, 0, 2])), of_page(&page(&[2, 0, 0, 0, 0, 0, 0, 0, 1])));
    }
}
