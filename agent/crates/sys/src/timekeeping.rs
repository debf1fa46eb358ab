//! The rate of the operating system's clocks.

use std::io;

/// Makes the kernel's clocks run faster by `ppb` parts in a thousand million, or slower where it is negative.
///
/// # Errors
/// `EPERM` without `CAP_SYS_TIME`; `EINVAL` beyond 500,000, which is all that the kernel corrects.
pub fn set_frequency(ppb: i64) -> io::Result<()> {
    const MAX_PPB: i64 = 500_000;
    if ppb.abs() > MAX_PPB {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a structure of plain numbers, for which all zeroes is a value.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_FREQUENCY;
    // Parts in a million with 16 binary digits after the point.
    change.freq = ppb * 65_536 / 1_000;
    // SAFETY: the call reads and writes a structure that outlives it.
    match unsafe { libc::adjtimex(&raw mut change) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_kernel_corrects_is_refused_before_it_is_asked() {
        assert_eq!(set_frequency(500_001).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
