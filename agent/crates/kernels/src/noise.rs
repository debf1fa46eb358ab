//! Bytes that no storage can compress or deduplicate: `SplitMix64`. Not for statistics and not for secrets.

/// The next number of the sequence with this `state`.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mix(*state)
}

/// A unique number per `value` that looks unrelated to it.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Fills `bytes` with noise.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = mix(seed);
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&next(&mut state).to_le_bytes()[..piece.len()]);
    }
}
