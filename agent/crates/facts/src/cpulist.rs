//! Lists of CPUs or nodes as the kernel writes them: `0-3,8,10-11`.

/// The numbers of a list, in the written order. `None` if the list is invalid. An empty text is an empty list.
#[must_use]
pub fn parse(text: &str) -> Option<Vec<u32>> {
    /// Far above any kernel's limit (8192), so that a garbled file cannot cause an unlimited allocation.
    const LARGEST: u32 = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if first > last || last > LARGEST || numbers.len() > LARGEST as usize {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use proptest::prelude::*;

    #[test]
    fn ranges_and_single_numbers_are_read() {
        assert_eq!(parse("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(parse(""), Some(vec![]));
    }

    #[test]
    fn an_invalid_list_is_none() {
        for wrong in ["a", "3-1", "1-", "-", "0-99999999"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_written_list_is_read_back(numbers in proptest::collection::vec(0u32..8192, 0..50)) {
            let text = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse(&text), Some(numbers));
        }

        #[test]
        fn garbage_never_panics(text in ".*") {
            let _ = parse(&text);
        }
    }
}
