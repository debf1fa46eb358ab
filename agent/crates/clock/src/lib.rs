#![forbid(unsafe_code)]
//! The clock that every record shares: `CLOCK_MONOTONIC` in integer nanoseconds, the same for all processes and
//! containers of a host. Deliberately not here: wall time, which is a fact about the host and not about a measurement.

use rustix::thread::{clock_nanosleep_absolute, ClockId};
use rustix::time::{clock_gettime, Timespec};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point of monotonic time, in nanoseconds.
pub type Nanos = u64;

fn nanos(time: Timespec) -> Nanos {
    time.tv_sec as u64 * NANOS_PER_SECOND + time.tv_nsec as u64
}

/// Monotonic time now.
#[must_use]
pub fn now() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::Monotonic))
}

/// CPU time this thread has used, user and system.
#[must_use]
pub fn thread_cpu() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::ThreadCPUTime))
}

/// Sleeps until `deadline`; returns at once if it has passed.
pub fn sleep_until(deadline: Nanos) {
    // Neither part can wrap: 2^64 ns are some 1.8e10 s.
    let part = |value: Nanos| i64::try_from(value).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: part(deadline / NANOS_PER_SECOND), tv_nsec: part(deadline % NANOS_PER_SECOND) };
    while clock_nanosleep_absolute(ClockId::Monotonic, &time) == Err(rustix::io::Errno::INTR) {}
}
