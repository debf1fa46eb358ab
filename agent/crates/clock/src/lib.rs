#![forbid(unsafe_code)]
//! The clock that every record shares: `CLOCK_MONOTONIC` in integer nanoseconds, the same for all processes and
//! containers of a host. In a guest it is shifted once to the host's, before anything is measured. Deliberately not here: wall
//! time, which is a fact about the host and not about a measurement.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::thread::{clock_nanosleep_absolute, ClockId};
use rustix::time::{clock_gettime, Timespec};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point of monotonic time, in nanoseconds.
pub type Nanos = u64;

fn nanos(time: Timespec) -> Nanos {
    time.tv_sec as u64 * NANOS_PER_SECOND + time.tv_nsec as u64
}

/// How far this clock is ahead of the operating system's.
static SHIFT: AtomicI64 = AtomicI64::new(0);

/// Moves this clock by `by` nanoseconds. Meant for before anything is measured: whoever holds an earlier time sees a jump.
pub fn shift(by: i64) {
    SHIFT.fetch_add(by, Ordering::Relaxed);
}

/// Monotonic time now.
#[must_use]
pub fn now() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::Monotonic)).saturating_add_signed(SHIFT.load(Ordering::Relaxed))
}

/// CPU time this thread has used, user and system.
#[must_use]
pub fn thread_cpu() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::ThreadCPUTime))
}

/// Sleeps until `deadline`; returns at once if it has passed.
pub fn sleep_until(deadline: Nanos) {
    let deadline = deadline.saturating_add_signed(SHIFT.load(Ordering::Relaxed).saturating_neg());
    // Neither part can wrap: 2^64 ns are some 1.8e10 s.
    let part = |value: Nanos| i64::try_from(value).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: part(deadline / NANOS_PER_SECOND), tv_nsec: part(deadline % NANOS_PER_SECOND) };
    while clock_nanosleep_absolute(ClockId::Monotonic, &time) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, for the shift is the process's.
    #[test]
    fn a_shifted_clock_moves_by_as_much_and_sleeps_to_its_own_time() {
        let before = now();
        shift(3_600_000_000_000);
        assert!(now() - before >= 3_600_000_000_000);
        let deadline = now() + 2_000_000;
        sleep_until(deadline);
        assert!(now() >= deadline);
        shift(-3_600_000_000_000);
        assert!(now() >= before && now() - before < 3_600_000_000_000);
    }
}
