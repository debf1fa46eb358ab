//! The kernel's text formats for numbers. They are parsed as bytes, because names in these files need not be UTF-8, and checking that
//! would cost more than parsing.

/// Lines without their ends.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n')
}

/// Words between blanks.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// A whole number in decimal; `None` for anything else, or if it needs more than 64 bits.
pub(crate) fn number(word: &[u8]) -> Option<f64> {
    let (sign, digits) = match word.strip_prefix(b"-") {
        Some(digits) => (-1.0, digits),
        None => (1.0, word),
    };
    digits_of(digits, 10).map(|value| sign * value as f64)
}

/// A whole number in hexadecimal.
pub(crate) fn hexadecimal(word: &[u8]) -> Option<f64> {
    digits_of(word, 16).map(|value| value as f64)
}

fn digits_of(digits: &[u8], radix: u32) -> Option<u64> {
    let add = |value: u64, &digit: &u8| value.checked_mul(radix.into())?.checked_add((digit as char).to_digit(radix)?.into());
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, add)).flatten()
}

/// The numbers at these positions in a line of words. `None` if the line is too short.
pub(crate) fn numbers_at<const N: usize>(line: &[u8], places: [usize; N]) -> [Option<f64>; N] {
    let mut numbers = [None; N];
    let mut next = 0;
    // Positions are ascending, so one pass through the line finds them all.
    for (place, word) in words(line).enumerate() {
        if next < N && place == places[next] {
            numbers[next] = number(word);
            next += 1;
        }
    }
    numbers
}

/// The text of a name.
pub(crate) fn name(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_number_is_none() {
        for wrong in ["", "-", "1a", "+1", "99999999999999999999999", "1.5"] {
            assert_eq!(number(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn places_beyond_the_end_are_none() {
        assert_eq!(numbers_at(b"a 1  2\t3", [1, 3, 9]), [Some(1.0), Some(3.0), None]);
    }

    proptest! {
        #[test]
        fn a_written_number_is_read_back(value in -(1i64 << 53)..(1i64 << 53)) {
            prop_assert_eq!(number(value.to_string().as_bytes()), Some(value as f64));
        }

        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            for line in lines(&text) {
                let _ = numbers_at(line, [0, 1, 5]);
                let _ = words(line).map(hexadecimal).count();
            }
        }
    }
}
