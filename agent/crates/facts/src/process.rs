//! `/proc/PID/stat`, by the field numbers of proc(5).

/// Process id of the parent.
pub const PARENT: usize = 4;
/// Page faults without a disk.
pub const MINOR_FAULTS: usize = 10;
/// Page faults that waited for a disk.
pub const MAJOR_FAULTS: usize = 12;
/// Ticks in its own code.
pub const USER: usize = 14;
/// Ticks in the kernel.
pub const SYSTEM: usize = 15;
/// Ticks of its reaped children in their own code.
pub const CHILDREN_USER: usize = 16;
/// Ticks of its reaped children in the kernel.
pub const CHILDREN_SYSTEM: usize = 17;
/// Threads.
pub const THREADS: usize = 20;
/// Start time.
pub const START: usize = 22;

/// Fields of `stat`, ascending, from 3 on. `None` where a field is missing or no number. The name before them may contain blanks and
/// parentheses, so fields are counted after its last parenthesis.
#[must_use]
pub fn fields<const N: usize>(stat: &[u8], wanted: [usize; N]) -> [Option<u64>; N] {
    let name_end = stat.iter().rposition(|&byte| byte == b')').map_or(stat.len(), |at| at + 1);
    let mut words = (3..).zip(stat[name_end..].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()));
    wanted.map(|wanted| {
        let (_, word) = words.find(|&(field, _)| field == wanted)?;
        str::from_utf8(word).ok()?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_counted_behind_a_name_with_blanks_and_parentheses() {
        let stat = b"7 (a) R (b) S 1 2 3 4 5 6 7 8 42 10 -1";
        assert_eq!(fields(stat, [MINOR_FAULTS, MAJOR_FAULTS, 13, USER, START]), [Some(7), Some(42), Some(10), None, None]);
        assert_eq!(fields(b"cut off", [MAJOR_FAULTS]), [None]);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text: Vec<u8>) {
            let _ = fields(&text, [3, USER, START]);
        }
    }
}
