//! A hash of a page. About one change in 2⁶⁴ is missed. Not for secrets: an attacker can create pages that collide.

/// Enough independent products to keep a multiplier busy.
const LANES: usize = 8;
/// The golden ratio: about as many bits set as clear, without a pattern.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// The hash of a whole page.
pub(super) fn of_page(page: &[u8]) -> u64 {
    let mut lanes: [u64; LANES] = std::array::from_fn(|lane| lane as u64 + 1);
    let (words, _) = page.as_chunks();
    for line in words.chunks_exact(LANES) {
        for (lane, word) in lanes.iter_mut().zip(line) {
            *lane = step(*lane, u64::from_ne_bytes(*word));
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

    fn page(words: &[u64]) -> Vec<u8> {
        (0..512).flat_map(|at| words.get(at).copied().unwrap_or(0).to_ne_bytes()).collect()
    }

    proptest! {
        #[test]
        fn one_changed_word_changes_the_hash(words in proptest::collection::vec(any::<u64>(), 512), at in 0_usize..512, other: u64) {
            let mut after = words.clone();
            after[at] = other;
            prop_assert_eq!(of_page(&page(&words)) == of_page(&page(&after)), words[at] == other);
        }
    }

    #[test]
    fn pages_that_differ_in_a_few_bits_have_different_hashes() {
        let mut seen = HashSet::from([of_page(&page(&[]))]);
        for first in (0..512 * 64_usize).step_by(7) {
            let mut words = [0_u64; 512];
            words[first / 64] = 1 << (first % 64);
            assert!(seen.insert(of_page(&page(&words))), "bit {first}");
            // Weak products cancel each other in the top bit of two words.
            words[(first / 64 + 8) % 512] ^= 1 << 63;
            assert!(seen.insert(of_page(&page(&words))), "bit {first} and a top bit");
        }
    }

    #[test]
    fn swapped_words_change_the_hash() {
        assert_ne!(of_page(&page(&[1, 2])), of_page(&page(&[2, 1])));
        assert_ne!(of_page(&page(&[1, 0, 0, 0, 0, 0, 0, 0, 2])), of_page(&page(&[2, 0, 0, 0, 0, 0, 0, 0, 1])));
    }
}
