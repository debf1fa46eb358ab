//! Parameter checks that several kernels share, so that their errors use the same words.

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::KernelError;

/// `value` if it is in `range`.
pub(crate) fn within<T: PartialOrd + Display>(key: &'static str, value: T, range: RangeInclusive<T>) -> Result<T, KernelError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let why = format!("is out of range; give {} to {}", range.start(), range.end());
    Err(KernelError::Parameter { key, value: value.to_string(), why })
}

/// `value` if it is a multiple of `step`.
pub(crate) fn multiple(key: &'static str, value: usize, step: usize) -> Result<usize, KernelError> {
    if value.is_multiple_of(step) {
        return Ok(value);
    }
    let why = format!("is not a multiple of {step}; give {} or {}", value - value % step, value - value % step + step);
    Err(KernelError::Parameter { key, value: value.to_string(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_accepted_and_values_beyond_are_refused_by_name() {
        assert_eq!(within("size", 1, 1..=3).expect("in range"), 1);
        assert_eq!(within("size", 3, 1..=3).expect("in range"), 3);
        let error = within("size", 4, 1..=3).expect_err("beyond").to_string();
        assert_eq!(error, "parameter size: 4 is out of range; give 1 to 3");
    }

    #[test]
    fn a_value_that_is_not_a_multiple_is_refused_with_its_neighbours() {
        assert_eq!(multiple("bytes", 128, 64).expect("a multiple"), 128);
        let error = multiple("bytes", 100, 64).expect_err("no multiple").to_string();
        assert_eq!(error, "parameter bytes: 100 is not a multiple of 64; give 64 or 128");
    }
}
