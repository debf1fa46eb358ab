#![forbid(unsafe_code)]
//! The clock of all records: `CLOCK_MONOTONIC` in integer nanoseconds, the same for all processes and containers of a host. In a
//! guest, and on a remote machine, it is shifted once to the controller's clock before any measurement. On a remote machine its rate
//! is corrected here. It does not include wall time, which is a fact about the host and not about a measurement.

use std::sync::atomic::{fence, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{clock_nanosleep_absolute, ClockId};
use rustix::time::{clock_gettime, Timespec};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point of monotonic time, in nanoseconds.
pub type Nanos = u64;

fn nanos(time: Timespec) -> Nanos {
    time.tv_sec as u64 * NANOS_PER_SECOND + time.tv_nsec as u64
}

/// How this process's clock follows from the operating system's: an offset and a rate. `version` is odd during a change, so that a
/// reader never mixes two versions.
struct Course {
    version: AtomicU32,
    ahead: AtomicI64,
    /// The operating system's time at which the rate starts.
    since: AtomicU64,
    /// Gain per nanosecond, with 32 fractional bits.
    rate: AtomicI64,
}

static COURSE: Course = Course { version: AtomicU32::new(0), ahead: AtomicI64::new(0), since: AtomicU64::new(0), rate: AtomicI64::new(0) };
const RATE_DIGITS: u32 = 32;
static CHANGING: Mutex<()> = Mutex::new(());

impl Course {
    /// (ahead, since, rate) of the same version.
    fn read(&self) -> (i64, Nanos, i64) {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let (ahead, since) = (self.ahead.load(Ordering::Relaxed), self.since.load(Ordering::Relaxed));
            let rate = self.rate.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed) {
                return (ahead, since, rate);
            }
            std::hint::spin_loop();
        }
    }

    /// How far this clock is ahead when the operating system's shows `system`.
    fn ahead_at(&self, system: Nanos) -> i64 {
        let (ahead, since, rate) = self.read();
        let gained = ((i128::from(system) - i128::from(since)) * i128::from(rate)) >> RATE_DIGITS;
        ahead + gained as i64
    }

    /// The operating system's time when this clock shows `own`, if nothing changes until then.
    fn system_at(&self, own: Nanos) -> Nanos {
        let (ahead, since, rate) = self.read();
        let passed = i128::from(own) - i128::from(ahead) - i128::from(since);
        let unit = 1_i128 << RATE_DIGITS;
        // Rounded up: a thread that wakes early would have to sleep again.
        let system = i128::from(since) + (passed * unit).div_euclid(unit + i128::from(rate)) + i128::from(rate != 0);
        Nanos::try_from(system.max(0)).unwrap_or(Nanos::MAX)
    }

    /// Continues from the current time, shifted by `by`, at the new rate if one is given.
    fn change(&self, by: i64, rate: Option<i64>) {
        let _one_at_a_time = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let system = system();
        let ahead = self.ahead_at(system) + by;
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.ahead.store(ahead, Ordering::Relaxed);
        self.since.store(system, Ordering::Relaxed);
        if let Some(rate) = rate {
            self.rate.store(rate, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// The operating system's monotonic time, regardless of adjustments: the time of `bpf_ktime_get_ns`. Use it for all comparisons with
/// the kernel's times.
#[must_use]
pub fn system() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::Monotonic))
}

/// Shifts this clock by `by` nanoseconds. Only use it before any measurement, because earlier times are not comparable afterwards.
pub fn shift(by: i64) {
    COURSE.change(by, None);
}

/// Makes this clock run `ppb` parts per billion faster than the operating system's, from now on and without a jump. For a machine
/// whose own clock must not be changed.
pub fn set_rate(ppb: i64) {
    COURSE.change(0, Some(((i128::from(ppb) << RATE_DIGITS) / i128::from(NANOS_PER_SECOND)) as i64));
}

/// Monotonic time now.
#[must_use]
pub fn now() -> Nanos {
    of_system(system())
}

/// The time of this clock when the operating system's shows `system`.
#[must_use]
pub fn of_system(system: Nanos) -> Nanos {
    system.saturating_add_signed(COURSE.ahead_at(system))
}

/// User and system CPU time of this thread.
#[must_use]
pub fn thread_cpu() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::ThreadCPUTime))
}

/// User and system CPU time of all threads of this process.
#[must_use]
pub fn process_cpu() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::ProcessCPUTime))
}

/// Sleeps until `deadline`; returns at once if it has passed.
pub fn sleep_until(deadline: Nanos) {
    let deadline = COURSE.system_at(deadline);
    // Neither part can overflow: 2^64 ns are some 1.8e10 s.
    let part = |value: Nanos| i64::try_from(value).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: part(deadline / NANOS_PER_SECOND), tv_nsec: part(deadline % NANOS_PER_SECOND) };
    while clock_nanosleep_absolute(ClockId::Monotonic, &time) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the clock is global to the process.
    #[test]
    fn a_shifted_clock_moves_by_the_shift_keeps_its_rate_and_sleeps_in_its_own_time() {
        let before = now();
        shift(3_600_000_000_000);
        assert!(now() - before >= 3_600_000_000_000);
        assert!(system() - before < 3_600_000_000_000, "the operating system's is not moved");
        assert_eq!(of_system(before), before + 3_600_000_000_000);
        let deadline = now() + 2_000_000;
        sleep_until(deadline);
        assert!(now() >= deadline);

        // Twice as fast: this clock advances by twice the system's time, and neither jumps.
        let (there, here) = (system(), now());
        set_rate(1_000_000_000);
        sleep_until(now() + 20_000_000);
        let own = now() - here;
        let systems = system() - there;
        assert!(own >= 20_000_000 && systems >= 10_000_000);
        assert!(own > systems + systems / 2, "{own} against {systems}");
        set_rate(0);
        assert_eq!(COURSE.ahead_at(there), COURSE.ahead_at(there + 1_000_000_000), "the rate is the operating system's again");

        shift(-3_600_000_000_000);
        assert!(now() >= before && now() - before < 3_600_000_000_000);
    }
}
