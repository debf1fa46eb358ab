//! The rate of the operating system's clocks.

use std::io;

/// Makes the kernel's clocks run faster by `ppb` parts per billion, or slower if it is negative.
///
/// # Errors
/// `EPERM` without `CAP_SYS_TIME`; `EINVAL` above 500,000, the kernel's maximum.
pub fn set_frequency(ppb: i64) -> io::Result<()> {
    const MAX_PPB: i64 = 500_000;
    if ppb.abs() > MAX_PPB {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a structure of plain numbers, for which all zeroes is a value.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_FREQUENCY;
    // Parts per million with 16 fractional bits.
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
    fn a_rate_above_the_kernels_maximum_is_refused_without_a_call() {
        assert_eq!(set_frequency(500_001).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
