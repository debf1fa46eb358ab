#![forbid(unsafe_code)]
//! Two clocks, in integer nanoseconds. [`monotonic`] is the machine's own `CLOCK_MONOTONIC`, which nobody adjusts: it is for
//! durations, deadlines and the kernel's times. A [`SessionClock`] is the clock of all schedules and records of one session: a value
//! that only those get who follow schedules or write records. On the controller's host both are the same. In a guest, and on a remote
//! machine, the session's clock is shifted once to the controller's before anything runs; on a remote machine its rate is corrected
//! too. Wall time is not here, because it is a fact about the host and not about a measurement.

use std::sync::atomic::{fence, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::thread::{clock_nanosleep_absolute, ClockId};
use rustix::time::{clock_gettime, Timespec};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A point of monotonic time, in nanoseconds.
pub type Nanos = u64;

fn nanos(time: Timespec) -> Nanos {
    time.tv_sec as u64 * NANOS_PER_SECOND + time.tv_nsec as u64
}

/// How a session's clock follows from the machine's: an offset and a rate. `version` is odd during a change, so that a reader never
/// mixes two versions.
#[derive(Debug, Default)]
struct Course {
    version: AtomicU32,
    ahead: AtomicI64,
    /// The machine's time at which the rate starts.
    since: AtomicU64,
    /// Gain per nanosecond, with 32 fractional bits.
    rate: AtomicI64,
    changing: Mutex<()>,
}

const RATE_DIGITS: u32 = 32;

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

    /// How far the session's clock is ahead when the machine's shows `monotonic`.
    fn ahead_at(&self, monotonic: Nanos) -> i64 {
        let (ahead, since, rate) = self.read();
        let gained = ((i128::from(monotonic) - i128::from(since)) * i128::from(rate)) >> RATE_DIGITS;
        ahead + gained as i64
    }

    /// The machine's time when the session's clock shows `own`, if nothing changes until then.
    fn monotonic_at(&self, own: Nanos) -> Nanos {
        let (ahead, since, rate) = self.read();
        let passed = i128::from(own) - i128::from(ahead) - i128::from(since);
        let unit = 1_i128 << RATE_DIGITS;
        // Rounded up: a thread that wakes early would have to sleep again.
        let at = i128::from(since) + (passed * unit).div_euclid(unit + i128::from(rate)) + i128::from(rate != 0);
        Nanos::try_from(at.max(0)).unwrap_or(Nanos::MAX)
    }

    /// Continues from the current time, shifted by `by`, at the new rate if one is given. Changes nothing if the time would be before 0.
    fn change(&self, by: i64, rate: Option<i64>) -> Result<(), BeforeZero> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = monotonic();
        let ahead = self.ahead_at(now).checked_add(by).filter(|&ahead| now.checked_add_signed(ahead).is_some()).ok_or(BeforeZero(by))?;
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.ahead.store(ahead, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
        if let Some(rate) = rate {
            self.rate.store(rate, Ordering::Relaxed);
        }
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// A shift that is refused: the clock would show less than 0 or more than it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shift_ns {0} would set the clock to a time before 0, or beyond its range; give the difference to the controller's clock")]
pub struct BeforeZero(i64);

/// The machine's monotonic time now, whatever a controller has adjusted: the time of `bpf_ktime_get_ns`, see [`check_is_kernels`].
#[must_use]
pub fn monotonic() -> Nanos {
    nanos(clock_gettime(rustix::time::ClockId::Monotonic))
}

/// A clock that differs from the kernel's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent runs in a time namespace, so its clock differs from the kernel's; start it outside (nsenter -n alone)")]
pub struct Apart;

/// Checks that [`monotonic`] is the time of `bpf_ktime_get_ns`, for those who compare the two.
///
/// # Errors
/// [`Apart`] in a time namespace.
pub fn check_is_kernels() -> Result<(), Apart> {
    // Kernels without time namespaces have no such file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if is_apart(&offsets) {
        Err(Apart)
    } else {
        Ok(())
    }
}

fn is_apart(offsets: &str) -> bool {
    let mut monotonic = offsets.lines().filter_map(|line| line.strip_prefix("monotonic"));
    monotonic.any(|offset| offset.split_whitespace().any(|part| part != "0"))
}

/// The clock of one session's schedules and records, as its controller adjusted it. Clones share it. The default is the machine's.
#[derive(Clone, Debug, Default)]
pub struct SessionClock(Arc<Course>);

impl SessionClock {
    /// The session's time now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.at(monotonic())
    }

    /// The session's time when the machine's is `monotonic`.
    #[must_use]
    pub fn at(&self, monotonic: Nanos) -> Nanos {
        monotonic.saturating_add_signed(self.0.ahead_at(monotonic))
    }

    /// Sleeps until the session's time is `deadline`; returns at once if it has passed.
    pub fn sleep_until(&self, deadline: Nanos) {
        sleep_until(self.0.monotonic_at(deadline));
    }

    /// Shifts this clock by `by` nanoseconds. Only use it while nothing runs: earlier times are not comparable afterwards, and
    /// deadlines would move.
    ///
    /// # Errors
    /// [`BeforeZero`]: a clock that stood at 0 would let a thread sleep for hours.
    pub fn shift(&self, by: i64) -> Result<(), BeforeZero> {
        self.0.change(by, None)
    }

    /// Makes this clock run `ppb` parts per billion faster than the machine's, from now on and without a jump. For a machine whose
    /// own clock must not be changed.
    pub fn set_rate(&self, ppb: i64) {
        // Without a shift it stays where it is.
        let _ = self.0.change(0, Some(((i128::from(ppb) << RATE_DIGITS) / i128::from(NANOS_PER_SECOND)) as i64));
    }
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

/// Sleeps until the machine's [`monotonic`] time is `deadline`; returns at once if it has passed.
pub fn sleep_until(deadline: Nanos) {
    // Neither part can overflow: 2^64 ns are some 1.8e10 s.
    let part = |value: Nanos| i64::try_from(value).unwrap_or(i64::MAX);
    let time = Timespec { tv_sec: part(deadline / NANOS_PER_SECOND), tv_nsec: part(deadline % NANOS_PER_SECOND) };
    while clock_nanosleep_absolute(ClockId::Monotonic, &time) == Err(rustix::io::Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_namespace_is_seen_by_its_offset() {
        assert!(!is_apart(""));
        assert!(!is_apart("monotonic           0         0\nboottime            5         0\n"));
        assert!(is_apart("monotonic       -3600         0\nboottime            0         0\n"));
        assert!(is_apart("monotonic           0         7\nboottime            0         0\n"));
    }

    const HOUR: Nanos = 3_600_000_000_000;

    #[test]
    fn a_session_clock_moves_by_its_shift_and_no_other_clock_moves() {
        let (clock, other) = (SessionClock::default(), SessionClock::default());
        let clone = clock.clone();
        let before = monotonic();
        clock.shift(HOUR.cast_signed()).unwrap();
        assert_eq!((clone.at(before), other.at(before)), (before + HOUR, before));
        assert!(monotonic() - before < HOUR);
        clock.shift(-HOUR.cast_signed()).unwrap();
        assert_eq!(clone.at(before), before);
    }

    #[test]
    fn it_sleeps_in_its_own_time() {
        let clock = SessionClock::default();
        for shift in [2 * HOUR.cast_signed(), -HOUR.cast_signed()] {
            clock.shift(shift).unwrap();
            let (there, deadline) = (monotonic(), clock.now() + 2_000_000);
            clock.sleep_until(deadline);
            assert!(clock.now() >= deadline && monotonic() - there < HOUR / 2);
        }
    }

    #[test]
    fn a_time_before_0_or_beyond_the_range_is_refused() {
        let clock = SessionClock::default();
        for by in [-(monotonic() + HOUR).cast_signed(), i64::MIN] {
            assert_eq!(clock.shift(by), Err(BeforeZero(by)));
        }
        clock.shift(i64::MAX).unwrap();
        assert_eq!(clock.shift(i64::MAX), Err(BeforeZero(i64::MAX)));
        assert!(clock.now() > i64::MAX.cast_unsigned());
    }

    #[test]
    fn twice_as_fast_it_advances_by_twice_the_machines_time_without_a_jump() {
        let clock = SessionClock::default();
        let (there, here) = (monotonic(), clock.now());
        clock.set_rate(1_000_000_000);
        clock.sleep_until(clock.now() + 20_000_000);
        let own = clock.now() - here;
        let machines = monotonic() - there;
        assert!(own >= 20_000_000 && machines >= 10_000_000);
        assert!(own > machines + machines / 2, "{own} against {machines}");
        clock.set_rate(0);
        let ahead = |at: Nanos| clock.at(at) - at;
        assert_eq!(ahead(there), ahead(there + 1_000_000_000), "the rate is the machine's again");
    }
}
